package grants_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// A pod is force-deleted and recreated while the kubelet answers. The answer's entry of that name belongs to
// the earlier pod.
func TestPodsAreReadBeforeTheKubelet(t *testing.T) {
	p := pod("p", 1, uuidA, app(2))
	p.Admitted = true
	n := newNode(t, nil, []string{"ns/p"}, p)
	ids := []string{"bbbbbbbb-0", "bbbbbbbb-1"}
	n.Kubelet.Give("p", "main", ids)
	n.Kubelet.Meanwhile = func() {
		n.Pods.Change("p", func(p *allocation.Pod) { p.Pod.UID = "another" })
	}
	if err := n.Start(t.Context(), ids...); err != nil {
		t.Error(err)
	}
	if got := n.Pods.Corrected(); len(got) > 0 {
		t.Errorf("corrections %v, want none: the kubelet has told nothing of this pod", got)
	}
}

// A grant is attributed to an init container, but the kubelet lists its slots at another pod. The slots are
// free after the other pod has ended.
func TestWhatAnotherHadIsNotKept(t *testing.T) {
	warm := pod("warm", 1, uuidA, container("warm", placement.Init, 3))
	n := newNode(t, nil, []string{"ns/warm", "ns/other"}, warm)
	if _, err := n.Allocate(t.Context(), "aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"); err != nil {
		t.Fatal(err)
	}
	n.Pods.Settle("warm")
	for _, held := range []bool{true, false} {
		n.Kubelet.Free()
		if held {
			n.Kubelet.Give("other", "main", []string{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"})
		}
		if err := n.Reconciler.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n.Pods.Add(pod("late", 2, uuidA, app(8)))
	n.Kubelet.Lists("ns/late")
	if ids, err := n.Preferred(t.Context(), n.Free(), nil, 8); err != nil || ids[0] != "aaaaaaaa-0" {
		t.Errorf("got %v, %v; want all of GPU 0", ids, err)
	}
}

// The kubelet calls for a pod that is already deleted, and the plugin attributes the grant to a waiting pod.
// The kubelet lists the slots at the deleted pod only before it admits the waiting pod.
func TestWhatAnotherHadWhileThePodWaitedIsNotItsOwn(t *testing.T) {
	n := newNode(t, nil, []string{"ns/warm"}, pod("warm", 1, uuidA, container("warm", placement.Init, 3)))
	seems, own := []string{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"}, []string{"bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2"}
	if _, err := n.Allocate(t.Context(), seems...); err != nil {
		t.Fatal(err)
	}
	n.Kubelet.Give("gone", "main", seems)
	if _, err := n.Allocate(t.Context(), own...); err != nil {
		t.Fatal(err)
	}
	n.Kubelet.Free()
	n.Pods.Settle("warm")
	if err := n.Reconciler.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ns/warm [" + string(uuidB) + "]"}, n.Pods.Corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
}

// The kubelet's answer is older than a grant. It lists the grant's slots at a pod that has ended since.
func TestAnAnswerFromBeforeAGrantDoesNotUndoIt(t *testing.T) {
	warm := pod("warm", 1, uuidA, container("warm", placement.Init, 3))
	n := newNode(t, nil, []string{"ns/warm"}, warm)
	ids := []string{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"}
	n.Kubelet.Give("before", "main", ids)
	n.Kubelet.Meanwhile = func() {
		n.Kubelet.Meanwhile = nil
		n.State.Put(grants.Grant{
			Namespace: "ns", Pod: "warm", UID: warm.Pod.UID, Container: "warm", Init: true, Slots: []gpu.SlotID{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"},
		})
	}
	s, _, err := n.State.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Attributed) != 1 {
		t.Errorf("given %v, want what was given while the kubelet answered", s.Attributed)
	}
}

// The kubelet calls for a deleted pod that the watch has never delivered, and the plugin attributes the grant
// to a waiting pod. When the kubelet calls for the waiting pod, it allocates the same slots.
func TestWhatAPodThatIsGoneWasGivenIsNotKept(t *testing.T) {
	warm := pod("warm", 1, uuidA, container("warm", placement.Init, 3))
	n := newNode(t, nil, []string{"ns/warm"}, warm)
	for _, ids := range [][]string{{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"}, {"aaaaaaaa-3", "aaaaaaaa-4", "aaaaaaaa-5"}, {"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"}} {
		if _, err := n.Allocate(t.Context(), ids...); err != nil {
			t.Fatal(err)
		}
	}
	n.Pods.Settle("warm")
	if err := n.Reconciler.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	given, _, _ := n.State.Allocations()
	want := []gpu.PodAllocation{{UID: "uid-warm", Shares: []gpu.Share{{Device: uuidA, Units: 6}}}}
	if diff := cmp.Diff(want, given); diff != "" {
		t.Errorf("a slot counts twice (-want +got):\n%s", diff)
	}
}

// A container keeps its grant although the plugin attributes an unseen pod's grant to it too. The kubelet has
// made both allocations and does not answer.
func TestWhatAContainerWasGivenIsNotForgottenForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, []string{"ns/p"}, pod("p", 1, uuidA, container("warm", placement.Init, 3)))
		for _, ids := range [][]string{{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"}, {"bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2"}} {
			if _, err := n.Allocate(t.Context(), ids...); err != nil {
				t.Fatal(err)
			}
		}
		state, _, err := n.State.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var given []gpu.SlotID
		for _, g := range state.Attributed {
			given = append(given, g.Slots...)
		}
		if diff := cmp.Diff([]gpu.SlotID{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2", "bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2"}, given); diff != "" {
			t.Errorf("what was given (-want +got):\n%s", diff)
		}
	})
}

func TestAKubeletThatIsAskedTooOftenIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, []string{"ns/younger"}, pod("older", 1, uuidA, app(3)), pod("younger", 2, uuidB, app(3)))
		n.Kubelet.Failures = 2
		ids, err := n.Preferred(t.Context(), n.Free(), nil, 3)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Errorf("got %v, %v; want GPU 1, of the pod that the kubelet lists", ids, err)
		}
	})
}

