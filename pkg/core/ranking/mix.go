package ranking

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// kind is a class of pods with equal requests.
type kind struct {
	gpus   int
	units  gpu.Units // per GPU
	shares bool      // units are shares of a GPU
	models placement.Globs
	cpu    int64 // in millicores
}

func (k kind) demand() float64 { return float64(k.gpus) * float64(k.units) }

// Mix counts the requests of past pods and gives recent ones more weight. The zero value is empty.
type Mix struct {
	seen  map[kind]float64
	total float64

	Learned uint64 // number of learned pods, including forgotten ones
}

const (
	// remembered is the total weight at which a mix halves all weights.
	remembered = 8192
	// maxKinds limits the number of kinds in a mix.
	maxKinds = 1024
)

// Learn adds a pod. It ignores pods that select GPUs by UUID, because they compete for no other GPUs.
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

// fade halves all weights and removes the kinds with a weight below 1.
func (m *Mix) fade() {
	m.total = 0
	maps.DeleteFunc(m.seen, func(_ kind, n float64) bool { return n < 1 })
	for a, n := range m.seen {
		m.seen[a] = n / 2
		m.total += n / 2
	}
}

// clone returns an independent copy.
func (m *Mix) clone() Mix { return Mix{seen: maps.Clone(m.seen), total: m.total, Learned: m.Learned} }

// kinds returns the kinds that request shares, or those that request amounts of memory, by descending
// total demand.
func (m *Mix) kinds(shares bool) []kind {
	return slices.DeleteFunc(slices.SortedFunc(maps.Keys(m.seen), func(a, b kind) int {
		return cmp.Or(
			cmp.Compare(m.demand(b), m.demand(a)), cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.units, b.units),
			cmp.Compare(a.models, b.models), cmp.Compare(a.cpu, b.cpu),
		)
	}), func(k kind) bool { return k.shares != shares })
}

// demand returns the total units requested by all pods of a kind.
func (m *Mix) demand(k kind) float64 { return m.seen[k] * k.demand() }
