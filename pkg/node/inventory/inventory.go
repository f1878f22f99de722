package inventory

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Source tells which GPUs the node has, why it has none, and when that changes.
type Source interface {
	Inventory() (inv gpu.Inventory, reason string, changed <-chan struct{})
}

// Latest is a Source that tells what was set last. It is safe for concurrent use.
type Latest struct {
	looked chan struct{} // closed when something is set for the first time
	first  sync.Once

	mu        sync.Mutex // guards the rest
	inventory gpu.Inventory
	reason    string
	changed   chan struct{} // closed and replaced when the rest changes
}

// NewLatest returns a Source that tells this until something is set.
func NewLatest(inv gpu.Inventory, reason string) *Latest {
	return &Latest{inventory: inv, reason: reason, looked: make(chan struct{}), changed: make(chan struct{})}
}

// Inventory returns what was set last.
func (l *Latest) Inventory() (inv gpu.Inventory, reason string, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	inv = l.inventory
	inv.Devices = slices.Clone(inv.Devices)
	return inv, l.reason, l.changed
}

// Looked is closed once something was set.
func (l *Latest) Looked() <-chan struct{} { return l.looked }

// Set stores the inventory, and wakes those who wait for a change if it is one.
func (l *Latest) Set(inv gpu.Inventory, reason string) {
	l.mu.Lock()
	if reason != l.reason || !reflect.DeepEqual(inv, l.inventory) {
		l.inventory, l.reason = inv, reason
		close(l.changed)
		l.changed = make(chan struct{})
	}
	l.mu.Unlock()
	l.first.Do(func() { close(l.looked) })
}

// Upstream is a Source that lists no GPU before its first look.
type Upstream interface {
	Source
	Looked() <-chan struct{} // closed after the first look
}

// Stage is an Upstream that changes the inventory of another Upstream. A package embeds it.
type Stage struct {
	source Upstream
	*Latest
}

// Change makes the inventory of a stage from the source's.
type Change func(ctx context.Context, inv gpu.Inventory, reason string) (gpu.Inventory, string)

// NewStage returns a stage that publishes the inventory of the source until it is updated.
func NewStage(source Upstream) Stage {
	inv, reason, _ := source.Inventory()
	return Stage{source, NewLatest(inv, reason)}
}

// Wait returns when the source has looked for GPUs, or the context is done. A stage that publishes earlier would publish that
// the node has no GPU.
func (s Stage) Wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-s.source.Looked():
	}
}

// Update publishes the changed inventory of the source, unless the context is done. The channel is closed when the source
// has another inventory.
func (s Stage) Update(ctx context.Context, change Change) <-chan struct{} {
	inv, reason, changed := s.source.Inventory()
	if inv, reason = change(ctx, inv, reason); ctx.Err() == nil {
		s.Set(inv, reason)
	}
	return changed
}

// Watch updates the stage once the source has looked, at an interval, and when the source changes, until the context is done.
func (s Stage) Watch(ctx context.Context, interval time.Duration, change Change) error {
	s.Wait(ctx)
	timer := time.NewTicker(interval)
	defer timer.Stop()
	for {
		changed := s.Update(ctx, change)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-timer.C:
		}
	}
}

// Size returns how many units a GPU with so much memory offers, and of shares how large they are: all
// the same, of what neither the driver keeps nor is reserved. A unit of 0 MiB is a share.
func Size(totalMiB, driverMiB, reserveMiB, unitMiB int64) gpu.Device {
	reservedMiB := max(0, driverMiB) + reserveMiB
	if unitMiB > 0 {
		return gpu.Device{Allocatable: gpu.UnitsIn(totalMiB, reservedMiB, unitMiB)}
	}
	share := gpu.UnitsIn(totalMiB, reservedMiB, gpu.SharesPerDevice)
	return gpu.Device{Allocatable: min(gpu.SharesPerDevice, gpu.SharesPerDevice*share), ShareMiB: max(1, int64(share))}
}
