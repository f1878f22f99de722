package printers

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// The lists of every scene have each GPU and each pod once, and can be printed.
func TestRows(t *testing.T) {
	for scene, r := range scenes() {
		gpus, pods := GPURows(r, nil), PodRows(r, nil)
		seen := make(map[string]bool)
		want := len(r.Waiting)
		for _, n := range r.Nodes {
			want += listed(n)
		}
		for _, p := range pods {
			key := p.Namespace + "/" + p.Name + "/" + p.UID
			if seen[key] {
				t.Errorf("%s: %s twice", scene, key)
			}
			seen[key] = true
		}
		if len(pods) != want {
			t.Errorf("%s: %d pods, want %d", scene, len(pods), want)
		}
		var out bytes.Buffer
		if err := table.List(&out, GPUColumns(r), gpus, table.ListOptions{Wide: true}); err != nil {
			t.Error(err)
		}
		if err := table.List(&out, PodColumns(r, false), pods, table.ListOptions{Wide: true}); err != nil {
			t.Error(err)
		}
		if got := strings.Count(out.String(), "\n"); got != len(gpus)+len(pods)+2 {
			t.Errorf("%s: %d lines of %d GPUs and %d pods", scene, got, len(gpus), len(pods))
		}
	}
}

func TestWhatPodsShouldAskFor(t *testing.T) {
	granted := inspect.Memory{Units: 10, MiB: 10 * 1024}
	for name, tc := range map[string]struct {
		granted inspect.Memory
		usage   *Usage
		want    int64
	}{
		"nothing is known":    {granted, nil, 0},
		"no peak":             {granted, &Usage{UsedMiB: 1}, 0},
		"a unit of no size":   {inspect.Memory{Units: 10}, &Usage{PeakMiB: new(int64(1))}, 0},
		"nothing was granted": {inspect.Memory{}, &Usage{PeakMiB: new(int64(1))}, 0},
		"less":                {granted, &Usage{PeakMiB: new(int64(2048))}, 3},
		"the least":           {granted, &Usage{PeakMiB: new(int64(0))}, 1},
		"the right amount":    {granted, &Usage{PeakMiB: new(int64(8192))}, 0},
		"all of it":           {granted, &Usage{PeakMiB: new(int64(10240))}, 0},
		"more":                {granted, &Usage{PeakMiB: new(int64(10500))}, 13},
	} {
		if got := Advised(tc.granted, tc.usage); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
