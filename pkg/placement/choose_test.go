package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/gpu"
)

func TestChoose(t *testing.T) {
	inv := inventory(device(0, 20, speed(317)), device(1, 10), device(2, 10, speed(100)), device(3, 15, speed(21)))
	tests := map[string]struct {
		fallback Policy
		req      Request
		holdings []Holding
		want     []Share
	}{
		"binpack takes the GPU on which the least stays free": {
			req: ask(3), holdings: []Holding{hold("a", ask(6), 2)},
			want: []Share{{"GPU-2", 3, 0}},
		},
		"binpack leaves a gap that is too small": {
			req: ask(5), holdings: []Holding{hold("a", ask(6), 2)},
			want: []Share{{"GPU-1", 5, 0}},
		},
		"spread takes the GPU with the most free": {
			fallback: Spread, req: ask(3), want: []Share{{"GPU-0", 3, 0}},
		},
		"the pod's policy goes before the cluster's": {
			fallback: Spread, req: ask(3, policy(Binpack)), want: []Share{{"GPU-1", 3, 0}},
		},
		"the pod may spread where the cluster packs": {
			fallback: Binpack, req: ask(3, policy(Spread)), want: []Share{{"GPU-0", 3, 0}},
		},
		"ties fall to the lowest index": {
			req: ask(10), want: []Share{{"GPU-1", 10, 0}},
		},
		"exclusive takes the smallest GPU that is empty": {
			req: ask(2, policy(Exclusive)), holdings: []Holding{hold("a", ask(1), 1), hold("b", ask(1), 2)},
			want: []Share{{"GPU-3", 2, 0}},
		},
		"nobody joins an exclusive pod": {
			req: ask(2), holdings: []Holding{hold("a", ask(7, policy(Exclusive)), 1)},
			want: []Share{{"GPU-2", 2, 0}},
		},
		"a group stays together though another GPU packs better": {
			req: ask(2, group("g")), holdings: []Holding{hold("a", ask(1, group("g")), 0), hold("b", ask(8), 1)},
			want: []Share{{"GPU-0", 2, 0}},
		},
		"a group goes on where its GPU is full": {
			req: ask(2, group("g")), holdings: []Holding{hold("a", ask(20, group("g")), 0)},
			want: []Share{{"GPU-1", 2, 0}},
		},
		"several GPUs come by index, the best of them": {
			req: ask(8, cores(60), count(2)), holdings: []Holding{hold("a", ask(1), 3), hold("b", ask(5), 1)},
			want: []Share{{"GPU-1", 4, 30}, {"GPU-2", 4, 30}},
		},
		"globs hold for several GPUs too": {
			req:  ask(8, count(2), uuids("GPU-*", "!GPU-1")),
			want: []Share{{"GPU-2", 4, 0}, {"GPU-3", 4, 0}},
		},
		"cores are of the same GPU as memory": {
			req: ask(3, cores(60)), holdings: []Holding{hold("a", ask(6, cores(60)), 2)},
			want: []Share{{"GPU-1", 3, 60}},
		},
		"the fastest GPU, though another packs better": {
			req: ask(2, prefers(Fastest), uuids("GPU-?")), holdings: []Holding{hold("a", ask(12), 3)},
			want: []Share{{"GPU-0", 2, 0}},
		},
		"the slowest GPU, though another packs better": {
			req: ask(2, prefers(Cheapest)), holdings: []Holding{hold("a", ask(6), 2)},
			want: []Share{{"GPU-3", 2, 0}},
		},
		"the fastest GPUs that have room": {
			req: ask(20, count(2), prefers(Fastest)), holdings: []Holding{hold("a", ask(1), 1)},
			want: []Share{{"GPU-0", 10, 0}, {"GPU-2", 10, 0}},
		},
		"a group goes before a preference": {
			req: ask(2, prefers(Fastest), group("g")), holdings: []Holding{hold("a", ask(1, group("g")), 3)},
			want: []Share{{"GPU-3", 2, 0}},
		},
		"what does not fit is none": {req: ask(21)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, _ := Choose(tc.fallback, tc.req, node(inv, tc.holdings...))
			if diff := cmp.Diff(tc.want, got.Shares); diff != "" {
				t.Errorf("shares (-want +got):\n%s", diff)
			}
		})
	}
}

