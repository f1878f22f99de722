package ranking

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Prices say what pods to come lose when a pod is placed: the models that they want, the
// CPU that they need with a GPU, and nodes with several free GPUs. They do not change
// once made, and the zero value has none.
type Prices struct {
	load     map[string]float64 // by model, see loads
	balances []balance          // by ratio, the lowest first
	several  []several
	shares   *Prices // of nodes that offer shares, which take other pods; nil: there are none
}

// Cost is what a pod takes from others on a node, in its units of GPU memory.
type Cost struct {
	Models  float64 // from pods that want the models of the chosen GPUs
	CPU     float64 // free GPU memory for which the CPU of the node is then short
	Several float64 // from pods that want several GPUs of one node
}

// Sum is all that a pod takes from others.
func (c Cost) Sum() float64 { return c.Models + c.CPU + c.Several }

// NewPrices makes prices for the pods of a mix on nodes. Without a mix there are none.
func NewPrices(mix Mix, nodes []placement.Node) *Prices {
	of := map[bool][]placement.Node{}
	for i := range nodes {
		of[nodes[i].InShares()] = append(of[nodes[i].InShares()], nodes[i])
	}
	prices := newPrices(mix.only(false), of[false])
	if len(of[true]) > 0 {
		prices.shares = newPrices(mix.only(true), of[true])
	}
	return prices
}

func newPrices(mix Mix, nodes []placement.Node) *Prices {
	kinds := mix.kinds()
	if len(kinds) == 0 {
		return &Prices{}
	}
	demand := 0.0
	for _, k := range kinds {
		demand += mix.seen[k] * k.demand()
	}
	return &Prices{load: loads(mix, kinds, nodes), balances: balances(mix, kinds), several: newSeveral(mix, kinds, nodes, demand/mix.total)}
}

// loads returns by model how much would be asked of a unit of its GPUs if the pods of
// each kind spread evenly over the GPUs that they may use and that are large enough for
// them: 1 is the mean of all models. A model that many name, or that few GPUs are as
// large as, has more.
func loads(mix Mix, kinds []kind, nodes []placement.Node) map[string]float64 {
	type model struct{ all, largest gpu.Units }
	models, capacity := make(map[string]model), gpu.Units(0)
	for i := range nodes {
		for _, d := range nodes[i].Devices {
			m := models[d.Model]
			models[d.Model] = model{all: m.all + d.Allocatable, largest: max(m.largest, d.Allocatable)}
			capacity += d.Allocatable
		}
	}
	load, sum := make(map[string]float64, len(models)), 0.0
	for _, k := range kinds {
		var may []string
		all := gpu.Units(0)
		for name, m := range models {
			if k.units <= m.largest && k.models.MatchModel(name) {
				may, all = append(may, name), all+m.all
			}
		}
		for _, name := range may {
			load[name] += mix.seen[k] * k.demand() / float64(all)
		}
		if all > 0 {
			sum += mix.seen[k] * k.demand()
		}
	}
	for name := range load {
		load[name] *= float64(capacity) / sum
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

func balances(mix Mix, kinds []kind) (out []balance) {
	for _, k := range kinds {
		if k.cpu > 0 {
			ratio, part := k.demand()/float64(k.cpu), mix.seen[k]/mix.total
			out = append(out, balance{ratio: ratio, part: part, units: part * ratio})
		}
	}
	slices.SortFunc(out, func(a, b balance) int { return cmp.Or(cmp.Compare(a.ratio, b.ratio), cmp.Compare(a.part, b.part)) })
	for i := 1; i < len(out); i++ {
		out[i].part += out[i-1].part
		out[i].units += out[i-1].units
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
	pods  float64         // in the mix
	may   map[string]bool // use these models
	price float64         // of a slot, in units
}

const (
	// maxSeveral bounds the kinds with a price for slots: those that ask for the most.
	maxSeveral = 16
	// ahead is how far demand is looked at, in parts of the free memory: for pods leave,
	// too, more come than fit now.
	ahead = 1.5
)

// newSeveral prices slots, where a pod asks for so many units on average:
//
//	price = memory × GPUs² × min(1, demand/supply)³ ÷ 50
//
// Supply are the slots that are free, demand the pods of the kind and of kinds that ask for
// as many GPUs or more, and as much of each. Slots do not come back by themselves once small
// pods are on the node, so even one that is likely to be missed costs more than a few units
// that stay free.
func newSeveral(mix Mix, kinds []kind, nodes []placement.Node, mean float64) (out []several) {
	for _, k := range kinds {
		pods := mix.seen[k]
		k.cpu = 0
		i := slices.IndexFunc(out, func(s several) bool { return s.kind == k })
		switch {
		case i >= 0:
			out[i].pods += pods
		case k.gpus > 1 && len(out) < maxSeveral:
			out = append(out, several{kind: k, pods: pods, may: make(map[string]bool)})
		}
	}
	if len(out) == 0 {
		return nil
	}
	room, supply := gpu.Units(0), make([]float64, len(out))
	for i := range nodes {
		room += free(&nodes[i])
		for k := range out {
			for _, d := range nodes[i].Devices {
				if _, known := out[k].may[d.Model]; !known {
					out[k].may[d.Model] = out[k].models.MatchModel(d.Model)
				}
			}
			slots, _ := out[k].slots(&nodes[i], nil, 0)
			supply[k] += float64(slots)
		}
	}
	coming := ahead * float64(room) / mean / mix.total
	for k := range out {
		s, demand := &out[k], 0.0
		for _, o := range out {
			if o.gpus >= s.gpus && o.units >= s.units && (s.models == "" || s.models == o.models) {
				demand += coming * o.pods * float64(o.gpus) / float64(s.gpus)
			}
		}
		s.price = s.demand() * float64(s.gpus*s.gpus) * math.Pow(min(1, demand/max(1, supply[k])), 3) / 50
	}
	return out
}

// slots returns how many pods fit on the GPUs of a node, and how many once so
// many units of some devices are taken.
func (s *several) slots(n *placement.Node, taken []int, units gpu.Units) (before, after int) {
	for i := range n.Devices {
		d := &n.Devices[i]
		free := d.Free()
		if free < s.units || !d.Status.TakesPods() || !s.may[d.Model] {
			continue
		}
		before++
		if free-units >= s.units || !slices.Contains(taken, i) {
			after++
		}
	}
	return before / s.gpus, after / s.gpus
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
	room, taken, cpu := free(n), units*gpu.Units(len(devices)), n.FreeCPU()
	c.CPU = p.short(float64(room-taken), float64(max(0, cpu-req.CPU))) - p.short(float64(room), float64(cpu))
	for k := range p.several {
		before, after := p.several[k].slots(n, devices, units)
		c.Several += p.several[k].price * float64(before-after)
	}
	return c
}

func free(n *placement.Node) (sum gpu.Units) {
	for i := range n.Devices {
		sum += n.Devices[i].Free()
	}
	return sum
}
