package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// world contains all dependencies of a watch.
type world struct {
	owners  map[int]Owner
	grants  []Grant
	deaf    bool // the kubelet does not answer
	sidecar bool // the second container is known, and has no grant
	foreign map[gpu.UUID]uint64
	events  []string
	evicted []string
	budget  error // error of evictions
	asked   int   // number of eviction requests

	processes map[gpu.UUID][]inventory.Process
	disrupted []Disruption
	changed   chan struct{}

	uses // written to pods
}

func (w *world) Processes() (map[gpu.UUID][]inventory.Process, <-chan struct{}) {
	return w.processes, nil
}
func (w *world) SetForeign(bytes map[gpu.UUID]uint64)         { w.foreign = bytes }
func (w *world) Disruptions() ([]Disruption, <-chan struct{}) { return w.disrupted, w.changed }

func (w *world) Owner(pid int) (Owner, error) {
	if o, ok := w.owners[pid]; ok {
		return o, nil
	}
	return Owner{}, ErrGone
}

func (w *world) Container(id string) (placement.PodRef, string, bool) {
	if id == containerID {
		return placement.PodRef{Namespace: "ns", Name: "p", UID: podUID}, "main", true
	}
	if w.sidecar && id == otherID {
		return placement.PodRef{Namespace: "ns", Name: "p", UID: podUID}, "sidecar", true
	}
	return placement.PodRef{}, "", false
}

func (w *world) HoldsMemory(uid string) bool { return uid == podUID }

func (w *world) Grants(context.Context) ([]Grant, error) {
	if w.deaf {
		return nil, errors.New("no answer")
	}
	return w.grants, nil
}

func (w *world) Pod(ref placement.PodRef, e event.OnPod, note string) {
	w.events = append(w.events, fmt.Sprint(ref, " ", e.Row().Type, " ", e.Row().Reason, ": ", note))
}

func (w *world) Node(event.OnNode, string) {}

func (w *world) Evict(_ context.Context, ref placement.PodRef) error {
	w.asked++
	if w.budget != nil {
		return w.budget
	}
	w.evicted = append(w.evicted, ref.String())
	return nil
}

func (w *world) takeEvents() []string {
	out := w.events
	w.events = nil
	return out
}

const (
	inPod = 1 + iota
	inPodToo
	started  // in the pod, in a container that is not known yet
	inStatic // in a container of a pod with another UID at the API server
	stranger
	ofTheHost
)

func newWorld() (*world, *Watch) {
	w := &world{
		owners: map[int]Owner{
			inPod: {podUID, containerID}, inPodToo: {podUID, containerID}, started: {podUID, otherID}, inStatic: {"0123456789abcdef0123456789abcdef", containerID},
			stranger: {"11111111-1111-1111-1111-111111111111", otherID}, ofTheHost: {},
		},
		grants: []Grant{{"ns", "p", "main", "GPU-a", 1000 * mib}},
	}
	return w, New(Config{ToleranceMiB: 100, Servers: serve()}, w, w, w, w, w, zap.NewNop())
}

// serve returns a Config.Servers that lists the servers.
func serve(pids ...int) func(context.Context) (map[int]bool, error) {
	servers := make(map[int]bool)
	for _, pid := range pids {
		servers[pid] = true
	}
	return func(context.Context) (map[int]bool, error) { return servers, nil }
}

func process(pid int, used uint64) inventory.Process {
	return inventory.Process{PID: pid, Bytes: used * mib}
}

func on(device gpu.UUID, processes ...inventory.Process) map[gpu.UUID][]inventory.Process {
	return map[gpu.UUID][]inventory.Process{device: processes}
}

