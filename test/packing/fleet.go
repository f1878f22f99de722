package packing

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
	at          int   // index in Fleet.nodes
	cpu, memory int64 // free
	gpus        []device
	version     uint32 // counts changes
}

// device is one GPU during a run.
type device struct {
	model          int // index in Fleet.models
	capacity, free gpu.Units
}

// shape is a Shape with its identity in one fleet.
type shape struct {
	Shape
	id     int
	models uint64 // permitted models, one bit for each of Fleet.models
}

// place is the node and the GPUs of a pod.
type place struct {
	node int
	gpus []int
}

// newFleet returns the empty fleet of a trace with its nodes in this order.
func newFleet(t Trace, order []int) *Fleet {
	f := &Fleet{nodes: make([]node, len(t.Nodes))}
	for at, i := range order {
		spec := &t.Nodes[i]
		n := node{Node: spec, at: at, cpu: spec.CPU, memory: spec.Memory}
		for _, g := range spec.GPUs {
			n.gpus = append(n.gpus, device{model: f.model(g.Model), capacity: g.Capacity, free: g.Capacity})
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

// shape returns the shape of this fleet; equal shapes have one id.
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

func (s *shape) fitsDevice(d *device) bool { return s.allowsDevice(d) && d.free >= s.Units }

// fits reports whether the shape fits the node.
func (s *shape) fits(n *node) bool {
	if n.cpu < s.CPU || n.memory < s.Memory {
		return false
	}
	want := s.GPUs
	for i := range n.gpus {
		if want > 0 && s.fitsDevice(&n.gpus[i]) {
			want--
		}
	}
	return want == 0
}

// fitting returns the devices of the node that the shape fits.
func (s *shape) fitting(n *node) (fitting []int) {
	for i := range n.gpus {
		if s.fitsDevice(&n.gpus[i]) {
			fitting = append(fitting, i)
		}
	}
	return fitting
}

// tightest returns the fitting devices of the node with the least free memory.
func (s *shape) tightest(n *node) []int {
	fitting := s.fitting(n)
	slices.SortStableFunc(fitting, func(a, b int) int { return int(n.gpus[a].free - n.gpus[b].free) })
	return fitting[:min(s.GPUs, len(fitting))]
}

func (n *node) freeUnits() (sum gpu.Units) {
	for i := range n.gpus {
		sum += n.gpus[i].free
	}
	return sum
}

// put places a pod. It returns an error if the policy chose a place that the pod does not fit.
func (f *Fleet) put(s *shape, at place) error {
	n := &f.nodes[at.node]
	if n.cpu < s.CPU || n.memory < s.Memory || len(at.gpus) != s.GPUs {
		return fmt.Errorf("%+v on %d GPUs does not fit node %s", s.Shape, len(at.gpus), n.Name)
	}
	for k, i := range at.gpus {
		if !s.fitsDevice(&n.gpus[i]) || slices.Contains(at.gpus[:k], i) {
			return fmt.Errorf("%+v does not fit GPU %d of node %s", s.Shape, i, n.Name)
		}
	}
	f.move(s, at, 1)
	return nil
}

// move adds a pod to its place, or removes it with the sign -1.
func (f *Fleet) move(s *shape, at place, sign int64) {
	n := &f.nodes[at.node]
	n.cpu -= sign * s.CPU
	n.memory -= sign * s.Memory
	for _, i := range at.gpus {
		n.gpus[i].free -= gpu.Units(sign) * s.Units
	}
	f.allocated += gpu.Units(sign) * s.Total()
	n.version++
}
