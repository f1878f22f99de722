package podlabels

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestLabels(t *testing.T) {
	const (
		model   = "gpumem.dev/assigned-model"
		percent = "gpumem.dev/assigned-percent"
		speed   = "gpumem.dev/assigned-speed"
	)
	t4 := gpu.Device{UUID: "t4", Model: "Tesla T4", Allocatable: 14, Speed: 21}
	a100 := gpu.Device{UUID: "a100", Model: "NVIDIA A100-SXM4-80GB", Allocatable: 79, Speed: 100}
	again := gpu.Device{UUID: "again", Model: "NVIDIA A100-SXM4-80GB", Allocatable: 79, Speed: 100}
	strange := gpu.Device{UUID: "strange", Model: "_", Allocatable: 1000}
	gone := gpu.Device{UUID: "gone", Model: "Tesla T4", Speed: 21}
	on := placement.NewNode("n", gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{t4, a100, again, strange, gone}}, nil)
	none := map[string]string{model: "", percent: "", speed: ""}
	for name, tc := range map[string]struct {
		shares []placement.Share
		want   map[string]string // empty: the pod must not have the label
	}{
		"a part":             {[]placement.Share{{Device: "a100", Units: 20}}, map[string]string{model: "NVIDIA-A100-SXM4-80GB", percent: "25", speed: "25"}},
		"a whole one":        {[]placement.Share{{Device: "t4", Units: 14}}, map[string]string{model: "Tesla-T4", percent: "100", speed: "21"}},
		"cores say how fast": {[]placement.Share{{Device: "a100", Units: 20, Cores: 60}}, map[string]string{model: "NVIDIA-A100-SXM4-80GB", percent: "25", speed: "60"}},
		"two of a model":     {[]placement.Share{{Device: "a100", Units: 79}, {Device: "again", Units: 79}}, map[string]string{model: "NVIDIA-A100-SXM4-80GB", percent: "200", speed: "200"}},
		"two models":         {[]placement.Share{{Device: "a100", Units: 79}, {Device: "t4", Units: 7}}, map[string]string{model: "", percent: "150", speed: "111"}},
		"very little":        {[]placement.Share{{Device: "t4", Units: 0}}, map[string]string{model: "Tesla-T4", percent: "1", speed: "1"}},
		"an unknown model":   {[]placement.Share{{Device: "strange", Units: 500}}, map[string]string{model: "", percent: "50", speed: ""}},
		"a GPU that is away": {[]placement.Share{{Device: "elsewhere", Units: 3}}, none},
		"a GPU of no memory": {[]placement.Share{{Device: "gone", Units: 3}}, none},
		"one known, one not": {[]placement.Share{{Device: "t4", Units: 7}, {Device: "strange", Units: 500}}, map[string]string{model: "", percent: "100", speed: ""}},
	} {
		t.Run(name, func(t *testing.T) {
			n := names(t)
			a := placement.Assignment{Shares: tc.shares}
			if got := ForAssignment(n, a, on); got != nil {
				t.Errorf("unasked: %v", got)
			}
			n.LabelPods = true
			got := make(map[string]string)
			for key, value := range ForAssignment(n, a, on) {
				if got[key] = ""; value != nil {
					got[key] = *value
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

var names = kubetest.Names

func FuzzLabelValue(f *testing.F) {
	for _, s := range []string{"Tesla T4", "NVIDIA RTX 6000 Ada Generation", "_", "-a-", "é", strings.Repeat("a ", 60), strings.Repeat("a", 62) + "._b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := labelValue(s); len(validation.IsValidLabelValue(got)) > 0 {
			t.Errorf("%q becomes %q, which no label can have", s, got)
		}
	})
}