// After its admission, the owner of a pod writes another GPU to its annotation. An equal pod that waits for the
// pod's real GPU is not moved.
func TestWhatAnOwnerWritesIsNotSharedOut(t *testing.T) {
	onA := "ns/evil [" + string(uuidA) + "]"
	for name, tc := range map[string]struct {
		evil   allocation.Pod
		want   []string
		counts []string
	}{
		"a scheduler placed it": {pod("evil", 1, uuidA, app(4)), []string{onA}, []string{grants.ReasonPlaced}},
		"the node placed it":    {pod("evil", 1, "", app(4)), []string{onA + " by the node", onA}, []string{grants.ReasonPlaced, grants.ReasonHeld}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil, nil, tc.evil)
			if gpus, err := n.Admit(t, tc.evil); err != nil || !slices.Equal(gpus, []string{"main=0"}) {
				t.Fatalf("%v, %v; want GPU 0", gpus, err)
			}
			n.Pods.Add(pod("honest", 2, uuidA, app(4)))
			n.Pods.Change("evil", func(pod *allocation.Pod) {
				pod.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidB}}}.WithShares(pod.Request)
			})
			for range 2 {
				if err := n.Reconciler.Pass(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(tc.want, n.Pods.Corrected()); diff != "" {
				t.Errorf("corrections (-want +got):\n%s", diff)
			}
			_, why := n.Counts.Seen()
			if diff := cmp.Diff(tc.counts, why); diff != "" {
				t.Errorf("why (-want +got):\n%s", diff)
			}
		})
	}
}

