package load

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/test/checkout"
)

// Each side runs in each place and after each other side equally often.
func TestOrder(t *testing.T) {
	sides := []string{plain, control, plugin, extended}
	places, pairs := make(map[[2]any]int), make(map[[2]string]int)
	for round := range len(sides) {
		got := order(sides, round)
		for i, side := range got {
			places[[2]any{side, i}]++
			if i > 0 {
				pairs[[2]string{got[i-1], side}]++
			}
		}
	}
	if len(places) != 16 || len(pairs) != 12 {
		t.Errorf("places %v, pairs %v: want each once", places, pairs)
	}
	if got := order([]string{plugin}, 3); !slices.Equal(got, []string{plugin}) {
		t.Errorf("one side: got %v", got)
	}
}

func TestReport(t *testing.T) {
	r := &report{log: io.Discard, section: "cluster", sections: []string{"cluster"}}
	values := map[string][]metrics{
		plain:    {{"cpu-all ms/pod": 10, "pods-per-second": 100}, {"cpu-all ms/pod": 20, "pods-per-second": 50}, {"cpu-all ms/pod": 10, "pods-per-second": 100}},
		control:  {{"cpu-all ms/pod": 10, "pods-per-second": 100}, {"cpu-all ms/pod": 10, "pods-per-second": 50}, {"cpu-all ms/pod": 10, "pods-per-second": 100}},
		plugin:   {{"cpu-all ms/pod": 9, "pods-per-second": 90}, {"cpu-all ms/pod": 22, "pods-per-second": 55}, {"cpu-all ms/pod": 9.6, "pods-per-second": 80}},
		extended: {{"cpu-all ms/pod": 14, "refused-binds %": 0.6}, {"cpu-all ms/pod": 28, "refused-binds %": 0.5}, {"cpu-all ms/pod": 12, "refused-binds %": 0}},
	}
	sides := []string{plain, control, plugin, extended}
	err := r.compare(t.Context(), "-500", sides, sides[:2], 3, func(_ context.Context, side string) (metrics, error) {
		next := values[side][0]
		values[side] = values[side][1:]
		return next, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"cluster-500-control-cpu-all              10.0 (10.0 to 10.0) ms/pod  ÷ plain 1.00 (0.50 to 1.00)\n",
		"cluster-500-plugin-cpu-all               9.60 (9.00 to 22.0) ms/pod  ÷ control 0.96 (0.90 to 2.20)  ÷ plain 0.96 (0.90 to 1.10)\n",
		"result: cluster-500-plugin-cpu-all÷plain 0.96 goal <= 0.95 (stretch 0.87) missed (rounds: 0.90 to 1.10)\n",
		"result: cluster-500-plugin-pods-per-second÷plain 0.90 goal >= 1.00 (stretch 1.20) missed (rounds: 0.80 to 1.10)\n",
		"result: cluster-500-extender-cpu-all÷plain 1.40 goal <= 1.30 (stretch 1.20) missed (rounds: 1.20 to 1.40)\n",
		"result: cluster-500-extender-refused-binds 0.50 goal <= 0.50 met (rounds: 0.00 to 0.60)\n",
		"result: cluster-5000-plugin-cpu-all÷plain not measured, goal <= 0.88 (stretch 0.78)\n",
	} {
		if !strings.Contains(r.String(), want) {
			t.Errorf("the report has no line %q:\n%s", want, r)
		}
	}
	if strings.Contains(r.String(), "result: worst") {
		t.Errorf("a goal of another section:\n%s", r)
	}
}

func TestSelectSections(t *testing.T) {
	for _, tc := range []struct{ names, want string }{
		{"", "inprocess index cluster worst extender stress memory node cli kubelet"},
		{"kubelet throughput", "inprocess index cluster worst kubelet"},
		{"node", "node"},
		{"nodes", `unknown section "nodes"; -h lists the sections`},
	} {
		selected, err := selectSections(strings.Fields(tc.names))
		var got []string
		for _, s := range selected {
			got = append(got, s.name)
		}
		if text := strings.Join(got, " "); err == nil && text != tc.want || err != nil && err.Error() != tc.want {
			t.Errorf("%q: got %q, %v, want %q", tc.names, text, err, tc.want)
		}
	}
}

func TestSum(t *testing.T) {
	const text = `# TYPE gpumem_extender_decisions_total counter
gpumem_extender_decisions_total{reason="",result="bound",verb="bind"} 50
gpumem_extender_decisions_total{reason="fragmented",result="refused",verb="bind"} 7
gpumem_extender_decisions_total{reason="error",result="failed",verb="bind"} 1
go_memstats_next_gc_bytes 4.5e+06
go_memstats_next_gc_bytes_other 1
`
	all := func(string) bool { return true }
	if got := sum(text, "gpumem_extender_decisions_total", func(labels string) bool { return !strings.Contains(labels, `"bound"`) }); got != 8 {
		t.Errorf("got %v refused, want 8", got)
	}
	if got := sum(text, "go_memstats_next_gc_bytes", all); got != 4.5e6 {
		t.Errorf("got %v bytes, want 4.5e6", got)
	}
}

func TestReadBenchmarks(t *testing.T) {
	got := readBenchmarks(`goos: linux
BenchmarkBest/50000-2   	    5000	    160000 ns/op	 1.500 cpu-ms
BenchmarkLargeCluster 	       1	2000000 ns/op
PASS
`)
	want := []benchmarkLine{{"50000-ms", 0.16}, {"50000-cpu-ms", 1.5}, {"ms", 2}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(benchmarkLine{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The benchmarks that the sections run exist.
func TestBenchmarksExist(t *testing.T) {
	root, err := checkout.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range append(slices.Clone(benchmarks), goBenchmark{"inprocess", "test/scheduler", "^BenchmarkBurst$"}) {
		name, _, _ := strings.Cut(strings.TrimPrefix(b.pattern, "^"), "$")
		files, err := filepath.Glob(filepath.Join(root, b.folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "\nfunc "+name+"(b *testing.B)")
		}) {
			t.Errorf("section %s: %s has no %s", b.section, b.folder, name)
		}
	}
}

func TestComeback(t *testing.T) {
	const (
		open  = "I1121 23:59:59.900000  11 container_manager_linux.go:309] \"Creating device plugin manager\"\n"
		other = "I1121 23:59:59.950000  11 server.go:168] \"Got registration request from device plugin with resource\" resourceName=\"nvidia.com/gpu\"\n"
		ours  = "I1122 00:00:00.100000  11 server.go:168] \"Got registration request from device plugin with resource\" resourceName=\"gpumem.dev/gpu-mem\"\n"
	)
	for _, tc := range []struct {
		log  string
		want time.Duration
		ok   bool
	}{
		{open + other + ours, 200 * time.Millisecond, true},
		{open + other, 0, false},
		{ours + open, 0, false},
		{"no line of klog\n", 0, false},
	} {
		if got, ok := comeback([]byte(tc.log), gpuMem); got != tc.want || ok != tc.ok {
			t.Errorf("%s: got %s, %t; want %s, %t", tc.log, got, ok, tc.want, tc.ok)
		}
	}
}

// A pod of the worst case fits the largest GPU, one on each, and no other.
func TestLargePodsFitOneNode(t *testing.T) {
	if largest.units < largeUnits || largest.units >= 2*largeUnits {
		t.Errorf("a GPU of %d units takes other than one pod of %d", largest.units, largeUnits)
	}
	for _, m := range models {
		if m.units >= largeUnits {
			t.Errorf("%s takes a pod of %d units", m.name, largeUnits)
		}
	}
	if !refused(&v1.Pod{Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse}}}}) {
		t.Error("a pod without a node does not count as refused")
	}
}

func TestProcessorTime(t *testing.T) {
	before, err := processorTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1 << 20 {
		_ = number(float64(i))
	}
	if after, err := processorTime(os.Getpid()); err != nil || after < before+time.Millisecond || after > before+time.Minute {
		t.Errorf("from %s to %s, %v", before, after, err)
	}
	if _, err := processorTime(1 << 23); err == nil {
		t.Error("a process that does not exist has processor time")
	}
}
