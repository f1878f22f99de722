package placement_test

import (
	stdcmp "cmp"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

func TestChoose(t *testing.T) {
	inv := inventory(device(0, 20, speed(317)), device(1, 10), device(2, 10, speed(100)), device(3, 15, speed(21)))
	tests := map[string]struct {
		fallback placement.Policy
		req      placement.Request
		holdings []placement.Holding
		want     []placement.Share
	}{
		"binpack takes the GPU on which the least stays free": {
			req: ask(3), holdings: []placement.Holding{hold("a", ask(6), 2)},
			want: []placement.Share{{Device: "GPU-2", Units: 3}},
		},
		"binpack leaves a gap that is too small": {
			req: ask(5), holdings: []placement.Holding{hold("a", ask(6), 2)},
			want: []placement.Share{{Device: "GPU-1", Units: 5}},
		},
		"spread takes the largest of empty GPUs": {
			fallback: placement.Spread, req: ask(3), want: []placement.Share{{Device: "GPU-0", Units: 3}},
		},
		"spread takes an empty GPU before a larger one with a pod": {
			fallback: placement.Spread, req: ask(3), holdings: []placement.Holding{hold("a", ask(1), 0)}, want: []placement.Share{{Device: "GPU-3", Units: 3}},
		},
		"spread takes the GPU of which the largest part is free": {
			fallback: placement.Spread, req: ask(3), holdings: []placement.Holding{hold("a", ask(2), 0), hold("b", ask(2), 1), hold("c", ask(2), 2), hold("d", ask(2), 3)}, want: []placement.Share{{Device: "GPU-0", Units: 3}},
		},
		"the pod's policy goes before the cluster's": {
			fallback: placement.Spread, req: ask(3, policy(placement.Binpack)), want: []placement.Share{{Device: "GPU-1", Units: 3}},
		},
		"the pod may spread where the cluster packs": {
			fallback: placement.Binpack, req: ask(3, policy(placement.Spread)), want: []placement.Share{{Device: "GPU-0", Units: 3}},
		},
		"ties fall to the lowest index": {
			req: ask(10), want: []placement.Share{{Device: "GPU-1", Units: 10}},
		},
		"exclusive takes the smallest GPU that is empty": {
			req: ask(2, policy(placement.Exclusive)), holdings: []placement.Holding{hold("a", ask(1), 1), hold("b", ask(1), 2)},
			want: []placement.Share{{Device: "GPU-3", Units: 2}},
		},
		"nobody joins an exclusive pod": {
			req: ask(2), holdings: []placement.Holding{hold("a", ask(7, policy(placement.Exclusive)), 1)},
			want: []placement.Share{{Device: "GPU-2", Units: 2}},
		},
		"a group stays together though another GPU packs better": {
			req: ask(2, group("g")), holdings: []placement.Holding{hold("a", ask(1, group("g")), 0), hold("b", ask(8), 1)},
			want: []placement.Share{{Device: "GPU-0", Units: 2}},
		},
		"a group of another namespace is another": {
			req: ask(2, groupOf("mine", "g")), holdings: []placement.Holding{hold("a", ask(1, groupOf("theirs", "g")), 0), hold("b", ask(8), 1)},
			want: []placement.Share{{Device: "GPU-1", Units: 2}},
		},
		"a group goes on where its GPU is full": {
			req: ask(2, group("g")), holdings: []placement.Holding{hold("a", ask(20, group("g")), 0)},
			want: []placement.Share{{Device: "GPU-1", Units: 2}},
		},
		"several GPUs come by index, the best of them": {
			req: ask(8, cores(60), count(2)), holdings: []placement.Holding{hold("a", ask(1), 3), hold("b", ask(5), 1)},
			want: []placement.Share{{Device: "GPU-1", Units: 4, Cores: 30}, {Device: "GPU-2", Units: 4, Cores: 30}},
		},
		"globs hold for several GPUs too": {
			req:  ask(8, count(2), uuids("GPU-*", "!GPU-1")),
			want: []placement.Share{{Device: "GPU-2", Units: 4}, {Device: "GPU-3", Units: 4}},
		},
		"cores are of the same GPU as memory": {
			req: ask(3, cores(60)), holdings: []placement.Holding{hold("a", ask(6, cores(60)), 2)},
			want: []placement.Share{{Device: "GPU-1", Units: 3, Cores: 60}},
		},
		"the fastest GPU, though another packs better": {
			req: ask(2, prefers(placement.Fastest), uuids("GPU-?")), holdings: []placement.Holding{hold("a", ask(12), 3)},
			want: []placement.Share{{Device: "GPU-0", Units: 2}},
		},
		"the slowest GPU, though another packs better": {
			req: ask(2, prefers(placement.Cheapest)), holdings: []placement.Holding{hold("a", ask(6), 2)},
			want: []placement.Share{{Device: "GPU-3", Units: 2}},
		},
		"the fastest GPUs that have room": {
			req: ask(20, count(2), prefers(placement.Fastest)), holdings: []placement.Holding{hold("a", ask(1), 1)},
			want: []placement.Share{{Device: "GPU-0", Units: 10}, {Device: "GPU-2", Units: 10}},
		},
		"a group goes before a preference": {
			req: ask(2, prefers(placement.Fastest), group("g")), holdings: []placement.Holding{hold("a", ask(1, group("g")), 3)},
			want: []placement.Share{{Device: "GPU-3", Units: 2}},
		},
		"what does not fit is none": {req: ask(21)},
		"a policy that there is not likes no GPU better": {
			fallback: "best", req: ask(2), holdings: []placement.Holding{hold("a", ask(9), 1), hold("b", ask(1), 0)},
			want: []placement.Share{{Device: "GPU-0", Units: 2}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, _ := placement.Choose(stdcmp.Or(tc.fallback, placement.Binpack), tc.req, node(inv, tc.holdings...))
			if diff := cmp.Diff(tc.want, got.Shares); diff != "" {
				t.Errorf("shares (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodeSums(t *testing.T) {
	n := node(inventory(device(0, 10), device(1, 6, sick)),
		hold("a", ask(3, cores(30)), 0), hold("b", ask(4, count(2)), 0, 1), hold("c", ask(2)), hold("d", placement.Request{}))
	if got, want := n.Allocatable(), gpu.Units(16); got != want {
		t.Errorf("Allocatable() = %d, want %d", got, want)
	}
	if got, want := placementtest.Requested(n), gpu.Units(9); got != want {
		t.Errorf("Requested() = %d, want %d: the pod of unknown GPU counts once", got, want)
	}
	if d := n.Devices[0]; d.Free() != 5 || d.FreeCores() != 70 {
		t.Errorf("GPU 0 has %d units and %d%% free, want 5 and 70%%", d.Free(), d.FreeCores())
	}
	if over := node(inventory(device(0, 1)), hold("a", ask(3, cores(130)), 0)).Devices[0]; over.Free() != 0 || over.FreeCores() != 0 {
		t.Errorf("a GPU that shrank has %d units and %d%% free, want none", over.Free(), over.FreeCores())
	}
}

// A pod that is being moved is charged to both GPUs and keeps other pods off both.
func TestAPodThatLeavesADevice(t *testing.T) {
	moving := hold("a", ask(3), 1)
	moving.Request.Policy = placement.Exclusive
	moving.Assignment.Leaving = []gpu.UUID{moving.Assignment.Shares[0].Device, "GPU-gone"}
	moving.Assignment.Shares = hold("a", ask(3), 0).Assignment.Shares
	n := node(inventory(device(0, 10), device(1, 10)), moving)
	for _, d := range n.Devices {
		if d.Requested != 3 || len(d.Pods) != 1 {
			t.Errorf("GPU %d: %d units requested by %d pods, want 3 by one", d.Index, d.Requested, len(d.Pods))
		}
	}
	if got := placement.Fit(ask(1), n).Reason; got != placement.Occupied {
		t.Errorf("beside an exclusive pod that is being moved: %v, want %v", got, placement.Occupied)
	}
	if settled := hold("a", ask(3), 0).Assignment; settled.Same(moving.Assignment) || !settled.SameDevices(moving.Assignment) {
		t.Error("what a pod leaves does not tell two assignments apart")
	}
}

func TestSameDevices(t *testing.T) {
	at := func(devices ...int) placement.Assignment { return hold("", ask(1), devices...).Assignment }
	if !at(0, 3).SameDevices(at(3, 0)) || !at().SameDevices(placement.Assignment{}) {
		t.Error("the order of the devices counts")
	}
	if at(0).SameDevices(at(1)) || at(0).SameDevices(at(0, 1)) || at(0).SameDevices(at()) {
		t.Error("other devices are called the same")
	}
}

// brute decides by trying all combinations of devices. It computes from the objects instead of NewNode's sums.
func brute(req placement.Request, inv gpu.Inventory, holdings []placement.Holding) bool {
	if !inv.LevelFor(req.GPUs()).AtLeast(req.Enforcement) {
		return false
	}
	units, cores := req.Share()
	var good int
	for _, d := range inv.Devices {
		if !d.Status.TakesPods() || req.Models != "" && !(d.Model != "Tesla T4") || req.UUIDs != "" && d.UUID == "GPU-0" {
			continue
		}
		free, freeCores, beside := d.Allocatable, 100, true
		for _, h := range holdings {
			if h.Request.Empty() && h.Assignment.None() {
				continue
			}
			here, lost := false, len(h.Assignment.Shares) == 0
			var u gpu.Units
			var c int
			for _, s := range h.Assignment.Shares {
				if _, ok := inv.Device(s.Device); !ok {
					lost = true
				}
				if s.Device == d.UUID {
					here, u, c = true, s.Units, s.Cores
				}
			}
			if lost {
				here, u, c = true, h.Request.Units(), h.Request.Cores()
			}
			if !here {
				continue
			}
			free, freeCores = free-u, freeCores-c
			if req.Policy == placement.Exclusive || h.Request.Policy == placement.Exclusive || req.ExclusiveGroup != (placement.Group{}) && req.ExclusiveGroup == h.Request.ExclusiveGroup {
				beside = false
			}
		}
		// A GPU with negative free memory still takes a pod that requests nothing.
		if beside && max(0, free) >= units && max(0, freeCores) >= cores && d.Allocatable >= units && cores <= 100 {
			good++
		}
	}
	return len(inv.Devices) > 0 && good >= req.GPUs()
}

// FuzzFit checks that the picked devices have room, that Fit, Choose and brute agree, and that neither the
// order of the pods nor repetition changes a result.
func FuzzFit(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 5))
		inv, holdings, req := placementtest.World(random)
		fallback := placementtest.Pick(random, placement.Binpack, placement.Spread, "")
		n := placement.NewNode("n", inv, holdings)
		verdict := placement.Fit(req, n)
		if want := brute(req, inv, holdings); verdict.Fits() != want {
			t.Fatalf("Fit says %s, the twin says that it fits: %t\nrequest %+v\ninventory %+v\nholdings %+v", verdict.Reason, want, req, inv, holdings)
		}
		got, again := placement.Choose(fallback, req, n)
		if diff := cmp.Diff(verdict, again); diff != "" {
			t.Fatalf("Fit and Choose differ (-fit +choose):\n%s", diff)
		}
		if reasons.Verdict(verdict) == "" {
			t.Fatal("the verdict says nothing")
		}
		if verdict.Fits() == got.None() {
			t.Fatalf("Choose says %s and chooses %v", again.Reason, got)
		}
		if verdict.Fits() {
			checkRoom(t, inv, holdings, req, got)
			checkSpread(t, req, fallback, n, got)
		}
		shuffled := slices.Clone(holdings)
		random.Shuffle(len(shuffled), func(i, k int) { shuffled[i], shuffled[k] = shuffled[k], shuffled[i] })
		other := placement.NewNode("n", inv, shuffled)
		if diff := cmp.Diff(n, other); diff != "" {
			t.Fatalf("the order of the holdings shows (-want +got):\n%s", diff)
		}
		if second, _ := placement.Choose(fallback, req, other); !cmp.Equal(got, second) {
			t.Fatalf("Choose says %v, then %v", got, second)
		}
	})
}

// checkSpread looks for a GPU that Spread should have preferred.
func checkSpread(t *testing.T, req placement.Request, fallback placement.Policy, n placement.Node, got placement.Assignment) {
	t.Helper()
	if stdcmp.Or(req.Policy, fallback) != placement.Spread || req.GPUs() > 1 || req.Group != (placement.Group{}) || req.Preference != "" {
		return
	}
	part := func(d placement.Device) *big.Rat { return big.NewRat(int64(d.Free()), max(1, int64(d.Allocatable))) }
	chosen := slices.IndexFunc(n.Devices, func(d placement.Device) bool { return d.UUID == got.Shares[0].Device })
	for _, d := range n.Devices {
		if n.Check(req, d) == placement.Fits && part(d).Cmp(part(n.Devices[chosen])) > 0 {
			t.Fatalf("GPU %d is chosen, and more of GPU %d is free:\n%+v", n.Devices[chosen].Index, d.Index, n.Devices)
		}
	}
}

// checkRoom adds the pod to its assigned GPUs and checks them.
func checkRoom(t *testing.T, inv gpu.Inventory, holdings []placement.Holding, req placement.Request, got placement.Assignment) {
	t.Helper()
	if len(got.Shares) != req.GPUs() {
		t.Fatalf("%d GPUs are chosen, want %d", len(got.Shares), req.GPUs())
	}
	units, cores := req.Share()
	after := placement.NewNode("n", inv, append(slices.Clone(holdings), placement.Holding{Pod: placement.PodRef{UID: "new"}, Request: req, Assignment: got}))
	seen := make(map[gpu.UUID]bool)
	for _, s := range got.Shares {
		if seen[s.Device] || s.Units != units || s.Cores != cores {
			t.Fatalf("share %+v: want %d units and %d%% of a GPU of its own", s, units, cores)
		}
		seen[s.Device] = true
	}
	for _, d := range after.Devices {
		if seen[d.UUID] && (units > 0 && d.Requested > d.Allocatable || cores > 0 && d.RequestedCores > gpu.CoresPerDevice) {
			t.Fatalf("GPU %d holds %d of %d units and %d%% of cores", d.Index, d.Requested, d.Allocatable, d.RequestedCores)
		}
	}
}

// Functions that derive a node, or a list of pods, do not modify their input.
func TestWhatANodeIsMadeOfDoesNotChange(t *testing.T) {
	pods := []placement.Holding{hold("c", ask(1), 0), hold("b", ask(1), 0), hold("a", ask(1), 0)}
	names := func(pods []placement.Holding) (out string) {
		for _, h := range pods {
			out += h.Pod.Name
		}
		return out
	}
	on := func(pods []*placement.Holding) (out string) {
		for _, h := range pods {
			out += h.Pod.Name
		}
		return out
	}
	n := node(inventory(device(0, 10)), pods...)
	n.Devices[0].Pods = slices.Grow(n.Devices[0].Pods, 8)
	with, other := n.With(hold("d", ask(1), 0)), n.With(hold("e", ask(1), 0))
	without := with.Without(pods[:2])
	line := n.WithNominated(pods)
	for name, got := range map[string][2]string{
		"given":                {"cba", names(pods)},
		"the node":             {"abc", on(n.Devices[0].Pods)},
		"with one more":        {"abcd", on(with.Devices[0].Pods)},
		"with another":         {"abce", on(other.Devices[0].Pods)},
		"without two of these": {"ad", on(without.Devices[0].Pods)},
		"nominated":            {"abc", names(line.Nominated)},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: pods %s, want %s", name, got[1], got[0])
		}
	}
}

func TestPodsAreOrderedByNamespaceNameAndUID(t *testing.T) {
	want := []placement.PodRef{{Namespace: "a", Name: "b", UID: "3"}, {Namespace: "b", Name: "a", UID: "2"}, {Namespace: "b", Name: "b", UID: "1"}, {Namespace: "b", Name: "b", UID: "2"}}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, placement.PodRef.Compare)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in order (-want +got):\n%s", diff)
	}
}

