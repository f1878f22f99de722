package allocation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// given returns the allocation of a pod. Each share is a GPU's index, units and cores.
func given(name string, shares ...[3]int) gpu.PodAllocation {
	g := gpu.PodAllocation{UID: name}
	for _, s := range shares {
		g.Shares = append(g.Shares, gpu.Share{Device: uuid(s[0]), Units: gpu.Units(s[1]), Cores: s[2]})
	}
	return g
}

func TestAccounts(t *testing.T) {
	admitted := func(p Pod) Pod { p.Admitted = true; return p }
	split := func(units gpu.Units, count int) placement.Request {
		r := ask(app("c", units))
		r.Count = count
		return r
	}
	half := app("c", 4)
	half.Cores = 50
	halves := ask(half)
	halves.Count = 2
	held := func(container string, slots ...[]gpu.SlotID) Allocated {
		return Allocated{Namespace: "ns", Name: "p", Container: container, Slots: slices.Concat(slots...)}
	}
	for name, tc := range map[string]struct {
		pod  Pod
		held []Allocated
		want []Account
	}{
		"what is written is so": {
			admitted(pod("p", ask(app("c", 4)), 0)), []Allocated{held("c", ids(0, 0, 1, 2, 3))},
			[]Account{{PodAllocation: given("p", [3]int{0, 4, 0})}},
		},
		"more GPUs are written than it has": {
			admitted(pod("p", split(4, 2), 0, 1)), []Allocated{held("c", ids(0, 0, 1, 2, 3))},
			[]Account{{PodAllocation: given("p", [3]int{0, 4, 0}), Understated: true}},
		},
		"another GPU is written": {
			admitted(pod("p", ask(app("c", 4)), 1)), []Allocated{held("c", ids(0, 0, 1, 2, 3))},
			[]Account{{PodAllocation: given("p", [3]int{0, 4, 0}), Understated: true}},
		},
		"fewer cores are written": {
			admitted(pod("p", halves, 0, 1)), []Allocated{held("c", ids(0, 0, 1, 2, 3), coreIDs(0, 0, 1, 2))},
			[]Account{{PodAllocation: given("p", [3]int{0, 4, 50}), Understated: true}},
		},
		"nothing is written: it counts on each GPU": {
			admitted(pod("p", ask(app("c", 4)))), []Allocated{held("c", ids(0, 0, 1, 2, 3))},
			[]Account{{PodAllocation: given("p", [3]int{0, 4, 0})}},
		},
		"it leaves the GPU where it is": {
			func() Pod {
				p := admitted(pod("p", ask(app("c", 4)), 1))
				p.Assignment.Leaving = []gpu.UUID{uuid(0)}
				return p
			}(), []Allocated{held("c", ids(0, 0, 1, 2, 3))},
			[]Account{{PodAllocation: given("p", [3]int{0, 4, 0})}},
		},
		"its init container had more than what shows": {
			admitted(pod("p", ask(initial("i", 6), app("c", 4)), 1)), []Allocated{held("c", ids(0, 0, 1, 2, 3))},
			[]Account{{PodAllocation: given("p", [3]int{0, 6, 0}), Understated: true}},
		},
		"its containers are on two GPUs": {
			admitted(pod("p", ask(app("c", 4), app("d", 2)), 0)), []Allocated{held("c", ids(0, 0, 1, 2, 3)), held("d", ids(1, 0, 1))},
			[]Account{{PodAllocation: given("p", [3]int{0, 4, 0}, [3]int{1, 3, 0}), Understated: true}},
		},
		"the kubelet may not have admitted it": {pod("p", ask(app("c", 4)), 1), []Allocated{held("c", ids(0, 0, 1, 2, 3))}, nil},
		"the kubelet tells of nothing":         {admitted(pod("p", ask(app("c", 4)), 1)), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, inventory(8, 8))
			c.pods = []Pod{tc.pod}
			s := c.state()
			s.Allocated = tc.held
			if diff := cmp.Diff(tc.want, Accounts(s)); diff != "" {
				t.Errorf("accounts (-want +got):\n%s", diff)
			}
		})
	}
}

// If a pod now requests another number of GPUs than the kubelet has allocated, the corrected assignment has the
// GPUs of the allocation, and overrides the request.
func TestTheNumberOfGPUsIsTheKubelets(t *testing.T) {
	for name, tc := range map[string]struct {
		has, claims []int
	}{
		"one is said to be four": {[]int{1}, []int{0, 1, 2, 3}},
		"two are said to be one": {[]int{1, 2}, []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, inventory(8, 8, 8, 8))
			was := ask(app("c", 8))
			was.Count = len(tc.has)
			c.pods = []Pod{pod("p", was, tc.has...)}
			c.mustAdmit("p")
			lies := was
			lies.Count = len(tc.claims)
			c.pods[0].Holding.Request, c.pods[0].Assignment = lies, pod("p", lies, tc.claims...).Assignment
			c.correct()
			if got := c.written("p"); !slices.Equal(got, tc.has) || !c.pods[0].Assignment.Allocated {
				t.Errorf("written: %v, as held: %t; want %v", got, c.pods[0].Assignment.Allocated, tc.has)
			}
			if got := c.pods[0].Assignment.Shares[0].Units; got != 8/gpu.Units(len(tc.has)) {
				t.Errorf("%d units are written of each GPU", got)
			}
		})
	}
}