func pointers(nodes []Node) []*Node {
	out := make([]*Node, len(nodes))
	for i := range nodes {
		out[i] = &nodes[i]
	}
	return out
}

func TestRank(t *testing.T) {
	named := func(name string, inv gpu.Inventory, holdings ...Holding) Node { return NewNode(name, inv, holdings) }
	one := inventory(device(0, 10))
	two := inventory(device(0, 10), device(1, 10))
	tests := map[string]struct {
		defaults Policies
		req      Request
		nodes    []Node
		want     []int64
	}{
		"no nodes": {req: ask(1), want: []int64{}},
		"nothing fits": {
			req: ask(11), nodes: []Node{named("a", one), named("b", two)}, want: []int64{0, 0},
		},
		"the only one that fits is the best": {
			req: ask(5), nodes: []Node{named("a", one, hold("p", ask(6), 0)), named("b", one), {Name: "c"}}, want: []int64{0, 10, 0},
		},
		"binpack: the tightest GPU first": {
			req: ask(2), nodes: []Node{named("a", one), named("b", one, hold("p", ask(8), 0)), named("c", one, hold("p", ask(4), 0))}, want: []int64{3, 10, 6},
		},
		"binpack: among equal GPUs the fullest node": {
			req: ask(2), nodes: []Node{named("a", two), named("b", two, hold("p", ask(10), 1))}, want: []int64{5, 10},
		},
		"spread: the emptiest GPU first": {
			defaults: Policies{GPU: Spread}, req: ask(2), nodes: []Node{named("a", one, hold("p", ask(1), 0)), named("b", one)}, want: []int64{5, 10},
		},
		"spread: among nodes with as much free, the one with the emptier GPU": {
			defaults: Policies{GPU: Spread}, req: ask(2), nodes: []Node{named("a", two, hold("p", ask(4), 0), hold("q", ask(4), 1)), named("b", two, hold("p", ask(8), 0))}, want: []int64{5, 10},
		},
		"nodes are spread where GPUs are packed": {
			defaults: Policies{GPU: Binpack, Node: Spread}, req: ask(2), nodes: []Node{named("a", two, hold("p", ask(8), 0)), named("b", two, hold("p", ask(1), 0))}, want: []int64{5, 10},
		},
		"nodes are packed where GPUs are spread": {
			defaults: Policies{GPU: Spread, Node: Binpack}, req: ask(2), nodes: []Node{named("a", two, hold("p", ask(8), 0), hold("q", ask(4), 1)), named("b", two)}, want: []int64{10, 5},
		},
		"the pod's policy is of nodes too": {
			defaults: Policies{GPU: Binpack, Node: Binpack}, req: ask(2, policy(Spread)), nodes: []Node{named("a", one), named("b", one, hold("p", ask(4), 0))}, want: []int64{10, 5},
		},
		"exclusive says nothing of nodes": {
			defaults: Policies{GPU: Binpack, Node: Spread}, req: ask(2, policy(Exclusive)), nodes: []Node{named("a", two, hold("p", ask(4), 0)), named("b", two)}, want: []int64{5, 10},
		},
		"the fastest model first, by which the policy does not": {
			req: ask(2, prefers(Fastest)), nodes: []Node{named("a", one), named("b", inventory(device(0, 80, speed(317)))), named("c", inventory(device(0, 16, speed(21))))}, want: []int64{3, 10, 6},
		},
		"the cheapest model first, one of unknown speed last": {
			req: ask(2, prefers(Cheapest)), nodes: []Node{named("a", one), named("b", inventory(device(0, 80, speed(317)))), named("c", inventory(device(0, 16, speed(21))))}, want: []int64{3, 6, 10},
		},
		"two GPUs are as fast as the slower": {
			req: ask(2, count(2), prefers(Fastest)), nodes: []Node{named("a", inventory(device(0, 9, speed(100)), device(1, 9, speed(21)))), named("b", inventory(device(0, 9, speed(40)), device(1, 9, speed(40))))}, want: []int64{5, 10},
		},
		"two GPUs that are linked before two that are not": {
			req: ask(2, count(2)), nodes: []Node{named("a", two, hold("p", ask(8), 0)), named("b", gpu.Inventory{UnitMiB: 1024, Devices: two.Devices, Links: []gpu.Link{link(0, 1, 1)}})}, want: []int64{5, 10},
		},
		"two GPUs of one NUMA node before two of two": {
			req: ask(2, count(2)), nodes: []Node{named("a", inventory(device(0, 10, numa(0)), device(1, 10, numa(1))), hold("p", ask(8), 0)), named("b", inventory(device(0, 10, numa(1)), device(1, 10, numa(1))))}, want: []int64{5, 10},
		},
		"a group draws to its node": {
			req: ask(2, group("g")), nodes: []Node{named("a", one, hold("p", ask(8), 0)), named("b", two, hold("p", ask(1, group("g")), 1))}, want: []int64{5, 10},
		},
		"equal nodes have equal scores, at the top and below": {
			req: ask(2), nodes: []Node{named("b", one), named("a", one, hold("p", ask(4), 0)), named("c", one), named("d", one, hold("p", ask(4), 0))}, want: []int64{5, 10, 5, 10},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, new(Ranker).Rank(tc.defaults, tc.req, pointers(tc.nodes), nil)); diff != "" {
				t.Errorf("scores (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodeSums(t *testing.T) {
	n := node(inventory(device(0, 10), device(1, 6, sick)),
		hold("a", ask(3, cores(30)), 0), hold("b", ask(4, count(2)), 0, 1), hold("c", ask(2)), hold("d", Request{}))
	if got, want := n.Capacity(), gpu.Units(16); got != want {
		t.Errorf("Capacity() = %d, want %d", got, want)
	}
	if got, want := n.Requested(), gpu.Units(9); got != want {
		t.Errorf("Requested() = %d, want %d: the pod of unknown GPU counts once", got, want)
	}
	if d := n.Devices[0]; d.Free() != 5 || d.FreeCores() != 70 {
		t.Errorf("GPU 0 has %d units and %d%% free, want 5 and 70%%", d.Free(), d.FreeCores())
	}
	if over := node(inventory(device(0, 1)), hold("a", ask(3, cores(130)), 0)).Devices[0]; over.Free() != 0 || over.FreeCores() != 0 {
		t.Errorf("a GPU that shrank has %d units and %d%% free, want none", over.Free(), over.FreeCores())
	}
}

// A pod that is being moved counts on both sides, and keeps others off both.
func TestAPodThatLeavesADevice(t *testing.T) {
	moving := hold("a", ask(3), 1)
	moving.Request.Policy = Exclusive
	moving.Assignment.Leaving = []gpu.UUID{moving.Assignment.Shares[0].Device, "GPU-gone"}
	moving.Assignment.Shares = hold("a", ask(3), 0).Assignment.Shares
	n := node(inventory(device(0, 10), device(1, 10)), moving)
	for _, d := range n.Devices {
		if d.Requested != 3 || len(d.Pods) != 1 {
			t.Errorf("GPU %d: %d units requested by %d pods, want 3 by one", d.Index, d.Requested, len(d.Pods))
		}
	}
	if got := Fit(ask(1), n).Reason; got != Occupied {
		t.Errorf("beside an exclusive pod that is being moved: %v, want %v", got, Occupied)
	}
	if settled := hold("a", ask(3), 0).Assignment; settled.Same(moving.Assignment) || !settled.SameDevices(moving.Assignment) {
		t.Error("what a pod leaves does not tell two assignments apart")
	}
}

func TestSameDevices(t *testing.T) {
	at := func(devices ...int) Assignment { return hold("", ask(1), devices...).Assignment }
	if !at(0, 3).SameDevices(at(3, 0)) || !at().SameDevices(Assignment{}) {
		t.Error("the order of the devices counts")
	}
	if at(0).SameDevices(at(1)) || at(0).SameDevices(at(0, 1)) || at(0).SameDevices(at()) {
		t.Error("other devices are called the same")
	}
}

// world returns any node and any request, made from a seed.
func world(random *rand.Rand) (gpu.Inventory, []Holding, Request) {
	var inv gpu.Inventory
	inv.UnitMiB = 1024
	inv.Enforcement = pick(random, "", gpu.EnforcementMPS)
	for i := range random.IntN(5) {
		d := device(i, gpu.Units(random.IntN(12)), model(pick(random, "NVIDIA A100-SXM4-80GB", "Tesla T4")), numa(random.IntN(3)-1), speed(pick(random, 0, 21, 100)))
		if random.IntN(6) == 0 {
			sick(&d)
		}
		if random.IntN(2) == 0 && i > 0 {
			inv.Links = append(inv.Links, link(i, random.IntN(i), 1+random.IntN(4)))
		}
		inv.Devices = append(inv.Devices, d)
	}
	request := func() Request {
		r := Request{
			Count: random.IntN(4), Policy: pick(random, "", "", Binpack, Spread, Exclusive),
			Group: pick(random, "", "", "g"), ExclusiveGroup: pick(random, "", "", "", "x"),
			Models: pick(random, nil, nil, []string{"A100*"}, []string{"!Tesla*"}), UUIDs: pick(random, nil, nil, nil, []string{"!GPU-0"}),
			Enforcement: pick(random, "", "", "", gpu.EnforcementMPS, gpu.EnforcementKernel),
			Preference:  pick(random, "", "", Fastest, Cheapest),
		}
		for range random.IntN(4) {
			r.Containers = append(r.Containers, Container{
				Kind: ContainerKind(random.IntN(3)), Units: gpu.Units(1 + random.IntN(6)), Cores: pick(random, 0, 0, 30, 60, 130),
			})
		}
		return r
	}
	var holdings []Holding
	for i := range random.IntN(5) {
		var devices []int
		for range random.IntN(3) {
			if d := random.IntN(6); !slices.Contains(devices, d) {
				devices = append(devices, d)
			}
		}
		holdings = append(holdings, hold(fmt.Sprint("p", i), request(), devices...))
	}
	return inv, holdings, request()
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

// brute decides by trying all combinations of devices, from the objects and not
// from the sums that NewNode makes.
func brute(req Request, inv gpu.Inventory, holdings []Holding) bool {
	if !inv.Enforcement.AtLeast(req.Enforcement) {
		return false
	}
	units, cores := req.Share()
	var good int
	for _, d := range inv.Devices {
		if !d.Healthy || len(req.Models) > 0 && !(d.Model != "Tesla T4") || len(req.UUIDs) > 0 && d.UUID == "GPU-0" {
			continue
		}
		free, freeCores, beside := d.Capacity, 100, true
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
			if req.Policy == Exclusive || h.Request.Policy == Exclusive || req.ExclusiveGroup != "" && req.ExclusiveGroup == h.Request.ExclusiveGroup {
				beside = false
			}
		}
		// A GPU that gave away more than it has still takes a pod that asks for nothing.
		if beside && max(0, free) >= units && max(0, freeCores) >= cores && d.Capacity >= units && cores <= 100 {
			good++
		}
	}
	return len(inv.Devices) > 0 && good >= req.GPUs()
}

// FuzzFit: what is chosen has room, Fit and Choose and a dumb twin agree, and
// neither the order of the pods nor asking twice changes an answer.
func FuzzFit(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 5))
		inv, holdings, req := world(random)
		fallback := pick(random, Binpack, Spread, "")
		n := NewNode("n", inv, holdings)
		verdict := Fit(req, n)
		if want := brute(req, inv, holdings); verdict.Fits() != want {
			t.Fatalf("Fit says %s, the twin says that it fits: %t\nrequest %+v\ninventory %+v\nholdings %+v", verdict.Reason, want, req, inv, holdings)
		}
		got, again := Choose(fallback, req, n)
		if diff := cmp.Diff(verdict, again); diff != "" {
			t.Fatalf("Fit and Choose differ (-fit +choose):\n%s", diff)
		}
		if verdict.String() == "" {
			t.Fatal("the verdict says nothing")
		}
		if verdict.Fits() == got.None() {
			t.Fatalf("Choose says %s and chooses %v", again.Reason, got)
		}
		if verdict.Fits() {
			checkRoom(t, inv, holdings, req, got)
		}
		shuffled := slices.Clone(holdings)
		random.Shuffle(len(shuffled), func(i, k int) { shuffled[i], shuffled[k] = shuffled[k], shuffled[i] })
		other := NewNode("n", inv, shuffled)
		if diff := cmp.Diff(n, other); diff != "" {
			t.Fatalf("the order of the holdings shows (-want +got):\n%s", diff)
		}
		if second, _ := Choose(fallback, req, other); !cmp.Equal(got, second) {
			t.Fatalf("Choose says %v, then %v", got, second)
		}
		checkRank(t, random, Policies{GPU: fallback, Node: pick(random, "", Binpack, Spread)}, req, n)
	})
}