// The level record of version 0.2 has the protocol of each slot. A new grant of a slot ends its record.
func TestRetiredClients(t *testing.T) {
	former := filepath.Join(t.TempDir(), "levels.json")
	levels := `{"aaaaaaaa-0":{"level":"mps","mps":3},"aaaaaaaa-1":{"level":"kernel","mps":3},"bbbbbbbb-0":{"level":"mps","mps":2},"bbbbbbbb-1":{"level":"advisory"}}`
	if err := os.WriteFile(former, []byte(levels), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, func(c *deviceplugin.Config) {
		c.Record, c.Former = checkpoint.File(filepath.Join(t.TempDir(), "grants.json")), former
	}, nil)
	inv, _, _ := n.Source.Inventory()
	held := map[string]string{
		"aaaaaaaa-0": "ml/three", "aaaaaaaa-1": "ml/three", "aaaaaaaa-2": "ml/unrecorded", "bbbbbbbb-0": "ml/two", "bbbbbbbb-1": "ml/advisory", "strange": "ml/strange",
	}
	want := map[gpu.UUID][]string{uuidA: {"ml/three"}}
	if diff := cmp.Diff(want, n.State.RetiredClients(inv, held)); diff != "" {
		t.Errorf("clients (-want +got):\n%s", diff)
	}
	n.State.Put(grants.Grant{Slots: []gpu.SlotID{"aaaaaaaa-0", "aaaaaaaa-1"}, Level: gpu.EnforcementMPS, MPS: 2})
	if got := n.State.RetiredClients(inv, held); len(got) > 0 {
		t.Errorf("clients after the slots were granted again: %v", got)
	}
	n.State.Put(grants.Grant{Slots: []gpu.SlotID{"bbbbbbbb-1"}, Level: gpu.EnforcementMPS, MPS: 3})
	if diff := cmp.Diff(map[gpu.UUID][]string{uuidB: {"ml/advisory"}}, n.State.RetiredClients(inv, held)); diff != "" {
		t.Errorf("clients by a recorded grant (-want +got):\n%s", diff)
	}
}

// A pod can arrive and get a grant after the Reconciler has read the pods.
func TestAGrantOutlivesAnOlderListOfPods(t *testing.T) {
	const slot = gpu.SlotID("a-0")
	n := newNode(t, nil, nil)
	isRecorded := func() bool {
		memory, _ := n.State.Grants(allocation.Allocated{Slots: []gpu.SlotID{slot}})
		return memory != nil
	}
	ask := func() {
		if _, _, err := n.State.SnapshotOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	n.State.Put(grants.Grant{Namespace: "ns", Pod: "late", UID: "uid-late", Container: "main", Slots: []gpu.SlotID{slot}})
	n.State.Prune(nil, true)
	if !isRecorded() {
		t.Error("the grant of the pod that has just come is lost")
	}
	ask()
	n.State.Prune(nil, true)
	if isRecorded() {
		t.Error("the grant of the pod that is gone stays")
	}
	n.State.Put(grants.Grant{Slots: []gpu.SlotID{slot}})
	ask()
	n.State.Prune(nil, true)
	if !isRecorded() {
		t.Error("the grant of an unknown pod is lost before the kubelet has stored its answer")
	}
	ask()
	n.State.Prune(nil, true)
	if isRecorded() {
		t.Error("the grant of an unknown pod stays")
	}
}

// The owner of a pod can write less than the allocation again after the node has corrected the annotation.
func TestTheAccountHasAPodUntilItsEnd(t *testing.T) {
	evil := pod("evil", 1, uuidA, app(4))
	n := newNode(t, nil, nil, evil)
	if _, err := n.Admit(t, evil); err != nil {
		t.Fatal(err)
	}
	understate := func(p *allocation.Pod) {
		p.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidB}}}.WithShares(p.Request)
	}
	want := []gpu.PodAllocation{{UID: "uid-evil", Shares: []gpu.Share{{Device: uuidA, Units: 4}}}}
	n.Pods.Change("evil", understate)
	for _, when := range []string{"while the annotation says less", "after it was corrected", "and still"} {
		if err := n.Reconciler.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		given, known, _ := n.State.Allocations()
		if diff := cmp.Diff(want, given); diff != "" || !known {
			t.Errorf("%s, known: %t (-want +got):\n%s", when, known, diff)
		}
	}
	inv, _ := n.Offers.Inventory()
	n.Begin(t, func(c *deviceplugin.Config) { c.Published = api.WithAllocated(inv, want) })
	for _, when := range []string{"in the next process", "once that has the kubelet's answer"} {
		given, known, _ := n.State.Allocations()
		if diff := cmp.Diff(want, given); diff != "" || !known {
			t.Errorf("%s, known: %t (-want +got):\n%s", when, known, diff)
		}
		if err := n.Reconciler.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n.Pods.Set()
	n.Kubelet.Free()
	if err := n.Reconciler.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if given, _, _ := n.State.Allocations(); len(given) > 0 {
		t.Errorf("the pod has ended, and the account has %v", given)
	}
}
