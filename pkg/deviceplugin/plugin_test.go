package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/allocation"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

func wantStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Code() != code || !strings.Contains(s.Message(), text) {
		t.Errorf("error %v, want %s with %q", err, code, text)
	}
}

func TestAdmission(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(*Config)
		pods    []allocation.Pod
		admit   []string // names, in the kubelet's order; default: all
		want    []string
		wantErr string
		fixed   []string
		events  []string
	}{
		{
			name: "a pod gets the GPU it was assigned",
			pods: []allocation.Pod{pod("a", 1, uuidB, app(3))},
			want: []string{"a main=1"},
		},
		{
			name: "containers, a sidecar and an init container share one GPU",
			pods: []allocation.Pod{pod("a", 1, uuidB,
				container("prepare", placement.Init, 3), container("proxy", placement.Sidecar, 1),
				container("one", placement.App, 1), container("two", placement.App, 2))},
			want: []string{"a prepare=1 proxy=1 one=1 two=1"},
		},
		{
			name:  "admission in another order than binding",
			pods:  []allocation.Pod{pod("a", 1, uuidA, app(3)), pod("b", 2, uuidB, app(3))},
			admit: []string{"b", "a"}, // the kubelet lists b first, so b it is
			want:  []string{"b main=1", "a main=0"},
		},
		{
			name:   "a pod that no scheduler placed is placed beside the others, and written down",
			pods:   []allocation.Pod{pod("a", 1, uuidA, app(6)), pod("direct", 2, "", app(3))},
			want:   []string{"a main=0", "direct main=1"},
			fixed:  []string{"ns/direct [" + string(uuidB) + "] by the node"},
			events: []string{"ns/direct GPUMemoryPlaced"},
		},
		{
			name:    "or is refused",
			change:  func(c *Config) { c.PlaceUnassigned = false },
			pods:    []allocation.Pod{pod("direct", 2, "", app(3))},
			wantErr: "pod ns/direct was not placed by gpumem's scheduler",
			events:  []string{"ns/direct GPUMemoryRefused"},
		},
		{
			name:    "a pod that is too large says so",
			pods:    []allocation.Pod{pod("direct", 2, "", app(9))},
			wantErr: "pod ns/direct needs 9 GiB on one GPU; the largest that qualifies here has 8 GiB",
			events:  []string{"ns/direct GPUMemoryRefused"},
		},
		{
			name: "two GPUs for one pod",
			pods: []allocation.Pod{func() allocation.Pod {
				p := pod("a", 1, "", app(8))
				p.Request.Count = 2
				p.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidA, Units: 4}, {Device: uuidB, Units: 4}}}
				p.Index = "0,1"
				return p
			}()},
			want: []string{"a main=0,1"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, tc.change, nil, tc.pods...)
			order := tc.admit
			if order == nil {
				for _, p := range tc.pods {
					order = append(order, p.Pod.Name)
				}
			}
			var got []string
			for _, name := range order {
				i := slices.IndexFunc(tc.pods, func(p allocation.Pod) bool { return p.Pod.Name == name })
				gpus, err := n.admit(t, tc.pods[i])
				switch {
				case tc.wantErr != "":
					wantStatus(t, err, codes.FailedPrecondition, tc.wantErr)
				case err != nil:
					t.Fatal(err)
				default:
					got = append(got, name+" "+strings.Join(gpus, " "))
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.fixed, n.pods.corrected()); diff != "" {
				t.Errorf("corrections (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.events, n.notes.all()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// swap gives a pod the slots of another of its size: nothing tells the two apart, and the older
// is guessed.
func (n *node) swap(t *testing.T, name string, units gpu.Units) {
	t.Helper()
	n.kubelet.fail = errors.New("no such socket")
	ids, err := n.preferred(t.Context(), n.free(), nil, units)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.allocate(t.Context(), ids...); err != nil {
		t.Fatal(err)
	}
	n.kubelet.fail = nil
	n.kubelet.give(name, "main", ids)
}

func TestASwapIsCorrectedOnBothSides(t *testing.T) {
	a, b := pod("a", 1, uuidA, app(6)), pod("b", 2, uuidB, app(6))
	n := newNode(t, nil, nil, a, b)
	n.swap(t, "b", 6)
	for range 2 {
		if err := n.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.pods.corrected(); len(got) > 0 {
		t.Errorf("corrected before the kubelet says that it has admitted b: %v", got)
	}
	n.pods.settle("b")
	for range 3 {
		if err := n.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	want := []string{
		"ns/a " + onB + " leaving " + onA, "ns/b " + onA + " leaving " + onB, // who waits first
		"ns/a " + onB, "ns/b " + onA,
	}
	if diff := cmp.Diff(want, n.pods.corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ns/a GPUMemoryCorrected", "ns/b GPUMemoryCorrected"}, n.notes.all()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{0, 0, 1, 0, 0}, n.counts.drifted); diff != "" {
		t.Errorf("drifted at each look (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{ReasonPlanned, ReasonHeld}, n.counts.corrections); diff != "" {
		t.Errorf("corrections counted (-want +got):\n%s", diff)
	}
	gpus, err := n.admit(t, a)
	if err != nil || !slices.Equal(gpus, []string{"main=1"}) {
		t.Errorf("the other pod then got %v, %v; want GPU 1", gpus, err)
	}
}

// What was planned for pods that have been corrected is what was written then: a pod that is
// exchanged after them is not left where it no longer has a place.
func TestASecondSwapIsCorrectedToo(t *testing.T) {
	a := pod("a", 1, uuidA, app(4))
	n := newNode(t, nil, nil, a, pod("b", 2, uuidB, app(4)))
	settled := func(name string) {
		t.Helper()
		n.pods.settle(name)
		for range 3 {
			if err := n.reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.swap(t, "b", 4)
	settled("b")
	if gpus, err := n.admit(t, a); err != nil || !slices.Equal(gpus, []string{"main=1"}) {
		t.Fatalf("%v, %v; want GPU 1", gpus, err)
	}
	first := len(n.pods.corrected())
	n.pods.add(pod("d", 3, uuidB, app(4)))
	n.pods.add(pod("c", 4, uuidA, app(4)))
	n.swap(t, "c", 4)
	settled("c")
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	want := []string{"ns/d " + onA + " leaving " + onB, "ns/c " + onB + " leaving " + onA, "ns/d " + onA, "ns/c " + onB}
	if diff := cmp.Diff(want, n.pods.corrected()[first:]); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
}

// What the one that waits is to have is told by what is written of the other.
func TestASwapIsNotCorrectedByHalf(t *testing.T) {
	a, b := pod("a", 1, uuidA, app(6)), pod("b", 2, uuidB, app(6))
	n := newNode(t, nil, nil, a, b)
	n.swap(t, "b", 6)
	n.pods.settle("b")
	n.pods.failOnce = "a"
	if err := n.reconcile(t.Context()); err == nil {
		t.Error("want the error of the correction that failed")
	}
	for range 3 {
		if err := n.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	want := []string{
		"ns/a " + onB + " leaving " + onA, "ns/b " + onA + " leaving " + onB,
		"ns/a " + onB, "ns/b " + onA,
	}
	if diff := cmp.Diff(want, n.pods.corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
}

// A pod that has been served nothing and cannot be written keeps back the corrections of pods that
// could have its plan, and of no others.
func TestAPodThatCannotBeWrittenStopsNoOthers(t *testing.T) {
	const gone gpu.UUID = "GPU-dddddddd-0000-0000-0000-000000000000"
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	exchanged := []string{"ns/a " + onB + " leaving " + onA, "ns/b " + onA + " leaving " + onB, "ns/a " + onB, "ns/b " + onA}
	for name, tc := range map[string]struct {
		also   allocation.Pod
		denied string
		errors bool
		want   []string
	}{
		"it names GPUs that the node lacks": {also: func() allocation.Pod {
			p := pod("other", 1, gone, container("fetch", placement.Init, 1))
			p.Settled, p.Assignment.Leaving = true, []gpu.UUID{"GPU-eeeeeeee-0000-0000-0000-000000000000"}
			return p
		}(), want: exchanged},
		"it names such a GPU to leave": {also: func() allocation.Pod {
			p := pod("other", 1, uuidA, container("fetch", placement.Init, 1))
			p.Settled, p.Assignment.Leaving = true, []gpu.UUID{gone}
			return p
		}(), want: append([]string{"ns/other " + onA}, exchanged...)},
		"every write of it fails": {also: func() allocation.Pod {
			p := pod("other", 1, uuidA, container("fetch", placement.Init, 1))
			p.Settled, p.Assignment.Leaving = true, []gpu.UUID{uuidB}
			return p
		}(), denied: "other", errors: true, want: exchanged},
		"it is one of those that were exchanged": {also: pod("c", 1, "", app(3)), denied: "a", errors: true, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pod("a", 2, uuidA, app(2)), pod("b", 3, uuidB, app(2))
			b.Settled = true
			a.Settled = tc.denied != "a" // or else it waits
			n := newNode(t, nil, []string{"ns/other", "ns/a", "ns/b"}, tc.also, a, b)
			n.pods.denied = tc.denied
			if a.Settled {
				n.kubelet.give("a", "main", []string{"bbbbbbbb-0", "bbbbbbbb-1"})
			}
			n.kubelet.give("b", "main", []string{"aaaaaaaa-3", "aaaaaaaa-4"})
			var errs []error
			for range 3 {
				errs = append(errs, n.reconcile(t.Context()))
			}
			if err := errors.Join(errs...); (err != nil) != tc.errors {
				t.Errorf("error %v, want one: %v", err, tc.errors)
			}
			if diff := cmp.Diff(tc.want, n.pods.corrected()); diff != "" {
				t.Errorf("corrections (-want +got):\n%s", diff)
			}
		})
	}
}

// What the kubelet tells nothing of is remembered: a pod whose plain init containers alone ask for memory.
func TestAPodOfInitContainersAloneIsWritten(t *testing.T) {
	warm := func(units gpu.Units) placement.Container { return container("warm", placement.Init, units) }
	only := func(device gpu.UUID, p allocation.Pod) allocation.Pod {
		p.Request.UUIDs = placement.NewGlobs(string(device))
		return p
	}
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	for name, tc := range map[string]struct {
		pods    []allocation.Pod // admitted in this order
		unheard string           // the pod that is not known to be admitted for a while
		between func(n *node)
		then    func(n *node)
		want    []string
	}{
		"no scheduler has placed it":      {pods: []allocation.Pod{pod("p", 1, "", warm(2))}, want: []string{"ns/p " + onA + " by the node"}},
		"it has two of them":              {pods: []allocation.Pod{pod("p", 1, "", warm(2), container("then", placement.Init, 4))}, want: []string{"ns/p " + onA + " by the node"}},
		"it is where it is written to be": {pods: []allocation.Pod{pod("p", 1, uuidB, warm(2))}, want: nil},
		"its assignment is taken away": {
			pods: []allocation.Pod{pod("p", 1, uuidB, warm(2))}, want: []string{"ns/p " + onB},
			then: func(n *node) { n.pods.takeAway("p") },
		},
		"its GPU was not free": {
			pods: []allocation.Pod{pod("full", 1, uuidB, app(8)), pod("p", 2, uuidB, warm(2))}, want: []string{"ns/p " + onA},
		},
		"another of its size came before": {
			pods: []allocation.Pod{pod("p", 1, uuidB, warm(2)), pod("q", 2, "", warm(2))}, want: []string{"ns/q " + onB + " by the node"},
		},
		"another of its size was there before the plugin": {
			pods: []allocation.Pod{pod("p", 1, uuidB, warm(2)), pod("q", 2, "", warm(2))}, want: []string{"ns/q " + onB + " by the node"},
			between: (*node).forgetGiven,
		},
		"another of its size is not known to be admitted": {
			pods: []allocation.Pod{pod("p", 1, "", warm(2)), pod("q", 2, "", warm(2))}, unheard: "p", want: []string{"ns/p " + onA + " by the node", "ns/q " + onA + " by the node"},
		},
		"another of its size, which may not have its GPU, is not known to be admitted": {
			pods: []allocation.Pod{only(uuidB, pod("p", 1, "", warm(2))), only(uuidA, pod("q", 2, "", warm(2)))}, unheard: "p",
			want: []string{"ns/p " + onB + " by the node", "ns/q " + onA + " by the node"},
		},
		"the kubelet has started again since": {
			pods: []allocation.Pod{pod("p", 1, uuidB, warm(2))}, want: nil,
			then: func(n *node) { n.forgetGiven(); n.pods.takeAway("p") }, // it counts on each GPU
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil, nil, tc.pods...)
			for i, p := range tc.pods {
				if i > 0 && tc.between != nil {
					tc.between(n)
				}
				if _, err := n.admit(t, p); err != nil {
					t.Fatal(err)
				}
				if p.Pod.Name == tc.unheard {
					n.pods.change(p.Pod.Name, func(p *allocation.Pod) { p.Settled = false })
				}
			}
			n.pods.settle(tc.unheard)
			for range 2 {
				if err := n.reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
				if tc.then != nil {
					tc.then(n)
				}
			}
			if diff := cmp.Diff(tc.want, n.pods.corrected()); diff != "" {
				t.Errorf("corrections (-want +got):\n%s", diff)
			}
		})
	}
}

func TestASwappedPodStaysOnOneGPU(t *testing.T) {
	two := []placement.Container{container("one", placement.App, 2), container("two", placement.App, 3)}
	a, b := pod("a", 1, uuidA, two...), pod("b", 2, uuidB, two...)
	n := newNode(t, nil, []string{"ns/a", "ns/b"}, a, b)
	ids, err := n.preferred(t.Context(), n.free(), nil, 2) // the kubelet means b
	if err != nil {
		t.Fatal(err)
	}
	n.kubelet.give("b", "one", ids)
	next, err := n.preferred(t.Context(), n.free(), nil, 3)
	if err != nil {
		t.Fatal(err)
	}
	if ids[0][:8] != "aaaaaaaa" || next[0][:8] != "aaaaaaaa" {
		t.Errorf("containers of b got %v and %v, want one GPU", ids, next)
	}
}

func TestASamePodAskedForAgainGetsItsGPU(t *testing.T) {
	p := pod("a", 1, uuidB, app(3))
	p.Settled = true // and the kubelet has lost its checkpoint
	n := newNode(t, nil, nil, p)
	gpus, err := n.admit(t, p)
	if err != nil || !slices.Equal(gpus, []string{"main=1"}) {
		t.Errorf("got %v, %v; want GPU 1", gpus, err)
	}
}

func TestAPodThatIsNotKnownYetIsWaitedFor(t *testing.T) {
	n := newNode(t, func(c *Config) { c.PodWait = patience }, []string{"ns/late"},
		pod("other", 1, uuidA, app(3))) // waits for as much, but the kubelet does not list it
	done := make(chan error)
	var ids []string
	go func() {
		var err error
		ids, err = n.preferred(t.Context(), n.free(), nil, 3)
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("answered before the pod was known: %v, %v", ids, err)
	case <-time.After(20 * time.Millisecond): // too short fails no good plugin
	}
	n.pods.add(pod("late", 2, uuidB, app(3)))
	if err := <-done; err != nil || ids[0] != "bbbbbbbb-0" {
		t.Errorf("got %v, %v; want GPU 1", ids, err)
	}
}

// Nothing shows any more that a pod was given what its init container asks for, and the
// kubelet asks for as much for one that is not known yet.
func TestAPodThatHasBegunIsNotTakenForOneThatIsNotKnownYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		warm := pod("warm", 1, uuidA, container("warm", placement.Init, 3))
		n := newNode(t, nil, nil, warm)
		if _, err := n.admit(t, warm); err != nil {
			t.Fatal(err)
		}
		n.pods.settle("warm")
		n.forgetGiven()
		n.kubelet.list("ns/late")
		n.pods.behind = []allocation.Pod{pod("late", 2, uuidB, app(3))}
		ids, err := n.preferred(t.Context(), n.free("aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"), nil, 3)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Errorf("got %v, %v; want GPU 1", ids, err)
		}
	})
}

// What was taken to be an init container's was another pod's: when that has ended it is free.
func TestWhatAnotherHadIsNotKept(t *testing.T) {
	warm := pod("warm", 1, uuidA, container("warm", placement.Init, 3))
	n := newNode(t, nil, []string{"ns/warm", "ns/other"}, warm)
	if _, err := n.allocate(t.Context(), "aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"); err != nil {
		t.Fatal(err)
	}
	n.pods.settle("warm")
	for _, held := range []bool{true, false} {
		n.kubelet.held = nil
		if held {
			n.kubelet.give("other", "main", []string{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"})
		}
		if err := n.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n.pods.add(pod("late", 2, uuidA, app(8)))
	n.kubelet.list("ns/late")
	if ids, err := n.preferred(t.Context(), n.free(), nil, 8); err != nil || ids[0] != "aaaaaaaa-0" {
		t.Errorf("got %v, %v; want all of GPU 0", ids, err)
	}
}

// The watch is broken, and another pod waits that asks for as much.
func TestAPodThatTheWatchDoesNotTellOfIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, []string{"ns/late"}, pod("other", 1, uuidA, app(3)))
		n.pods.behind = []allocation.Pod{pod("late", 2, uuidB, app(3))}
		ids, err := n.preferred(t.Context(), n.free(), nil, 3)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Fatalf("got %v, %v; want GPU 1", ids, err)
		}
		if _, err := n.allocate(t.Context(), ids...); err != nil {
			t.Error(err)
		}
		if n.pods.refreshes != 1 {
			t.Errorf("the API server was asked %d times, want once", n.pods.refreshes)
		}
	})
}

func TestAPodThatNeverBecomesKnown(t *testing.T) {
	n := newNode(t, nil, []string{"ns/late"}, pod("other", 1, uuidA, app(6)))
	ids, err := n.preferred(t.Context(), n.free(), nil, 3)
	if err != nil || ids[0] != "bbbbbbbb-0" {
		t.Errorf("place: got %v, %v; want GPU 1, beside what is planned", ids, err)
	}
	if _, err := n.allocate(t.Context(), ids...); err != nil {
		t.Errorf("place: %v", err)
	}
	n = newNode(t, func(c *Config) { c.PlaceUnassigned = false }, []string{"ns/late"})
	_, err = n.preferred(t.Context(), n.free(), nil, 3)
	wantStatus(t, err, codes.NotFound, "the API server has not told of it")
	_, err = n.allocate(t.Context(), "bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2")
	wantStatus(t, err, codes.NotFound, "the API server has not told of it")
}

func TestAKubeletThatDoesNotTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, nil, pod("a", 1, uuidB, app(3)))
		n.kubelet.deaf = true
		ids, err := n.preferred(t.Context(), n.free(), nil, 3)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Errorf("got %v, %v; want GPU 1 by the annotation", ids, err)
		}
		if err := n.start(t.Context(), ids...); err != nil {
			t.Errorf("start: %v", err)
		}
	})
}

