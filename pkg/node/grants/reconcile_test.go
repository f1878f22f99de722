package grants_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

func TestASwapIsCorrectedOnBothSides(t *testing.T) {
	a, b := pod("a", 1, uuidA, app(6)), pod("b", 2, uuidB, app(6))
	n := newNode(t, nil, nil, a, b)
	n.Swap(t, "b", 6)
	for range 2 {
		if err := n.Reconciler.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.Pods.Corrected(); len(got) > 0 {
		t.Errorf("corrected before the kubelet says that it has admitted b: %v", got)
	}
	n.Pods.Settle("b")
	for range 3 {
		if err := n.Reconciler.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	want := []string{
		"ns/a " + onB + " leaving " + onA, "ns/b " + onA + " leaving " + onB, // the waiting pod first
		"ns/a " + onB, "ns/b " + onA,
	}
	if diff := cmp.Diff(want, n.Pods.Corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ns/a GPUMemoryCorrected", "ns/b GPUMemoryCorrected"}, n.Notes.All()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	drifted, why := n.Counts.Seen()
	if diff := cmp.Diff([]int{0, 0, 1, 0, 0}, drifted); diff != "" {
		t.Errorf("drifted at each look (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{grants.ReasonPlanned, grants.ReasonHeld}, why); diff != "" {
		t.Errorf("corrections counted (-want +got):\n%s", diff)
	}
	gpus, err := n.Admit(t, a)
	if err != nil || !slices.Equal(gpus, []string{"main=1"}) {
		t.Errorf("the other pod then got %v, %v; want GPU 1", gpus, err)
	}
}

// The plan of a corrected pod is its correction. A later swap is corrected with this plan.
func TestASecondSwapIsCorrectedToo(t *testing.T) {
	a := pod("a", 1, uuidA, app(4))
	n := newNode(t, nil, nil, a, pod("b", 2, uuidB, app(4)))
	settled := func(name string) {
		t.Helper()
		n.Pods.Settle(name)
		for range 3 {
			if err := n.Reconciler.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.Swap(t, "b", 4)
	settled("b")
	if gpus, err := n.Admit(t, a); err != nil || !slices.Equal(gpus, []string{"main=1"}) {
		t.Fatalf("%v, %v; want GPU 1", gpus, err)
	}
	first := len(n.Pods.Corrected())
	n.Pods.Add(pod("d", 3, uuidB, app(4)))
	n.Pods.Add(pod("c", 4, uuidA, app(4)))
	n.Swap(t, "c", 4)
	settled("c")
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	want := []string{"ns/d " + onA + " leaving " + onB, "ns/c " + onB + " leaving " + onA, "ns/d " + onA, "ns/c " + onB}
	if diff := cmp.Diff(want, n.Pods.Corrected()[first:]); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
}

// Reconciler computes a waiting pod's new plan from the other pod's old annotation.
func TestASwapIsNotCorrectedByHalf(t *testing.T) {
	a, b := pod("a", 1, uuidA, app(6)), pod("b", 2, uuidB, app(6))
	n := newNode(t, nil, nil, a, b)
	n.Swap(t, "b", 6)
	n.Pods.Settle("b")
	n.Pods.FailOnce = "a"
	if err := n.Reconciler.Pass(t.Context()); err == nil {
		t.Error("want the error of the correction that failed")
	}
	for range 3 {
		if err := n.Reconciler.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	want := []string{
		"ns/a " + onB + " leaving " + onA, "ns/b " + onA + " leaving " + onB,
		"ns/a " + onB, "ns/b " + onA,
	}
	if diff := cmp.Diff(want, n.Pods.Corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
}

// If the write of a pod without allocations fails, Reconciler delays the corrections of interchangeable pods,
// and no other corrections.
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
			p.Admitted, p.Assignment.Leaving = true, []gpu.UUID{"GPU-eeeeeeee-0000-0000-0000-000000000000"}
			return p
		}(), want: exchanged},
		"it names such a GPU to leave": {also: func() allocation.Pod {
			p := pod("other", 1, uuidA, container("fetch", placement.Init, 1))
			p.Admitted, p.Assignment.Leaving = true, []gpu.UUID{gone}
			return p
		}(), want: append([]string{"ns/other " + onA}, exchanged...)},
		"every write of it fails": {also: func() allocation.Pod {
			p := pod("other", 1, uuidA, container("fetch", placement.Init, 1))
			p.Admitted, p.Assignment.Leaving = true, []gpu.UUID{uuidB}
			return p
		}(), denied: "other", errors: true, want: exchanged},
		"it is one of those that were exchanged": {also: pod("c", 1, "", app(3)), denied: "a", errors: true, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pod("a", 2, uuidA, app(2)), pod("b", 3, uuidB, app(2))
			b.Admitted = true
			a.Admitted = tc.denied != "a" // otherwise it waits
			n := newNode(t, nil, []string{"ns/other", "ns/a", "ns/b"}, tc.also, a, b)
			n.Pods.Denied = tc.denied
			if a.Admitted {
				n.Kubelet.Give("a", "main", []string{"bbbbbbbb-0", "bbbbbbbb-1"})
			}
			n.Kubelet.Give("b", "main", []string{"aaaaaaaa-3", "aaaaaaaa-4"})
			var errs []error
			for range 3 {
				errs = append(errs, n.Reconciler.Pass(t.Context()))
			}
			if err := errors.Join(errs...); (err != nil) != tc.errors {
				t.Errorf("error %v, want one: %v", err, tc.errors)
			}
			if diff := cmp.Diff(tc.want, n.Pods.Corrected()); diff != "" {
				t.Errorf("corrections (-want +got):\n%s", diff)
			}
		})
	}
}

// Pods that request memory only in plain init containers have allocations that the kubelet does not list. The
// table records them.
func TestAPodOfInitContainersAloneIsWritten(t *testing.T) {
	warm := func(units gpu.Units) placement.Container { return container("warm", placement.Init, units) }
	only := func(device gpu.UUID, p allocation.Pod) allocation.Pod {
		p.Request.UUIDs = placement.NewGlobs(string(device))
		return p
	}
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	for name, tc := range map[string]struct {
		pods    []allocation.Pod // admitted in this order
		unheard string           // pod whose admission the API server reports late
		between func(n *node)
		then    func(n *node)
		want    []string
	}{
		"no scheduler has placed it":      {pods: []allocation.Pod{pod("p", 1, "", warm(2))}, want: []string{"ns/p " + onA + " by the node"}},
		"it has two of them":              {pods: []allocation.Pod{pod("p", 1, "", warm(2), container("then", placement.Init, 4))}, want: []string{"ns/p " + onA + " by the node"}},
		"it is where it is written to be": {pods: []allocation.Pod{pod("p", 1, uuidB, warm(2))}, want: nil},
		"its assignment is taken away": {
			pods: []allocation.Pod{pod("p", 1, uuidB, warm(2))}, want: []string{"ns/p " + onB},
			then: func(n *node) { n.Pods.TakeAway("p") },
		},
		"its GPU was not free": {
			pods: []allocation.Pod{pod("full", 1, uuidB, app(8)), pod("p", 2, uuidB, warm(2))}, want: []string{"ns/p " + onA},
		},
		"another of its size came before": {
			pods: []allocation.Pod{pod("p", 1, uuidB, warm(2)), pod("q", 2, "", warm(2))}, want: []string{"ns/q " + onB + " by the node"},
		},
		"another of its size was there before the plugin": {
			pods: []allocation.Pod{pod("p", 1, uuidB, warm(2)), pod("q", 2, "", warm(2))}, want: []string{"ns/q " + onB + " by the node"},
			between: func(n *node) { n.State.Registered() },
		},
		"another of its size is not known to be admitted": {
			pods: []allocation.Pod{pod("p", 1, "", warm(2)), pod("q", 2, "", warm(2))}, unheard: "p", want: []string{"ns/p " + onA + " by the node", "ns/q " + onA + " by the node"},
		},
		"another of its size, which may not have its GPU, is not known to be admitted": {
			pods: []allocation.Pod{only(uuidB, pod("p", 1, "", warm(2))), only(uuidA, pod("q", 2, "", warm(2)))}, unheard: "p",
			want: []string{"ns/p " + onB + " by the node", "ns/q " + onA + " by the node"},
		},
		"the kubelet has started again since": {
			pods: []allocation.Pod{pod("p", 1, uuidB, warm(2))}, want: []string{"ns/p " + onB},
			then: func(n *node) { n.State.Registered(); n.Pods.TakeAway("p") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil, nil, tc.pods...)
			for i, p := range tc.pods {
				if i > 0 && tc.between != nil {
					tc.between(n)
				}
				if _, err := n.Admit(t, p); err != nil {
					t.Fatal(err)
				}
				if p.Pod.Name == tc.unheard {
					n.Pods.Change(p.Pod.Name, func(p *allocation.Pod) { p.Admitted = false })
				}
			}
			n.Pods.Settle(tc.unheard)
			for range 2 {
				if err := n.Reconciler.Pass(t.Context()); err != nil {
					t.Fatal(err)
				}
				if tc.then != nil {
					tc.then(n)
				}
			}
			if diff := cmp.Diff(tc.want, n.Pods.Corrected()); diff != "" {
				t.Errorf("corrections (-want +got):\n%s", diff)
			}
		})
	}
}

// If a user removes the assignment of a pod, the pod still counts as placed by gpumem.
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
			if _, err := n.Admit(t, tc.pod); err != nil {
				t.Fatal(err)
			}
			if err := n.Reconciler.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.Pods.TakeAway("a")
			if err := n.Reconciler.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, n.Pods.Corrected()); diff != "" {
				t.Errorf("corrections (-want +got):\n%s", diff)
			}
		})
	}
}

