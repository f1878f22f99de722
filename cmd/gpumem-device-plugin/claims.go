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

// byClaims returns a function that creates the allocator of claims. The parameter uid is the UID of the node's
// object.
func byClaims(disk claims.Disk, prepared map[types.UID]claims.Claim, uid types.UID) func(*node) allocator {
	return func(n *node) allocator {
		n.pods.SelectClaims()
		log := n.log.Named("claims")
		offers := grants.NewOffers(n.level, !n.cores)
		driver := claims.New(claims.Config{
			Domain: n.names.Domain(), Node: n.nodeName, Cores: n.cores, Containers: n.config.plugin.Containers,
			Ready: n.level.Ready,
		}, offers, disk, prepared, log)
		// Cordoned GPUs accept no new claims. Neither does any GPU of a node whose label requests another API.
		closed := func() (ids []gpu.UUID, all bool, changed <-chan struct{}) {
			said, changed := n.object.Settings()
			return said.Cordoned, said.API != api.ByClaims, changed
		}
		runner := claims.NewRunner(driver, n.client, n.kubeletRootDir, uid, closed, log)
		users := claims.NewUsers(n.pods, driver)
		return allocator{
			offers: offers, account: driver.Allocations, allocated: driver.Prepared, retired: driver.RetiredClients,
			containers: driver.Containers(n.level, users), holders: users, grants: users, alive: offers.CheckLock,
			// Schedulers that place pods by the extended resource must not use these GPUs.
			inventory: func() (gpu.Inventory, <-chan struct{}) {
				inv, changed := offers.Inventory()
				for i := range inv.Devices {
					inv.Devices[i].Status.ByClaims = true
				}
				return inv, changed
			},
			listed: []<-chan struct{}{n.level.Looked()},
			checks: []serve.Check{{Name: "claims", Missing: runner.Missing}},
			runs:   []func(context.Context) error{runAfter(runner.Run, n.object.Read())}, // the node's object lists the cordoned GPUs
			leave:  func(context.Context) {},
		}
	}
}