// Of pods that ask for as much the kubelet could mean any, while it does not tell.
func TestContainersStayTogetherWhileTheKubeletDoesNotTell(t *testing.T) {
	for _, tc := range []struct {
		name       string
		containers []placement.Container
	}{
		{"two containers", []placement.Container{container("one", placement.App, 4), container("two", placement.App, 2)}},
		{"after a sidecar", []placement.Container{container("proxy", placement.Sidecar, 4), container("one", placement.App, 2)}},
		{"after an init container of the same size", []placement.Container{
			container("prepare", placement.Init, 4), container("one", placement.App, 4), container("two", placement.App, 2),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, nil, []string{"ns/p"},
					pod("older", 1, uuidA, app(2)), pod("p", 2, uuidB, tc.containers...))
				for i, c := range tc.containers {
					if i == 1 {
						n.kubelet.deaf = true
					}
					ids, err := n.preferred(t.Context(), n.free(), nil, c.Units)
					if tc.containers[0].Kind == placement.Init && i == 1 {
						ids, err = []string{"bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2", "bbbbbbbb-3"}, nil // the init container's
					}
					if err != nil || !strings.HasPrefix(ids[0], "bbbbbbbb-") {
						t.Fatalf("%s: got %v, %v; want IDs of GPU 1", c.Name, ids, err)
					}
					if _, err := n.allocate(t.Context(), ids...); err != nil {
						t.Fatalf("%s: %v", c.Name, err)
					}
				}
			})
		})
	}
}

