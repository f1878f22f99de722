package preemption

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

// Short names for the tables.
var (
	device, sick, cordoned, inventory, node    = placementtest.Device, placementtest.Sick, placementtest.Cordoned, placementtest.Inventory, placementtest.Node
	hold, terminating                          = placementtest.Hold, placementtest.Terminating
	ask, cores, count, policy, priority, uuids = placementtest.Ask, placementtest.Cores, placementtest.Count, placementtest.Policy, placementtest.Priority, placementtest.UUIDs
)

// started sets the second in which the kubelet admitted the pod.
func started(second int64, h placement.Holding) placement.Holding {
	h.Started = time.Unix(second, 0)
	return h
}

func namesOf(pods []placement.Holding) []string {
	var out []string
	for _, h := range pods {
		out = append(out, h.Pod.Name)
	}
	return out
}

func TestPreempt(t *testing.T) {
	two := inventory(device(0, 10), device(1, 10))
	high := priority(100)
	tests := map[string]struct {
		req            placement.Request
		inv            gpu.Inventory // default: two GPUs
		pods           []placement.Holding
		proposed       []string
		others         []string // proposed pods of priority 50 without a GPU
		budgets        []Budget
		want           []string
		wantViolations int
		wantNone       bool
	}{
		"one pod of one GPU, not one of each as the sum would have it": {
			req:      ask(8, high),
			pods:     []placement.Holding{hold("a", ask(4), 0), hold("b", ask(5), 0), hold("c", ask(4), 1), hold("d", ask(6, priority(1)), 1)},
			proposed: []string{"b", "c"}, want: []string{"a", "b"},
		},
		"for CPU, where there is room on a GPU and the cordoned one counts in the sum": {
			req: ask(4, high), inv: inventory(device(0, 10, cordoned), device(1, 10)),
			pods:     []placement.Holding{started(1, hold("a", ask(5), 1)), started(2, hold("b", ask(4), 1))},
			proposed: []string{"b"}, want: []string{"b"},
		},
		"for the sum, where a GPU is over-committed": {
			req: ask(8, high), pods: []placement.Holding{hold("a", ask(14), 0), hold("b", ask(10), 1)},
			proposed: []string{"a"}, want: []string{"a"},
		},
		"fewest on one GPU": {
			req: ask(6, high), pods: []placement.Holding{hold("a", ask(5), 0), hold("b", ask(5), 0), hold("c", ask(10), 1)}, want: []string{"c"},
		},
		"of equals on a GPU the larger, so that the fewest go": {
			req: ask(6, high), inv: inventory(device(0, 16)),
			pods: []placement.Holding{hold("a", ask(5), 0), hold("b", ask(6), 0), hold("c", ask(5), 0)}, want: []string{"b"},
		},
		"lowest priority before fewest": {
			req: ask(6, high), pods: []placement.Holding{hold("a", ask(5), 0), hold("b", ask(5), 0), hold("c", ask(10, priority(1)), 1)}, want: []string{"a", "b"},
		},
		"the least memory among equals": {
			req: ask(3, high), pods: []placement.Holding{hold("a", ask(9), 0), hold("b", ask(8), 1)}, want: []string{"b"},
		},
		"for the sum of cores, on the GPU where it costs the least": {
			req:      ask(1, cores(50), high),
			pods:     []placement.Holding{hold("a", ask(4, cores(100)), 0), hold("b", ask(2, cores(100)), 1)},
			proposed: []string{"a"}, want: []string{"b"},
		},
		"not for the sum of cores, of which just enough would be left": {
			req: ask(2, cores(50), high), inv: inventory(device(0, 10), device(1, 10), device(2, 10)),
			pods: []placement.Holding{
				hold("a", ask(3, cores(50)), 0), hold("b", ask(7, high), 0), hold("c", ask(1, cores(100), high), 1),
				hold("d", ask(2, cores(50)), 2), hold("e", ask(8, cores(50), high), 2),
			},
			proposed: []string{"a"}, want: []string{"a"},
		},
		"of one GPU the less important, though the other is larger": {
			req: ask(5, high), inv: inventory(device(0, 10)),
			pods: []placement.Holding{hold("a", ask(5, priority(1)), 0), hold("b", ask(4), 0)}, want: []string{"b"},
		},
		"the younger of equals": {
			req: ask(3, high), inv: inventory(device(0, 10)),
			pods: []placement.Holding{started(20, hold("a", ask(5), 0)), started(10, hold("b", ask(5), 0))}, want: []string{"a"},
		},
		"one that has not started is younger than all": {
			req: ask(3, high), inv: inventory(device(0, 10)),
			pods: []placement.Holding{started(20, hold("a", ask(5), 0)), hold("b", ask(5), 0)}, want: []string{"b"},
		},
		"the lowest index of equals": {
			req: ask(3, high), pods: []placement.Holding{hold("a", ask(10), 1), hold("b", ask(10), 0)}, want: []string{"b"},
		},
		"for the sum, where kube-scheduler has put back the pod whose budget allows no eviction": {
			req:      ask(5, high),
			pods:     []placement.Holding{hold("a", ask(6, priority(200)), 1), hold("b", ask(1, priority(1)), 1), hold("c", ask(9), 0)},
			proposed: []string{"b"}, budgets: []Budget{{Pods: []string{"c"}}}, want: []string{"c"}, wantViolations: 1,
		},
		"the most important first": {
			req: ask(10, high), inv: inventory(device(0, 10)),
			pods: []placement.Holding{hold("a", ask(4), 0), hold("b", ask(2, priority(3)), 0), hold("c", ask(4, priority(2)), 0)}, want: []string{"b", "c", "a"},
		},
		"pods of its own priority stay": {
			req: ask(3, high), pods: []placement.Holding{hold("a", ask(10, high), 0), hold("b", ask(10), 1)}, want: []string{"b"},
		},
		"pods of its own priority everywhere": {
			req: ask(3, high), pods: []placement.Holding{hold("a", ask(10, high), 0), hold("b", ask(10, priority(101)), 1)}, wantNone: true,
		},
		"larger than any GPU": {
			req: ask(11, high), pods: []placement.Holding{hold("a", ask(10), 0), hold("b", ask(10), 1)}, proposed: []string{"a", "b"}, wantNone: true,
		},
		"a GPU that is not healthy is no help": {
			req: ask(5, high), inv: inventory(device(0, 10, sick), device(1, 10)),
			pods: []placement.Holding{hold("a", ask(6), 0), hold("b", ask(6, priority(1)), 1)}, proposed: []string{"a"}, want: []string{"b"},
		},
		"only GPUs that it may use": {
			req: ask(5, high, uuids("GPU-1")), pods: []placement.Holding{hold("a", ask(6), 0), hold("b", ask(6, priority(1)), 1)}, want: []string{"b"},
		},
		"cores are of the same GPU": {
			req:  ask(1, cores(50), high),
			pods: []placement.Holding{hold("a", ask(1, cores(40)), 0), hold("b", ask(1, cores(40)), 0), hold("c", ask(1, cores(90), priority(1)), 1)}, want: []string{"b"},
		},
		"exclusive clears a GPU": {
			req: ask(1, policy(placement.Exclusive), high), pods: []placement.Holding{hold("a", ask(1), 0), hold("b", ask(1), 0), hold("c", ask(9), 1)}, want: []string{"c"},
		},
		"an exclusive pod can be evicted": {
			req: ask(1, high), pods: []placement.Holding{hold("a", ask(1, policy(placement.Exclusive)), 0), hold("b", ask(10, priority(1)), 1)}, want: []string{"a"},
		},
		"two GPUs": {
			req: ask(12, count(2), high), inv: inventory(device(0, 10), device(1, 10), device(2, 10)),
			pods: []placement.Holding{hold("a", ask(10, priority(2)), 0), hold("b", ask(10, priority(1)), 1), hold("c", ask(5), 2)}, want: []string{"b", "c"},
		},
		"a pod on both GPUs counts once": {
			req: ask(12, count(2), high), inv: inventory(device(0, 10), device(1, 10), device(2, 10)),
			pods: []placement.Holding{hold("a", ask(10), 0), hold("b", ask(20, count(2)), 1, 2)}, want: []string{"b"},
		},
		"what was to go for the first GPU stays if the second makes it needless": {
			req: ask(8, count(2), high), inv: inventory(device(0, 10), device(1, 10)),
			pods: []placement.Holding{hold("a", ask(4), 0), hold("b", ask(12, count(2)), 0, 1), hold("c", ask(4, priority(1)), 1)}, want: []string{"b"},
		},
		"a pod of unknown GPU may be in the way on each": {
			req: ask(5, high), pods: []placement.Holding{hold("a", ask(7, priority(1)), 0), hold("b", ask(7, priority(1)), 1), hold("lost", ask(6))}, wantNone: false,
			want: []string{"a", "lost"},
		},
		"who is being deleted goes at no cost": {
			req: ask(8, high), pods: []placement.Holding{hold("a", ask(9), 0), terminating(hold("b", ask(4, priority(7)), 1)), terminating(hold("c", ask(6, priority(8)), 1))}, want: []string{"c", "b"},
		},
		"who is being deleted goes before others of its GPU": {
			req: ask(4, high), inv: inventory(device(0, 10)),
			pods: []placement.Holding{hold("a", ask(5), 0), terminating(hold("b", ask(5, priority(1)), 0))}, want: []string{"b"},
		},
		"a budget is kept where it can be": {
			req: ask(5, high), pods: []placement.Holding{hold("a", ask(10), 0), hold("b", ask(10, priority(1)), 1)},
			budgets: []Budget{{Pods: []string{"a"}}}, want: []string{"b"},
		},
		"a budget that allows one": {
			req: ask(5, high), pods: []placement.Holding{hold("a", ask(10), 0), hold("b", ask(10, priority(1)), 1)},
			budgets: []Budget{{Pods: []string{"a"}, Allowed: 1}}, want: []string{"a"},
		},
		"a budget is kept on the GPU": {
			req: ask(5, high), inv: inventory(device(0, 10)), pods: []placement.Holding{hold("a", ask(5), 0), hold("b", ask(5, priority(1)), 0)},
			budgets: []Budget{{Pods: []string{"a"}}}, want: []string{"b"},
		},
		"a budget that cannot be kept is counted": {
			req: ask(10, high), inv: inventory(device(0, 10)), pods: []placement.Holding{hold("a", ask(5), 0), hold("b", ask(5), 0)},
			budgets: []Budget{{Pods: []string{"a", "b"}, Allowed: 1}}, want: []string{"a", "b"}, wantViolations: 1,
		},
		"who is being deleted is beyond no budget": {
			req: ask(10, high), inv: inventory(device(0, 10)), pods: []placement.Holding{hold("a", ask(5), 0), terminating(hold("b", ask(5), 0))},
			budgets: []Budget{{Pods: []string{"a", "b"}, Allowed: 1}}, want: []string{"a", "b"},
		},
		"room on a GPU without any victim: they are wanted for something else": {
			req: ask(5, high), pods: []placement.Holding{hold("a", ask(4), 0), hold("b", ask(6), 1)}, proposed: []string{"b"}, want: []string{"b"},
		},
		"nothing is wanted of these GPUs": {
			req: ask(5, high), pods: []placement.Holding{hold("a", ask(4), 0)}, want: nil,
		},
		"who the sum does not explain is evicted too": {
			req:      ask(10, high),
			pods:     []placement.Holding{started(10, hold("c", ask(2), 0)), started(20, hold("b", ask(5), 0)), started(30, hold("a", ask(4), 1))},
			proposed: []string{"c"}, want: []string{"c", "a"},
		},
		"who holds no GPU is evicted too, in the order of importance": {
			req: ask(5, high), pods: []placement.Holding{hold("a", ask(6), 0), hold("b", ask(6, priority(60)), 0), hold("c", ask(10, priority(60)), 1)},
			proposed: []string{"c"}, others: []string{"x"}, want: []string{"c", "x"},
		},
		"who holds no GPU, where there is room on one": {
			req: ask(5, high), pods: []placement.Holding{hold("a", ask(10), 0)}, others: []string{"x"}, want: []string{"x"},
		},
		"who the sum does not explain, and whom it does": {
			req:      ask(10, high),
			pods:     []placement.Holding{started(10, hold("c", ask(2), 0)), started(20, hold("b", ask(6), 0)), started(30, hold("a", ask(5), 1))},
			proposed: []string{"c", "a"}, want: []string{"c", "a"},
		},
		"who the sum does not explain makes room": {
			req:      ask(10, high),
			pods:     []placement.Holding{started(10, hold("b", ask(3), 0)), started(20, hold("c", ask(3), 1)), started(30, hold("a", ask(6), 0))},
			proposed: []string{"c", "a"}, want: []string{"c", "a"},
		},
		"of equals kube-scheduler may propose any": {
			req:      ask(5, high),
			pods:     []placement.Holding{hold("a", ask(3), 0), hold("b", ask(3), 0), hold("c", ask(3), 0), hold("d", ask(4), 1), hold("e", ask(4), 1)},
			proposed: []string{"a"}, want: []string{"e"},
		},
		"of equals kube-scheduler may propose any, and spend a budget on them": {
			req:      ask(5, high),
			pods:     []placement.Holding{hold("a", ask(3), 0), hold("b", ask(3), 0), hold("c", ask(3), 0), hold("d", ask(4), 1), hold("e", ask(4), 1)},
			proposed: []string{"b"}, budgets: []Budget{{Pods: []string{"a", "b", "c"}, Allowed: 1}}, want: []string{"e"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			inv := tc.inv
			if inv.Devices == nil {
				inv = two
			}
			n := node(inv, tc.pods...)
			proposed := slices.DeleteFunc(n.Holdings(), func(h placement.Holding) bool { return !slices.Contains(tc.proposed, h.Pod.UID) })
			for _, name := range tc.others {
				proposed = append(proposed, placement.Holding{Pod: placement.PodRef{Namespace: "ns", Name: name, UID: name}, Request: placement.Request{Priority: 50}})
			}
			got, ok := Preempt(tc.req, n, proposed, tc.budgets)
			if ok == tc.wantNone {
				t.Fatalf("some eviction helps: %t, want %t", ok, !tc.wantNone)
			}
			if diff := cmp.Diff(tc.want, namesOf(got.Pods)); diff != "" {
				t.Errorf("victims (-want +got):\n%s", diff)
			}
			if got.Violations != tc.wantViolations {
				t.Errorf("%d violations, want %d", got.Violations, tc.wantViolations)
			}
			if diff := cmp.Diff(node(inv, tc.pods...), n); diff != "" {
				t.Errorf("the node has changed (-before +after):\n%s", diff)
			}
		})
	}
}

