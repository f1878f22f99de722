package ranking

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Prices estimate the loss of future pods when a pod is placed. A future pod can lose a GPU of the
// model that it requests, CPU that it needs with or without a GPU, or a node with several free GPUs.
// Prices are immutable. The zero value prices nothing.
type Prices struct {
	load      map[string]float64 // by model: see loads
	cpuRatios []cpuRatio         // by ratio, the lowest first
	multiGPU  []multiGPUKind
	idlePrice float64 // price of a millicore
	shares    *Prices // the prices on nodes that offer shares; pods that request memory do not run there
}

// Cost is the estimated loss of future pods if a pod is placed on a node, in units of GPU memory.
type Cost struct {
	Models   float64 // loss of pods that request the models of the chosen GPUs
	CPU      float64 // free GPU memory that the node's remaining CPU cannot serve
	MultiGPU float64 // loss of pods that request several GPUs of one node
	Idle     float64 // CPU that stays idle on the node, converted to GPU memory
}

// Sum returns the total cost.
func (c Cost) Sum() float64 { return c.Models + c.CPU + c.MultiGPU + c.Idle }

// NewPrices computes prices on the given nodes for the pods of a mix. For an empty mix, only idle CPU
// has a price.
func NewPrices(mix Mix, nodes []placement.Node) *Prices {
	prices := newPrices(&mix, nodes, false)
	prices.shares = newPrices(&mix, nodes, true)
	return prices
}

func newPrices(mix *Mix, nodes []placement.Node, shares bool) *Prices {
	kinds := mix.kinds(shares)
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n placement.Node) bool { return n.InShares() != shares })
	units, cpu, others := gpu.Units(0), int64(1), int64(0) // sums over all nodes with GPUs and known CPU; others is the CPU of pods without GPU memory
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
	return &Prices{load: load, cpuRatios: cpuRatios(mix, kinds), multiGPU: priceSlots(mix, kinds, nodes, slices.Collect(maps.Keys(load))), idlePrice: idleWeight * float64(max(0, others)) / float64(cpu) * float64(units) / float64(cpu)}
}

// loads returns the demand per unit of memory by model, relative to the mean of all models, which is 1.
// It assumes that pods of each kind spread evenly over the GPUs that match their globs and are large
// enough. A model that many pods name, or one of few large models, has a higher load.
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

// cpuRatio is the ratio of GPU memory to CPU that one kind requests. Its other fields are sums over all
// kinds up to this ratio.
type cpuRatio struct {
	ratio float64 // units per millicore
	part  float64 // fraction of all pods
	units float64 // sum over these pods' kinds: units per millicore × fraction of all pods
}

func cpuRatios(mix *Mix, kinds []kind) (out []cpuRatio) {
	pods, part, units := 0.0, 0.0, 0.0
	for _, k := range kinds {
		if pods += mix.seen[k]; k.cpu > 0 {
			out = append(out, cpuRatio{ratio: k.demand() / float64(k.cpu), part: mix.seen[k]})
		}
	}
	slices.SortFunc(out, func(a, b cpuRatio) int { return cmp.Or(cmp.Compare(a.ratio, b.ratio), cmp.Compare(a.part, b.part)) })
	for i, b := range out {
		part, units = part+b.part/pods, units+b.part/pods*b.ratio
		out[i].part, out[i].units = part, units
	}
	return out
}

// strandedMemory returns the part of a node's free units that its free CPU cannot serve. It is the average
// over all kinds of the units that remain after pods of that kind have used up the CPU.
func (p *Prices) strandedMemory(units, cpu float64) float64 {
	i, _ := slices.BinarySearchFunc(p.cpuRatios, units/cpu, func(b cpuRatio, ratio float64) int { return cmp.Compare(b.ratio, ratio) })
	if i == 0 {
		return 0
	}
	return units*p.cpuRatios[i-1].part - cpu*p.cpuRatios[i-1].units
}

// multiGPUKind is a kind of pods that request several GPUs of a node, regardless of their CPU. A slot is
// room for one such pod.
type multiGPUKind struct {
	kind
	pods     float64  // weight in the mix
	matching []string // models that match the globs
	price    float64  // of a slot, in units
}