func TestAKubeletThatHasNeverToldAnything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, nil,
			pod("older", 1, uuidA, app(2)), pod("p", 2, uuidB, container("one", placement.App, 4), container("two", placement.App, 2)))
		n.kubelet.deaf = true
		ids, err := n.preferred(t.Context(), n.free(), nil, 4)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Errorf("got %v, %v; want GPU 1: no other pod asks for as much", ids, err)
		}
		_, err = n.preferred(t.Context(), n.free(), nil, 2)
		wantStatus(t, err, codes.FailedPrecondition, "the kubelet does not tell for which pod it asks, and it may be pod ns/p or pod ns/older")
	})
}

// A kubelet that has started again may have lost what it was given since it told last: the
// container that it asks for is the one that was served before.
func TestAKubeletThatStartsAgainMayHaveLostWhatItWasGiven(t *testing.T) {
	p := pod("p", 1, uuidB, container("one", placement.App, 3), container("two", placement.App, 2))
	n := newNode(t, func(c *Config) { c.KubeletWait = 20 * time.Millisecond }, []string{"ns/p"}, p)
	if err := n.reconcile(t.Context()); err != nil { // it tells of nothing, once
		t.Fatal(err)
	}
	n.kubelet.deaf = true
	first, err := n.preferred(t.Context(), n.free(), nil, 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.allocate(t.Context(), first...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := n.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	received(t, stream)
	again, err := n.preferred(t.Context(), n.free(), nil, 3)
	if diff := cmp.Diff(first, again); diff != "" || err != nil {
		t.Errorf("%v (-first +again):\n%s", err, diff)
	}
}

// A pod is deleted by force and made again while the kubelet answers: what it tells of the name is
// of the pod before.
func TestPodsAreReadBeforeTheKubelet(t *testing.T) {
	p := pod("p", 1, uuidA, app(2))
	p.Settled = true
	n := newNode(t, nil, []string{"ns/p"}, p)
	ids := []string{"bbbbbbbb-0", "bbbbbbbb-1"}
	n.kubelet.give("p", "main", ids)
	n.kubelet.meanwhile = func() {
		n.pods.change("p", func(p *allocation.Pod) { p.Pod.UID = "another" })
	}
	if err := n.start(t.Context(), ids...); err != nil {
		t.Error(err)
	}
	if got := n.pods.corrected(); len(got) > 0 {
		t.Errorf("corrections %v, want none: the kubelet has told nothing of this pod", got)
	}
}

func TestAKubeletThatIsAskedTooOftenIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, []string{"ns/younger"}, pod("older", 1, uuidA, app(3)), pod("younger", 2, uuidB, app(3)))
		n.kubelet.failures = 2
		ids, err := n.preferred(t.Context(), n.free(), nil, 3)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Errorf("got %v, %v; want GPU 1, of the pod that the kubelet lists", ids, err)
		}
	})
}

