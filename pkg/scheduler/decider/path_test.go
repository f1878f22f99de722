package decider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/singleflight"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/lease"
)

// watched contains the pods that the watch has stored.
type watched struct {
	binder.Cluster // nil: the tests call no other method
	pods           map[string]*v1.Pod
}

func (w watched) Pod(_, name string) *v1.Pod { return w.pods[name] }

// ReadPod returns the stored pod.
func (w watched) ReadPod(_ context.Context, _, name string) (*v1.Pod, error) {
	return w.pods[name], nil
}

// Shown returns true, because the watch is not behind.
func (watched) Shown(string) bool { return true }

// Bind writes nothing, and returns an error that leaves the outcome unknown.
func (watched) Bind(context.Context, *v1.Binding) error { return errors.New("the connection is lost") }

// Refused returns false for all errors.
func (watched) Refused(error) bool { return false }

// Revision returns a constant.
func (watched) Revision(context.Context) (string, error) { return "1", nil }

// world has a node "pair" with two GPUs of 16 units, in the cache and in kube-scheduler.
type world struct {
	*Decider
	t       *testing.T
	watch   watched
	missing string
	now     time.Time
	kube    []*v1.Pod // kube-scheduler's pods of the node
	changes int64     // generation of kube
}

const (
	first  gpu.UUID = "GPU-aaaa"
	second gpu.UUID = "GPU-bbbb"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, now: time.Unix(1, 0), watch: watched{pods: make(map[string]*v1.Pod)}}
	w.Decider = &Decider{Binder: &binder.Binder{
		Self: "gpumem-scheduler", Log: zaptest.NewLogger(t), Names: names, Cache: cache.New(), Cluster: w.watch,
		Policies: ranking.Policies{GPU: placement.Binpack}, Now: func() time.Time { return w.now }, Missing: func() string { return w.missing },
		Reads: new(singleflight.Group), Leads: lease.LeadAlone(time.Unix(0, 0)),
	}}
	w.Binder.Cache.SetNode("pair", gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{
		{UUID: first, Allocatable: 16, MemoryMiB: 16384}, {UUID: second, Index: 1, Allocatable: 16, MemoryMiB: 16384},
	}})
	return w
}

// pod returns a pod that requests units. If GPUs are given, the pod is assigned to them.
func (w *world) pod(name, units string, on ...gpu.UUID) *v1.Pod {
	w.t.Helper()
	amount := resource.MustParse(units)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name), Annotations: make(map[string]string)},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{w.Binder.Names.GPUMem(): amount}},
		}}},
	}
	if len(on) == 0 {
		return pod
	}
	pod.Spec.NodeName = "pair"
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}
	node, _ := w.Binder.Cache.Node("pair")
	assignment := placement.Assignment{}
	for _, uuid := range on {
		assignment.Shares = append(assignment.Shares, placement.Share{Device: uuid, Units: gpu.Units(amount.Value())})
	}
	annotations, err := w.Binder.Names.AssignmentAnnotations(assignment, node)
	if err != nil {
		w.t.Fatal(err)
	}
	pod.Annotations = annotations
	return pod
}

// heard adds bound pods to the cache and to the watch's store.
func (w *world) heard(pods ...*v1.Pod) {
	w.t.Helper()
	for _, pod := range pods {
		h, err := w.Binder.Names.Holding(pod)
		if err != nil {
			w.t.Fatal(err)
		}
		w.Binder.Cache.AddPod("pair", h)
		w.watch.pods[pod.Name] = pod
	}
}

// sees replaces kube-scheduler's pods of the node.
func (w *world) sees(pods ...*v1.Pod) {
	w.kube = pods
	w.changes++
}

func (w *world) node() Node {
	return Node{Name: "pair", Generation: w.changes, Pods: slices.Values(w.kube)}
}

