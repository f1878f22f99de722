package inventory

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Source returns the node's inventory, the reason if it has no GPU, and a channel that is closed when either
// changes.
type Source interface {
	Inventory() (inv gpu.Inventory, reason string, changed <-chan struct{})
}

// Value stores a value, and wakes its readers when the value changes. It is safe for concurrent use.
type Value[T any] struct {
	looked chan struct{} // closed by the first Set
	first  sync.Once

	mu      sync.Mutex // guards the rest
	value   T
	changed chan struct{} // closed and replaced when the value changes
}

// NewValue returns a Value with an initial value.
func NewValue[T any](value T) *Value[T] {
	return &Value[T]{value: value, looked: make(chan struct{}), changed: make(chan struct{})}
}

// Get returns the value, and a channel that is closed when it changes.
func (v *Value[T]) Get() (value T, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.value, v.changed
}

// Looked returns a channel that is closed by the first Set.
func (v *Value[T]) Looked() <-chan struct{} { return v.looked }

// Set stores a value. If the value differs from the previous one, Set wakes the waiting readers.
func (v *Value[T]) Set(value T) {
	v.mu.Lock()
	if !reflect.DeepEqual(value, v.value) {
		v.value = value
		close(v.changed)
		v.changed = make(chan struct{})
	}
	v.mu.Unlock()
	v.first.Do(func() { close(v.looked) })
}

// Latest is a Source that returns the last stored inventory. It is safe for concurrent use.
type Latest struct{ *Value[snapshot] }

type snapshot struct {
	inventory gpu.Inventory
	reason    string
}

// NewLatest returns a Source with an initial inventory and reason.
func NewLatest(inv gpu.Inventory, reason string) *Latest {
	return &Latest{NewValue(snapshot{inv, reason})}
}

// Inventory implements Source.
func (l *Latest) Inventory() (inv gpu.Inventory, reason string, changed <-chan struct{}) {
	f, changed := l.Get()
	inv = f.inventory
	inv.Devices = slices.Clone(inv.Devices)
	return inv, f.reason, changed
}

// Set stores the inventory and the reason.
func (l *Latest) Set(inv gpu.Inventory, reason string) { l.Value.Set(snapshot{inv, reason}) }

// Upstream is a Source whose inventory is empty before the first probe.
type Upstream interface {
	Source
	Looked() <-chan struct{} // closed after the first probe
}

// Stage is an Upstream that changes the inventory of another Upstream. Packages embed it.
type Stage struct {
	source Upstream
	*Latest
}

// Change derives a stage's inventory from its source's.
type Change func(ctx context.Context, inv gpu.Inventory, reason string) (gpu.Inventory, string)

// NewStage returns a stage that publishes the source's inventory until Update is called.
func NewStage(source Upstream) Stage {
	inv, reason, _ := source.Inventory()
	return Stage{source, NewLatest(inv, reason)}
}

// Wait waits until the source has probed the GPUs or the context is done. A stage that publishes earlier would
// report a node without GPUs.
func (s Stage) Wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-s.source.Looked():
	}
}

// Update publishes the source's inventory after the change, unless the context is done. The returned channel is
// closed when the source's inventory changes.
func (s Stage) Update(ctx context.Context, change Change) <-chan struct{} {
	inv, reason, changed := s.source.Inventory()
	if inv, reason = change(ctx, inv, reason); ctx.Err() == nil {
		s.Set(inv, reason)
	}
	return changed
}

// Watch waits for the source's first probe. Then it updates the stage at an interval and whenever the source
// changes, until the context is done.
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

// Size returns a device with the number of units that a GPU offers: whole units of the memory that neither the
// driver nor reserveMiB takes. If unitMiB is 0, the GPU offers shares, and the device also has the size of a
// share.
func Size(totalMiB, driverMiB, reserveMiB, unitMiB int64) gpu.Device {
	reservedMiB := max(0, driverMiB) + reserveMiB
	if unitMiB > 0 {
		return gpu.Device{Allocatable: gpu.UnitsIn(totalMiB, reservedMiB, unitMiB)}
	}
	share := gpu.UnitsIn(totalMiB, reservedMiB, gpu.SharesPerDevice)
	return gpu.Device{Allocatable: min(gpu.SharesPerDevice, gpu.SharesPerDevice*share), ShareMiB: max(1, int64(share))}
}