// FuzzPreempt checks that Preempt makes room and evicts no pod needlessly. It may fail only if no set of pods
// makes room.
func FuzzPreempt(f *testing.F) {
	for seed := range uint64(150) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 11))
		inv := inventory(device(0, gpu.Units(4+random.IntN(5))), device(1, gpu.Units(4+random.IntN(5))), device(2, 6))
		inv.Devices[2].Status.Unhealthy = random.IntN(3) == 0
		oneClass := random.IntN(2) == 0
		var pods []placement.Holding
		for i := range random.IntN(7) {
			r := ask(gpu.Units(1 + random.IntN(5)))
			if !oneClass {
				r.Priority = int32(random.IntN(4))
			}
			if random.IntN(8) == 0 {
				r.Policy = placement.Exclusive
			}
			on := []int{random.IntN(3)}
			switch random.IntN(8) {
			case 0:
				on = nil
			case 1:
				r = ask(4, count(2), priority(r.Priority))
				on = []int{0, 1 + random.IntN(2)}
			}
			h := hold(fmt.Sprint("p", i), r, on...)
			if second := random.IntN(3); second > 0 {
				h = started(int64(second), h)
			}
			pods = append(pods, h)
		}
		req := ask(gpu.Units(1+random.IntN(8)), priority(3))
		if random.IntN(4) == 0 {
			req = ask(gpu.Units(2+2*random.IntN(6)), count(2), priority(3))
		}
		if random.IntN(8) == 0 {
			req.Policy = placement.Exclusive
		}
		n := node(inv, pods...)
		victims, ok := Preempt(req, n, nil, nil)

		// A proposal for the node's sum does not change the victims, unless the request already fits a
		// GPU, or fails the check of the sum after their eviction.
		proposal := proposeBySum(random, req, n)
		bySum, _ := Preempt(req, n, proposal, nil)
		if diff := cmp.Diff(namesOf(victims.Pods), namesOf(bySum.Pods)); diff != "" && !placement.Fit(req, n).Fits() && n.Without(victims.Pods).InSum(req) {
			t.Errorf("victims without a proposal, and with one for the sum (-without +with):\n%s", diff)
		}
		if left := n.Without(proposal); placement.Fit(req, left).Fits() && left.InSum(req) && !n.Without(bySum.Pods).InSum(req) {
			t.Errorf("without %v the sum has no room, and without the proposed %v it has", namesOf(bySum.Pods), namesOf(proposal))
		}
		best, possible := bestBySearch(req, inv, pods)
		if ok != possible {
			t.Fatalf("Preempt finds victims: %t, and the search: %t\n%+v\n%+v", ok, possible, req, pods)
		}
		if !ok {
			return
		}
		rest := func(spared string) placement.Node {
			return node(inv, slices.DeleteFunc(slices.Clone(pods), func(h placement.Holding) bool { return h.Pod.UID != spared && placement.HasPod(victims.Pods, h) })...)
		}
		if v := placement.Fit(req, rest("")); !v.Fits() {
			t.Fatalf("without %v it does not fit: %s", namesOf(victims.Pods), v.Reason)
		}
		for _, h := range victims.Pods {
			if h.Request.Priority >= req.Priority {
				t.Errorf("%s has priority %d", h.Pod.Name, h.Request.Priority)
			}
			if req.GPUs() == 1 && placement.Fit(req, rest(h.Pod.UID)).Fits() {
				t.Errorf("%s of %v is evicted needlessly", h.Pod.Name, namesOf(victims.Pods))
			}
		}
		if req.GPUs() > 1 {
			return
		}
		got, want := newCost(victims.Pods, nil), newCost(best, nil)
		if got.highest != want.highest {
			t.Errorf("the highest priority of %v is %d, of %v %d", namesOf(victims.Pods), got.highest, namesOf(best), want.highest)
		}
		if oneClass && len(victims.Pods) != len(best) {
			t.Errorf("%v are evicted, and %v are enough", namesOf(victims.Pods), namesOf(best))
		}

		// The result makes room for any proposal.
		proposed := slices.DeleteFunc(evictable(req, n), func(placement.Holding) bool { return random.IntN(2) > 0 })
		amended, ok := Preempt(req, n, proposed, nil)
		if !ok || !placement.Fit(req, n.Without(amended.Pods)).Fits() {
			t.Errorf("of the proposed %v comes %v, %t", namesOf(proposed), namesOf(amended.Pods), ok)
		}
	})
}