// begin begins the cycle of a pod that requests units.
func (w *world) begin(name, units string) *Cycle {
	w.t.Helper()
	c, refusal, err := w.Begin(history.Filter, w.pod(name, units), 1)
	if c == nil || refusal != nil || err != nil {
		w.t.Fatalf("begin: %v, %v, %v", c, refusal, err)
	}
	return c
}

// fits reports whether Refuse, called as by the plugin, accepts the node.
func (w *world) fits(c *Cycle) bool {
	return w.Refuse(c, w.node()) == nil
}

// The pods of a node are compared once, until kube-scheduler's or the cache's pods change.
func TestComparesWhileSomethingHasChanged(t *testing.T) {
	w := newWorld(t)
	agrees := func() bool { return w.agreed.agree("pair", w.changes, w.Cache.GetNode("pair")) }
	a, c := w.pod("a", "8", first), w.begin("pod", "10")
	w.heard(a)
	w.sees(a)
	if agrees() {
		t.Error("before they were compared")
	}
	if !w.fits(c) || !agrees() || c.Refused() != 0 {
		t.Error("not when both had the same pods")
	}
	b := w.pod("b", "8", second)
	w.sees(a, b)
	if agrees() {
		t.Error("when kube-scheduler had one more")
	}
	w.heard(b)
	if agrees() || w.fits(c) || !agrees() || w.fits(c) || c.Refused() != 2 {
		t.Errorf("when the cache had it too: it refuses, which was counted %d times, want 2", c.Refused())
	}
	w.sees(b)
	if agrees() || !w.fits(c) || agrees() {
		t.Error("when one was taken away for a moment")
	}
	w.Cache.SetNode("pair", gpu.Inventory{})
	if w.fits(c) {
		t.Error("it fits on a node without GPUs")
	}
	if w.Refuse(c, Node{Name: "other", Generation: 1, Pods: slices.Values([]*v1.Pod(nil))}) == nil {
		t.Error("a node that is not known is not refused")
	}
}

func TestBegin(t *testing.T) {
	for name, tc := range map[string]struct {
		units, count, missing string
		asks, refused, failed bool
	}{
		"asks":                            {units: "3", asks: true},
		"asks for nothing":                {units: "0"},
		"nothing, before all is ready":    {units: "0", missing: "pods"},
		"nothing can be decided yet":      {units: "3", missing: "pods", failed: true},
		"cannot be read":                  {units: "3", count: "two", refused: true},
		"cannot be read, and not yet now": {units: "3", count: "two", missing: "pods", failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.missing = tc.missing
			pod := w.pod("pod", tc.units)
			if tc.count != "" {
				pod.Annotations[w.Binder.Names.Count()] = tc.count
			}
			c, refusal, err := w.Begin(history.Filter, pod, 1)
			if diff := cmp.Diff([]bool{tc.asks, tc.refused, tc.failed}, []bool{c != nil, refusal != nil, err != nil}); diff != "" {
				t.Errorf("asks, refused, failed (-want +got):\n%s", diff)
			}
			if refusal != nil && !refusal.Unresolvable {
				t.Error("a pod that cannot be read is refused as if evictions helped")
			}
		})
	}
}