// A user changed the annotation gpu-index, or the driver renumbered the GPUs. A missing GPU has no index.
func TestIndexesAreWrittenAgain(t *testing.T) {
	wrong, missing, waiting, gone := pod("wrong", 1, uuidA, app(1)), pod("missing", 2, uuidB, app(2)), pod("waiting", 3, uuidA, app(3)), pod("gone", 4, "GPU-gone", app(4))
	wrong.Index, missing.Index, waiting.Index = "1", "", "1"
	wrong.Admitted, missing.Admitted, gone.Admitted = true, true, true
	n := newNode(t, nil, nil, wrong, missing, waiting, gone)
	for range 2 {
		if err := n.Reconciler.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"ns/wrong [" + string(uuidA) + "]", "ns/missing [" + string(uuidB) + "]"}
	if diff := cmp.Diff(want, n.Pods.Corrected()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
}

func TestTheLevelThatAPodHasIsWritten(t *testing.T) {
	bound := pod("a", 1, uuidA, app(3))
	bound.Assignment.Enforcement = gpu.EnforcementMPS // at the Binding; the daemon has ended since
	n := newNode(t, nil, nil, bound)
	if _, err := n.Admit(t, bound); err != nil {
		t.Fatal(err)
	}
	if err := n.Reconciler.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.AssignedLevel("a"); got != gpu.EnforcementAdvisory {
		t.Errorf("the pod is written to have %q, and was given advisory", got)
	}
	if want := "ns/a GPUMemoryEnforcement"; !slices.Contains(n.Notes.All(), want) {
		t.Errorf("events %v, want %s", n.Notes.All(), want)
	}

	n.LevelIs(gpu.EnforcementMPS) // the node's level; the pod keeps its own
	if err := n.Reconciler.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.AssignedLevel("a"); got != gpu.EnforcementAdvisory {
		t.Errorf("the pod is written to have %q once its node has mps", got)
	}
}

// TestTheLevelThatAPodHasOutlivesThePlugin ends the plugin between the allocation and the write of the pod. The
// pod's annotation still has the node's level at the Binding.
func TestTheLevelThatAPodHasOutlivesThePlugin(t *testing.T) {
	for name, tc := range map[string]struct {
		node gpu.Enforcement // at the time of the allocation
		mps  bool
		pod  allocation.Pod
		want gpu.Enforcement
	}{
		"the daemon has died":               {gpu.EnforcementAdvisory, false, pod("a", 1, uuidA, app(3)), gpu.EnforcementAdvisory},
		"no longer kernel":                  {gpu.EnforcementMPS, true, pod("a", 1, uuidA, app(3)), gpu.EnforcementMPS},
		"several GPUs, and another daemon":  {gpu.EnforcementMPS, true, bothGPUs("a"), gpu.EnforcementAdvisory},
		"as strong as it was when it bound": {gpu.EnforcementKernel, false, pod("a", 1, uuidA, app(3)), gpu.EnforcementKernel},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "grants.json")
			remembers := func(c *deviceplugin.Config) { c.Record = checkpoint.File(file) }
			bound := tc.pod
			bound.Assignment.Enforcement = gpu.EnforcementKernel
			n := newNode(t, remembers, nil, bound)
			n.Source.Set(func(inv *gpu.Inventory) { inv.Enforcement, inv.MPS = tc.node, tc.mps })
			n.Pods.Denied = "a" // until the plugin has ended
			if _, err := n.Admit(t, bound); err != nil {
				t.Fatal(err)
			}
			n.Pods.Denied = ""
			n.LevelIs(gpu.EnforcementKernel) // back to the former level
			n.Begin(t, remembers)
			if err := n.Reconciler.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := n.AssignedLevel("a"); got != tc.want {
				t.Errorf("the pod is written to have %q, and was given %s", got, tc.want)
			}

			// An unreadable file counts as missing, and is rewritten.
			if err := os.WriteFile(file, []byte("{"), 0o644); err != nil {
				t.Fatal(err)
			}
			n.Begin(t, remembers)
			if err := n.Reconciler.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := n.AssignedLevel("a"); got != tc.want {
				t.Errorf("then to have %q", got)
			}
		})
	}
}

