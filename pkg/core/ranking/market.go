package ranking

import (
	"sync"
	"sync/atomic"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Market keeps what pods have asked for and the prices that were made of it. The zero value has
// neither. It is safe for use by several goroutines.
type Market struct {
	mu  sync.Mutex
	mix Mix // guarded by mu

	last atomic.Pointer[priced]
}

// priced are prices and when they were made.
type priced struct {
	*Prices
	changes uint64 // of nodes
	nodes   int
	learned uint64 // pods
}

// Learn records what a pod asks for that has been heard of for the first time,
// whether it is on a node or waits.
func (m *Market) Learn(req placement.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mix.Learn(req)
}

// Prices returns what the last call of Reprice has found, without any wait; nil
// before the first.
func (m *Market) Prices() *Prices {
	if last := m.last.Load(); last != nil {
		return last.Prices
	}
	return nil
}

// Reprice finds out what that is worth to the pods to come that fit on the
// nodes, by what was learned of them, if since it last did about one in stale nodes has
// changed, or one in stale has been added to the pods that are learned of. It is given how many
// changes of nodes there have been, and looks at all nodes, so no pod should have to wait for it.
func (m *Market) Reprice(changes uint64, nodes func() []placement.Node) {
	const stale = 4
	last := m.last.Load()
	m.mu.Lock()
	if last != nil && changes-last.changes <= uint64(last.nodes/stale) && m.mix.Learned-last.learned <= last.learned/stale {
		m.mu.Unlock()
		return
	}
	mix := m.mix.Clone()
	m.mu.Unlock()
	all := nodes()
	m.last.Store(&priced{Prices: NewPrices(mix, all), changes: changes, nodes: len(all), learned: mix.Learned})
}
