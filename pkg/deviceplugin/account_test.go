package deviceplugin

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/allocation"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

// The owner of a pod says that it has a share of each GPU, and not all of one. What the kubelet
// has given is said until the pod is gone, and what is written of the pod is put right.
func TestAPodCountsAsTheKubeletHasGivenIt(t *testing.T) {
	p := pod("evil", 1, uuidA, app(8))
	n := newNode(t, nil, nil, p)
	look := func() {
		t.Helper()
		if err := n.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	said := func() []gpu.Given { given, _, _ := n.Given(); return given }
	requested := func() (out []gpu.Units) {
		inv, _ := n.Inventory()
		var holdings []placement.Holding
		pods, _, _ := n.pods.Pods()
		for _, pod := range pods {
			holdings = append(holdings, pod.Holding)
		}
		for _, d := range placement.NewNode("n1", inv.WithGiven(said()), holdings).Devices {
			out = append(out, d.Requested)
		}
		return out
	}
	lie := func() {
		n.pods.change("evil", func(pod *allocation.Pod) {
			pod.Request.Count = 2
			pod.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidA}, {Device: uuidB}}}.WithShares(pod.Request)
		})
	}
	if _, known, _ := n.Given(); known {
		t.Error("what was given is known before anybody has looked")
	}
	if _, err := n.admit(t, p); err != nil {
		t.Fatal(err)
	}
	look()
	if _, known, changed := n.Given(); !known || len(said()) > 0 || closed(changed) {
		t.Errorf("of a pod of which the truth is written: known %t, %v", known, said())
	}
	_, _, changed := n.Given()
	lie()
	look()
	want := []gpu.Given{{UID: "uid-evil", Shares: []gpu.GivenShare{{Device: uuidA, Units: 8}}}}
	if diff := cmp.Diff(want, said()); diff != "" || !closed(changed) {
		t.Errorf("said of the pod, told of %t (-want +got):\n%s", closed(changed), diff)
	}
	if diff := cmp.Diff([]string{"ns/evil [" + string(uuidA) + "] held"}, n.pods.corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]gpu.Units{8, 0}, requested()); diff != "" {
		t.Errorf("requested (-want +got):\n%s", diff)
	}
	look() // what is written is so again, and its owner can write less at any moment
	if diff := cmp.Diff(want, said()); diff != "" {
		t.Errorf("said of the pod that was put right (-want +got):\n%s", diff)
	}
	if err := n.start(t.Context(), n.slotsOf("evil")...); err != nil {
		t.Errorf("its container does not start again: %v", err)
	}
	_, _, changed = n.Given()
	lie() // nobody has looked yet
	if got := requested(); got[0] != 8 {
		t.Errorf("%d units of GPU 0 are requested, want 8", got[0])
	}
	look()
	if diff := cmp.Diff(want, said()); diff != "" || closed(changed) {
		t.Errorf("said again: %t (-want +got):\n%s", closed(changed), diff)
	}
	n.pods.mu.Lock()
	n.pods.list = nil
	n.pods.mu.Unlock()
	n.kubelet.mu.Lock()
	n.kubelet.held = nil
	n.kubelet.mu.Unlock()
	n.pods.unlisted = true
	look()
	if len(said()) != 1 {
		t.Error("a pod is forgotten where the pods are not known to be all")
	}
	n.pods.unlisted = false
	look()
	if len(said()) > 0 {
		t.Errorf("of a pod that is gone: %v", said())
	}
}

// The owner of a pod writes, once the kubelet has admitted it, that it has another GPU. An equal
// pod that waits for the pod's own GPU is not moved.
func TestWhatAnOwnerWritesIsNotSharedOut(t *testing.T) {
	onA := "ns/evil [" + string(uuidA) + "]"
	for name, tc := range map[string]struct {
		evil   allocation.Pod
		want   []string
		counts []string
	}{
		"a scheduler placed it": {pod("evil", 1, uuidA, app(4)), []string{onA}, []string{ReasonPlaced}},
		"the node placed it":    {pod("evil", 1, "", app(4)), []string{onA + " by the node", onA}, []string{ReasonPlaced, ReasonHeld}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil, nil, tc.evil)
			if gpus, err := n.admit(t, tc.evil); err != nil || !slices.Equal(gpus, []string{"main=0"}) {
				t.Fatalf("%v, %v; want GPU 0", gpus, err)
			}
			n.pods.add(pod("honest", 2, uuidA, app(4)))
			n.pods.change("evil", func(pod *allocation.Pod) {
				pod.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidB}}}.WithShares(pod.Request)
			})
			for range 2 {
				if err := n.reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(tc.want, n.pods.corrected()); diff != "" {
				t.Errorf("corrections (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.counts, n.counts.corrections); diff != "" {
				t.Errorf("why (-want +got):\n%s", diff)
			}
		})
	}
}

// slotsOf returns what the kubelet has given to a pod.
func (n *node) slotsOf(name string) (ids []string) {
	n.kubelet.mu.Lock()
	defer n.kubelet.mu.Unlock()
	for _, h := range n.kubelet.held {
		if h.Name == name {
			ids = append(ids, plain(h.Slots)...)
		}
	}
	return ids
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A GPU that is gone takes nothing from what the pod has: its slots are there when it is back.
func TestAGPUThatIsGoneIsNotWrittenOff(t *testing.T) {
	p := pod("two", 1, uuidA, app(8))
	p.Request.Count = 2
	p.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidA}, {Device: uuidB}}}.WithShares(p.Request)
	n := newNode(t, nil, nil, p)
	if _, err := n.admit(t, p); err != nil {
		t.Fatal(err)
	}
	n.prober.set(func(inv *gpu.Inventory) { inv.Devices = inv.Devices[:1] })
	if err := n.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string(nil), n.pods.corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
}
