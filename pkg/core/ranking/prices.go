package ranking

import (
	"math"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Prices say what the free parts of nodes are worth to the pods that are to
// come, for Rank to spare what is scarce. They do not change once made.
//
// A slot is room for one pod of a kind that the mix has seen: GPUs, cores, and
// CPU of the node. Putting a pod somewhere destroys slots of other kinds, and
// each has its price: what such a pod asks for, times how likely it is to miss
// the slot. That is taken from what comes until one and a half times the free
// memory has been asked for, in the proportions of the mix: demand for a kind are
// the pods of it and of all kinds that fit nowhere else, supply are its slots,
// both as parts of empty nodes.
//
//	price = memory × GPUs² × min(1, demand/supply)³ ÷ 50
//
// The price of a slot for one GPU is so low that it decides among GPUs on which
// as much stays free. That for several GPUs is not: such slots do not come back
// by themselves once small pods are on the node. Kinds that differ in CPU alone
// share one price, by how frequent they are.
type Prices struct {
	kinds   []priced
	allowed map[string]uint64 // by model of those nodes, the kinds that may use it
	stock   map[string]stock  // of the nodes that they were made of, by name
}

// maxPriced bounds the kinds that have a price: those that ask for the most. A
// set of them is a uint64.
const maxPriced = 64

// plenty is the scarcity below which a slot costs nothing: it would be less than
// a thousandth of what the pod asks for.
const plenty = 0.1

// ahead is how far demand is looked at: for pods leave, too, more come than
// there is room for now.
const ahead = 1.5

// priced is a kind of pods.
type priced struct {
	kind
	globs placement.Globs
	price float64 // of a slot, in units
}

// stock is what a node has room for, each kind taken alone.
type stock struct {
	of      *placement.State
	slots   []slots  // by kind
	allowed []uint64 // by device, the kinds that may use it
}

// slots counts the pods of a kind for which there is room.
type slots struct {
	gpus int64 // that the GPUs have, were CPU no matter; of a kind with several GPUs: the GPUs
	node int64 // that the node has
}

// NewPrices takes stock of nodes. Without a mix there are no prices.
func NewPrices(mix Mix, nodes []placement.Node) *Prices {
	var all []priced
	kinds := mix.kinds()
	for _, a := range kinds[:min(len(kinds), maxPriced)] {
		k := priced{kind: a}
		if a.models != "" {
			k.globs = placement.NewGlobs(strings.Split(a.models, ",")...)
		}
		all = append(all, k)
	}
	if len(all) == 0 {
		return &Prices{}
	}
	p := &Prices{kinds: all, allowed: make(map[string]uint64), stock: make(map[string]stock, len(nodes))}
	for i := range nodes {
		for _, d := range nodes[i].Devices {
			if _, known := p.allowed[d.Model]; !known {
				p.allowed[d.Model] = p.allowing(d.Model)
			}
		}
	}
	market := newMarket(len(all))
	var room gpu.Units
	for i := range nodes {
		n := &nodes[i]
		now := p.takeStock(n)
		market.add(p.takeStock(emptied(*n)).slots, now.slots)
		room += free(n)
		p.stock[n.Name] = now
	}
	market.settle(all, mix, ahead*float64(room)/mix.mean())
	return p
}

// emptied returns the node without pods.
func emptied(n placement.Node) *placement.Node {
	n.RequestedCPU, n.Devices = 0, slices.Clone(n.Devices)
	for i, d := range n.Devices {
		n.Devices[i] = placement.Device{Device: d.Device}
	}
	return &n
}

func free(n *placement.Node) (sum gpu.Units) {
	for i := range n.Devices {
		sum += n.Devices[i].Free()
	}
	return sum
}

// market is what kinds of pods want of all nodes, and what there is.
type market struct {
	nodes  []float64 // on which a kind fits when they are empty
	part   []float64 // that one pod takes of an empty node; summed up over these
	supply []float64 // in empty nodes
	within []uint64  // the kinds that fit wherever this kind does
}

func newMarket(kinds int) *market {
	m := &market{
		nodes: make([]float64, kinds), part: make([]float64, kinds),
		supply: make([]float64, kinds), within: make([]uint64, kinds),
	}
	for k := range m.within {
		m.within[k] = math.MaxUint64
	}
	return m
}

// add takes in a node: what it has room for when it is empty, and now.
func (m *market) add(empty, now []slots) {
	var fitting uint64
	for k := range empty {
		if empty[k].node > 0 {
			fitting |= 1 << k
		}
	}
	for k := range empty {
		if empty[k].node > 0 {
			m.nodes[k]++
			m.part[k] += 1 / float64(empty[k].node)
			m.supply[k] += float64(now[k].node) / float64(empty[k].node)
			m.within[k] &= fitting
		}
	}
}

// settle sets the prices for so many pods to come.
func (m *market) settle(kinds []priced, mix Mix, pods float64) {
	for k := range kinds {
		if m.nodes[k] == 0 {
			continue // it fits nowhere
		}
		demand, alike := 0.0, 0.0
		for o := range kinds {
			count := mix.seen[kinds[o].kind]
			if kinds[o].alike(kinds[k]) {
				alike += count
			}
			if m.within[o]&(1<<k) != 0 && kinds[o].gpus >= kinds[k].gpus && m.nodes[o] > 0 {
				demand += count / mix.total * pods * m.part[o] / m.nodes[o]
			}
		}
		scarcity := 1.0
		if m.supply[k] > demand {
			scarcity = demand / m.supply[k]
		}
		if scarcity < plenty {
			continue
		}
		share := mix.seen[kinds[k].kind] / alike
		gpus := float64(kinds[k].gpus)
		kinds[k].price = share * kinds[k].demand() * gpus * gpus * math.Pow(scarcity, 3) / 50
	}
}

// alike reports whether two kinds differ in nothing but CPU.
func (k priced) alike(o priced) bool {
	o.cpu = k.cpu
	return o.kind == k.kind
}

// takeStock counts what a node has room for.
func (p *Prices) takeStock(n *placement.Node) stock {
	s := stock{of: n.State, slots: make([]slots, len(p.kinds)), allowed: make([]uint64, len(n.Devices))}
	for i := range n.Devices {
		d := &n.Devices[i]
		if !d.Status.TakesPods() {
			continue
		}
		var known bool
		if s.allowed[i], known = p.allowed[d.Model]; !known { // of a node that came later
			s.allowed[i] = p.allowing(d.Model)
		}
		for k := range p.kinds {
			if s.allowed[i]&(1<<k) != 0 {
				s.slots[k].gpus += p.kinds[k].on(d.Free(), d.FreeCores())
			}
		}
	}
	for k := range p.kinds {
		s.slots[k].node = p.kinds[k].pods(s.slots[k].gpus, n.FreeCPU())
	}
	return s
}

// allowing returns the kinds that may use a model.
func (p *Prices) allowing(model string) (set uint64) {
	for k := range p.kinds {
		if p.kinds[k].globs.MatchModel(model) {
			set |= 1 << k
		}
	}
	return set
}

// on returns how many pods have room on what is left of a GPU, or, of a kind
// with several GPUs, whether it is one of them.
func (k *priced) on(units gpu.Units, cores int) int64 {
	n := int64(units / max(1, k.units))
	if k.cores > 0 {
		n = min(n, int64(cores/k.cores))
	}
	if k.gpus > 1 {
		n = min(n, 1)
	}
	return n
}

// pods returns how many pods have room on a node.
func (k *priced) pods(gpus, cpu int64) int64 {
	n := gpus
	if k.gpus > 1 {
		n /= int64(k.gpus)
	}
	if k.cpu > 0 {
		n = min(n, cpu/k.cpu)
	}
	return n
}

// lost returns what the slots are worth that a request destroys on devices of
// a node, of those that it has before, in units.
func (p *Prices) lost(n *placement.Node, before stock, req placement.Request, devices []int) (sum float64) {
	units, cores := req.Share()
	cpu := max(0, n.FreeCPU()-req.CPU)
	for k := range p.kinds {
		one, was := &p.kinds[k], before.slots[k]
		if was.node == 0 || one.price == 0 {
			continue
		}
		left := was.gpus
		for _, i := range devices {
			if before.allowed[i]&(1<<k) != 0 {
				d := &n.Devices[i]
				left += one.on(d.Free()-units, d.FreeCores()-cores) - one.on(d.Free(), d.FreeCores())
			}
		}
		sum += one.price * float64(was.node-one.pods(left, cpu))
	}
	return sum
}