// proposeBySum returns the pods that kube-scheduler would evict for the node's sum of units alone. Like
// SelectVictimsOnNode, it puts pods of equal priority and second in any order.
func proposeBySum(random *rand.Rand, req placement.Request, n placement.Node) (proposed []placement.Holding) {
	pods := evictable(req, n)
	random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	second := func(h placement.Holding) int {
		if h.Started.IsZero() {
			return 1000 // the youngest: kube-scheduler uses the time of the comparison
		}
		return int(h.Started.Unix())
	}
	slices.SortStableFunc(pods, func(a, b placement.Holding) int {
		if a.Request.Priority != b.Request.Priority {
			return int(b.Request.Priority - a.Request.Priority)
		}
		return second(a) - second(b)
	})
	free, _ := n.Without(pods).Unrequested()
	for _, h := range pods {
		if free-h.Request.Units() >= req.Units() {
			free -= h.Request.Units()
		} else {
			proposed = append(proposed, h)
		}
	}
	return proposed
}

// bestBySearch tries every set of pods of lower priority.
func bestBySearch(req placement.Request, inv gpu.Inventory, pods []placement.Holding) (best []placement.Holding, ok bool) {
	for set := range 1 << len(pods) {
		var gone, rest []placement.Holding
		allowed := true
		for i, h := range pods {
			if set&(1<<i) == 0 {
				rest = append(rest, h)
				continue
			}
			gone = append(gone, h)
			allowed = allowed && h.Request.Priority < req.Priority
		}
		if allowed && placement.Fit(req, node(inv, rest...)).Fits() && (!ok || Cheaper(gone, best, nil) < 0) {
			best, ok = gone, true
		}
	}
	return best, ok
}

