package main

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/nodepods"
)

// choiceRetry is the time between two tries to learn by which API the node's GPUs are handed out.
const choiceRetry = 2 * time.Second

// byClaims reports whether the node's GPUs are handed out by claims.
func byClaims(log *zap.Logger, cfg config, seen nodepods.Seen, prepared int) bool {
	labelled := seen.Labels[cfg.names.API()] == api.ByClaims
	by, why := claims.Choose(labelled, prepared, slices.Concat(seen.Holders, seen.Sharers))
	log.Info("who hands out the GPUs is chosen", zap.Bool("claims", by), zap.Bool("labelled", labelled), zap.String("reason", why))
	return by
}

// recoverClaims returns the prepared claims, and rebuilds their checkpoint if it is not usable. For that it waits for the
// API server. It is not ok if the context was done before.
func recoverClaims(ctx context.Context, log *zap.Logger, cfg config, client kubernetes.Interface, disk claims.Disk) (prepared map[types.UID]claims.Claim, ok bool) {
	read := func(ctx context.Context) ([]*resourceapi.ResourceClaim, error) {
		return nodepods.ReadClaims(ctx, client, cfg.names, cfg.nodeName)
	}
	for {
		prepared, err := claims.Recover(ctx, disk, read, cfg.names.Domain(), cfg.nodeName, cfg.unitMiB, log)
		if err == nil {
			return prepared, true
		}
		log.Warn("prepared claims are not known yet", zap.String("node", cfg.nodeName), zap.Error(err))
		select {
		case <-ctx.Done():
			return nil, false
		case <-time.After(choiceRetry):
		}
	}
}

// look reads the node's labels, its pods and its last inventory. Where the labels select the API that hands
// out the GPUs, it waits for the API server, and is not ok if the context ends before. Elsewhere it tries
// once: the plugin also serves containers that restart while the API server is away.
func look(ctx context.Context, log *zap.Logger, cfg config, client kubernetes.Interface) (_ nodepods.Seen, ok bool) {
	for {
		seen, err := nodepods.Look(ctx, client, cfg.names, cfg.nodeName)
		if err == nil {
			return seen, true
		}
		log.Warn("the node is not known yet", zap.String("node", cfg.nodeName), zap.Error(err))
		if !cfg.claims && !cfg.shares {
			return nodepods.Seen{}, true
		}
		select {
		case <-ctx.Done():
			return nodepods.Seen{}, false
		case <-time.After(choiceRetry):
		}
	}
}