const (
	// idleWeight is the weight of idle CPU. A millicore costs
	//
	//	idleWeight × (GPU memory ÷ CPU, of the cluster) × (CPU of pods without GPU memory ÷ all CPU)
	//
	// units. A higher weight leaves more CPU for pods with 8 GPUs, so fewer are rejected while pods come
	// and go. It also leaves more GPU memory without CPU, so less is allocated if no pod ends. Replays of
	// the pod lists of docs/packing.md with version 0.2.0. Each list has three columns, in per cent: memory
	// allocated when 100 % is requested, and pods rejected at a load of 0.9 and of 1.0.
	//
	//	weight   gib-hetero         share-multigpu30
	//	0        94.2   4.6   7.0   93.6   10.9   11.5
	//	0.25     93.3   3.8   6.7   93.4   10.3   11.5
	//	1        89.0   3.4   6.3   92.7   10.2   11.6
	//	2        87.9   4.2   7.5   91.8    9.9   11.1
	idleWeight = 0.5
	// maxMultiGPU limits the kinds with priced slots to those with the highest demand.
	maxMultiGPU = 16
	// lookAhead is the assumed future demand, as a multiple of the free memory. It exceeds 1 because pods
	// leave, and more pods arrive than fit now.
	lookAhead = 1.5
)

// priceSlots prices slots on the given models:
//
//	price = memory × GPUs² × min(1, demand/supply)³ ÷ 50
//
// Supply is the number of free slots. Demand is the expected number of pods of the kind and of kinds
// that request at least as many GPUs with at least as much memory. A slot does not reappear by itself
// once small pods are on the node. So a slot that future pods are likely to need costs more than a few
// free units.
func priceSlots(mix *Mix, kinds []kind, nodes []placement.Node, models []string) (out []multiGPUKind) {
	asked, room := 0.0, 0.0 // requested by all pods, and free on all nodes
	for _, k := range kinds {
		pods := mix.seen[k]
		asked += pods * k.demand()
		k.cpu = 0
		if i := slices.IndexFunc(out, func(s multiGPUKind) bool { return s.kind == k }); i >= 0 {
			out[i].pods += pods
		} else if k.gpus > 1 && len(out) < maxMultiGPU {
			out = append(out, multiGPUKind{kind: k, pods: pods})
		}
	}
	for i := range nodes {
		room += float64(free(&nodes[i]))
	}
	for k := range out {
		s, supply, demand := &out[k], 0, 0.0
		s.matching = slices.DeleteFunc(slices.Clone(models), func(model string) bool { return !s.models.MatchModel(model) })
		for i := range nodes {
			supply += s.slots(&nodes[i], nil, 0)
		}
		for _, o := range out {
			if o.gpus >= s.gpus && o.units >= s.units && (s.models == "" || s.models == o.models) {
				demand += lookAhead * room / asked * o.pods * float64(o.gpus) / float64(s.gpus)
			}
		}
		s.price = s.demand() * float64(s.gpus*s.gpus) * math.Pow(min(1, demand/float64(max(1, supply))), 3) / 50
	}
	return out
}

// slots returns the number of pods that fit the GPUs of a node after units are taken from each GPU in
// taken.
func (s *multiGPUKind) slots(n *placement.Node, taken []int, units gpu.Units) int {
	fit := 0
	for i := range n.Devices {
		d, left := &n.Devices[i], n.Devices[i].Free()
		if slices.Contains(taken, i) {
			left -= units
		}
		if left >= s.units && d.Status.TakesPods() && slices.Contains(s.matching, d.Model) {
			fit++
		}
	}
	return fit / s.gpus
}

// cost returns the cost of a request on devices of a node. It is zero for nil prices.
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
		c.CPU = p.strandedMemory(room-float64(units)*float64(len(devices)), left) - p.strandedMemory(room, cpu)
		c.Idle = p.idlePrice * left
	}
	for _, s := range p.multiGPU {
		c.MultiGPU += s.price * float64(s.slots(n, nil, 0)-s.slots(n, devices, units))
	}
	return c
}

func free(n *placement.Node) (sum gpu.Units) {
	for i := range n.Devices {
		sum += n.Devices[i].Free()
	}
	return sum
}
