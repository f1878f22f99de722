package main

import (
	"context"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpumem/gpumem/pkg/node/mps"
)

const (
	// maxShutdown bounds the time from the signal to the end of the plugin's parts, including outlive. It is 30
	// seconds less than the grace period in the chart, and less than the 5 minutes that NVIDIA's
	// k8s-driver-manager waits for DaemonSets.
	maxShutdown = 4 * time.Minute
	// outliveInterval is the interval at which outlive checks whether pods, claims or the MPS daemon need the
	// plugin.
	outliveInterval = time.Second
	// stoppedTimeout bounds one read of the node's label.
	stoppedTimeout = 3 * time.Second
)

// daemonRuns returns a function that reports whether an MPS daemon of the node runs.
func daemonRuns(dir string) func(context.Context) bool {
	return func(ctx context.Context) bool { return mps.Running(ctx, dir) }
}

// outlive returns when the plugin may end. If the driver of the node is about to be unloaded, the plugin must be
// the last part of gpumem to end. The kubelet removes a pod with a claim only after the plugin has unprepared the
// claim. If the MPS daemon does not run, nothing but the plugin prevents a container that restarts from running
// without a limit.
//
// On other nodes, outlive returns at once, and the next plugin takes over. The function stopped reads from the
// node's label whether the driver may be unloaded. If a read fails, the last answer stays valid; mayOutlive is
// the answer before the first read. If the plugin has no right to read the label any longer, gpumem is being
// uninstalled, and outlive returns at once. The function holders returns the number of pods or prepared claims
// that hold GPU memory. The context has a deadline.
func outlive(ctx context.Context, log *zap.Logger, mayOutlive bool, stopped func(context.Context) (bool, error), holders func() (int, <-chan struct{}), daemonRuns func(context.Context) bool) {
	ticker := time.NewTicker(outliveInterval)
	defer ticker.Stop()
	for first := true; ; first = false {
		reading, cancel := context.WithTimeout(ctx, stoppedTimeout)
		switch now, err := stopped(reading); {
		case err == nil:
			mayOutlive = now
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			mayOutlive = false
		}
		cancel()
		n, _ := holders()
		runs := daemonRuns(ctx)
		if !mayOutlive || n == 0 && !runs {
			return
		}
		if first {
			log.Info("the plugin stays: pods, claims or the MPS daemon need it, and the driver may be unloaded", zap.Int("pods or claims", n), zap.Bool("MPS daemon", runs))
		}
		select {
		case <-ctx.Done():
			log.Warn("the plugin ends although pods, claims or the MPS daemon need it", zap.Int("pods or claims", n), zap.Bool("MPS daemon", runs))
			return
		case <-ticker.C:
		}
	}
}
