package ranking

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

func learned(requests ...placement.Request) (m Mix) {
	for _, r := range requests {
		m.Learn(r)
	}
	return m
}

func TestRankSparesWhatIsScarce(t *testing.T) {
	many := func(n int, r placement.Request) []placement.Request { return slices.Repeat([]placement.Request{r}, n) }
	tests := map[string]struct {
		mix   []placement.Request
		req   placement.Request
		nodes []placement.Node
		want  string // best node
	}{
		"without a mix, the tightest GPU": {
			req:   ask(6, cpu(8000)),
			nodes: []placement.Node{machine("small", 16_000, 2, 8), machine("large", 64_000, 2, 16)},
			want:  "small",
		},
		"a pod with much CPU leaves a GPU to those that need CPU beside it": {
			mix:   many(10, ask(8, cpu(8000))),
			req:   ask(8, cpu(16_000)),
			nodes: []placement.Node{machine("narrow", 16_000, 2, 8), machine("wide", 64_000, 2, 8)},
			want:  "wide",
		},
		"a pod with little CPU leaves the CPU to those that need it": {
			mix: many(10, ask(8, cpu(12_000))),
			req: ask(8, cpu(1000)),
			nodes: []placement.Node{
				machine("enough", 24_000, 2, 8),
				machine("spent", 16_000, 2, 8),
			},
			want: "spent",
		},
		"an idle node is left to pods that need all of it": {
			mix: append(many(5, ask(8)), ask(32, count(4))),
			req: ask(8),
			nodes: []placement.Node{
				machine("idle", 0, 4, 8),
				machine("in-use", 0, 4, 8, hold("a", ask(8), 0)),
			},
			want: "in-use",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			scores := scoresOf(Policies{GPU: placement.Binpack}, tc.req, tc.nodes, NewPrices(learned(tc.mix...), tc.nodes))
			for i, score := range scores {
				if best := tc.nodes[i].Name == tc.want; best != (score == MaxScore) {
					t.Errorf("%s has score %d; want %s to be the best", tc.nodes[i].Name, score, tc.want)
				}
			}
		})
	}
}

// strandedOf computes Prices.strandedMemory by its definition, pod by pod.
func strandedOf(mix Mix, units, cpu float64) (sum float64) {
	for k, pods := range mix.seen {
		if k.cpu > 0 {
			sum += pods / mix.total * max(0, units-cpu*k.demand()/float64(k.cpu))
		}
	}
	return sum
}

func TestSpreadKnowsNoPrices(t *testing.T) {
	nodes := []placement.Node{machine("narrow", 16_000, 2, 8), machine("wide", 64_000, 2, 8)}
	prices := NewPrices(learned(ask(8, cpu(8000))), nodes)
	got := scoresOf(Policies{GPU: placement.Spread}, ask(8, cpu(16_000)), nodes, prices)
	if diff := cmp.Diff([]int64{MaxScore, MaxScore}, got); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
}

func TestAPodWithoutGPUMemoryGoesWhereItsCPUIsMissedLeast(t *testing.T) {
	nodes := []placement.Node{machine("tight", 16_000, 2, 8), machine("plain", 16_000, 0, 0), machine("wide", 64_000, 2, 8)}
	prices := NewPrices(learned(ask(8, cpu(8000))), nodes)
	got := scoresOf(Policies{GPU: placement.Binpack}, placement.Request{CPU: 8000}, nodes, prices)
	if diff := cmp.Diff([]int64{3, MaxScore, 6}, got); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
}

func TestMixFadesAndStaysSmall(t *testing.T) {
	var m Mix
	for range remembered {
		m.Learn(ask(4))
	}
	for range remembered {
		m.Learn(ask(8))
	}
	kinds := m.kinds(false)
	if len(kinds) != 2 || kinds[0].units != 8 || m.seen[kinds[0]] < 3*m.seen[kinds[1]]/2 {
		t.Errorf("kinds %+v of %v, want what came last to weigh the most", kinds, m.seen)
	}
	for i := range 3 * maxKinds {
		m.Learn(ask(4, cpu(int64(i))))
	}
	sum := 0.0
	for _, n := range m.seen {
		sum += n
	}
	if len(m.seen) > maxKinds || m.total > remembered || math.Abs(sum-m.total) > 1e-6 {
		t.Errorf("%d kinds, weights of %g that are %g together; want %d kinds at most", len(m.seen), m.total, sum, maxKinds)
	}
	before := m.total
	m.Learn(placement.Request{})
	m.Learn(ask(4, uuids("GPU-0")))
	if m.total != before {
		t.Error("a pod that wants a certain GPU, or none, is learned from")
	}
}