// kube-scheduler and the cache handle an event in either order, and preemption removes pods.
func TestRefusesForThePodsThatKubeSchedulerHas(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(w *world)
		want bool // a pod of 10 units fits
	}{
		{"both have the same", func(w *world) {
			a, b := w.pod("a", "8", first), w.pod("b", "8", second)
			w.heard(a, b)
			w.sees(a, b)
		}, false},
		{"one is taken away", func(w *world) {
			a, b := w.pod("a", "8", first), w.pod("b", "8", second)
			w.heard(a, b)
			w.sees(b)
		}, true},
		{"it was not heard of: its binding may land", func(w *world) {
			a := w.begin("a", "8")
			if _, err := w.Binder.Reserve(a.Pod, "pair", a.Request); err != nil {
				w.t.Fatal(err)
			}
			b := w.pod("b", "8", second)
			w.heard(b)
			w.sees(b)
		}, false},
		{"one is bound, and the cache has not heard", func(w *world) {
			a, b := w.pod("a", "8", first), w.pod("b", "8", second)
			w.heard(a)
			w.watch.pods["b"] = b
			w.sees(a, b)
		}, false},
		{"the same, and on which GPU is not known", func(w *world) {
			a, b := w.pod("a", "8", first), w.pod("b", "8", second)
			w.heard(a)
			clear(b.Annotations)
			w.watch.pods["b"] = b
			w.sees(a, b)
		}, false},
		{"one that is not bound is leaving", func(w *world) {
			a, b := w.pod("a", "8", first), w.pod("b", "8", second)
			w.heard(a)
			w.watch.pods["b"] = w.pod("b", "8")
			w.sees(a, b)
		}, true},
		{"the watch has another of that name", func(w *world) {
			a, b := w.pod("a", "8", first), w.pod("b", "8", second)
			w.heard(a)
			other := b.DeepCopy()
			other.UID = "another"
			w.watch.pods["b"] = other
			w.sees(a, b)
		}, true},
		{"one is to come", func(w *world) {
			a := w.pod("a", "8", first)
			w.heard(a)
			w.sees(a, w.pod("b", "10"))
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			tc.make(w)
			c := w.begin("pod", "10")
			if got := w.fits(c); got != tc.want {
				t.Errorf("fits: %v, want %v", got, tc.want)
			}
			if got := c.refused.Load() == 0; got != tc.want {
				t.Errorf("counted as one that fits: %v, want %v", got, tc.want)
			}
		})
	}
}

// The result of a comparison is valid until the node changes in kube-scheduler or in the cache.
func TestComparesAgainWhenOneHasChanged(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", "8", first), w.pod("b", "8", second)
	w.heard(a, b)
	w.sees(a, b)
	c := w.begin("pod", "10")
	expect := func(what string, want bool) {
		t.Helper()
		if got := w.fits(c); got != want {
			t.Errorf("%s: fits: %v, want %v", what, got, want)
		}
	}
	expect("both have both", false)
	expect("again", false)
	w.sees(b)
	expect("kube-scheduler alone has heard that a is gone", true)
	w.sees(a, b)
	expect("it was put back", false)
	w.Binder.Cache.RemovePod(string(a.UID))
	expect("the cache alone has heard, and the watch still has it on the node", false)
}

// A pod whose binding may have landed can go only to that node.
func TestOfAPodThatIsOnANode(t *testing.T) {
	w := newWorld(t)
	full := w.pod("pod", "16", first)
	w.heard(full)
	w.sees(full)
	c := w.begin("pod", "16")
	if c.BoundNode() != "pair" || !w.fits(c) {
		t.Errorf("it is on %q and fits there: %v, want pair, where it has what it needs", c.BoundNode(), w.fits(c))
	}
	other := Node{Name: "other", Pods: slices.Values([]*v1.Pod(nil))}
	if w.Refuse(c, other) == nil {
		t.Error("it was let go to another node")
	}
}

