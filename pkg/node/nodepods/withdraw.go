package nodepods

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Withdraw has Run write that no GPU takes new pods, and end. It returns once that
// is written, or the context is done.
//
// It is Run that writes, after what it may be writing at the time, so that this is the
// last. The next plugin starts when this one has ended (a DaemonSet's maxSurge is 0).
// Should the API server carry a write out so late that the next one has written
// already, the next one sees that on its watch, and writes again.
func (n *Node) Withdraw(ctx context.Context) error {
	n.leave()
	select {
	case <-n.withdrawn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("withdraw the inventory of node %s: %w", n.name, ctx.Err())
	}
}

// withdraw writes until it is written, or the context is done. The condition is left:
// nothing ails the GPUs.
func (n *Node) withdraw(ctx context.Context, inv gpu.Inventory) error {
	inv = closed(inv)
	value, err := api.EncodeInventory(inv)
	if err != nil {
		return fmt.Errorf("encode the inventory: %w", err)
	}
	for {
		err := n.writeAnnotation(ctx, value, inv)
		if err == nil {
			close(n.withdrawn)
			return nil
		}
		n.settle(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(minRetry):
		}
	}
}

// closed returns the inventory with no GPU taking new pods.
func closed(inv gpu.Inventory) gpu.Inventory {
	inv.Devices = slices.Clone(inv.Devices)
	for i := range inv.Devices {
		if d := &inv.Devices[i]; d.Status.Works() {
			d.Status.Stopped = true
		}
	}
	return inv
}
