package deviceplugin

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// Timeouts of the steps of Shutdown. Their sum is below the 30 s after which the kubelet kills the plugin.
const (
	withdrawWait = 3 * time.Second  // for the API server to accept the withdrawn inventory
	bindingWait  = 2 * time.Second  // for bindings in progress
	admitWait    = 8 * time.Second  // for the kubelet to admit the pods bound to the node
	startWait    = 12 * time.Second // for the kubelet to create their containers
)

// Shutdown returns when the kubelet no longer needs the plugin for any pod, or after the timeouts. First it
// withdraws the inventory, so that no more pods are bound to the node. The caller must serve the kubelet until
// Shutdown returns.
//
// If the inventory cannot be withdrawn, Shutdown returns at once: schedulers still bind pods to the node, and while
// the API server does not answer, the watch does not deliver them.
func (a *Announcer) Shutdown(ctx context.Context, withdraw func(context.Context) error) {
	if o, _ := a.offers.Current(); len(o.Inventory.Devices) == 0 {
		return
	}
	writing, cancel := context.WithTimeout(ctx, withdrawWait)
	defer cancel()
	if err := withdraw(writing); err != nil {
		a.log.Warn("ends without a word to schedulers", zap.String("node", a.node), zap.Error(err))
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(bindingWait):
	}
	admitting, cancel := context.WithTimeout(ctx, admitWait)
	defer cancel()
	if err := a.pods.Refresh(admitting); err != nil {
		a.log.Warn("the API server does not tell which pods the kubelet is to admit yet", zap.String("node", a.node), zap.Error(err))
	}
	admit := a.waitForPods(admitting, func(pod allocation.Pod) bool { return !pod.Admitted })
	starting, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	start := a.waitForPods(starting, func(pod allocation.Pod) bool { return pod.Starting })
	a.log.Info("left", zap.String("node", a.node), zap.Int("pods not admitted", admit), zap.Int("pods not started", start))
}

// waitForPods waits until isPending is false for every pod of the node, or the context is done. It returns
// the number of pods for which isPending is still true.
func (a *Announcer) waitForPods(ctx context.Context, isPending func(allocation.Pod) bool) int {
	for {
		pods, _, changed := a.pods.Pods()
		waiting := slices.DeleteFunc(pods, func(pod allocation.Pod) bool { return !isPending(pod) })
		if len(waiting) == 0 {
			return 0
		}
		select {
		case <-ctx.Done():
			return len(waiting)
		case <-changed:
		}
	}
}
