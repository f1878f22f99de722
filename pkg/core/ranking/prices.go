package ranking

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Prices say what pods to come lose when a pod is placed: the models that they want, the
// CPU that they need with a GPU or without, and nodes with several free GPUs. They do not change
// once made, and the zero value has none.
type Prices struct {
	load     map[string]float64 // by model, see loads
	balances []balance          // by ratio, the lowest first
	several  []several
	idle     float64 // of a millicore
	shares   *Prices // of nodes that offer shares, which take other pods
}

// Cost is what a pod takes from others on a node, in its units of GPU memory.
type Cost struct {
	Models  float64 // from pods that want the models of the chosen GPUs
	CPU     float64 // free GPU memory for which the CPU of the node is then short
	Several float64 // from pods that want several GPUs of one node
	Idle    float64 // idle CPU of the node, as a part of the GPU memory for which it is enough on average
}

// Sum is all that a pod takes from others.
func (c Cost) Sum() float64 { return c.Models + c.CPU + c.Several + c.Idle }

// NewPrices makes prices for the pods of a mix on nodes. Without a mix that of idle CPU is all.
func NewPrices(mix Mix, nodes []placement.Node) *Prices {
	prices := newPrices(&mix, nodes, false)
	prices.shares = newPrices(&mix, nodes, true)
	return prices
}

func newPrices(mix *Mix, nodes []placement.Node, shares bool) *Prices {
	kinds := mix.kinds(shares)
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n placement.Node) bool { return n.InShares() != shares })
	units, cpu, others := gpu.Units(0), int64(1), int64(0) // of all nodes with GPUs whose CPU is known
	for i := range nodes {
		if n := &nodes[i]; n.CPU > 0 && len(n.Devices) > 0 {
			units, cpu, others = units+n.Allocatable(), cpu+n.CPU, others+n.RequestedCPU
			for _, d := range n.Devices {
				for _, h := range d.Pods {
					others -= h.Request.CPU / int64(h.Request.GPUs())
				}
			}
		}
	}
	load := loads(mix, kinds, nodes)
	return &Prices{load: load, balances: balances(mix, kinds), several: newSeveral(mix, kinds, nodes, slices.Collect(maps.Keys(load))), idle: idle * float64(max(0, others)) / float64(cpu) * float64(units) / float64(cpu)}
}

// loads returns by model how much would be asked of a unit of its GPUs if the pods of
// each kind spread evenly over the GPUs that they may use and that are large enough for
// them: 1 is the mean of all models. A model that many name, or that few GPUs are as
// large as, has more.
func loads(mix *Mix, kinds []kind, nodes []placement.Node) map[string]float64 {
	all, largest, capacity := make(map[string]gpu.Units), make(map[string]gpu.Units), gpu.Units(0)
	for i := range nodes {
		for _, d := range nodes[i].Devices {
			all[d.Model] += d.Allocatable
			largest[d.Model] = max(largest[d.Model], d.Allocatable)
			capacity += d.Allocatable
		}
	}
	load, sum := make(map[string]float64, len(all)), 0.0
	for _, k := range kinds {
		may, there := []string(nil), gpu.Units(0)
		for model, units := range all {
			if k.units <= largest[model] && k.models.MatchModel(model) {
				may, there = append(may, model), there+units
			}
		}
		for _, model := range may {
			load[model] += mix.demand(k) / float64(there)
		}
		if there > 0 {
			sum += mix.demand(k)
		}
	}
	for model := range load {
		load[model] *= float64(capacity) / sum
	}
	return load
}

// balance is a ratio of GPU memory to CPU, and the pods that ask for less GPU memory with
// their CPU than that, or as much.
type balance struct {
	ratio float64 // units for each millicore
	part  float64 // of all pods
	units float64 // that these ask for with a millicore, times their part
}

func balances(mix *Mix, kinds []kind) (out []balance) {
	pods, part, units := 0.0, 0.0, 0.0
	for _, k := range kinds {
		if pods += mix.seen[k]; k.cpu > 0 {
			out = append(out, balance{ratio: k.demand() / float64(k.cpu), part: mix.seen[k]})
		}
	}
	slices.SortFunc(out, func(a, b balance) int { return cmp.Or(cmp.Compare(a.ratio, b.ratio), cmp.Compare(a.part, b.part)) })
	for i, b := range out {
		part, units = part+b.part/pods, units+b.part/pods*b.ratio
		out[i].part, out[i].units = part, units
	}
	return out
}