func TestAllocateRefuses(t *testing.T) {
	huge := make([]string, 60000)
	for i := range huge {
		huge[i] = fmt.Sprintf("aaaaaaaa-%d", i)
	}
	for _, tc := range []struct {
		name string
		ids  []string
		want string
	}{
		{"no ID", nil, "no slots are named"},
		{"an empty ID", []string{""}, "is not of the form"},
		{"an ID of another node", []string{"cccccccc-0"}, "names a GPU that this node does not have"},
		{"an ID past the end", []string{"aaaaaaaa-8"}, "past the end"},
		{"a number that is none", []string{"aaaaaaaa--1"}, "does not end in a number"},
		{"an ID twice", []string{"aaaaaaaa-0", "aaaaaaaa-0"}, "named twice"},
		{"unequal parts of two GPUs", []string{"aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0"}, "unequal parts (GPU0 2, GPU1 1)"},
		{"two GPUs for a pod of one", []string{"aaaaaaaa-0", "bbbbbbbb-0"}, "is to have 1 GPUs"},
		{"more than there is", huge, "past the end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, nil, nil, pod("a", 1, uuidA, app(2)))
			_, err := n.allocate(t.Context(), tc.ids...)
			wantStatus(t, err, codes.FailedPrecondition, tc.want)
			if len(tc.ids) > 0 && tc.name != "two GPUs for a pod of one" {
				if err := n.start(t.Context(), tc.ids...); err == nil {
					t.Error("and the container would start")
				}
			}
		})
	}
	n := newNode(t, nil, nil, pod("a", 1, uuidA, app(2)))
	n.prober.set(func(inv *gpu.Inventory) { inv.Devices[0].Status = gpu.Unhealthy("XID 79") })
	_, err := n.allocate(t.Context(), "aaaaaaaa-0", "aaaaaaaa-1")
	wantStatus(t, err, codes.FailedPrecondition, "is not healthy: XID 79")
}

