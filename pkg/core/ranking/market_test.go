package ranking

import (
	"sync"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

// Reprice computes prices on the first call. It computes them again after changes of more than one in four
// nodes, or after the number of learned pods has grown by more than a quarter.
func TestReprice(t *testing.T) {
	var m Market
	nodes := func() []placement.Node { return make([]placement.Node, 8) }
	m.Learn(placementtest.Ask(4))
	if got := m.Prices(); got != nil {
		t.Errorf("prices %v before any were made", got)
	}
	m.Reprice(8, nodes)
	last := m.Prices()
	for _, tc := range []struct {
		changes uint64
		learned int
		isNew   bool
	}{
		{9, 0, false}, {10, 0, false}, {11, 0, true}, {11, 0, false}, {13, 0, false}, {14, 0, true}, // one in four of 8
		{14, 1, true}, {14, 1, true}, {14, 1, true}, {14, 1, false}, {14, 1, true}, // a quarter of 4 is 1
		{14, 1, false}, {14, 1, true}, {14, 2, false}, {14, 1, true},
	} {
		for range tc.learned {
			m.Learn(placementtest.Ask(4))
		}
		m.Reprice(tc.changes, nodes)
		now := m.Prices()
		if now == nil || (now != last) != tc.isNew {
			t.Errorf("after %d changes and %d more pods, there are new prices: %t, want %t", tc.changes, tc.learned, now != last, tc.isNew)
		}
		last = now
	}
}

// For the race detector: Prices takes no lock.
func TestAMarketServesAllAtOnce(*testing.T) {
	var m Market
	var all sync.WaitGroup
	for _, call := range []func(){
		func() { m.Learn(placementtest.Ask(4)) },
		func() { m.Reprice(0, func() []placement.Node { return nil }) },
		func() { m.Prices() },
	} {
		for range 2 {
			all.Go(func() {
				for range 100 {
					call()
				}
			})
		}
	}
	all.Wait()
}