func TestReserve(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(w *world)
		want bool // 10 units are reserved
		left []string
	}{
		{name: "an empty node", make: func(*world) {}, want: true},
		{"of whom kube-scheduler has heard that it is gone, as the watch has", func(w *world) {
			a, b := w.pod("a", "8", first), w.pod("b", "8", second)
			w.heard(a, b)
			delete(w.watch.pods, "a")
			w.sees(b)
		}, true, []string{"b"}},
		{"it has ended", func(w *world) {
			a, b := w.pod("a", "8", first), w.pod("b", "8", second)
			w.heard(a, b)
			ended := a.DeepCopy()
			ended.Status.Phase = v1.PodSucceeded
			w.watch.pods["a"] = ended
			w.sees(b)
		}, true, []string{"b"}},
		{"another has its name", func(w *world) {
			a, b := w.pod("a", "8", first), w.pod("b", "8", second)
			w.heard(a, b)
			other := w.pod("a", "8")
			other.UID = "another"
			w.watch.pods["a"] = other
			w.sees(b)
		}, true, []string{"b"}},
		{"the watch has not stored that it is gone", func(w *world) {
			a, b := w.pod("a", "8", first), w.pod("b", "8", second)
			w.heard(a, b)
			w.sees(b)
		}, false, []string{"a", "b"}},
		{"one is bound, and the cache has not heard", func(w *world) {
			a := w.pod("a", "3", first)
			w.watch.pods["a"] = a
			w.sees(a)
		}, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			tc.make(w)
			c := w.begin("pod", "10")
			err := w.Reserve(c, w.node())
			if got := err == nil; got != tc.want {
				t.Fatalf("reserved: %v (%v), want %v", got, err, tc.want)
			}
			if _, assumed, _ := w.Binder.Cache.PodNode("uid-pod"); assumed != tc.want {
				t.Errorf("assumed: %v, want %v", assumed, tc.want)
			}
			w.Unreserve(c)
			if _, _, known := w.Binder.Cache.PodNode("uid-pod"); known {
				t.Error("the reservation was not taken back")
			}
			var left []string
			for _, name := range []string{"a", "b"} {
				if _, _, known := w.Binder.Cache.PodNode("uid-" + name); known {
					left = append(left, name)
				}
			}
			if diff := cmp.Diff(tc.left, left); diff != "" {
				t.Errorf("pods in the cache (-want +got):\n%s", diff)
			}
		})
	}
}

// Unreserve for a cycle that reserved nothing does not release the pod's reservation by an earlier cycle.
func TestUnreserveTakesBackItsOwn(t *testing.T) {
	w := newWorld(t)
	c := w.begin("pod", "10")
	if _, err := w.Binder.Reserve(c.Pod, "pair", c.Request); err != nil {
		t.Fatal(err)
	}
	w.Unreserve(c)
	if _, _, known := w.Binder.Cache.PodNode("uid-pod"); !known {
		t.Error("the reservation of another cycle was taken back")
	}
}

// Between Reserve and Bind, other plugins may wait for any time, for a volume or for the other pods of a
// group. The pod keeps its GPUs meanwhile.
func TestAReservationLastsUntilBind(t *testing.T) {
	const limit = 30 * time.Second
	for _, tc := range []struct {
		name string
		end  func(w *world, c *Cycle)
	}{
		{"another plugin refuses", func(w *world, c *Cycle) { w.Unreserve(c) }},
		{"the outcome of Bind is not known", func(w *world, c *Cycle) {
			if err := w.Bind(t.Context(), c.Pod, "pair"); err == nil {
				w.t.Error("Bind has succeeded")
			}
			w.Unreserve(c)
			w.now = w.now.Add(2 * limit)
			w.Binder.ReviewAssumed(t.Context(), limit)
		}},
		{"it is reserved once more after such a Bind, and another plugin refuses", func(w *world, c *Cycle) {
			if err := w.Bind(t.Context(), c.Pod, "pair"); err == nil {
				w.t.Error("Bind has succeeded")
			}
			again := w.begin("pod", "10")
			if err := w.Reserve(again, w.node()); err != nil {
				w.t.Error(err)
			}
			w.Unreserve(again)
			w.now = w.now.Add(2 * limit)
			w.Binder.ReviewAssumed(t.Context(), limit)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			for _, name := range []string{"pod", "other"} {
				w.watch.pods[name] = w.pod(name, "10")
			}
			w.heard(w.pod("a", "16", second))
			w.sees(w.watch.pods["a"])
			c := w.begin("pod", "10")
			if err := w.Reserve(c, w.node()); err != nil {
				t.Fatal(err)
			}
			w.now = w.now.Add(2 * limit)
			w.Binder.ReviewAssumed(t.Context(), limit)
			if late := w.Binder.Cache.AssumedBefore(w.now); len(late) > 0 {
				t.Errorf("the outcome of a binding is not known: %v", late)
			}
			other := w.begin("other", "10")
			if w.fits(other) {
				t.Error("another pod fits on the GPU")
			}
			tc.end(w, c)
			if !w.fits(other) {
				t.Error("the GPU is not free in the end")
			}
		})
	}
}