// checkRoom puts the pod where it was assigned to and looks at the GPUs.
func checkRoom(t *testing.T, inv gpu.Inventory, holdings []Holding, req Request, got Assignment) {
	t.Helper()
	if len(got.Shares) != req.GPUs() {
		t.Fatalf("%d GPUs are chosen, want %d", len(got.Shares), req.GPUs())
	}
	units, cores := req.Share()
	after := NewNode("n", inv, append(slices.Clone(holdings), Holding{Pod: PodRef{UID: "new"}, Request: req, Assignment: got}))
	seen := make(map[gpu.UUID]bool)
	for _, s := range got.Shares {
		if seen[s.Device] || s.Units != units || s.Cores != cores {
			t.Fatalf("share %+v: want %d units and %d%% of a GPU of its own", s, units, cores)
		}
		seen[s.Device] = true
	}
	for _, d := range after.Devices {
		if seen[d.UUID] && (units > 0 && d.Requested > d.Capacity || cores > 0 && d.RequestedCores > gpu.CoresPerDevice) {
			t.Fatalf("GPU %d holds %d of %d units and %d%% of cores", d.Index, d.Requested, d.Capacity, d.RequestedCores)
		}
	}
}

func checkRank(t *testing.T, random *rand.Rand, defaults Policies, req Request, n Node) {
	t.Helper()
	nodes := []Node{n}
	for i := range random.IntN(12) {
		inv, holdings, _ := world(random)
		nodes = append(nodes, NewNode(fmt.Sprint("n", i), inv, holdings))
	}
	scores := new(Ranker).Rank(defaults, req, pointers(nodes), nil)
	best, fitting := 0, 0
	for i, score := range scores {
		fits := req.Empty() || Fit(req, nodes[i]).Fits()
		if fits {
			fitting++
		}
		if fits != (score > 0) || score < 0 || score > MaxScore {
			t.Fatalf("node %d fits: %t, score %d", i, fits, score)
		}
		if score == MaxScore {
			best++
		}
	}
	if best < min(1, fitting) {
		t.Fatalf("%d of %d nodes that fit have the highest score", best, fitting)
	}
	slices.Reverse(nodes)
	backwards := new(Ranker).Rank(defaults, req, pointers(nodes), nil)
	slices.Reverse(backwards)
	if diff := cmp.Diff(scores, backwards); diff != "" {
		t.Fatalf("the order of the nodes shows (-want +got):\n%s", diff)
	}
}