func TestGuarded(t *testing.T) {
	got := ProtectedPods([]Budget{{Pods: []string{"a", "b"}, Allowed: 0}, {Pods: []string{"c"}, Allowed: 1}, {Pods: []string{"d"}, Allowed: -1}})
	if diff := cmp.Diff(map[string]bool{"a": true, "b": true, "d": true}, got); diff != "" {
		t.Errorf("guarded (-want +got):\n%s", diff)
	}
}

// Preempt does not reorder the lists that it receives.
func TestPreemptSortsAListOfItsOwn(t *testing.T) {
	proposed := []placement.Holding{hold("a", ask(1), 0), hold("b", ask(1, priority(1)), 0)} // proposed for CPU, with enough GPU memory free
	if got, ok := Preempt(ask(2, priority(100)), node(inventory(device(0, 10)), proposed...), proposed, nil); !ok || len(got.Pods) != 2 {
		t.Errorf("victims %v, %t", namesOf(got.Pods), ok)
	}
	if proposed[0].Pod.Name != "a" {
		t.Errorf("what was proposed is in another order: %v", namesOf(proposed))
	}
}

// Each container is a client of the MPS server on each GPU of its pod, and the server has a maximum.
func TestPreemptForClientsOfMPS(t *testing.T) {
	inv := inventory(device(0, 100), device(1, 100))
	inv.Enforcement, inv.MPS = gpu.EnforcementMPS, true
	var pods []placement.Holding
	for d := range inv.Devices {
		for i := range placement.MPSClients - 1 {
			pods = append(pods, hold(fmt.Sprint(d, "-", i), ask(1), d))
		}
	}
	one := placement.Container{Kind: placement.App, Units: 2}
	for gpus := 1; gpus <= 2; gpus++ {
		req := placement.Request{Priority: 100, Count: gpus, Containers: placement.NewContainers(one, one)}
		if victims, ok := Preempt(req, node(inv, pods...), nil, nil); !ok || len(victims.Pods) != gpus {
			t.Errorf("%d GPUs: %v, %v, want a victim on each", gpus, namesOf(victims.Pods), ok)
		}
	}
}