// short returns for how much of the free units of a node its free CPU is short: on average
// over the pods, what is left of the units when pods of that kind have taken all CPU.
func (p *Prices) short(units, cpu float64) float64 {
	i, _ := slices.BinarySearchFunc(p.balances, units/cpu, func(b balance, ratio float64) int { return cmp.Compare(b.ratio, ratio) })
	if i == 0 {
		return 0
	}
	return units*p.balances[i-1].part - cpu*p.balances[i-1].units
}

// several is a kind of pods that want several GPUs of a node, whatever their CPU. A slot
// takes one of them.
type several struct {
	kind
	pods  float64  // in the mix
	may   []string // use these models
	price float64  // of a slot, in units
}

const (
	// idle weighs idle CPU. A millicore of it counts as
	//
	//	idle × (GPU memory ÷ CPU, of the cluster) × (CPU of pods without GPU memory ÷ all CPU)
	//
	// units. From 0.25 to 1 it does about as well.
	idle = 0.5
	// maxSeveral bounds the kinds with a price for slots: those that ask for the most.
	maxSeveral = 16
	// ahead is how far demand is looked at, in parts of the free memory: for pods leave,
	// too, more come than fit now.
	ahead = 1.5
)

// newSeveral prices slots on these models:
//
//	price = memory × GPUs² × min(1, demand/supply)³ ÷ 50
//
// Supply are the slots that are free, demand the pods of the kind and of kinds that ask for
// as many GPUs or more, and as much of each. Slots do not come back by themselves once small
// pods are on the node, so even one that is likely to be missed costs more than a few units
// that stay free.
func newSeveral(mix *Mix, kinds []kind, nodes []placement.Node, models []string) (out []several) {
	asked, room := 0.0, 0.0 // by all pods, and free
	for _, k := range kinds {
		pods := mix.seen[k]
		asked += pods * k.demand()
		k.cpu = 0
		if i := slices.IndexFunc(out, func(s several) bool { return s.kind == k }); i >= 0 {
			out[i].pods += pods
		} else if k.gpus > 1 && len(out) < maxSeveral {
			out = append(out, several{kind: k, pods: pods})
		}
	}
	for i := range nodes {
		room += float64(free(&nodes[i]))
	}
	for k := range out {
		s, supply, demand := &out[k], 0, 0.0
		s.may = slices.DeleteFunc(slices.Clone(models), func(model string) bool { return !s.models.MatchModel(model) })
		for i := range nodes {
			supply += s.slots(&nodes[i], nil, 0)
		}
		for _, o := range out {
			if o.gpus >= s.gpus && o.units >= s.units && (s.models == "" || s.models == o.models) {
				demand += ahead * room / asked * o.pods * float64(o.gpus) / float64(s.gpus)
			}
		}
		s.price = s.demand() * float64(s.gpus*s.gpus) * math.Pow(min(1, demand/float64(max(1, supply))), 3) / 50
	}
	return out
}

// slots returns how many pods fit on the GPUs of a node once so many units of some are taken.
func (s *several) slots(n *placement.Node, taken []int, units gpu.Units) int {
	fit := 0
	for i := range n.Devices {
		d, left := &n.Devices[i], n.Devices[i].Free()
		if slices.Contains(taken, i) {
			left -= units
		}
		if left >= s.units && d.Status.TakesPods() && slices.Contains(s.may, d.Model) {
			fit++
		}
	}
	return fit / s.gpus
}

// cost returns what a request takes from others on devices of a node; nothing without prices.
func (p *Prices) cost(n *placement.Node, req placement.Request, devices []int) (c Cost) {
	if p != nil && n.InShares() {
		p = p.shares
	}
	if p == nil {
		return c
	}
	units, _ := req.Share()
	for _, i := range devices {
		c.Models += float64(units) * p.load[n.Devices[i].Model]
	}
	if n.CPU > 0 {
		room, cpu, left := float64(free(n)), float64(n.FreeCPU()), float64(max(0, n.FreeCPU()-req.CPU))
		c.CPU = p.short(room-float64(units)*float64(len(devices)), left) - p.short(room, cpu)
		c.Idle = p.idle * left
	}
	for _, s := range p.several {
		c.Several += s.price * float64(s.slots(n, nil, 0)-s.slots(n, devices, units))
	}
	return c
}

func free(n *placement.Node) (sum gpu.Units) {
	for i := range n.Devices {
		sum += n.Devices[i].Free()
	}
	return sum
}
