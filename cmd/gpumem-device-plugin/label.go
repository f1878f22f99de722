package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/nodepods"
)

// asked returns a channel that is closed when the process is to end: by a signal, or once no pod holds the
// extended resource of a node whose label, or whose unit, is to change.
func (p *parts) asked(ctx context.Context, log *zap.Logger, cfg config) <-chan struct{} {
	if len(cfg.apis()) == 0 && !cfg.otherUnit {
		return ctx.Done()
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		holding := func() (int, <-chan struct{}) {
			pods, complete, changed := p.pods.Pods()
			if !complete {
				return 1, changed
			}
			return len(pods), changed
		}
		served := cfg.api()
		if cfg.otherUnit {
			served = "in another unit" // which no label asks for
		}
		if left(ctx, p.node, served, holding) {
			log.Info("the node is to offer its GPUs by another API or in another unit, and no pod holds any")
		}
	}()
	return told
}

// leave ends what runs once the node's label says that it hands out no claims, and none is left.
func (p claimsParts) leave(ctx context.Context, end func(), log *zap.Logger) error {
	if left(ctx, p.object, api.ByClaims, p.driver.Prepared) {
		log.Info("the node is to hand out the extended resource, and no claim is left")
		end()
	}
	return nil
}

// inventory returns the node's GPUs as those see them that place pods by the extended resource.
func (p claimsParts) inventory() (gpu.Inventory, <-chan struct{}) {
	inv, changed := p.offers.Inventory()
	for i := range inv.Devices {
		inv.Devices[i].Status.ByClaims = true
	}
	return inv, changed
}

// closedBy returns which GPUs people keep new claims off: all, where the node is to have none.
func closedBy(object *nodepods.Node) claims.Closed {
	return func() (ids []gpu.UUID, all bool, changed <-chan struct{}) {
		said, changed := object.Said()
		return said.Cordoned, said.API != api.ByClaims, changed
	}
}

// left returns once the node's label asks for another API than the one that is served, and nothing that
// was handed out was left for a while. It is false where the context was done before.
func left(ctx context.Context, object *nodepods.Node, served string, handedOut func() (int, <-chan struct{})) bool {
	select {
	case <-ctx.Done():
		return false
	case <-object.Read():
	}
	other := func() (bool, <-chan struct{}) {
		said, changed := object.Said()
		return said.API != served, changed
	}
	return claims.Left(ctx, other, handedOut)
}
