package ranking

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// kind is what pods of one kind want of a node.
type kind struct {
	gpus   int
	units  gpu.Units // of each GPU
	cores  int       // the same
	models string    // globs, separated by commas
	cpu    int64     // millicores
}

// Mix is what pods have asked for, the last of them above all. The zero value
// has seen none.
type Mix struct {
	seen  map[kind]float64
	total float64
}

const (
	// remembered is how many pods a mix has seen when it begins to forget.
	remembered = 8192
	// maxKinds bounds the kinds of pods in a mix.
	maxKinds = 1024
)

// Learn adds a pod. Those that want certain GPUs by UUID do not count: no other
// GPU is worth more for them.
func (m *Mix) Learn(r placement.Request) {
	if r.Empty() || !r.UUIDs.Empty() {
		return
	}
	units, cores := r.Share()
	if m.seen == nil {
		m.seen = make(map[kind]float64)
	}
	m.seen[kind{gpus: r.GPUs(), units: units, cores: cores, models: r.Models.String(), cpu: r.CPU}]++
	if m.total++; m.total >= remembered || len(m.seen) > maxKinds {
		m.fade()
	}
}

// fade halves the weight of all that was seen, and forgets what is left of the
// rarest.
func (m *Mix) fade() {
	m.total = 0
	for a, n := range m.seen {
		if n < 1 {
			delete(m.seen, a)
			continue
		}
		m.seen[a] = n / 2
		m.total += n / 2
	}
}

// Clone returns a mix that does not change with this one.
func (m *Mix) Clone() Mix { return Mix{seen: maps.Clone(m.seen), total: m.total} }

// mean returns how many units a pod asks for, of all its GPUs.
func (m *Mix) mean() float64 {
	sum := 0.0
	for _, a := range m.kinds() {
		sum += m.seen[a] * a.demand()
	}
	return sum / max(1, m.total)
}

func (a kind) demand() float64 { return float64(a.gpus) * float64(a.units) }

// kinds returns all kinds of pods, those first that ask for the most together.
func (m *Mix) kinds() []kind {
	weight := func(a kind) float64 { return m.seen[a] * a.demand() }
	return slices.SortedFunc(maps.Keys(m.seen), func(a, b kind) int {
		return cmp.Or(
			cmp.Compare(weight(b), weight(a)), cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.units, b.units),
			cmp.Compare(a.cores, b.cores), cmp.Compare(a.models, b.models), cmp.Compare(a.cpu, b.cpu),
		)
	})
}
