package podstart

import (
	"strings"
	"testing"
	"time"
)

func TestReport(t *testing.T) {
	r := Report{With: []float64{1.1, 1.0, 9}, Idle: []float64{1, 1.05, 2}, Without: []float64{1, 1, 1.2}, Comebacks: []float64{0.2, 1.5}, Cores: 0.004, MemoryMiB: 40}
	want := `pod start: median 1.100 s with GPU memory, 1.050 s with a device plugin that decides nothing, 1.000 s without; 3 of each
device plugin at rest: 0.40 % of a core, 40 MiB resident
result: pod-start 1.10 goal 1.05 missed
result: plugin-comeback-seconds 1.50 goal 1.00 missed
`
	if got := r.String(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
	r.With, r.Comebacks = []float64{1.04}, []float64{0.2}
	if got := r.String(); strings.Contains(got, "missed") {
		t.Errorf("a goal was missed:\n%s", got)
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