// checkAlone compares Ranking.ByPolicy with the scores.
func checkAlone(t *testing.T, got Ranking, policies Policies, req placement.Request, nodes []placement.Node, prices *Prices) {
	t.Helper()
	if len(got.Best) == 0 {
		return
	}
	scores, alone := scoresOf(policies, req, nodes, prices), scoresOf(policies, req, nodes, nil)
	first, other := got.First, got.ByPolicy
	if got.Best[0].Node != first.Node {
		t.Fatalf("%+v is not the first of %+v", first, got.Best)
	}
	at := indexOf(nodes, other.Node)
	if first.Node != other.Node && (scores[at] == 0 || scores[at] == MaxScore) {
		t.Fatalf("the policy alone prefers %+v, of scores %v", other, scores)
	}
	likes := req.Group != (placement.Group{}) || req.Preference != "" || req.GPUs() > 1
	if !likes && alone[at] != MaxScore {
		t.Fatalf("%+v has score %d by the policy alone, want the highest", other, alone[at])
	}
	if first.Node != other.Node && first.Order == other.Order && first.Sum() >= other.Sum() {
		t.Fatalf("%+v goes before %+v for no reason", first, other)
	}
}

// fleet is a Source. Its field changed lists the names of changed nodes.
type fleet struct {
	nodes   []placement.Node
	changed []string
	seen    uint64 // number of changes without a record
	prices  *Prices
}

func (f *fleet) Since(changes uint64) (names []string, now uint64, ok bool) {
	now = f.seen + uint64(len(f.changed))
	if changes < f.seen {
		return nil, now, false
	}
	return f.changed[changes-f.seen:], now, true
}

func (f *fleet) GetNode(name string) *placement.Node {
	if i := slices.IndexFunc(f.nodes, func(n placement.Node) bool { return n.Name == name }); i >= 0 {
		n := f.nodes[i]
		return &n
	}
	return nil
}

func (f *fleet) All(yield func(*placement.Node) bool) {
	for _, n := range f.nodes {
		if !yield(&n) {
			return
		}
	}
}

func (f *fleet) Prices() *Prices { return f.prices }

// set changes or adds a node.
func (f *fleet) set(n placement.Node) {
	f.remove(n.Name)
	f.nodes = append(f.nodes, n)
}

func (f *fleet) remove(name string) {
	f.nodes = slices.DeleteFunc(f.nodes, func(n placement.Node) bool { return n.Name == name })
	f.changed = append(f.changed, name)
}