func TestPreferredAllocationOfNonsense(t *testing.T) {
	n := newNode(t, nil, nil, pod("a", 1, uuidA, app(2)))
	for _, tc := range []struct {
		available, must []string
		size            gpu.Units
	}{
		{nil, nil, 0},
		{nil, nil, -1},
		{nil, nil, 2},
		{[]string{"x", "y"}, nil, 2},
		{[]string{"aaaaaaaa-0"}, []string{"x"}, 2},
		{[]string{"aaaaaaaa-0", "aaaaaaaa-1"}, []string{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"}, 2},
		{[]string{"aaaaaaaa-0", "aaaaaaaa-1"}, []string{"aaaaaaaa-7"}, 2},
	} {
		if ids, err := n.preferred(t.Context(), tc.available, tc.must, tc.size); err == nil {
			t.Errorf("%v, %v, %d: answered %v", tc.available, tc.must, tc.size, ids)
		}
	}
	ctx := t.Context()
	if out, err := n.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{}); err != nil || len(out.GetContainerResponses()) != 0 {
		t.Errorf("no container: %v, %v", out, err)
	}
	if out, err := n.client.Allocate(ctx, &pluginapi.AllocateRequest{}); err != nil || len(out.GetContainerResponses()) != 0 {
		t.Errorf("no container: %v, %v", out, err)
	}
	nothing := []*pluginapi.ContainerAllocateRequest{{}}
	if _, err := n.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: nothing}); err == nil {
		t.Error("a container without IDs was allocated")
	}
}

