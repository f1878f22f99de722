package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/replay"
)

func TestSeeds(t *testing.T) {
	tests := map[string]struct {
		text string
		want []int64
		bad  bool
	}{
		"one":               {text: "42", want: []int64{42}},
		"a range":           {text: "42-44", want: []int64{42, 43, 44}},
		"nothing":           {text: "", bad: true},
		"backwards":         {text: "44-42", bad: true},
		"no number":         {text: "4x", bad: true},
		"half a range":      {text: "42-", bad: true},
		"far too many":      {text: "0-100000", bad: true},
		"less than nothing": {text: "-1", bad: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := seeds(tc.text)
			if tc.bad != (err != nil) {
				t.Fatalf("error %v, want one: %t", err, tc.bad)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("seeds (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReplayWritesWhatItIsAskedFor(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	nodes := file("nodes.csv", "name,gpus,gpu-mem,gpu-model,cpu\na,2,16,T4,16000\nb,4,80,<A100>,64000\n")
	pods := file("pods.csv", "name,gpu-mem,gpu-count,cpu\nx,10,,4000\ny,40,2,8000\nz,3,,1000\n")
	plot := file("plot.svg", "")
	html, curves, records := file("report.html", ""), file("curves.csv", ""), file("records.json", "")
	var stdout, stderr strings.Builder
	err := run(context.Background(), []string{
		"replay", "--nodes", nodes, "--pods", pods, "--add-nodes", "b=1", "--remove-nodes", "a", "--policies", "binpack,best-fit", "--seeds", "1-2",
		"--allocation-svg", plot, "--html", html, "--csv", curves, "--json", records,
	}, &stdout, &stderr)
	if err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]string{stdout.String(): "pods.csv: 2 nodes, 640 units", stderr.String(): "4 of 4: "} {
		if !strings.Contains(what, want) {
			t.Errorf("%q is not in\n%s", want, what)
		}
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := read(html)
	if strings.Count(page, "<polyline") != 4 || strings.Count(page, "<h2>") != 4 || strings.Contains(page, "src=") || strings.Contains(page, "ZgotmplZ") {
		t.Errorf("the page has not two plots of two policies each, or is not whole in itself:\n%.600s", page)
	}
	if svg := read(plot); !strings.HasPrefix(svg, "<svg xmlns=") || strings.Count(svg, "<polyline") != 2 {
		t.Errorf("the plot is no SVG with two lines:\n%.300s", svg)
	}
	if got := strings.Count(read(curves), "\n"); got < 4*100 {
		t.Errorf("%d lines of curves, want one for each run and per cent", got)
	}
	var got []replay.Record
	if err := json.Unmarshal([]byte(read(records)), &got); err != nil || len(got) != 4 || got[3].Policy != "best-fit" || got[3].Seed != 2 {
		t.Errorf("error %v, records %+v; want those of two policies and seeds", err, got)
	}
}

func TestReplaySaysWhatIsWrong(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"no input":     {nil, "want either --snapshot, or --nodes and --pods"},
		"both inputs":  {[]string{"--snapshot", "s", "--nodes", "n"}, "want either --snapshot, or --nodes and --pods"},
		"no such file": {[]string{"--nodes", "/none", "--pods", "/none"}, "--nodes: open /none"},
		"seeds":        {[]string{"--snapshot", "s", "--seeds", "9-1"}, `--seeds: "9-1": want a number`},
		"a policy":     {[]string{"--snapshot", "s", "--policies", "luck"}, `"luck" is not known`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := run(context.Background(), append([]string{"replay"}, tc.args...), io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}