// bothGPUs returns a pod with a share of each GPU.
func bothGPUs(name string) allocation.Pod {
	p := pod(name, 1, uuidA, app(6))
	p.Request.Count = 2
	p.Assignment.Shares = append(p.Assignment.Shares, placement.Share{Device: uuidB})
	p.Assignment = p.Assignment.WithShares(p.Request)
	return p
}

// A pod's annotation has another GPU and another level than the pod's allocation. No write on the way to the
// correct annotation contains the wrong GPU.
func TestALevelMovesNoPodBack(t *testing.T) {
	a, b := pod("a", 1, uuidA, app(6)), pod("b", 2, uuidB, app(6))
	n := newNode(t, nil, nil, a, b)
	n.LevelIs(gpu.EnforcementMPS)
	n.Swap(t, "b", 6)
	n.Pods.Settle("b")
	for range 3 {
		if err := n.Reconciler.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	onA, onB := "["+string(uuidA)+"]", "["+string(uuidB)+"]"
	want := []string{"ns/a " + onB + " leaving " + onA, "ns/b " + onA + " leaving " + onB, "ns/a " + onB, "ns/b " + onA}
	if diff := cmp.Diff(want, n.Pods.Corrected()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	if got := n.AssignedLevel("b"); got != gpu.EnforcementMPS {
		t.Errorf("level %q is written, want mps", got)
	}
}

// A user has changed a pod's annotation gpu-index, and the node's level has changed since the Binding. One
// write corrects both annotations.
func TestAllThatIsWrongOfAPodIsWrittenAtOnce(t *testing.T) {
	bound := pod("a", 1, uuidA, app(3))
	bound.Assignment.Enforcement, bound.Index = gpu.EnforcementMPS, "1"
	n := newNode(t, nil, nil, bound)
	if _, err := n.Admit(t, bound); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Reconciler.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"ns/a [" + string(uuidA) + "]"}, n.Pods.Corrected()); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	if got := n.AssignedLevel("a"); got != gpu.EnforcementAdvisory {
		t.Errorf("level %q is written, want advisory", got)
	}
}