// FuzzIndex checks that an Index has the order of Rank over all nodes, and that prices are numbers of at
// least 0, for any nodes, requests, mix and changes between two questions.
func FuzzIndex(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 9))
		var source fleet
		var mix Mix
		change := func() {
			inv, holdings, req := placementtest.World(random)
			inv.CPU = random.Int64N(3) * 16_000
			req.CPU = random.Int64N(9_000)
			mix.Learn(req)
			n := placement.NewNode(fmt.Sprint("n", random.IntN(12)), inv, holdings)
			if random.IntN(5) == 0 {
				n = n.WithNominated([]placement.Holding{{Request: req}})
			} else if random.IntN(5) == 0 {
				n.Expected = []placement.Holding{{Pod: placement.PodRef{Name: "soon", UID: "soon"}, Request: req}}
			}
			source.set(n)
		}
		for range 1 + random.IntN(12) {
			change()
		}
		view := func(n *placement.Node) *placement.Node {
			left := n.WithExpected(placement.PodRef{Name: "asker", UID: "asker"}).WithNominated(nil) // differs from n
			for _, h := range n.Nominated {
				left = left.With(h)
			}
			return &left
		}
		var index Index
		policies := Policies{GPU: placementtest.Pick(random, placement.Binpack, placement.Spread), Node: placementtest.Pick(random, "", placement.Binpack, placement.Spread)}
		var requests []placement.Request
		for range 3 {
			_, _, req := placementtest.World(random)
			req.CPU = random.Int64N(9_000)
			requests = append(requests, req)
		}
		prices, learnedBy := NewPrices(mix, source.nodes), mix.Learned
		for range 40 {
			switch random.IntN(6) {
			case 0, 1:
				change()
			case 2:
				prices, learnedBy = NewPrices(mix, source.nodes), mix.Learned
			case 3:
				source.remove(fmt.Sprint("n", random.IntN(12)))
			case 4:
				source.seen, source.changed = source.seen+uint64(len(source.changed)), nil
			}
			source.prices = prices
			for _, k := range prices.multiGPU {
				if !(k.price >= 0 && !math.IsInf(k.price, 0)) {
					t.Fatalf("a slot of %+v costs %g", k.kind, k.price)
				}
			}
			for model, load := range prices.load {
				if !(load >= 0 && !math.IsInf(load, 0)) {
					t.Fatalf("a unit of %s has load %g", model, load)
				}
			}
			units, cpu := random.Float64()*100, random.Float64()*16_000
			if got, want := prices.strandedMemory(units, cpu), strandedOf(mix, units, cpu); mix.Learned == learnedBy && math.Abs(got-want) > 1e-6*max(1, want) {
				t.Fatalf("%g units are short of CPU beside %g millicores, want %g", got, cpu, want)
			}
			req := requests[random.IntN(len(requests))]
			q := Question{Request: req, Defaults: policies, View: view}
			var nodes []placement.Node
			among, some := make(map[string]bool), []*placement.Node{}
			for _, n := range source.nodes {
				if len(n.Nominated)+len(n.Expected) > 0 {
					n = *view(&n)
				}
				nodes = append(nodes, n)
			}
			ignore := cmpopts.IgnoreUnexported(placement.Order{})
			want := Rank(len(nodes), policies, req, pointers(nodes), prices)
			if diff := cmp.Diff(want, index.Rank(&source, q, len(nodes), nil), ignore); diff != "" {
				t.Fatalf("order for %+v (-rank +index):\n%s", req, diff)
			}
			for _, one := range want.Best {
				if random.IntN(2) == 0 {
					among[one.Node.Name], some = true, append(some, one.Node)
				}
			}
			if diff := cmp.Diff(Rank(len(nodes), policies, req, some, prices), index.Rank(&source, q, len(nodes), among), ignore); diff != "" {
				t.Fatalf("order for %+v on some nodes (-rank +index):\n%s", req, diff)
			}
			var walked []string
			ranks := map[int]int64{0: MaxScore}
			fit := index.Walk(&source, q, nil, func(n *placement.Node, rank int) bool {
				one := want.Best[len(walked)]
				if level, ok := ranks[rank]; ok && level != one.Score {
					t.Fatalf("%s has rank %d with others of score %d, and score %d", n.Name, rank, level, one.Score)
				}
				ranks[rank], walked = one.Score, append(walked, n.Name)
				return one.Node.Name == n.Name
			})
			if fit != len(want.Best) || len(walked) != fit {
				t.Fatalf("walked over %v of %d nodes, want %v", walked, fit, want.Best)
			}
			checkAlone(t, want, policies, req, nodes, prices)
		}
	})
}

// The size of an Index is limited, including the lists in requests. The least recently used order is dropped.
func TestTheSizeOfAnIndexIsBounded(t *testing.T) {
	var index Index
	source := fleet{nodes: []placement.Node{machine("n", 0, 1, 8)}}
	walk := func(req placement.Request) {
		index.Walk(&source, Question{Request: req, Defaults: Policies{GPU: placement.Binpack}}, nil, func(*placement.Node, int) bool { return true })
	}
	walk(ask(1))
	one := index.size
	walk(ask(1, uuids("GPU-1", "GPU-2")))
	if lists := index.size - one; one != 3 || lists < one+1 {
		t.Errorf("a request on one node has size %d, and one that lists two GPUs %d", one, lists)
	}
	walk(ask(1))
	index.size += maxIndexed
	walk(ask(2))
	if len(index.classes) != 1 {
		t.Errorf("%d orders are left, want the last one alone", len(index.classes))
	}
	index.size -= maxIndexed
	index = Index{}
	for i := range 3 {
		walk(ask(gpu.Units(i + 1)))
	}
	walk(ask(1))
	index.dropOldest()
	if _, ok := index.classes[class{ask(2).Key(), Policies{GPU: placement.Binpack}}]; ok || len(index.classes) != 2 || index.size != 2*one {
		t.Errorf("%d orders of size %d are left, want those of 1 and of 3 units", len(index.classes), index.size)
	}
}