// A pod of several GPUs gets no MIG instance, even if one is free: preemption clears the GPUs.
func TestAMIGInstanceIsNoneOfSeveralGPUs(t *testing.T) {
	mig := func(d *gpu.Device) { d.UUID = "MIG-c" }
	inv := inventory(device(0, 10), device(1, 10), device(2, 10, mig))
	pods := []placement.Holding{hold("a", ask(8), 0), hold("b", ask(8), 1)}
	req := ask(16, count(2), priority(100))
	for name, proposed := range map[string][]placement.Holding{"nobody": nil, "one, for the sum": pods[:1]} {
		victims, ok := Preempt(req, placementtest.Node(inv, pods...), proposed, nil)
		if got := namesOf(victims.Pods); !ok || len(got) != 2 {
			t.Errorf("%s is proposed: victims %v, %t; want a and b", name, got, ok)
		}
	}
}

// A pod that only the inventory lists is not evicted, because its priority is unknown.
func TestWhoHasClaimsIsNotEvicted(t *testing.T) {
	inv := inventory(device(0, 10))
	inv.Allocated = []gpu.PodAllocation{{UID: "a", Namespace: "ns", Name: "a", Shares: []gpu.Share{{Device: inv.Devices[0].UUID, Units: 8}}}}
	if victims, ok := Preempt(ask(8, priority(100)), placementtest.Node(inv), nil, nil); ok {
		t.Errorf("%v would be evicted", namesOf(victims.Pods))
	}
}