func TestGoneHelps(t *testing.T) {
	for _, tc := range []struct {
		name string
		gone func(w *world) *v1.Pod
		want bool
	}{
		{"it leaves enough", func(w *world) *v1.Pod { delete(w.watch.pods, "a"); return w.pod("a", "8", first) }, true},
		{"it is still stored", func(w *world) *v1.Pod { return w.pod("a", "8", first) }, false},
		{"a smaller one", func(w *world) *v1.Pod { delete(w.watch.pods, "c"); return w.pod("c", "1", second) }, false},
		{"none of ours", func(w *world) *v1.Pod { delete(w.watch.pods, "a"); return w.pod("a", "0", first) }, false},
		{"one that was to come", func(w *world) *v1.Pod { return w.pod("d", "8") }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.heard(w.pod("a", "8", first), w.pod("b", "8", second), w.pod("c", "1", second))
			gone := tc.gone(w)
			if got := w.DeletionHelps(w.pod("pod", "10"), gone); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestChangeHelps(t *testing.T) {
	w := newWorld(t)
	waiting, other := w.pod("pod", "10"), w.pod("a", "8", first)
	with := func(pod *v1.Pod, change func(*v1.Pod)) *v1.Pod {
		pod = pod.DeepCopy()
		change(pod)
		return pod
	}
	unreadable := with(waiting, func(p *v1.Pod) { p.Annotations[w.Binder.Names.Count()] = "two" })
	admitted := with(other, func(p *v1.Pod) { p.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)} })
	for _, tc := range []struct {
		name    string
		was, is *v1.Pod
		want    bool
	}{
		{"it asks for less", waiting, w.pod("pod", "9"), true},
		{"it can be read now", unreadable, waiting, true},
		{"it cannot be read any more", waiting, unreadable, false},
		{"it has another label", waiting, with(waiting, func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }), false},
		{"another was admitted", other, admitted, true},
		{"another was corrected", other, w.pod("a", "8", second), true},
		{"another is not to be alone any more", with(other, func(p *v1.Pod) { p.Annotations[w.Binder.Names.Policy()] = "exclusive" }), other, true},
		{"another can no more be read", other, with(other, func(p *v1.Pod) { p.Annotations[w.Binder.Names.Count()] = "two" }), true},
		{"another has another annotation", other, with(other, func(p *v1.Pod) { p.Annotations["owner"] = "b" }), false},
		{"another has another label", other, with(other, func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }), false},
		{"one without GPU memory was admitted", w.pod("a", "0"), with(w.pod("a", "0"), func(p *v1.Pod) { p.Status = admitted.Status }), false},
	} {
		if got := w.ChangeHelps(waiting, tc.was, tc.is); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestNodeHelps(t *testing.T) {
	offers := func(units gpu.Units) gpu.Inventory {
		return gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: first, Allocatable: units, MemoryMiB: int64(units) * 1024}}}
	}
	for _, tc := range []struct {
		name  string
		node  string
		units gpu.Units // 0: the inventory cannot be read
		want  bool
	}{
		{"a new node with room", "new", 16, true},
		{"a new node that is too small", "new", 9, false},
		{"what others hold there is taken", "pair", 16, false},
		{"it offers more than they have", "pair", 18, true},
		{"it offers more than they have, which is kept for another", "pair", 18, false},
		{"it cannot be read", "new", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.heard(w.pod("a", "8", first))
			if tc.name == "it offers more than they have, which is kept for another" {
				w.Binder.Cache.NominatePod("pair", placement.PodRef{UID: "vip"}, w.begin("vip", "10").Request, placement.Assignment{}, time.Time{})
			}
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: tc.node, Annotations: map[string]string{w.Binder.Names.Inventory(): "?"}}}
			if tc.units > 0 {
				value, err := api.EncodeInventory(offers(tc.units))
				if err != nil {
					t.Fatal(err)
				}
				node.Annotations[w.Binder.Names.Inventory()] = value
			}
			if got := w.NodeHelps(w.pod("pod", "10"), node); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// Pods with claims, and the kubelet's allocations, are charged once, from the new inventory and not from the
