package main

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/process/serve"
)

// byClaims returns a function that makes the allocator of claims. The node's object has the UID.
func byClaims(disk claims.Disk, prepared map[types.UID]claims.Claim, uid types.UID) func(*node) allocator {
	return func(n *node) allocator {
		n.pods.ByClaims()
		log := n.log.Named("claims")
		offers := grants.NewOffers(n.level, !n.cores)
		driver := claims.New(claims.Config{
			Domain: n.names.Domain(), Node: n.nodeName, Cores: n.cores, Containers: n.config.plugin.Containers,
			Ready: n.level.Ready,
		}, offers, disk, prepared, log)
		// People keep new claims off the cordoned GPUs, and off all GPUs of a node that is to serve something else.
		closed := func() (ids []gpu.UUID, all bool, changed <-chan struct{}) {
			said, changed := n.object.Said()
			return said.Cordoned, said.API != api.ByClaims, changed
		}
		runner := claims.NewRunner(driver, n.client, n.kubeletRootDir, uid, closed, log)
		users := claims.NewUsers(n.pods, driver)
		return allocator{
			offers: offers, account: driver.Allocations, allocated: driver.Prepared, retired: driver.RetiredClients,
			containers: driver.Containers(n.level, users), holders: users, grants: users, alive: offers.Alive,
			// Schedulers that place pods by the extended resource read that the GPUs are not theirs.
			inventory: func() (gpu.Inventory, <-chan struct{}) {
				inv, changed := offers.Inventory()
				for i := range inv.Devices {
					inv.Devices[i].Status.ByClaims = true
				}
				return inv, changed
			},
			listed: []<-chan struct{}{n.level.Looked()},
			checks: []serve.Check{{Name: "claims", Missing: runner.Missing}},
			runs:   []func(context.Context) error{after(runner.Run, n.object.Read())}, // which knows the cordoned GPUs
			leave:  func(context.Context) {},
		}
	}
}
