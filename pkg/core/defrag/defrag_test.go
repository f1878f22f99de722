package defrag

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/core/preemption"
)

// Short names for the tables.
var (
	machine, hold, terminating                 = placementtest.Machine, placementtest.Hold, placementtest.Terminating
	ask, count, cpu, globsOf, policy, priority = placementtest.Ask, placementtest.Count, placementtest.CPU, placementtest.Models, placementtest.Policy, placementtest.Priority
)

func anyone(placement.Holding) bool { return true }

func anywhere(placement.PodRef, string) bool { return true }

// tell renders a plan in a line.
func tell(p Plan) string {
	out := []string{fmt.Sprint(p.Node, p.Assignment.Devices())}
	for _, m := range p.Moves {
		out = append(out, fmt.Sprintf("%s %s>%s", m.Pod.Pod.Name, m.From, m.To))
	}
	return strings.Join(out, ", ")
}

func TestDefrag(t *testing.T) {
	whole := ask(1, policy(placement.Exclusive), priority(1<<31-1))
	tests := map[string]struct {
		defrag Goal
		nodes  []placement.Node
		want   string // empty: no plan
	}{
		"what fits moves nobody": {
			defrag: Goal{Request: ask(6)},
			nodes:  []placement.Node{machine("a", 0, 2, 10, hold("x", ask(6), 0))},
			want:   "a[GPU-1]",
		},
		"a node whose sum has no room is none": {
			defrag: Goal{Request: ask(9)},
			nodes:  []placement.Node{machine("a", 0, 2, 10, hold("x", ask(14), 0)), machine("b", 0, 1, 10, hold("y", ask(5), 0))},
			want:   "b[GPU-0], y b>a",
		},
		"nor one for a pod that is evicted": {
			defrag: Goal{Request: ask(9)},
			nodes:  []placement.Node{machine("a", 0, 2, 10, hold("x", ask(16), 0)), machine("b", 0, 1, 10, hold("y", ask(5), 0))},
		},
		"one pod moves to the GPU beside it": {
			defrag: Goal{Request: ask(8)},
			nodes:  []placement.Node{machine("a", 0, 2, 10, hold("x", ask(5), 0), hold("y", ask(4), 1))},
			want:   "a[GPU-1], y a>a",
		},
		"the smaller of two that fit": {
			defrag: Goal{Request: ask(7)},
			nodes: []placement.Node{
				machine("a", 0, 1, 10, hold("x", ask(4), 0)),
				machine("b", 0, 1, 10, hold("y", ask(5), 0)),
			},
			want: "a[GPU-0], x a>b",
		},
		"two pods where one does not do": {
			defrag: Goal{Request: ask(9)},
			nodes: []placement.Node{
				machine("a", 0, 1, 10, hold("x", ask(2), 0), hold("y", ask(3), 0)),
				machine("b", 0, 1, 10, hold("z", ask(5, priority(1)), 0)),
			},
			want: "a[GPU-0], y a>b, x a>b",
		},
		"more than is allowed": {
			defrag: Goal{Request: ask(9), MaxEvictions: 1},
			nodes: []placement.Node{
				machine("a", 0, 1, 10, hold("x", ask(2), 0), hold("y", ask(3), 0)),
				machine("b", 0, 1, 10, hold("z", ask(5, priority(1)), 0)),
			},
		},
		"a pod without room elsewhere stays": {
			defrag: Goal{Request: ask(8)},
			nodes:  []placement.Node{machine("a", 0, 1, 10, hold("x", ask(5), 0))},
		},
		"nor is one of its priority displaced": {
			defrag: Goal{Request: ask(8), Displace: true},
			nodes:  []placement.Node{machine("a", 0, 1, 10, hold("x", ask(5), 0))},
		},
		"one of lower priority is": {
			defrag: Goal{Request: ask(8, priority(1)), Displace: true},
			nodes:  []placement.Node{machine("a", 0, 1, 10, hold("x", ask(5), 0))},
			want:   "a[GPU-0], x a>",
		},
		"but rather one that finds room, though it is larger": {
			defrag: Goal{Request: ask(8, priority(1)), Displace: true},
			nodes: []placement.Node{
				machine("a", 0, 1, 10, hold("x", ask(5, globsOf("none")), 0)),
				machine("b", 0, 1, 10, hold("y", ask(6), 0)),
				machine("c", 0, 1, 7),
			},
			want: "b[GPU-0], y b>c",
		},
		"one of higher priority stays, though it would find room": {
			defrag: Goal{Request: ask(8)},
			nodes:  []placement.Node{machine("a", 0, 2, 10, hold("x", ask(5, priority(1)), 0), hold("y", ask(4, priority(1)), 1))},
		},
		"one that may not be evicted stays": {
			defrag: Goal{Request: ask(8), IsEvictable: func(h placement.Holding) bool { return h.Pod.Name != "x" }},
			nodes:  []placement.Node{machine("a", 0, 2, 10, hold("x", ask(4), 0), hold("y", ask(5), 1))},
			want:   "a[GPU-1], y a>a",
		},
		"one that its budget protects stays": {
			defrag: Goal{Request: ask(8), Budgets: []preemption.Budget{{Pods: []string{hold("x", ask(4), 0).Pod.UID}}}},
			nodes:  []placement.Node{machine("a", 0, 2, 10, hold("x", ask(4), 0), hold("y", ask(5), 1))},
			want:   "a[GPU-1], y a>a",
		},
		"one that goes anyway is not evicted": {
			defrag: Goal{Request: ask(8)},
			nodes:  []placement.Node{machine("a", 0, 2, 10, terminating(hold("x", ask(4), 0)), hold("y", ask(5), 1))},
			want:   "a[GPU-1], y a>a",
		},
		"a node that does not suit the pod": {
			defrag: Goal{Request: ask(8), NodeAccepts: func(pod placement.PodRef, node string) bool { return pod.UID != "" || node != "a" }},
			nodes:  []placement.Node{machine("a", 0, 1, 10), machine("b", 0, 1, 10, hold("x", ask(4), 0))},
			want:   "b[GPU-0], x b>a",
		},
		"a node that does not suit an evicted pod": {
			defrag: Goal{Request: ask(8), NodeAccepts: func(pod placement.PodRef, node string) bool { return pod.Name != "x" || node != "b" }},
			nodes:  []placement.Node{machine("a", 0, 1, 10, hold("x", ask(4), 0)), machine("b", 0, 1, 6), machine("c", 0, 1, 7)},
			want:   "a[GPU-0], x a>c",
		},
		"CPU of the node that an evicted pod takes along": {
			defrag: Goal{Request: ask(8, cpu(3000))},
			nodes: []placement.Node{
				machine("a", 4000, 1, 10, hold("x", ask(4, cpu(2000)), 0)),
				machine("b", 1000, 1, 10),
				machine("c", 2000, 1, 5),
			},
			want: "a[GPU-0], x a>c",
		},
		"a GPU with nobody on it": {
			defrag: Goal{Request: whole},
			nodes: []placement.Node{
				machine("a", 0, 2, 10, hold("x", ask(2), 0), hold("y", ask(2), 0), hold("z", ask(5), 1)),
				machine("b", 0, 1, 10, hold("w", ask(4), 0)),
			},
			want: "b[GPU-0], w b>a",
		},
		"two GPUs of one node": {
			defrag: Goal{Request: ask(16, count(2))},
			nodes: []placement.Node{
				machine("a", 0, 3, 10, hold("x", ask(3), 0), hold("y", ask(3), 1), hold("z", ask(4), 2)),
			},
			want: "a[GPU-0 GPU-1], x a>a, y a>a",
		},
		"one of equals of each GPU": {
			defrag: Goal{Request: ask(12, count(2))},
			nodes: []placement.Node{
				machine("a", 0, 2, 10, hold("w", ask(3), 0), hold("x", ask(3), 0), hold("y", ask(3), 1), hold("z", ask(3), 1)),
				machine("b", 0, 2, 3),
			},
			want: "a[GPU-0 GPU-1], x a>b, z a>b",
		},
		"a pod of a GPU that is over-committed, for the sum": {
			defrag: Goal{Request: ask(8), IsEvictable: func(h placement.Holding) bool { return h.Pod.Name != "stays" }},
			nodes:  []placement.Node{machine("a", 0, 2, 10, hold("stays", ask(8), 0), hold("x", ask(6), 0)), machine("b", 0, 1, 7)},
			want:   "a[GPU-1], x a>b",
		},
		"a pod of a third GPU, for the sum": {
			defrag: Goal{Request: ask(12), IsEvictable: func(h placement.Holding) bool { return h.Pod.Name == "x" }},
			nodes: []placement.Node{
				machine("a", 0, 3, 16, hold("o", ask(20), 0), hold("p", ask(4), 1), hold("q", ask(10), 2), hold("x", ask(6), 2)),
				machine("b", 0, 1, 7),
			},
			want: "a[GPU-1], x a>b",
		},
		"a free GPU beside one that is over-committed": {
			defrag: Goal{Request: whole, Empty: true},
			nodes:  []placement.Node{machine("a", 0, 2, 10, hold("x", ask(30), 0))},
			want:   "a[GPU-1]",
		},
		"a pod on both of them": {
			defrag: Goal{Request: ask(16, count(2))},
			nodes: []placement.Node{
				machine("a", 0, 2, 10, hold("x", ask(6, count(2)), 0, 1)),
				machine("b", 0, 2, 3),
			},
			want: "a[GPU-0 GPU-1], x a>b",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := tc.defrag
			if d.IsEvictable == nil {
				d.IsEvictable = anyone
			}
			if d.NodeAccepts == nil {
				d.NodeAccepts = anywhere
			}
			if d.MaxEvictions == 0 {
				d.MaxEvictions = 4
			}
			plan, ok := d.Plan(tc.nodes)
			if ok != (tc.want != "") || ok && tell(plan) != tc.want {
				t.Errorf("plan %q, %t; want %q", tell(plan), ok, tc.want)
			}
		})
	}
}

