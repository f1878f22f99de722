package replay

import (
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Fleet is the state of the nodes during a run.
type Fleet struct {
	nodes  []node
	shapes []Shape
	models []string

	capacity, allocated gpu.Units
	largest             gpu.Units // capacity of the largest GPU
}

// node is one machine during a run.
type node struct {
	*Node
	at          int   // in Fleet.nodes
	cpu, memory int64 // free
	gpus        []device
	kinds       map[int]int // pods by kind, see shapeKind
	version     uint32      // counts changes
}

// device is one GPU during a run.
type device struct {
	model    int // in Fleet.models
	capacity gpu.Units
	free     gpu.Units
	cores    int // free
}

// shape is a Shape as the policies ask about it.
type shape struct {
	Shape
	id     int
	models uint64 // that it may use, a bit each of Fleet.models
}

// place is where a pod goes.
type place struct {
	node int
	gpus []int
}

// newFleet returns the empty fleet of a trace with its nodes in this order.
func newFleet(t Trace, order []int) *Fleet {
	f := &Fleet{nodes: make([]node, len(t.Nodes))}
	for at, i := range order {
		spec := &t.Nodes[i]
		n := node{Node: spec, at: at, cpu: spec.CPU, memory: spec.Memory, kinds: make(map[int]int)}
		for _, g := range spec.GPUs {
			n.gpus = append(n.gpus, device{model: f.model(g.Model), capacity: g.Capacity, free: g.Capacity, cores: gpu.CoresPerDevice})
			f.capacity += g.Capacity
			f.largest = max(f.largest, g.Capacity)
		}
		f.nodes[at] = n
	}
	return f
}

func (f *Fleet) model(name string) int {
	if i := slices.Index(f.models, name); i >= 0 {
		return i
	}
	f.models = append(f.models, name)
	return len(f.models) - 1
}

// maxModels is how many kinds of GPU a fleet may have.
const maxModels = 64

// shape returns a shape as policies ask about it; equal shapes have one id.
func (f *Fleet) shape(s Shape) shape {
	id := slices.Index(f.shapes, s)
	if id < 0 {
		id = len(f.shapes)
		f.shapes = append(f.shapes, s)
	}
	out := shape{Shape: s, id: id}
	for i, model := range f.models {
		if s.allows(model) {
			out.models |= 1 << i
		}
	}
	return out
}

func (s *shape) allowsDevice(d *device) bool { return s.models&(1<<d.model) != 0 }

func (s *shape) fitsDevice(d *device) bool {
	return s.allowsDevice(d) && d.free >= s.Units && d.cores >= s.Cores
}

// fits reports whether the shape fits on the node.
func (s *shape) fits(n *node) bool {
	if n.cpu < s.CPU || n.memory < s.Memory {
		return false
	}
	return s.GPUs == 0 || s.fitsGPUs(n)
}

func (s *shape) fitsGPUs(n *node) bool {
	want := s.GPUs
	for i := range n.gpus {
		if s.fitsDevice(&n.gpus[i]) {
			if want--; want <= 0 {
				return true
			}
		}
	}
	return want <= 0
}

// tightest returns the devices of the node on which the least is left free.
func (s *shape) tightest(n *node) []int {
	if s.GPUs == 0 {
		return nil
	}
	var fitting []int
	for i := range n.gpus {
		if s.fitsDevice(&n.gpus[i]) {
			fitting = append(fitting, i)
		}
	}
	slices.SortStableFunc(fitting, func(a, b int) int { return int(n.gpus[a].free - n.gpus[b].free) })
	return fitting[:min(s.GPUs, len(fitting))]
}

// put places a pod. The error says that a policy chose what it does not fit on.
func (f *Fleet) put(s *shape, at place) error {
	n := &f.nodes[at.node]
	if n.cpu < s.CPU || n.memory < s.Memory || len(at.gpus) != s.GPUs {
		return fmt.Errorf("node %s cannot take %+v on %d GPUs", n.Name, s.Shape, len(at.gpus))
	}
	for k, i := range at.gpus {
		if !s.fitsDevice(&n.gpus[i]) || slices.Contains(at.gpus[:k], i) {
			return fmt.Errorf("GPU %d of node %s cannot take %+v", i, n.Name, s.Shape)
		}
	}
	f.move(s, at, 1)
	return nil
}

func (f *Fleet) move(s *shape, at place, sign int) {
	n := &f.nodes[at.node]
	n.cpu -= int64(sign) * s.CPU
	n.memory -= int64(sign) * s.Memory
	for _, i := range at.gpus {
		n.gpus[i].free -= gpu.Units(sign) * s.Units
		n.gpus[i].cores -= sign * s.Cores
	}
	kind := f.kind(s)
	if n.kinds[kind] += sign; n.kinds[kind] == 0 {
		delete(n.kinds, kind)
	}
	f.allocated += gpu.Units(sign) * s.Total()
	n.version++
}

// kind tells pods apart as GPU clustering does: 0 asks for no GPU, -1 for a
// part of one, and others for that many.
func (f *Fleet) kind(s *shape) int {
	if s.GPUs == 1 && s.Units < f.largest {
		return -1
	}
	return s.GPUs
}