func TestWhoUsesWhat(t *testing.T) {
	w, watch := newWorld()
	watch.compareUsage(t.Context(), map[gpu.UUID][]inventory.Process{
		"GPU-a": {process(inPod, 300), process(inPodToo, 200), process(started, 50), process(stranger, 7), process(ofTheHost, 5), process(99, 1)},
		"GPU-b": {process(inPod, 1), process(ofTheHost, 9)},
	})
	pod := placement.PodRef{Namespace: "ns", Name: "p", UID: podUID}
	want := []Sample{
		{Pod: pod, Container: "main", Device: "GPU-a", Used: 500 * mib, Granted: 1000 * mib, Peak: 500 * mib},
		{Pod: pod, Container: "main", Device: "GPU-b", Used: 1 * mib, Peak: 1 * mib},
	}
	if diff := cmp.Diff(want, watch.Samples()); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[gpu.UUID]uint64{"GPU-a": 12 * mib, "GPU-b": 9 * mib}, w.foreign); diff != "" {
		t.Errorf("foreign (-want +got):\n%s", diff)
	}
	if watch.unavailable != "" {
		t.Errorf("blind: %s", watch.unavailable)
	}

	w.deaf = true
	watch.compareUsage(t.Context(), on("GPU-a"))
	if len(watch.Samples()) != 2 || w.foreign["GPU-a"] != 12*mib {
		t.Error("something was concluded although the kubelet does not tell what it has given")
	}
	w.deaf = false
	watch.compareUsage(t.Context(), on("GPU-a", process(98, 5), process(99, 5)))
	if watch.unavailable == "" || len(w.foreign) != 0 {
		t.Errorf("no process is seen: blind %q, foreign %v", watch.unavailable, w.foreign)
	}
}