func TestHopeless(t *testing.T) {
	alone := ask(1, policy(placement.Exclusive))
	full := machine("full", 0, 2, 14, hold("x", ask(12), 0), hold("y", ask(13), 1))
	for name, tc := range map[string]struct {
		goal  Goal
		nodes []placement.Node
		want  bool
	}{
		"less is free than the request wants":                      {Goal{Request: ask(4)}, []placement.Node{full}, true},
		"as much is free":                                          {Goal{Request: ask(3)}, []placement.Node{full}, false},
		"those of lower priority may go without room elsewhere":    {Goal{Request: ask(4, priority(1)), Displace: true}, []placement.Node{full}, false},
		"as much is free, on no GPU where they may go":             {Goal{Request: ask(10)}, []placement.Node{machine("a", 0, 1, 14, hold("x", ask(6, globsOf("none")), 0)), machine("b", 0, 1, 9)}, true},
		"there are none of lower priority":                         {Goal{Request: ask(4), Displace: true}, []placement.Node{full}, true},
		"less is free elsewhere than the pods of any GPU hold":     {Goal{Request: alone}, []placement.Node{full, machine("b", 0, 1, 20, hold("z", ask(10), 0))}, true},
		"as much is free elsewhere as the pods of one GPU hold":    {Goal{Request: alone}, []placement.Node{full, machine("b", 0, 1, 20, hold("z", ask(9), 0))}, false},
		"what is free beside the pods that are to leave is no use": {Goal{Request: alone}, []placement.Node{machine("c", 0, 1, 20, hold("z", ask(9), 0))}, true},
	} {
		tc.goal.IsEvictable, tc.goal.NodeAccepts = anyone, anywhere
		if got := tc.goal.IsHopeless(tc.nodes); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

// FuzzDefrag checks that a plan can be executed step by step, and that no set of fewer pods is enough.
func FuzzDefrag(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 11))
		nodes, d := crowded(random)
		plan, ok := d.Plan(nodes)
		if ok {
			checkPlan(t, d, nodes, plan)
		}
		if ok && d.IsHopeless(nodes) {
			t.Errorf("there is a plan, %s, and it is said to be hopeless", tell(plan))
		}
		fewest := d.MaxEvictions + 1
		if ok {
			fewest = len(plan.Moves)
		}
		s := newSearch(d, nodes)
		for i, n := range nodes {
			pods := n.Holdings()
			for set := range 1 << len(pods) {
				if bits.OnesCount(uint(set)) >= fewest {
					continue
				}
				var victims []placement.Holding
				allowed := true
				for k, h := range pods {
					if set&(1<<k) != 0 {
						victims = append(victims, h)
						allowed = allowed && d.IsEvictable(h) && !h.Terminating && h.Request.Priority <= d.Request.Priority
					}
				}
				if !allowed || preemption.Violations(victims, d.Budgets) > 0 || !d.NodeAccepts(placement.PodRef{}, n.Name) || !d.inSum(n.Without(victims)) {
					continue
				}
				if better, found := s.relocate(candidate{node: i, victims: victims}); found {
					t.Fatalf("plan %q, %t; but there is %q", tell(plan), ok, tell(better))
				}
			}
		}
	})
}

