package main

import (
	"fmt"
	"strings"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/nodepods"
)

// inShares reports whether the node's GPUs are offered in shares.
func (c config) inShares() bool { return c.unitMiB == 0 }

// resource is the extended resource that the node offers.
func (c config) resource() string { return string(c.names.Offered(c.inShares())) }

// api is by which API the node hands out its GPUs, as its label says it; empty: amounts of memory.
func (c config) api() string {
	if c.inShares() {
		return api.InShares
	}
	return ""
}

// apis are those that the node's label may ask for.
func (c config) apis() (on []string) {
	if c.claims {
		on = append(on, api.ByClaims)
	}
	if c.shares {
		on = append(on, api.InShares)
	}
	return on
}

// chooseUnits returns the config for a node that offers its GPUs in shares, or by the amount.
func (c config) chooseUnits(log *zap.Logger, seen nodepods.Seen) config {
	c = c.keepUnit(seen)
	if !c.shares {
		return c
	}
	labelled := seen.Labels[c.names.API()] == api.InShares
	inShares, why := seen.InShares(labelled)
	if inShares {
		c = c.offeringShares()
	}
	log.Info("in what the GPUs are offered is chosen", zap.Bool("shares", inShares), zap.Bool("labelled", labelled), zap.String("reason", why))
	if inShares != labelled {
		c.unchanged = "the node goes on with " + c.resource() + ", though its label " + c.names.API() + " says otherwise: " + why
	}
	return c
}

// keepUnit returns the config with the unit of the pods on the node. The limits and the slots of these pods
// were computed in it, so a change has to wait until none of them is left.
func (c config) keepUnit(seen nodepods.Seen) config {
	was := seen.Offered.UnitMiB
	if was == 0 || was == c.unitMiB || len(seen.Offered.Devices) == 0 || len(seen.Holders) == 0 {
		return c
	}
	c.unchanged = fmt.Sprintf("unitMiB is %d now, and the node keeps units of %d MiB and takes no new pods, because pods have such units: %s. Drain the node, or set unitMiB back to %d.",
		c.unitMiB, was, strings.Join(seen.Holders, ", "), was)
	c.unitMiB, c.otherUnit = was, true
	return c
}

// offeringShares returns the config for a node whose GPUs are offered in shares. A share has its part of
// the cores.
func (c config) offeringShares() config {
	c.unitMiB, c.cores = 0, false
	c.plugin.Containers.ShareCores, c.plugin.Coreless = !c.plugin.Coreless, true
	return c
}

// offeringClaims returns the config for a node that hands its GPUs out by claims. It has no MIG instances:
// a claim to several GPUs could get some, and a program sees one alone.
func (c config) offeringClaims(log *zap.Logger, prepared map[types.UID]claims.Claim) config {
	inShares := claims.InShares(prepared, c.claimsInShares)
	if inShares {
		c = c.offeringShares()
	}
	c.mig = false
	log.Info("the node hands out claims", zap.Bool("shares", inShares), zap.Bool("wanted", c.claimsInShares))
	return c
}

// sayUnits reports on the node that it does not follow its label, or the chart's unit, yet.
func (c config) sayUnits(events event.Events) {
	if c.unchanged != "" {
		events.Node(event.UnitsNotChanged, c.unchanged)
	}
}
