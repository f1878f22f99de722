package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/nodepods"
)

// asked returns a channel that is closed when the process is asked to end: by who started it, or
// by the node's label, once no pod holds the extended resource.
func (p *parts) asked(ctx context.Context, log *zap.Logger, claimable bool) <-chan struct{} {
	if !claimable {
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
		if claims.Left(ctx, false, labelled(p.node), holding) {
			log.Info("the node is to hand out claims, and no pod holds the extended resource")
		}
	}()
	return told
}

// leave ends what runs once the node's label says that it hands out no claims, and none is left.
func (p claimsParts) leave(ctx context.Context, end func(), log *zap.Logger) error {
	if claims.Left(ctx, true, labelled(p.object), p.driver.Prepared) {
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
		return said.Cordoned, !said.ByClaims, changed
	}
}

// labelled returns whether the node's label says that it hands out claims.
func labelled(object *nodepods.Node) func() (bool, <-chan struct{}) {
	return func() (bool, <-chan struct{}) {
		said, changed := object.Said()
		return said.ByClaims, changed
	}
}