// A choice is better if it has a pod of the request's group, then the preferred model, then nearer
// GPUs.
func TestOrderOfChoices(t *testing.T) {
	req := ask(2, count(2), prefers(placement.Fastest), group("g"))
	choice := func(held bool, fast, lanes, numaNode int) placement.Choice {
		inv := inventory(device(0, 8, speed(fast), numa(0)), device(1, 8, speed(fast), numa(numaNode)))
		if lanes > 0 {
			inv.Links = append(inv.Links, link(0, 1, lanes))
		}
		var pods []placement.Holding
		if held {
			pods = append(pods, hold("a", ask(1, group("g")), 0))
		}
		c, ok := placement.NewChoice(placement.Binpack, req, node(inv, pods...))
		if !ok {
			t.Fatal("the request does not fit")
		}
		return c
	}
	inOrder := []placement.Choice{
		choice(true, 50, 0, 1), choice(false, 100, 0, 1), choice(false, 50, 4, 0), choice(false, 50, 2, 1), choice(false, 50, 0, 0), choice(false, 50, 0, 1),
	}
	for i, a := range inOrder {
		for k, b := range inOrder {
			if got := a.Compare(b.Order); got != cmpOf(i, k) {
				t.Errorf("choice %d compared with %d: %d", i, k, got)
			}
		}
	}
}