// A GPU offers a unit less than when a container was given its last one.
func TestAContainerStartsAgainOnAGPUThatOffersLess(t *testing.T) {
	p, next := pod("p", 1, uuidA, app(8)), pod("next", 2, uuidA, app(1))
	n := newNode(t, nil, nil, p)
	if _, err := n.admit(t, p); err != nil {
		t.Fatal(err)
	}
	n.prober.set(func(inv *gpu.Inventory) { inv.Devices[0].Capacity = 7 })
	ids := plain(n.kubelet.held[0].Slots)
	if err := n.start(t.Context(), ids...); err != nil {
		t.Errorf("it does not start again: %v", err)
	}
	if env, ok, err := n.Environment(t.Context(), "ns", "p", "main", gpu.EnforcementAdvisory); err != nil || !ok || env["GPUMEM_LIMIT_MIB"] != "8192" {
		t.Errorf("its environment is %v, %t, %v", env, ok, err)
	}
	if grants, err := n.Grants(t.Context()); err != nil || len(grants) != 1 || grants[0].Bytes != 8<<30 {
		t.Errorf("it was granted %v, %v", grants, err)
	}
	n.pods.add(next)
	_, err := n.allocate(t.Context(), "aaaaaaaa-7")
	wantStatus(t, err, codes.FailedPrecondition, "slot aaaaaaaa-7 is held by container main of pod ns/p")
	n.kubelet.held = nil
	_, err = n.allocate(t.Context(), "aaaaaaaa-7")
	wantStatus(t, err, codes.FailedPrecondition, "past the end")
	wantStatus(t, n.start(t.Context(), "aaaaaaaa-7"), codes.FailedPrecondition, "past the end")
}

