package grants

import (
	"cmp"
	"reflect"
	"slices"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// Allocations returns the grants of pods whose annotations have once shown less, whether they are known yet,
// and a channel that is closed when they change. Until Tally has the kubelet's answer, it returns the entries
// that the node published last.
func (n *State) Allocations() (given []gpu.PodAllocation, known bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.account, n.accountKnown, n.changed
}

// Tally updates the account from the kubelet's answer. A pod's entry remains as long as the pod, because its
// owner can understate the grant again at any moment.
func (n *State) Tally(s allocation.State) {
	accounts := allocation.Accounts(s)
	was, known, _ := n.Allocations()
	var given []gpu.PodAllocation
	for _, pod := range s.Pods {
		i := slices.IndexFunc(accounts, func(a allocation.Account) bool { return a.UID == pod.Pod.UID })
		before := slices.IndexFunc(was, func(g gpu.PodAllocation) bool { return g.UID == pod.Pod.UID })
		switch {
		case i >= 0 && (accounts[i].Less || before >= 0):
			given = append(given, accounts[i].PodAllocation)
		case i < 0 && before >= 0:
			given = append(given, was[before])
		}
		if i >= 0 && accounts[i].Less && before < 0 {
			n.log.Warn("less is written of the pod than the kubelet has given it", zap.String("node", n.cfg.Node),
				zap.Stringer("pod", pod.Pod), zap.String("uid", pod.Pod.UID), zap.Any("given", accounts[i].Shares))
		}
	}
	slices.SortFunc(given, func(a, b gpu.PodAllocation) int { return cmp.Compare(a.UID, b.UID) })
	if known && reflect.DeepEqual(given, was) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.account, n.accountKnown = given, true
	close(n.changed)
	n.changed = make(chan struct{})
}