// The more important pod comes first: by priority, then a started pod before a waiting one, then by age.
func TestImportance(t *testing.T) {
	started := func(second int64, h placement.Holding) placement.Holding {
		h.Started = time.Unix(second, 0)
		return h
	}
	vip := ask(1)
	vip.Priority = 1
	inOrder := []placement.Holding{hold("z", vip), started(1, hold("y", ask(1))), started(2, hold("x", ask(1))), hold("a", ask(1)), hold("b", ask(1))}
	for i, a := range inOrder {
		for k, b := range inOrder {
			if got := placement.MoreImportant(a, b); got != cmpOf(i, k) {
				t.Errorf("%s compared with %s: %d", a.Pod.Name, b.Pod.Name, got)
			}
		}
	}
	line := node(inventory(device(0, 8))).WithNominated([]placement.Holding{hold("a", ask(1)), hold("b", ask(1), 0), hold("z", vip)}).Nominated
	if line[0].Pod.Name != "z" || line[1].Pod.Name != "b" {
		t.Errorf("%s and %s are first in line, want z, the most important, and then b, the GPU of which is known", line[0].Pod.Name, line[1].Pod.Name)
	}
}

// cmpOf returns the result of comparing two numbers.
func cmpOf(a, b int) int { return min(1, max(-1, a-b)) }