func TestPreStartOfAPodOnTwoGPUs(t *testing.T) {
	n := newNode(t, nil, []string{"ns/a"}, pod("a", 1, uuidA, container("one", placement.App, 1), container("two", placement.App, 1)))
	n.kubelet.give("a", "one", []string{"aaaaaaaa-0"})
	n.kubelet.give("a", "two", []string{"bbbbbbbb-0"})
	for range 2 {
		wantStatus(t, n.start(t.Context(), "bbbbbbbb-0"), codes.FailedPrecondition, "slots of 2 GPUs and asks for 1")
	}
	if err := n.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ns/a GPUMemoryMixed"}, n.notes.all()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if got := n.pods.corrected(); got != nil {
		t.Errorf("what no annotation can say was written: %v", got)
	}
}

func TestPreStartDoesNotDependOnTheAPIServer(t *testing.T) {
	n := newNode(t, nil, []string{"ns/a"}, pod("a", 1, "", app(1)))
	n.kubelet.give("a", "main", []string{"aaaaaaaa-0"})
	n.pods.settle("a")
	n.pods.fail = errors.New("the API server is down")
	if err := n.start(t.Context(), "aaaaaaaa-0"); err != nil {
		t.Fatalf("start: %v", err)
	}
	if err := n.reconcile(t.Context()); err == nil {
		t.Error("the loop does not know that it must try again")
	}
	n.pods.fail = nil
	if err := n.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ns/a [" + string(uuidA) + "] by the node"}, n.pods.corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
	if err := n.reconcile(t.Context()); err != nil || len(n.pods.corrected()) != 1 {
		t.Errorf("written again: %v, %v", n.pods.corrected(), err)
	}
}

// received reads one list as GPU → health and number.
func received(t *testing.T, stream pluginapi.DevicePlugin_ListAndWatchClient) map[string]int {
	t.Helper()
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]int)
	for _, d := range list.GetDevices() {
		if d.GetTopology() != nil {
			t.Errorf("device %s has a topology", d.GetID())
		}
		out[d.GetID()[:8]+" "+d.GetHealth()]++
	}
	return out
}

