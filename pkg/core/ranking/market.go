package ranking

import (
	"sync"
	"sync/atomic"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Market stores the mix of past requests and the latest prices. The zero value is empty. It is safe for
// concurrent use.
type Market struct {
	mu  sync.Mutex
	mix Mix // guarded by mu

	last atomic.Pointer[priced]
}

// priced is the result of a Reprice: the prices, and the numbers of changes, nodes and pods at that time.
type priced struct {
	*Prices
	changes uint64 // changes of nodes
	nodes   int
	learned uint64 // number of learned pods
}

// Learn records the request of a newly seen pod, whether it is bound or waits.
func (m *Market) Learn(req placement.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mix.Learn(req)
}

// Prices returns the result of the last Reprice, or nil before the first. It never blocks.
func (m *Market) Prices() *Prices {
	if last := m.last.Load(); last != nil {
		return last.Prices
	}
	return nil
}

// Reprice computes new prices if, since the last computation, more than about a quarter of the nodes
// has changed, or the number of learned pods has grown by more than a quarter. Parameter changes is the
// total number of changes of nodes. Reprice reads all nodes, so no pod should wait for it.
func (m *Market) Reprice(changes uint64, nodes func() []placement.Node) {
	const stale = 4
	last := m.last.Load()
	m.mu.Lock()
	if last != nil && changes-last.changes <= uint64(last.nodes/stale) && m.mix.Learned-last.learned <= last.learned/stale {
		m.mu.Unlock()
		return
	}
	mix := m.mix.clone()
	m.mu.Unlock()
	all := nodes()
	m.last.Store(&priced{Prices: NewPrices(mix, all), changes: changes, nodes: len(all), learned: mix.Learned})
}
