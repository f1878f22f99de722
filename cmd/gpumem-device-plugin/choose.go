package main

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/nodepods"
)

// choiceRetry is the time between two tries to learn by which API the node's GPUs are handed out.
const choiceRetry = 2 * time.Second

// byClaims reports whether the node's GPUs are handed out by claims.
func byClaims(log *zap.Logger, cfg config, seen nodepods.Seen, disk claims.Disk) (bool, error) {
	prepared, err := claims.Prepared(disk)
	if err != nil {
		return false, err
	}
	labelled := seen.Labels[cfg.names.API()] == api.ByClaims
	by, why := claims.Choose(labelled, prepared, slices.Concat(seen.Holders, seen.Sharers))
	log.Info("who hands out the GPUs is chosen", zap.Bool("claims", by), zap.Bool("labelled", labelled), zap.String("reason", why))
	return by, nil
}

// look reads the node's labels, and what is on the node, where these say how its GPUs are handed out. It
// waits for the API server, and is not ok where the context was done before: nothing is handed out before
// it is known how.
func look(ctx context.Context, log *zap.Logger, cfg config, client kubernetes.Interface) (_ nodepods.Seen, ok bool) {
	for cfg.claims || cfg.shares {
		seen, err := nodepods.Look(ctx, client, cfg.names, cfg.nodeName)
		if err == nil {
			return seen, true
		}
		log.Warn("the node is not known yet", zap.String("node", cfg.nodeName), zap.Error(err))
		select {
		case <-ctx.Done():
			return nodepods.Seen{}, false
		case <-time.After(choiceRetry):
		}
	}
	return nodepods.Seen{}, true
}