// crowded returns a small cluster with little room, and a request.
func crowded(random *rand.Rand) ([]placement.Node, Goal) {
	var nodes []placement.Node
	var uids []string
	names := 0
	for i := range 1 + random.IntN(3) {
		gpus := 1 + random.IntN(3)
		free := slices.Repeat([]gpu.Units{10}, gpus)
		var holdings []placement.Holding
		for range random.IntN(6) {
			at := random.IntN(gpus)
			units := gpu.Units(1 + random.IntN(6))
			if units > free[at] {
				continue
			}
			free[at] -= units
			names++
			h := hold(fmt.Sprint("p", names), ask(units, priority(random.Int32N(3)), cpu(random.Int64N(3)*1000)), at)
			h.Terminating = random.IntN(12) == 0
			var none placement.Group
			h.Request.ExclusiveGroup = placementtest.Pick(random, none, none, none, placement.Group{Namespace: "ns", Name: fmt.Sprint("g", i)})
			if h.Request.ExclusiveGroup != none && slices.ContainsFunc(holdings, func(o placement.Holding) bool { return o.Request.ExclusiveGroup != none }) {
				h.Request.ExclusiveGroup = none
			}
			holdings, uids = append(holdings, h), append(uids, h.Pod.UID)
		}
		n := machine(fmt.Sprint("n", i), random.Int64N(2)*16_000, gpus, 10, holdings...)
		switch d := n.Devices[0].Device; random.IntN(6) {
		case 0: // shrunk below its allocations
			d.Allocatable = 5
		case 1:
			placementtest.Sick(d)
		}
		nodes = append(nodes, n)
	}
	never, unsuited := fmt.Sprint("p", random.IntN(9)), fmt.Sprint("n", random.IntN(6))
	d := Goal{
		Request:  ask(gpu.Units(3+random.IntN(8)), priority(random.Int32N(4)), cpu(random.Int64N(2)*3000)),
		Fallback: placement.Binpack, Displace: random.IntN(2) == 0, MaxEvictions: random.IntN(5),
		IsEvictable: func(h placement.Holding) bool { return h.Pod.Name != never },
		NodeAccepts: func(pod placement.PodRef, node string) bool { return pod.UID != "" || node != unsuited },
	}
	d.Request.Policy = placementtest.Pick(random, "", "", placement.Exclusive)
	if random.IntN(4) == 0 {
		d.Request.Count = 2
	}
	if random.IntN(8) == 0 {
		d.Request.UUIDs = placement.NewGlobs("GPU-1")
	}
	d.Empty = random.IntN(8) == 0
	if len(uids) > 0 {
		d.Budgets = []preemption.Budget{{Pods: uids[:1+random.IntN(len(uids))], Allowed: random.IntN(3)}}
	}
	return nodes, d
}