// A missing GPU does not turn a pod on two GPUs into a pod on one GPU.
func TestTheNumberOfGPUsIsNotKnownOfAGPUThatIsGone(t *testing.T) {
	c := newCluster(t, 1, inventory(8, 8))
	r := ask(app("c", 8))
	r.Count = 2
	c.pods = []Pod{pod("p", r, 0, 1)}
	c.mustAdmit("p")
	c.inv = inventory(8)
	slots, err := gpu.NewSlots(c.inv)
	if err != nil {
		t.Fatal(err)
	}
	c.slots = slots
	for _, held := range []bool{false, true} {
		c.pods[0].Assignment.Allocated = held
		for _, correction := range Reconcile(c.state()) {
			if correction.Whole() {
				t.Errorf("to be written: %+v", correction.Actual)
			}
		}
	}
}

// FuzzOwners writes arbitrary annotations as the owners of pods. After each pass of the plugin, the scheduler
// counts at least the allocations to admitted pods on each GPU, whatever the owners write later. After the last
// correction, the annotations match the allocations.
func FuzzOwners(f *testing.F) {
	for seed := range uint64(80) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 17))
		var capacities []gpu.Units
		for range 1 + random.IntN(4) {
			capacities = append(capacities, gpu.Units(4+random.IntN(12)))
		}
		w := &world{
			cluster: newCluster(t, seed, inventory(capacities...)), random: random, books: cache.New(),
			misled: make(map[string]bool), booked: make(map[string]placement.Assignment), strays: true,
		}
		w.books.SetNode("n", w.inv)
		for range 12 {
			w.create()
		}
		for w.admitAny() {
		}
		truth, lying := w.promisedAll(), make(map[string]gpu.PodAllocation)
		for range 10 {
			for i := range w.pods {
				if random.IntN(2) == 0 {
					w.lie(i)
				}
			}
			for _, a := range Accounts(w.state()) {
				if _, before := lying[a.UID]; a.Understated || before {
					lying[a.UID] = a.PodAllocation
				}
			}
			for i := range w.pods {
				if _, known := lying[w.pods[i].Pod.UID]; known && random.IntN(2) == 0 {
					w.lie(i) // the plugin has recorded the pod's account by now
				}
			}
			w.countsNoLess(lying, truth)
			if c := Reconcile(w.state()); len(c) > 0 && random.IntN(2) == 0 {
				w.write(c[random.IntN(len(c))])
				w.countsNoLess(lying, truth)
			}
		}
		w.correct()
		w.countsNoLess(lying, truth)
		for i, p := range w.pods {
			on, cores := w.on(p.Pod.Name), w.slotsOn(gpu.Cores, p.Pod.Name)
			var want []int
			for d := range on {
				if on[d] > 0 || cores[d] > 0 {
					want = append(want, d)
				}
			}
			if got := slices.Sorted(slices.Values(w.written(p.Pod.Name))); !slices.Equal(got, want) {
				t.Fatalf("pod %s is on %v, and %v is written: %+v", p.Pod, want, got, w.pods[i])
			}
		}
	})
}

// promisedAll returns the allocation on each GPU.
func (w *world) promisedAll() []placement.Share {
	out := make([]placement.Share, len(w.inv.Devices))
	for _, p := range w.pods {
		units, cores := w.on(p.Pod.Name), w.slotsOn(gpu.Cores, p.Pod.Name)
		for i := range out {
			out[i].Units += units[i]
			out[i].Cores += int(cores[i])
		}
	}
	return out
}

// lie writes a random annotation to a pod: other GPUs, another number of GPUs, or no GPUs.
func (w *world) lie(i int) {
	p := &w.pods[i]
	p.Request.Count = 1 + w.random.IntN(len(w.inv.Devices))
	all := w.random.Perm(len(w.inv.Devices))
	p.Assignment = pod(p.Pod.Name, p.Request, all[:p.Request.Count]...).Assignment
	switch w.random.IntN(4) {
	case 0:
		p.Assignment = placement.Assignment{}
	case 1:
		for _, left := range all[p.Request.Count:] {
			p.Assignment.Leaving = append(p.Assignment.Leaving, uuid(left))
		}
	}
}

func (w *world) countsNoLess(lying map[string]gpu.PodAllocation, want []placement.Share) {
	w.t.Helper()
	var all []gpu.PodAllocation
	for _, g := range lying {
		all = append(all, g)
	}
	inv := w.inv
	inv.Allocated = all
	w.books.SetNode("n", inv)
	for _, p := range w.pods {
		w.books.AddPod("n", p.Holding)
	}
	n, _ := w.books.Node("n")
	for i, d := range n.Devices {
		units, cores := d.Requested, d.RequestedCores
		for _, h := range n.Unattributed {
			units, cores = units+h.Request.Units(), cores+h.Request.Cores()
		}
		if units < want[i].Units || cores < want[i].Cores {
			w.t.Fatalf("GPU %d: %d units and %d%% of cores are given, and %d and %d%% count\n%s", i, want[i].Units, want[i].Cores, units, cores, fmt.Sprint(w.pods))
		}
	}
}