// NVML may count the memory of MPS clients as their server's. The server's memory does not reduce the offer,
// because grants cover it.
func TestAnMPSServerIsNotForeign(t *testing.T) {
	for name, tc := range map[string]struct {
		server          int
		bytes           uint64
		foreign, merged map[gpu.UUID]uint64
	}{
		"clients apart":    {stranger, 30, map[gpu.UUID]uint64{"GPU-a": 5 * mib}, map[gpu.UUID]uint64{}},
		"clients in one":   {stranger, 3000, map[gpu.UUID]uint64{"GPU-a": 5 * mib}, map[gpu.UUID]uint64{"GPU-a": 3000 * mib}},
		"another's server": {99, 3000, map[gpu.UUID]uint64{"GPU-a": 3005 * mib}, map[gpu.UUID]uint64{}},
	} {
		t.Run(name, func(t *testing.T) {
			w, watch := newWorld()
			watch.cfg.Servers = serve(tc.server)
			watch.compareUsage(t.Context(), on("GPU-a", process(inPod, 300), process(stranger, tc.bytes), process(ofTheHost, 5)))
			if diff := cmp.Diff(tc.foreign, w.foreign); diff != "" {
				t.Errorf("foreign (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.merged, watch.ServerMemory()); diff != "" {
				t.Errorf("memory of the server (-want +got):\n%s", diff)
			}
			if got := watch.Samples(); len(got) != 1 || got[0].Used != 300*mib {
				t.Errorf("samples %+v", got)
			}
		})
	}
}

// Granted memory must not become foreign while a supervisor is too busy to answer.
func TestAnMPSServerStaysKnownWhileItsSupervisorIsSilent(t *testing.T) {
	w, watch := newWorld()
	var servers map[int]bool
	var err error
	watch.cfg.Servers = func(context.Context) (map[int]bool, error) { return servers, err }
	silent := errors.New("no answer")
	for i, step := range []struct {
		servers map[int]bool
		err     error
		foreign map[gpu.UUID]uint64
	}{
		{map[int]bool{stranger: true}, nil, map[gpu.UUID]uint64{"GPU-a": 5 * mib}},
		{nil, silent, map[gpu.UUID]uint64{"GPU-a": 5 * mib}},
		{map[int]bool{ofTheHost: true}, silent, map[gpu.UUID]uint64{}}, // another supervisor answers
		{nil, silent, map[gpu.UUID]uint64{}},
		{map[int]bool{stranger: true}, nil, map[gpu.UUID]uint64{"GPU-a": 5 * mib}},
		{nil, nil, map[gpu.UUID]uint64{"GPU-a": 3005 * mib}},
	} {
		servers, err = step.servers, step.err
		watch.compareUsage(t.Context(), on("GPU-a", process(stranger, 3000), process(ofTheHost, 5)))
		if diff := cmp.Diff(step.foreign, w.foreign); diff != "" {
			t.Errorf("look %d: foreign (-want +got):\n%s", i, diff)
		}
	}
}

func TestHowMuchContainersUseAGPU(t *testing.T) {
	using := func(pid int, sm *int) inventory.Process { return inventory.Process{PID: pid, Bytes: mib, SM: sm} }
	for name, tc := range map[string]struct {
		processes []inventory.Process
		want      *int
	}{
		"one process":                     {[]inventory.Process{using(inPod, new(40)), using(stranger, new(50)), using(ofTheHost, nil)}, new(40)},
		"one that does nothing":           {[]inventory.Process{using(inPod, new(0))}, new(0)},
		"two":                             {[]inventory.Process{using(inPod, new(40)), using(inPodToo, new(30))}, new(70)},
		"one that is not known":           {[]inventory.Process{using(inPod, nil)}, nil},
		"the first is not known":          {[]inventory.Process{using(inPod, nil), using(inPodToo, new(30))}, nil},
		"the second is not known":         {[]inventory.Process{using(inPod, new(30)), using(inPodToo, nil)}, nil},
		"one that is in no container yet": {[]inventory.Process{using(inPod, new(30)), using(started, new(30))}, new(30)},
	} {
		t.Run(name, func(t *testing.T) {
			_, watch := newWorld()
			watch.compareUsage(t.Context(), on("GPU-a", tc.processes...))
			samples := watch.Samples()
			if len(samples) != 1 {
				t.Fatalf("samples: %+v", samples)
			}
			if diff := cmp.Diff(tc.want, samples[0].SM); diff != "" {
				t.Errorf("per cent (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAStaticPodIsNotForeign(t *testing.T) {
	w, watch := newWorld()
	watch.compareUsage(t.Context(), on("GPU-a", process(inStatic, 300), process(inPod, 200)))
	pod := placement.PodRef{Namespace: "ns", Name: "p", UID: podUID}
	want := []Sample{{Pod: pod, Container: "main", Device: "GPU-a", Used: 500 * mib, Granted: 1000 * mib, Peak: 500 * mib}}
	if diff := cmp.Diff(want, watch.Samples()); diff != "" || len(w.foreign) > 0 {
		t.Errorf("foreign %v, samples (-want +got):\n%s", w.foreign, diff)
	}
}

// TestAContainerWithoutAGrantIsForeign: no grant covers its memory, although its pod has GPU memory.
func TestAContainerWithoutAGrantIsForeign(t *testing.T) {
	w, watch := newWorld()
	w.sidecar = true
	watch.compareUsage(t.Context(), on("GPU-a", process(inPod, 500), process(started, 9000)))
	if got := watch.Samples(); len(got) != 1 || got[0].Used != 500*mib || w.foreign["GPU-a"] != 9000*mib {
		t.Errorf("samples %v, foreign %v", got, w.foreign)
	}
}

func TestOverUseIsToldOnce(t *testing.T) {
	w, watch := newWorld()
	look := func(used ...uint64) {
		for _, u := range used {
			watch.compareUsage(t.Context(), on("GPU-a", process(inPod, u)))
		}
	}
	look(1100, 1100, 1100, 1100) // within the tolerance
	look(1101, 1101, 1000, 1101, 1101)
	if events := w.takeEvents(); len(events) != 0 {
		t.Errorf("told before three looks in a row: %v", events)
	}
	look(1200)
	over := "ns/p Warning GPUMemoryOverUse: container main uses 1200 MiB of GPU GPU-a and was granted 1000 MiB"
	if diff := cmp.Diff([]string{over}, w.takeEvents()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	look(1300, 900, 900, 1300, 900, 1300)
	if events := w.takeEvents(); len(events) != 0 {
		t.Errorf("told again: %v", events)
	}
	look(900, 900, 900)
	back := "ns/p Normal GPUMemoryWithinGrant: container main uses 900 MiB of GPU GPU-a, within the 1000 MiB that it was granted"
	if diff := cmp.Diff([]string{back}, w.takeEvents()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	look(2000, 2000)
	watch.compareUsage(t.Context(), on("GPU-a")) // the process has ended
	look(2000, 2000)
	if events := w.takeEvents(); len(events) != 0 {
		t.Errorf("what was known of a process that has ended counts: %v", events)
	}
}

func TestEviction(t *testing.T) {
	w, watch := newWorld()
	watch.cfg.Evict = true
	w.budget = errors.New("a disruption budget")
	look := func(n int) {
		for range n {
			watch.compareUsage(t.Context(), map[gpu.UUID][]inventory.Process{"GPU-a": {process(inPod, 2000)}, "GPU-b": {process(inPod, 2000)}})
		}
	}
	look(ConfirmingSamples)
	if len(w.evicted) != 0 {
		t.Fatalf("evicted %v", w.evicted)
	}
	w.budget = nil
	look(3)
	if !slices.Equal(w.evicted, []string{"ns/p"}) {
		t.Errorf("evicted %v; want the pod, once", w.evicted)
	}
	w.takeEvents()
	for range ConfirmingSamples {
		watch.compareUsage(t.Context(), on("GPU-a"))
	}
	if len(w.evicted) != 1 {
		t.Errorf("evicted again: %v", w.evicted)
	}
}

// TestADisruptedPodWarnsOfTheNeighbours expects one event if the node has clients of an MPS server.
func TestADisruptedPodWarnsOfTheNeighbours(t *testing.T) {
	victim := Disruption{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: podUID}, Reason: v1.PodReasonPreemptionByScheduler}
	other := Disruption{Pod: placement.PodRef{Namespace: "ns", Name: "without-gpu", UID: "1"}, Reason: v1.PodReasonPreemptionByScheduler}
	for served, want := range map[bool][]string{
		false: nil,
		true:  {"ns/p Warning GPUMemoryDisrupted: terminates (PreemptionByScheduler) on a node where programs share MPS: if it outlives its grace period and is killed, its neighbours may fail"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, watch := newWorld()
			if served {
				watch.cfg.Servers = serve(99)
			}
			w.processes, w.changed = on("GPU-a"), make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- watch.Run(ctx) }()
			synctest.Wait()
			for range 2 {
				w.disrupted = []Disruption{victim, other}
				changed := w.changed
				w.changed = make(chan struct{})
				close(changed)
				synctest.Wait()
			}
			cancel()
			<-done
			if diff := cmp.Diff(want, w.takeEvents()); diff != "" {
				t.Errorf("with MPS %t (-want +got):\n%s", served, diff)
			}
		})
	}
}

// TestAStaticPodIsNotEvicted expects one event for its owner, and one request to the API server.
func TestAStaticPodIsNotEvicted(t *testing.T) {
	w, watch := newWorld()
	watch.cfg.Evict = true
	w.budget = fmt.Errorf("pod ns/p: %w", ErrStatic)
	for range 3 * ConfirmingSamples {
		watch.compareUsage(t.Context(), on("GPU-a", process(inPod, 3000)))
	}
	told := slices.DeleteFunc(w.takeEvents(), func(e string) bool {
		return !strings.Contains(e, "GPUMemoryNotEvicted: not evicted: it is a static pod")
	})
	if len(told) != 1 || w.asked != 1 {
		t.Errorf("told %q, and asked %d times", told, w.asked)
	}
}

func TestThePeakIsKept(t *testing.T) {
	_, watch := newWorld()
	for _, look := range []struct{ used, peak uint64 }{{300, 300}, {500, 500}, {200, 500}} {
		watch.compareUsage(t.Context(), map[gpu.UUID][]inventory.Process{"GPU-a": {process(inPod, look.used)}})
		samples := watch.Samples()
		if len(samples) != 1 || samples[0].Used != look.used*mib || samples[0].Peak != look.peak*mib {
			t.Errorf("%+v, want %d MiB with a peak of %d", samples, look.used, look.peak)
		}
	}
}

// The metrics handler reads samples during a comparison. The race detector reports a missing lock.
func TestSamplesAreReadDuringALook(t *testing.T) {
	for name, read := range map[string]func(*Watch) int{
		"samples": func(w *Watch) int { return len(w.Samples()) },
		"servers": func(w *Watch) int { return len(w.ServerMemory()) },
	} {
		t.Run(name, func(t *testing.T) {
			_, watch := newWorld()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range 100 {
					watch.compareUsage(t.Context(), on("GPU-a", process(inPod, 100)))
				}
			}()
			for {
				if n := read(watch); n > 1 {
					t.Errorf("%d of one process", n)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
}

// hidden are processes whose control groups cannot be read.
type hidden struct{}

func (hidden) Owner(int) (Owner, error) { return Owner{}, errors.New("permission denied") }

// A process that cannot be attributed counts neither as foreign nor as invisible.
func TestAProcessThatCannotBeAttributed(t *testing.T) {
	w, _ := newWorld()
	core, logs := observer.New(zap.DebugLevel)
	watch := New(Config{ToleranceMiB: 100, Servers: serve()}, w, hidden{}, w, w, w, zap.New(core))
	watch.compareUsage(t.Context(), on("GPU-a", process(inPod, 300), process(stranger, 7)))
	if len(w.foreign) > 0 || len(watch.Samples()) > 0 || watch.unavailable != "" {
		t.Errorf("foreign %v, samples %v, unavailable %q", w.foreign, watch.Samples(), watch.unavailable)
	}
	if n := logs.FilterMessage("process not attributed").Len(); n != 2 {
		t.Errorf("%d lines about two processes", n)
	}
}
