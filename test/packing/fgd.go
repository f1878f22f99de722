package packing

import (
	"cmp"
	"math"
	"slices"
)

// fgd is fragmentation gradient descent: it takes the node and the GPU where placing the pod costs
// typical pods the least usable memory.
type fgd struct{ *fragments }

// fragments computes the free memory that the typical pods of a trace cannot use.
type fragments struct {
	typical []typicalPod
	unit    float64 // units that count as one GPU
	before  []fragment
}

// typicalPod is a shape, without its host memory, and how popular it is.
type typicalPod struct {
	shape
	popularity float64
}

// fragment is the cached result for a node until the node changes.
type fragment struct {
	amount  float64
	version uint32 // of the node, plus one
}

// typicalPart is the part of the trace's pods that the typical pods represent.
const typicalPart = 0.95

// newFragments computes the popularity of shapes from all pods of a trace.
func newFragments(t Trace, f *Fleet) *fragments {
	count := make(map[Shape]int)
	for _, p := range t.Pods {
		s := p.Shape
		s.Memory = 0
		count[s]++
	}
	shapes := make([]Shape, 0, len(count))
	for s := range count {
		shapes = append(shapes, s)
	}
	slices.SortFunc(shapes, func(a, b Shape) int {
		return -cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(a.CPU, b.CPU), cmp.Compare(a.Units, b.Units),
			cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.Models, b.Models))
	})
	gpus := 0
	for i := range f.nodes {
		gpus += len(f.nodes[i].gpus)
	}
	p := &fragments{unit: float64(f.capacity) / float64(gpus), before: make([]fragment, len(f.nodes))}
	total, covered := float64(len(t.Pods)), 0.0
	for i := 0; i < len(shapes) && covered < typicalPart*total; i++ {
		covered += float64(count[shapes[i]])
		p.typical = append(p.typical, typicalPod{shape: f.shape(shapes[i]), popularity: float64(count[shapes[i]]) / total})
	}
	if len(p.typical) < len(shapes) {
		for i := range p.typical {
			p.typical[i].popularity /= covered / total
		}
	}
	return p
}

func (p fgd) score(_ *Fleet, s *shape, n *node) int64 {
	score, _ := p.best(s, n)
	return score
}

func (p fgd) devices(_ *Fleet, s *shape, n *node) []int {
	_, devices := p.best(s, n)
	return devices
}

// best returns the best score of a node and its devices. A pod with one GPU gets the first of the best
// devices, other pods get the tightest.
func (p fgd) best(s *shape, n *node) (int64, []int) {
	before := p.fragmentBefore(n)
	n.cpu -= s.CPU
	defer func() { n.cpu += s.CPU }()
	if s.GPUs != 1 {
		devices := s.tightest(n)
		return p.after(before, s, n, devices), devices
	}
	score, device := int64(-1), -1
	for i := range n.gpus {
		if !s.fitsDevice(&n.gpus[i]) || slices.Index(n.gpus, n.gpus[i]) < i { // an equal GPU was tried
			continue
		}
		if at := p.after(before, s, n, []int{i}); at > score {
			score, device = at, i
		}
	}
	return score, []int{device}
}

func (p fgd) after(before float64, s *shape, n *node, devices []int) int64 {
	for _, i := range devices {
		n.gpus[i].free -= s.Units
	}
	after := p.fragment(n)
	for _, i := range devices {
		n.gpus[i].free += s.Units
	}
	return int64(1 / (1 + math.Exp(-(before-after)/p.unit)) * maxScore)
}

func (p *fragments) fragmentBefore(n *node) float64 {
	k := &p.before[n.at]
	if k.version != n.version+1 {
		*k = fragment{amount: p.fragment(n), version: n.version + 1}
	}
	return k.amount
}

// fragment returns how much of a node's free memory a typical pod cannot use, on average. It sums the
// reasons apart, because the published results depend on the last bit of the sum.
func (p *fragments) fragment(n *node) float64 {
	free := float64(n.freeUnits())
	var both, lackGPU, lackCPU, satisfied, unsatisfied, barred float64
	for i := range p.typical {
		m := &p.typical[i]
		cpu := n.cpu >= m.CPU
		switch {
		case m.GPUs == 0 && cpu:
			satisfied += m.popularity * free
		case m.GPUs == 0:
			unsatisfied += m.popularity * free
		case !m.allowed(n):
			barred += m.popularity * free
		default:
			small, fits := m.fragmentsOf(n)
			switch {
			case fits && cpu:
				lackGPU += m.popularity * small
			case fits:
				lackCPU += m.popularity * free
			case cpu:
				lackGPU += m.popularity * free
			default:
				both += m.popularity * free
			}
		}
	}
	return both + lackGPU + lackCPU + satisfied + unsatisfied + barred
}

func (m *typicalPod) allowed(n *node) bool {
	return slices.ContainsFunc(n.gpus, func(d device) bool { return m.allowsDevice(&d) })
}

// fragmentsOf returns the free units of GPUs that are too small for the pod, and whether enough other
// GPUs fit it.
func (m *typicalPod) fragmentsOf(n *node) (small float64, fits bool) {
	want := m.GPUs
	for i := range n.gpus {
		if d := &n.gpus[i]; m.fitsDevice(d) {
			want--
		} else {
			small += float64(d.free)
		}
	}
	return small, want <= 0
}