// The size of an Index does not grow with removed nodes, as new nodes have new names.
func TestAnIndexForgetsNodesThatAreGone(t *testing.T) {
	var index Index
	var source fleet
	for i := range 100 {
		name := fmt.Sprint("n", i)
		source.set(machine(name, 0, 1, 8, hold("p", ask(1), 0)))
		index.Walk(&source, Question{Request: ask(1), Defaults: Policies{GPU: placement.Binpack}}, nil, func(*placement.Node, int) bool { return true })
		source.remove(name)
	}
	for _, o := range index.classes {
		if len(o.by) > 1 || len(o.sorted) > 1 || len(o.apart) > 0 || index.size > 3 {
			t.Errorf("%d nodes are left in an order of %d, and the size is %d", len(o.by), len(o.sorted), index.size)
		}
	}
}

// A second question about the same nodes does not sort them again and costs almost nothing.
func TestAnIndexRemembersTheOrder(t *testing.T) {
	var index Index
	var source fleet
	for i := range 64 {
		source.set(machine(fmt.Sprint("n", i), 64_000, 2, 16))
	}
	best := func() {
		index.Walk(&source, Question{Request: ask(4), Defaults: Policies{GPU: placement.Binpack}}, nil, func(*placement.Node, int) bool { return false })
	}
	best()
	if got := testing.AllocsPerRun(10, best); got > 16 {
		t.Errorf("%v allocations for nodes that have not changed", got)
	}
}

// For the race detector.
func TestAnIndexServesAllAtOnce(t *testing.T) {
	var index Index
	source := fleet{nodes: []placement.Node{machine("n0", 64_000, 2, 16), machine("n1", 64_000, 2, 8)}}
	var all sync.WaitGroup
	for units := range gpu.Units(16) {
		all.Go(func() {
			want := "n1" // the smaller GPU
			if units >= 8 {
				want = "n0"
			}
			for range 20 {
				got := index.Rank(&source, Question{Request: ask(units + 1), Defaults: Policies{GPU: placement.Binpack}}, 1, nil)
				if got.First.Node.Name != want {
					t.Errorf("%d units are best on %s, want %s", units+1, got.First.Node.Name, want)
				}
			}
		})
	}
	all.Wait()
}

// A GPU with exactly the requested memory left is a slot. A placement that leaves less removes the slot.
func TestSlots(t *testing.T) {
	node := machine("n", 0, 4, 8, hold("a", ask(4), 1), hold("b", ask(5), 2))
	for name, tc := range map[string]struct {
		gpus          int
		taken         []int
		units         gpu.Units
		before, after int
	}{
		"nothing is taken":                       {1, nil, 0, 3, 3},
		"as much stays as is wanted":             {1, []int{0}, 4, 3, 3},
		"less stays":                             {1, []int{0}, 5, 3, 2},
		"it was just enough":                     {1, []int{1}, 1, 3, 2},
		"it was too little before":               {1, []int{2}, 1, 3, 3},
		"two GPUs of three":                      {2, []int{0}, 4, 1, 1},
		"two GPUs of the two that are left":      {2, []int{0}, 5, 1, 1},
		"two GPUs of the one that is left":       {2, []int{0, 3}, 5, 1, 0},
		"three GPUs, one of which is taken from": {3, []int{3}, 5, 1, 0},
	} {
		s := multiGPUKind{kind: kind{gpus: tc.gpus, units: 4}, matching: []string{node.Devices[0].Model}}
		if before, after := s.slots(&node, nil, 0), s.slots(&node, tc.taken, tc.units); before != tc.before || after != tc.after {
			t.Errorf("%s: room for %d, and for %d then, want %d and %d", name, before, after, tc.before, tc.after)
		}
	}
}

// The prices equal those computed one by one from the definitions in the comments.
func TestPricesAreAsDefined(t *testing.T) {
	approx := cmpopts.EquateApprox(1e-9, 0)
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 3))
		mix, requests, nodes := randomMarket(random)
		p := NewPrices(mix, nodes)
		if diff := cmp.Diff(definedLoads(requests, nodes), p.load, approx, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("seed %d: loads (-want +got):\n%s", seed, diff)
		}
		got := make(map[kind]float64)
		for _, s := range p.multiGPU {
			got[s.kind] += s.price
		}
		if diff := cmp.Diff(definedSlotPrices(requests, nodes), got, approx, cmp.AllowUnexported(kind{})); diff != "" {
			t.Errorf("seed %d: prices of slots (-want +got):\n%s", seed, diff)
		}
	}
}

