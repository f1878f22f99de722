package ranking

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// kind is what pods of one kind ask for.
type kind struct {
	gpus   int
	units  gpu.Units // of each GPU
	shares bool      // they are shares
	models placement.Globs
	cpu    int64 // millicores
}

func (k kind) demand() float64 { return float64(k.gpus) * float64(k.units) }

// Mix is what pods have asked for, the last of them above all. The zero value
// has seen none.
type Mix struct {
	seen  map[kind]float64
	total float64

	Learned uint64 // how many pods it was taught, those that it has forgotten included
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
	if r.Empty() || r.UUIDs != "" {
		return
	}
	units, _ := r.Share()
	if m.seen == nil {
		m.seen = make(map[kind]float64)
	}
	m.seen[kind{gpus: r.GPUs(), units: units, shares: r.InShares, models: r.Models, cpu: r.CPU}]++
	m.Learned++
	if m.total++; m.total >= remembered || len(m.seen) > maxKinds {
		m.fade()
	}
}

// fade halves the weight of all that was seen, and forgets what is left of the rarest.
func (m *Mix) fade() {
	m.total = 0
	maps.DeleteFunc(m.seen, func(_ kind, n float64) bool { return n < 1 })
	for a, n := range m.seen {
		m.seen[a] = n / 2
		m.total += n / 2
	}
}

// Clone returns a mix that does not change with this one.
func (m *Mix) Clone() Mix { return Mix{seen: maps.Clone(m.seen), total: m.total, Learned: m.Learned} }

// kinds returns the kinds of pods that ask for shares, or by the amount, by what they ask for together.
func (m *Mix) kinds(shares bool) []kind {
	return slices.DeleteFunc(slices.SortedFunc(maps.Keys(m.seen), func(a, b kind) int {
		return cmp.Or(
			cmp.Compare(m.demand(b), m.demand(a)), cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.units, b.units),
			cmp.Compare(a.models, b.models), cmp.Compare(a.cpu, b.cpu),
		)
	}), func(k kind) bool { return k.shares != shares })
}

// demand returns what all pods of a kind ask for together.
func (m *Mix) demand(k kind) float64 { return m.seen[k] * k.demand() }