// previous one.
func TestNodeHelpsByWhatTheNodeSaysNow(t *testing.T) {
	inventory := func(unit int64, status gpu.Status, given ...gpu.PodAllocation) gpu.Inventory {
		return gpu.Inventory{UnitMiB: unit, Allocated: given, Devices: []gpu.Device{
			{UUID: first, Allocatable: gpu.Units(16384 / unit), MemoryMiB: 16384, Status: status},
		}}
	}
	given := func(uid, name string, units gpu.Units) gpu.PodAllocation {
		g := gpu.PodAllocation{UID: uid, Name: name, Shares: []gpu.Share{{Device: first, Units: units}}}
		if name != "" {
			g.Namespace = "team"
		}
		return g
	}
	for _, tc := range []struct {
		name        string
		before, now gpu.Inventory
		asks        string
		want        bool
	}{
		{"a claim has ended", inventory(1024, gpu.Status{ByClaims: true}, given("uid-c", "c", 10)), inventory(1024, gpu.Status{}), "12", true},
		{"a claim has not ended", inventory(1024, gpu.Status{ByClaims: true}), inventory(1024, gpu.Status{}, given("uid-c", "c", 10)), "12", false},
		{"a pod was given what is written of it", inventory(1024, gpu.Status{}, given("uid-a", "", 10)), inventory(1024, gpu.Status{}), "12", true},
		{"a pod was given more than is written of it", inventory(1024, gpu.Status{}), inventory(1024, gpu.Status{}, given("uid-a", "", 10)), "12", false},
		{"a GPU is used again", inventory(1024, gpu.Status{Unhealthy: true}), inventory(1024, gpu.Status{}), "12", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.pod("a", "4", first)
			w.heard(a)
			w.sees(a)
			w.Binder.Cache.SetNode("pair", tc.before)
			value, err := api.EncodeInventory(tc.now)
			if err != nil {
				t.Fatal(err)
			}
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pair", Annotations: map[string]string{w.Binder.Names.Inventory(): value}}}
			waiting := w.pod("pod", tc.asks)
			helps := w.NodeHelps(waiting, node)
			w.Binder.Cache.SetNode("pair", tc.now)
			if fits := w.fits(w.begin("pod", tc.asks)); helps != tc.want || fits != tc.want {
				t.Errorf("it helps: %v, and once the cache has heard the pod fits: %v; want %v", helps, fits, tc.want)
			}
		})
	}
}