func TestListAndWatch(t *testing.T) {
	n := newNode(t, nil, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := n.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	want := func(want map[string]int) {
		t.Helper()
		if diff := cmp.Diff(want, received(t, stream)); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
	}
	want(map[string]int{"aaaaaaaa Healthy": 8, "bbbbbbbb Healthy": 8})
	n.prober.set(func(inv *gpu.Inventory) { inv.DriverVersion = "581" }) // nothing to the kubelet
	n.prober.set(func(inv *gpu.Inventory) { inv.Devices[0].Status = gpu.Unhealthy("gone") })
	want(map[string]int{"aaaaaaaa Unhealthy": 8, "bbbbbbbb Healthy": 8})
	n.prober.set(func(inv *gpu.Inventory) { inv.Devices[0].Status = gpu.Status{} })
	want(map[string]int{"aaaaaaaa Healthy": 8, "bbbbbbbb Healthy": 8})
	n.prober.set(func(inv *gpu.Inventory) { inv.Devices = nil })
	want(map[string]int{})
}

func TestOptions(t *testing.T) {
	n := newNode(t, nil, nil)
	got, err := n.client.GetDevicePluginOptions(t.Context(), &pluginapi.Empty{})
	if err != nil || !got.GetPreStartRequired() || !got.GetGetPreferredAllocationAvailable() {
		t.Errorf("options %v, %v", got, err)
	}
}

func TestAUnitThatIsTooSmall(t *testing.T) {
	n := newNode(t, nil, nil)
	n.prober.set(func(inv *gpu.Inventory) {
		inv.UnitMiB = 1
		for i := range inv.Devices {
			inv.Devices[i].MemoryMiB, inv.Devices[i].Capacity = 81559, 81000
		}
	})
	why, mistake := n.Nothing()
	if !mistake || !strings.Contains(why, "use --unit-mib=2 or more") {
		t.Errorf("mistake %t: %s", mistake, why)
	}
	if inv, _ := n.Inventory(); len(inv.Devices) != 0 {
		t.Errorf("%d devices are offered all the same", len(inv.Devices))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := n.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	if got := received(t, stream); len(got) != 0 {
		t.Errorf("sent %v", got)
	}
	announced, stop := context.WithCancel(ctx)
	done := make(chan error)
	go func() { done <- n.Announce(announced) }()
	n.prober.set(func(*gpu.Inventory) {}) // the same again
	n.prober.set(func(inv *gpu.Inventory) { *inv = twoGPUs() })
	if got := received(t, stream); got["aaaaaaaa Healthy"] != 8 {
		t.Errorf("sent %v", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAnnounce(t *testing.T) {
	n := newNode(t, nil, nil)
	n.prober.set(func(inv *gpu.Inventory) { inv.Devices[1].UUID = inv.Devices[0].UUID })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Announce(ctx); err != nil {
		t.Error(err)
	}
	got := n.notes.all()
	if len(got) != 1 || !strings.HasPrefix(got[0], "node GPUMemoryNotOffered: NVML's answers make no sense") {
		t.Errorf("events %q", got)
	}
}

// Eight GPUs of 141 GB with a unit of 1 MiB would make a list of devices that the
// kubelet drops without a word. It is refused, with the unit that would do; with
// that unit, and with the usual one, the message is within what the kubelet
// receives.
func TestEightLargeGPUsInSmallUnits(t *testing.T) {
	const mib = 144384 // 141 GiB
	offerIn := func(unit int64) offer {
		inv := gpu.Inventory{UnitMiB: unit}
		for i := range 8 {
			inv.Devices = append(inv.Devices, gpu.Device{
				UUID: gpu.UUID(fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000", i)), Index: i, Model: "NVIDIA H200",
				MemoryMiB: mib, Capacity: gpu.UnitsIn(mib, 0, unit), NUMANode: -1,
			})
		}
		return newOffer(inv, "")
	}
	tooSmall := offerIn(1)
	var suggested int64
	_, advice, ok := strings.Cut(tooSmall.why, "use --unit-mib=")
	if _, err := fmt.Sscanf(advice, "%d or more", &suggested); err != nil || !ok || len(tooSmall.list(gpu.Memory).GetDevices()) != 0 {
		t.Fatalf("offered %d devices, and said %q", len(tooSmall.list(gpu.Memory).GetDevices()), tooSmall.why)
	}
	for _, unit := range []int64{suggested, 256, 1024} {
		o := offerIn(unit)
		list := o.list(gpu.Memory)
		if size := proto.Size(list); o.why != "" || size > messageLimit || len(list.GetDevices()) != 8*int(mib/unit) {
			t.Errorf("unit of %d MiB: %d devices in %d bytes, %q", unit, len(list.GetDevices()), size, o.why)
		}
	}
	if o := offerIn(suggested - 1); o.why == "" {
		t.Errorf("a unit of %d MiB would have done, and %d was suggested", suggested-1, suggested)
	}
}

// The node of a pod whose assignment somebody takes away was chosen by gpumem all the same.
func TestAnAssignmentThatIsTakenAwayIsWrittenAgain(t *testing.T) {
	for _, tc := range []struct {
		name string
		pod  allocation.Pod
		want []string
	}{
		{"of a scheduler", pod("a", 1, uuidB, app(3)), []string{"ns/a [" + string(uuidB) + "]"}},
		{"of the node", pod("a", 1, "", app(3)), []string{"ns/a [" + string(uuidA) + "] by the node", "ns/a [" + string(uuidA) + "] by the node"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, nil, nil, tc.pod)
			if _, err := n.admit(t, tc.pod); err != nil {
				t.Fatal(err)
			}
			if err := n.reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.pods.takeAway("a")
			if err := n.reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, n.pods.corrected()); diff != "" {
				t.Errorf("corrections (-want +got):\n%s", diff)
			}
		})
	}
}
