package deviceplugin

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// How long a plugin takes to leave, at most: well below the 30 s after which the
// kubelet kills it.
const (
	withdrawWait = 3 * time.Second  // for the API server to take the inventory back
	bindingWait  = 2 * time.Second  // for the bindings that were under way
	admitWait    = 8 * time.Second  // for the kubelet to admit what is bound to the node
	startWait    = 12 * time.Second // for it to make the containers of that
)

// Leave returns when the kubelet needs the plugin for no pod any more, or has had
// its time. First it withdraws the inventory, so that no pod is bound to the node from
// then on; the kubelet is to be served as ever until Leave returns.
//
// Where the inventory cannot be withdrawn it returns at once: pods come all the
// same, and there is no news of them.
func (a *Announcer) Leave(ctx context.Context, withdraw func(context.Context) error) {
	if o, _ := a.offers.Now(); len(o.Inventory.Devices) == 0 {
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
	admit := a.wait(admitting, func(pod allocation.Pod) bool { return !pod.Admitted })
	starting, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	start := a.wait(starting, func(pod allocation.Pod) bool { return pod.Starting })
	a.log.Info("left", zap.String("node", a.node), zap.Int("pods not admitted", admit), zap.Int("pods not started", start))
}

// wait waits until no pod of the node is to be waited for, or the context is done. It
// returns how many still are.
func (a *Announcer) wait(ctx context.Context, is func(allocation.Pod) bool) int {
	for {
		pods, _, changed := a.pods.Pods()
		waiting := slices.DeleteFunc(pods, func(pod allocation.Pod) bool { return !is(pod) })
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