func TestCheaper(t *testing.T) {
	small := []string{"a", "b", "c", "d"}
	budget := func(allowed int32) []*policyv1.PodDisruptionBudget {
		return []*policyv1.PodDisruptionBudget{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "budget"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "large"}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
		}}
	}
	for _, tc := range []struct {
		name    string
		victims []string
		taken   string // pods that preemption has removed from the node
		budgets []*policyv1.PodDisruptionBudget
		more    int32 // added to the large pod's priority
		want    []string
	}{
		{name: "one costs less than four", victims: small, want: []string{"large"}},
		{name: "its budget lets it go", victims: small, budgets: budget(1), want: []string{"large"}},
		{name: "its budget does not", victims: small, budgets: budget(0)},
		{name: "it is more important", victims: small, more: 1},
		{name: "it is the victim already", victims: []string{"large"}},
		{name: "kube-scheduler has fewer pods: one of three is enough", victims: []string{"large"}, taken: "a", more: 1, want: []string{"b", "c", "d"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			byName := make(map[string]*v1.Pod)
			for _, name := range small {
				byName[name] = w.pod(name, "4", first)
			}
			byName["large"] = w.pod("large", "12", second)
			byName["large"].Labels = map[string]string{"app": "large"}
			byName["large"].Spec.Priority = &tc.more
			var seen, victims []*v1.Pod
			for _, name := range append(slices.Clone(small), "large") {
				w.heard(byName[name])
				if name != tc.taken {
					seen = append(seen, byName[name])
				}
			}
			w.sees(seen...)
			for _, name := range tc.victims {
				victims = append(victims, byName[name])
			}
			preemptor, priority := w.pod("pod", "16"), int32(10)
			preemptor.Spec.Priority = &priority
			c, _, err := w.Begin(history.Filter, preemptor, 1)
			if err != nil {
				t.Fatal(err)
			}
			pods, violations, ok := w.Cheaper(c, w.node(), victims, tc.budgets)
			var got []string
			for _, pod := range pods {
				got = append(got, pod.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || ok != (tc.want != nil) || violations != 0 {
				t.Errorf("ok %v, %d violations, cheaper (-want +got):\n%s", ok, violations, diff)
			}
		})
	}
}

// With few nodes, each node has a full message. With many nodes, all nodes with the same reason share one
// message, and the closest nodes are described separately.
func TestWhy(t *testing.T) {
	closest := []string{
		"pair needs 20 GiB on one GPU; the largest that qualifies here has 16 GiB: ask for less, or for more GPUs",
		"small needs 20 GiB on one GPU; the largest that qualifies here has 14 GiB: ask for less",
	}
	for name, tc := range map[string]struct {
		nodes int
		why   []string // messages of the two nodes
	}{
		"of 16 nodes": {nodes: 16, why: []string{
			"node(s) unfit: the pod needs 20 GiB on one GPU; the largest that qualifies here has 16 GiB: ask for less, or for more GPUs",
			"node(s) unfit: the pod needs 20 GiB on one GPU; the largest that qualifies here has 14 GiB: ask for less",
		}},
		"of 17 nodes": {nodes: 17, why: []string{
			"node(s) unfit: the pod needs 20 GiB on one GPU; no GPU here is as large",
			"node(s) unfit: the pod needs 20 GiB on one GPU; no GPU here is as large",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Binder.Cache.SetNode("small", gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: "GPU-cccc", Allocatable: 14, MemoryMiB: 14336}}})
			c, _, err := w.Begin(history.Filter, w.pod("pod", "20"), tc.nodes)
			if err != nil {
				t.Fatal(err)
			}
			var why, unfit []string
			var refused []RefusedNode
			for _, n := range []Node{w.node(), {Name: "small", Pods: slices.Values[[]*v1.Pod](nil)}} {
				refusal := w.Refuse(c, n)
				why, refused = append(why, c.Message(refusal)), append(refused, RefusedNode{n.Name, refusal})
			}
			if diff := cmp.Diff(tc.why, why); diff != "" {
				t.Errorf("why (-want +got):\n%s", diff)
			}
			for _, n := range w.Unfit(c, refused) {
				unfit = append(unfit, n.Name+" "+n.Message)
			}
			if diff := cmp.Diff(closest, unfit); diff != "" {
				t.Errorf("the closest (-want +got):\n%s", diff)
			}
		})
	}
}

