package nodeapi

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// account contains the accounts of pods that a test sets.
type account struct {
	mu      sync.Mutex
	given   []gpu.PodAllocation
	known   bool
	changed chan struct{}
}

func (a *account) get() ([]gpu.PodAllocation, bool, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.given, a.known, a.changed
}

func (a *account) set(given ...gpu.PodAllocation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.given, a.known = given, true
	close(a.changed)
	a.changed = make(chan struct{})
}

func given(uid string, device gpu.Device, units gpu.Units) gpu.PodAllocation {
	return gpu.PodAllocation{UID: uid, Shares: []gpu.Share{{Device: device.UUID, Units: units}}}
}

// A new plugin keeps its predecessor's inventory until the accounts are known. The inventory omits amounts on a
// missing GPU.
func TestWhatPodsWereGivenIsWritten(t *testing.T) {
	inv := inventory(gpu0, gpu1)
	before, err := api.EncodeInventory(api.WithAllocated(inventory(gpu0), []gpu.PodAllocation{given("u1", gpu0, 3)}))
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{"gpumem.dev/inventory": before}}})
	told := &account{changed: make(chan struct{})}
	offers, current := make(chan struct{}), inv
	n := NewPublisher(client, names(t), "n1", zap.NewNop())
	go func() {
		_ = n.Run(t.Context(), func() (gpu.Inventory, <-chan struct{}) { return current, offers }, told.get)
	}()
	for range 2 {
		offers <- struct{}{} // Run has read the offer
	}
	annotated(t, client, api.WithAllocated(inventory(gpu0), []gpu.PodAllocation{given("u1", gpu0, 3)}))
	if missing := n.Missing(); missing != errAccount.Error() {
		t.Errorf("missing: %q", missing)
	}
	select {
	case <-n.Read():
	default:
		t.Error("the node's labels are not known")
	}
	told.set(given("u2", gpu1, 4))
	annotated(t, client, api.WithAllocated(inv, []gpu.PodAllocation{given("u2", gpu1, 4)}))
	if err := n.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	annotated(t, client, api.WithAllocated(inventory(stopped(gpu0), stopped(gpu1)), []gpu.PodAllocation{given("u2", gpu1, 4)}))
	if diff := cmp.Diff(inventory(gpu0), api.WithAllocated(inventory(gpu0), []gpu.PodAllocation{given("u2", gpu1, 4)})); diff != "" {
		t.Errorf("of a GPU that is gone (-want +got):\n%s", diff)
	}
}

// Pod owners cannot cause constant writes of the node's object.
func TestWhatPodsWereGivenIsWrittenNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(healthOf(inventory(gpu0)))
		var mu sync.Mutex
		writes := make(map[time.Time]bool) // a write may be repeated before its own event arrives
		client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			writes[time.Now()] = true
			return false, nil, nil
		})
		told := &account{changed: make(chan struct{})}
		n := NewPublisher(client, names(t), "n1", zap.NewNop())
		done := make(chan error, 1)
		go func() {
			done <- n.Run(t.Context(), func() (gpu.Inventory, <-chan struct{}) { return inventory(gpu0), nil }, told.get)
		}()
		for i := range 30 {
			told.set(given("u1", gpu0, gpu.Units(1+i)%14))
			time.Sleep(100 * time.Millisecond)
		}
		mu.Lock()
		if moments := len(writes); moments < 2 || moments > 4 {
			t.Errorf("written at %d moments of 3 s, want one a second", moments)
		}
		mu.Unlock()
		time.Sleep(2 * time.Second)
		node, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || !strings.Contains(node.Annotations["gpumem.dev/inventory"], `"given":[{"uid":"u1","gpus":[[0,2,0]]}]`) {
			t.Errorf("in the end: %v, %v", node.Annotations, err)
		}
		if err := n.Withdraw(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-done
	})
}

// A pod that its owner bound to the node with a forged assignment is treated like any pod that no scheduler
// placed.
func TestAForgedAssignmentPlacesNoPod(t *testing.T) {
	inv := inventory(gpu0, gpu1)
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		t.Fatal(err)
	}
	on := func(p *v1.Pod, d gpu.Device) *v1.Pod {
		value, err := names(t).AssignmentAnnotations(placement.Assignment{Shares: []placement.Share{{Device: d.UUID, Units: 1}}}, placement.NewNode("n1", inv, nil))
		if err != nil {
			t.Fatal(err)
		}
		p.Annotations = value
		return p
	}
	runs := func(p *v1.Pod) *v1.Pod { p.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)}; return p }
	forged := func() *v1.Pod {
		p := on(pod("forged", "u0", 4), gpu0)
		p.Status.Conditions = nil
		return p
	}
	alone := func() *v1.Pod {
		p := runs(on(pod("alone", "u1", 4), gpu0))
		p.Annotations["gpumem.dev/policy"] = "exclusive"
		return p
	}
	held := func(name string, d gpu.Device, units int) allocation.Allocated {
		return allocation.Allocated{Namespace: "ns", Name: name, Container: "main", Slots: slots.Of(gpu.Memory, d.UUID)[:units]}
	}
	for name, tc := range map[string]struct {
		others []*v1.Pod
		held   []allocation.Allocated
		change func(*allocation.State)
		want   gpu.UUID // empty if it is rejected
	}{
		"a node that places pods":             {want: gpu0.UUID},
		"a node that refuses them":            {change: func(s *allocation.State) { s.PlaceUnassigned = false }},
		"beside a pod that is to be alone":    {others: []*v1.Pod{alone()}, held: []allocation.Allocated{held("alone", gpu0, 4)}, want: gpu1.UUID},
		"on a cordoned GPU":                   {change: func(s *allocation.State) { s.Inventory = api.Cordon(s.Inventory, []gpu.UUID{gpu0.UUID}) }, want: gpu1.UUID},
		"where another is to have its memory": {others: []*v1.Pod{on(pod("planned", "u2", 12), gpu0), runs(on(pod("full", "u3", 14), gpu1))}, held: []allocation.Allocated{held("full", gpu1, 14)}},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPods(fake.NewClientset(), names(t), "n1", zap.NewNop())
			for _, pod := range append(tc.others, forged()) {
				trimmed, err := p.trim(pod)
				if err != nil {
					t.Fatal(err)
				}
				p.store(trimmed)
			}
			pods, _, _ := p.Pods()
			s := allocation.State{Inventory: inv, Slots: slots, Pods: pods, Allocated: tc.held, Listed: map[string]bool{"ns/forged": true}, Policy: placement.Binpack, PlaceUnassigned: true}
			if tc.change != nil {
				tc.change(&s)
			}
			all := append(slots.Of(gpu.Memory, gpu0.UUID), slots.Of(gpu.Memory, gpu1.UUID)...)
			ids, err := allocation.Prefer(s, gpu.Memory, all, nil, 4)
			if (err == nil) != (tc.want != "") {
				t.Fatalf("preferred: %v, %v; want GPU %q", ids, err, tc.want)
			}
			if err != nil {
				return
			}
			grant, err := allocation.Resolve(s, gpu.Memory, ids)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := allocation.Admit(s, grant); err != nil || grant.Devices[0].UUID != tc.want {
				t.Errorf("it is on %s, want %s; %v", grant.Devices[0].UUID, tc.want, err)
			}
		})
	}
}