// checkPlan executes a plan.
func checkPlan(t *testing.T, d Goal, nodes []placement.Node, p Plan) {
	t.Helper()
	at := func(name string) int {
		return slices.IndexFunc(nodes, func(n placement.Node) bool { return n.Name == name })
	}
	now := slices.Clone(nodes)
	var gone []placement.Holding
	for _, m := range p.Moves {
		if m.From != p.Node || !d.IsEvictable(m.Pod) || m.Pod.Terminating || m.Pod.Request.Priority > d.Request.Priority || !slices.ContainsFunc(now[at(m.From)].Holdings(), func(h placement.Holding) bool { return h.Pod == m.Pod.Pod }) {
			t.Fatalf("plan %q evicts %s, which may not be", tell(p), m.Pod.Pod)
		}
		gone = append(gone, m.Pod)
		now[at(m.From)] = now[at(m.From)].Without([]placement.Holding{m.Pod})
	}
	if len(p.Moves) > d.MaxEvictions || preemption.Violations(gone, d.Budgets) > 0 || !d.NodeAccepts(placement.PodRef{}, p.Node) {
		t.Fatalf("plan %q is more than what may be done", tell(p))
	}
	enter := func(h placement.Holding, node string) {
		n := &now[at(node)]
		sum := d.Empty && h.Pod.UID == "" || n.InSum(h.Request)
		if !placement.Fit(h.Request, *n).Fits() || !sum || n.FreeCPU() < h.Request.CPU {
			t.Fatalf("plan %q: %+v does not fit %s", tell(p), h.Request, node)
		}
		if h.Assignment.None() {
			h.Assignment, _ = placement.Choose(d.Fallback, h.Request, *n)
		}
		*n = n.With(h)
	}
	enter(placement.Holding{Request: d.Request, Assignment: p.Assignment}, p.Node)
	for _, m := range p.Moves {
		if m.To == "" {
			if !d.Displace || m.Pod.Request.Priority >= d.Request.Priority {
				t.Fatalf("plan %q leaves %s without room", tell(p), m.Pod.Pod)
			}
			continue
		}
		m.Pod.Assignment = placement.Assignment{}
		enter(m.Pod, m.To)
	}
}

func TestPlanIsTheSameEveryTime(t *testing.T) {
	for seed := range uint64(50) {
		nodes, d := crowded(rand.New(rand.NewPCG(seed, 12)))
		want, _ := d.Plan(nodes)
		for range 5 {
			got, _ := d.Plan(nodes)
			if diff := cmp.Diff(tell(want), tell(got)); diff != "" {
				t.Fatalf("plan (-before +now):\n%s", diff)
			}
		}
	}
}