// randomMarket returns a random mix of requests and random nodes of up to three models.
func randomMarket(random *rand.Rand) (mix Mix, requests []placement.Request, nodes []placement.Node) {
	for range 1 + random.IntN(10) {
		r := ask(gpu.Units(1+random.IntN(16)), cpu(int64(random.IntN(3)*1000)), count([]int{1, 2, 4}[random.IntN(3)]))
		r.Models = []placement.Globs{"", "A", "B,C", "X"}[random.IntN(4)]
		requests = append(requests, r)
		mix.Learn(r)
	}
	for i := range 1 + random.IntN(4) {
		inv, model := inventory(), []string{"A", "B", "C"}[random.IntN(3)]
		var pods []placement.Holding
		for g := range 1 + random.IntN(4) {
			d := device(g, []gpu.Units{4, 8, 16}[random.IntN(3)])
			d.Model, d.Status.Cordoned = model, random.IntN(8) == 0
			inv.Devices = append(inv.Devices, d)
			if random.IntN(2) == 0 {
				pods = append(pods, hold(fmt.Sprint("p", g), ask(gpu.Units(1+random.IntN(4))), g))
			}
		}
		nodes = append(nodes, placement.NewNode(fmt.Sprint("n", i), inv, pods))
	}
	return mix, requests, nodes
}

func definedLoads(requests []placement.Request, nodes []placement.Node) map[string]float64 {
	all, largest, capacity := make(map[string]float64), make(map[string]gpu.Units), 0.0
	for _, n := range nodes {
		for _, d := range n.Devices {
			all[d.Model] += float64(d.Allocatable)
			largest[d.Model] = max(largest[d.Model], d.Allocatable)
			capacity += float64(d.Allocatable)
		}
	}
	loads, asked := make(map[string]float64), 0.0
	for _, r := range requests {
		units, _ := r.Share()
		may, there := []string{}, 0.0
		for model := range all {
			if units <= largest[model] && r.Models.MatchModel(model) {
				may, there = append(may, model), there+all[model]
			}
		}
		demand := float64(units) * float64(r.GPUs())
		for _, model := range may {
			loads[model] += demand / there
		}
		if len(may) > 0 {
			asked += demand
		}
	}
	for model := range loads {
		loads[model] *= capacity / asked
	}
	return loads
}

func definedSlotPrices(requests []placement.Request, nodes []placement.Node) map[kind]float64 {
	room, mean := 0.0, 0.0
	for _, n := range nodes {
		for _, d := range n.Devices {
			room += float64(d.Free())
		}
	}
	kinds := make(map[kind]float64) // number of pods
	for _, r := range requests {
		units, _ := r.Share()
		mean += float64(units) * float64(r.GPUs()) / float64(len(requests))
		if r.GPUs() > 1 {
			kinds[kind{gpus: r.GPUs(), units: units, models: r.Models}]++
		}
	}
	prices := make(map[kind]float64)
	for k := range kinds {
		slots := 0
		for _, n := range nodes {
			gpus := 0
			for _, d := range n.Devices {
				if d.Free() >= k.units && d.Status.TakesPods() && k.models.MatchModel(d.Model) {
					gpus++
				}
			}
			slots += gpus / k.gpus
		}
		demand := 0.0
		for o, pods := range kinds {
			if o.gpus >= k.gpus && o.units >= k.units && (k.models == "" || k.models == o.models) {
				demand += lookAhead * room / mean * pods / float64(len(requests)) * float64(o.gpus) / float64(k.gpus)
			}
		}
		prices[k] = float64(k.gpus) * float64(k.units) * float64(k.gpus*k.gpus) * math.Pow(min(1, demand/max(1, float64(slots))), 3) / 50
	}
	return prices
}

func TestMixForgetsAtItsBounds(t *testing.T) {
	total := func(m Mix) float64 { return m.total }
	weights := func(m Mix) float64 { return m.seen[kind{gpus: 1, units: 1}] }
	many, full := learned(slices.Repeat([]placement.Request{ask(1)}, remembered-1)...), Mix{}
	for i := range maxKinds {
		full.Learn(ask(gpu.Units(i + 1)))
	}
	if total(many) != remembered-1 || total(full) != maxKinds {
		t.Errorf("%v of %d pods and %v of %d kinds count, want all", total(many), remembered-1, total(full), maxKinds)
	}
	many.Learn(ask(1))
	full.Learn(ask(maxKinds + 1)) // each was seen once, so fade leaves a weight of 0.5
	if total(many) != remembered/2 || weights(many) != remembered/2 || total(full) != (maxKinds+1)/2.0 || weights(full) != 0.5 {
		t.Errorf("%v pods and %v of kinds count, want half of them", total(many), total(full))
	}
	full.Learn(ask(1)) // a weight of 0.5 is removed
	if len(full.seen) != 1 || weights(full) != 0.75 || total(full) != 0.75 {
		t.Errorf("%d kinds count as %v pods, want one as 0.75", len(full.seen), total(full))
	}
}