// Each policy of the table has a description, and orders GPUs and nodes by more than their index.
func TestTheTableOfPolicies(t *testing.T) {
	described := make(map[string]placement.Policy)
	for _, p := range placement.Policies() {
		onGPUs, onNodes := p.Doc()
		if onGPUs == "" || onNodes == "" {
			t.Errorf("%s: want a description of the preferred GPU and node", p)
		}
		if other, ok := described[onGPUs]; ok {
			t.Errorf("%s and %s have one description", p, other)
		}
		described[onGPUs] = p
		chosen := func(free ...gpu.Units) gpu.Units {
			var devices []gpu.Device
			for i, units := range free {
				devices = append(devices, device(i, units))
			}
			a, _ := placement.Choose(p, ask(3), placementtest.Node(inventory(devices...)))
			if a.None() {
				t.Fatalf("%s chooses none of %v", p, free)
			}
			return free[slices.IndexFunc(devices, func(d gpu.Device) bool { return d.UUID == a.Shares[0].Device })]
		}
		if a, b := chosen(5, 10), chosen(10, 5); a != b {
			t.Errorf("%s chooses GPUs by their index", p)
		}
		small, large := placement.NodeChoice{Left: 2, Share: 0.5, Free: 4, Allocatable: 8}, placement.NodeChoice{Left: 6, Share: 1, Free: 8, Allocatable: 8}
		if p.NodeOrder(small) == p.NodeOrder(large) {
			t.Errorf("%s does not order nodes", p)
		}
	}
}
