package grants

import (
	"cmp"
	"slices"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// Allocations returns the accounts of pods whose annotations have ever shown less than the account, whether the
// accounts are known yet, and a channel that is closed when they change. Until the first call of tally, it returns the
// accounts that the node published last.
func (n *State) Allocations() (pods []gpu.PodAllocation, known bool, changed <-chan struct{}) {
	a, changed := n.account.Get()
	return a.pods, a.known, changed
}

// accounts are the results of State.Allocations.
type accounts struct {
	pods  []gpu.PodAllocation
	known bool
}

// tally updates the accounts from the kubelet's answer. The account of a pod remains as long as the pod, because the
// owner can write a smaller amount to the pod's annotation again at any moment.
func (n *State) tally(s allocation.State) {
	all := allocation.Accounts(s)
	previous, _, _ := n.Allocations()
	var pods []gpu.PodAllocation
	for _, pod := range s.Pods {
		i := slices.IndexFunc(all, func(a allocation.Account) bool { return a.UID == pod.Pod.UID })
		before := slices.IndexFunc(previous, func(g gpu.PodAllocation) bool { return g.UID == pod.Pod.UID })
		switch {
		case i >= 0 && (all[i].Understated || before >= 0):
			pods = append(pods, all[i].PodAllocation)
		case i < 0 && before >= 0:
			pods = append(pods, previous[before])
		}
		if i >= 0 && all[i].Understated && before < 0 {
			n.log.Warn("less is written of the pod than the kubelet has given it", zap.String("node", n.cfg.Node),
				zap.Stringer("pod", pod.Pod), zap.String("uid", pod.Pod.UID), zap.Any("given", all[i].Shares))
		}
	}
	slices.SortFunc(pods, func(a, b gpu.PodAllocation) int { return cmp.Compare(a.UID, b.UID) })
	n.account.Set(accounts{pods, true})
}