// kinds orders by total demand, and equal kinds always in the same order.
func TestKindsAreInOneOrder(t *testing.T) {
	models := func(globs placement.Globs, r placement.Request) placement.Request {
		r.Models = globs
		return r
	}
	m := learned(ask(4, cpu(2)), models("B", ask(4)), ask(4, count(4)), ask(5), ask(2), ask(2), models("A", ask(4)), ask(4, cpu(1)), ask(4, count(2)))
	want := []kind{
		{gpus: 1, units: 5},
		{gpus: 1, units: 2}, {gpus: 1, units: 4, cpu: 1}, {gpus: 1, units: 4, cpu: 2}, {gpus: 1, units: 4, models: "A"}, {gpus: 1, units: 4, models: "B"},
		{gpus: 2, units: 2}, {gpus: 4, units: 1},
	}
	if diff := cmp.Diff(want, m.kinds(false), cmp.AllowUnexported(kind{})); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

// The price of a millicore is a part of the GPU memory per millicore, on nodes with known CPU and GPU memory.
// It grows with the CPU of pods without GPU memory.
func TestIdleCPU(t *testing.T) {
	sharing := machine("e", 10_000, 4, 10, hold("s", placement.Request{CPU: 3000}))
	sharing.UnitMiB = 0
	for i := range sharing.Devices {
		sharing.Devices[i].ShareMiB = 1400
	}
	nodes := []placement.Node{
		machine("a", 32_000, 2, 16, hold("p", ask(8, count(2), cpu(31_000)), 0, 1)), machine("b", 96_000, 2, 48, hold("q", placement.Request{CPU: 32_000})),
		machine("c", 0, 4, 80, hold("r", placement.Request{CPU: 1000})), machine("d", 64_000, 0, 0), sharing,
	}
	approx := cmpopts.EquateApprox(1e-3, 0) // newPrices starts its sum of CPU at 1
	prices := NewPrices(Mix{}, nodes)
	for i, want := range []float64{0, 62_000 * idleWeight / 4 * 128 / 128_000, 0, 62_000 * idleWeight / 4 * 128 / 128_000, 5000 * idleWeight * 3 / 10 * 40 / 10_000} {
		var devices []int
		if len(nodes[i].Devices) > 0 {
			devices = []int{1}
		}
		if diff := cmp.Diff(Cost{Idle: want}, prices.cost(&nodes[i], ask(4, cpu(2000)), devices), approx); diff != "" {
			t.Errorf("node %s (-want +got):\n%s", nodes[i].Name, diff)
		}
	}
}

// Pods that request shares run on other nodes than pods that request memory, and cost them nothing.
func TestPricesOfBothKinds(t *testing.T) {
	sharing := func(name string) placement.Node {
		n := machine(name, 0, 4, 10)
		n.UnitMiB = 0
		for i := range n.Devices {
			n.Devices[i].ShareMiB = 1400
		}
		return n
	}
	inShares := func(r placement.Request) placement.Request {
		r.InShares = true
		return r
	}
	nodes := []placement.Node{machine("a", 0, 4, 10), machine("b", 0, 4, 10)}
	alone := NewPrices(learned(ask(8), ask(32, count(4))), nodes)
	both := NewPrices(learned(ask(8), ask(32, count(4)), inShares(ask(3)), inShares(ask(9))), append(nodes, sharing("c")))
	want, got := alone.cost(&nodes[0], ask(8), []int{0}), both.cost(&nodes[0], ask(8), []int{0})
	if want != got || want.MultiGPU == 0 {
		t.Errorf("beside nodes with shares a pod takes %+v, without them %+v", got, want)
	}
	c := sharing("c")
	if got := both.cost(&c, inShares(ask(3)), []int{0}); got.MultiGPU != 0 || got.Models != 3 {
		t.Errorf("of a node with shares a pod takes %+v", got)
	}
	if got := alone.cost(&c, inShares(ask(3)), []int{0}); got != (Cost{}) {
		t.Errorf("of the first node with shares a pod takes %+v", got)
	}
}