// Two of three nodes refuse the pod. Fits records both nodes with their reasons, the confusable pod first.
func TestANodeThatWasPassedOverIsRecorded(t *testing.T) {
	w := newWorld(t)
	var got history.Decision
	w.Decided = func(_ placement.PodRef, d history.Decision) { got = d }
	verdict := placement.Fit(placement.Request{}, placement.Node{Name: "plain"})
	w.Fits(w.begin("pod", "10"), 3, 1, []RefusedNode{
		{"plain", &decide.Refusal{Reason: verdict.Reason.String(), Verdict: &verdict}},
		{"pair", &decide.Refusal{Reason: decide.Confusable, Pod: placement.PodRef{Namespace: "team", Name: "b"}}},
	})
	var nodes []string
	for _, n := range got.Nodes {
		nodes = append(nodes, n.Name+" "+n.Reason)
	}
	if diff := cmp.Diff([]string{"pair Confusable", "plain NoDevices"}, nodes); diff != "" || !strings.Contains(got.Nodes[0].Message, "has admitted pod team/b") {
		t.Errorf("%s: (-want +got):\n%s", got.Nodes[0].Message, diff)
	}
}

// A pod that is bound to a GPU which the node no longer has may be on any GPU of the node. This also applies
// while only kube-scheduler has the pod.
func TestRefusesForAPodOnAGPUThatIsGone(t *testing.T) {
	w := newWorld(t)
	come := w.pod("come", "16", first)
	w.Binder.Cache.SetNode("pair", gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: second, Index: 1, Allocatable: 16, MemoryMiB: 16384}}})
	w.watch.pods["come"] = come
	w.sees(come)
	if c := w.begin("waiting", "4"); w.fits(c) {
		t.Error("it fits, before the cache has heard of the other")
	}
	w.heard(come)
	if c := w.begin("waiting", "4"); w.fits(c) {
		t.Error("it fits, after")
	}
}

// Fruitless walks reduce the cost of the next walks, until one walk finds a node again.
func TestBestTriesFewerNodesAfterFruitlessWalks(t *testing.T) {
	w := newWorld(t)
	for i := range 1000 {
		w.Cache.SetNode(fmt.Sprintf("node-%04d", i), gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{
			{UUID: gpu.UUID(fmt.Sprintf("GPU-%04d", i)), Allocatable: 16, MemoryMiB: 16384},
		}})
	}
	first := func(nodes []string) string { return nodes[0] }
	var got []int
	for i, pass := range []bool{false, false, false, true, true, false} {
		tried := 0
		w.Best(w.begin(fmt.Sprintf("pod-%d", i), "10"), nil, func(string) bool {
			tried++
			return pass
		}, first)
		got = append(got, tried)
	}
	want := []int{1001 / 16, 1001 / 32, leastTried, maxEqual, maxEqual, 1001 / 16}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nodes tried for each pod (-want +got):\n%s", diff)
	}
}

// A pod that other filters reject on all nodes does not permanently disable hints for pods that find a node
// among the first 32.
func TestBestRecoversAfterOneFruitlessWalk(t *testing.T) {
	w := newWorld(t)
	for i := range 499 {
		w.Cache.SetNode(fmt.Sprintf("node-%04d", i), gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{
			{UUID: gpu.UUID(fmt.Sprintf("GPU-%04d", i)), Allocatable: 16, MemoryMiB: 16384},
		}})
	}
	first := func(nodes []string) string { return nodes[0] }
	best := func(i int, refused int) string { // other filters reject the first nodes; refused is their number
		tried := 0
		return w.Best(w.begin(fmt.Sprint("pod-", i), "10"), nil, func(string) bool { tried++; return tried > refused }, first)
	}
	if best(0, 20) == "" {
		t.Fatal("no hint before")
	}
	best(1, 1000)
	hints := 0
	for i := range 1000 {
		if best(2+i, 20) != "" {
			hints++
		}
	}
	if hints < 900 {
		t.Errorf("%d of 1000 pods got a hint after one fruitless walk", hints)
	}
}