// The owner of a pod on one whole GPU writes an assignment to a share of each GPU. The account shows the
// kubelet's allocation until the pod is gone, and Reconciler corrects the annotation.
func TestAPodCountsAsTheKubeletHasGivenIt(t *testing.T) {
	p := pod("evil", 1, uuidA, app(8))
	n := newNode(t, nil, nil, p)
	look := func() {
		t.Helper()
		if err := n.Reconciler.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	said := func() []gpu.PodAllocation { given, _, _ := n.State.Allocations(); return given }
	requested := func() (out []gpu.Units) {
		inv, _ := n.Offers.Inventory()
		var holdings []placement.Holding
		pods, _, _ := n.Pods.Pods()
		for _, pod := range pods {
			holdings = append(holdings, pod.Holding)
		}
		for _, d := range placement.NewNode("n1", api.WithAllocated(inv, said()), holdings).Devices {
			out = append(out, d.Requested)
		}
		return out
	}
	lie := func() {
		n.Pods.Change("evil", func(pod *allocation.Pod) {
			pod.Request.Count = 2
			pod.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidA}, {Device: uuidB}}}.WithShares(pod.Request)
		})
	}
	if _, known, _ := n.State.Allocations(); known {
		t.Error("what was given is known before anybody has looked")
	}
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	look()
	if _, known, changed := n.State.Allocations(); !known || len(said()) > 0 || plugintest.IsClosed(changed) {
		t.Errorf("of a pod of which the truth is written: known %t, %v", known, said())
	}
	_, _, changed := n.State.Allocations()
	lie()
	look()
	want := []gpu.PodAllocation{{UID: "uid-evil", Shares: []gpu.Share{{Device: uuidA, Units: 8}}}}
	if diff := cmp.Diff(want, said()); diff != "" || !plugintest.IsClosed(changed) {
		t.Errorf("said of the pod, told of %t (-want +got):\n%s", plugintest.IsClosed(changed), diff)
	}
	if diff := cmp.Diff([]string{"ns/evil [" + string(uuidA) + "] held"}, n.Pods.Corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]gpu.Units{8, 0}, requested()); diff != "" {
		t.Errorf("requested (-want +got):\n%s", diff)
	}
	look() // the annotation is correct again, but its owner can understate it at any moment
	if diff := cmp.Diff(want, said()); diff != "" {
		t.Errorf("said of the pod that was put right (-want +got):\n%s", diff)
	}
	if err := n.Start(t.Context(), n.Kubelet.SlotsOf("evil")...); err != nil {
		t.Errorf("its container does not start again: %v", err)
	}
	_, _, changed = n.State.Allocations()
	lie() // before the next pass
	if got := requested(); got[0] != 8 {
		t.Errorf("%d units of GPU 0 are requested, want 8", got[0])
	}
	look()
	if diff := cmp.Diff(want, said()); diff != "" || plugintest.IsClosed(changed) {
		t.Errorf("said again: %t (-want +got):\n%s", plugintest.IsClosed(changed), diff)
	}
	n.Pods.Set()
	n.Kubelet.Free()
	n.Pods.Unlisted = true
	look()
	if len(said()) != 1 {
		t.Error("a pod is forgotten where the pods are not known to be all")
	}
	n.Pods.Unlisted = false
	look()
	if len(said()) > 0 {
		t.Errorf("of a pod that is gone: %v", said())
	}
}

// A missing GPU does not reduce the pod's allocation: the slots are valid again when the GPU is back.
func TestAGPUThatIsGoneIsNotWrittenOff(t *testing.T) {
	p := pod("two", 1, uuidA, app(8))
	p.Request.Count = 2
	p.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidA}, {Device: uuidB}}}.WithShares(p.Request)
	n := newNode(t, nil, nil, p)
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	n.Source.Set(func(inv *gpu.Inventory) { inv.Devices = inv.Devices[:1] })
	if err := n.Reconciler.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string(nil), n.Pods.Corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
}
