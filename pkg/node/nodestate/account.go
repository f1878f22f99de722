package nodestate

import (
	"cmp"
	"reflect"
	"slices"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// account is what the kubelet has given to pods that counted for less once.
type account struct {
	given   []gpu.PodAllocation // by UID
	known   bool                // all pods have been looked at
	changed chan struct{}
}

// Allocations returns what the kubelet has given to pods that counted for less once, whether that is
// known, and a channel that is closed when it is something else.
func (n *State) Allocations() (given []gpu.PodAllocation, known bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.account.given, n.account.known, n.account.changed
}

// Tally brings the account up to what the kubelet tells. What a pod was given is not forgotten
// while the pod is there: its owner can write less again at any moment.
func (n *State) Tally(s allocation.State) {
	accounts := allocation.Accounts(s)
	n.mu.Lock()
	defer n.mu.Unlock()
	a := &n.account
	at := func(uid string) int {
		return slices.IndexFunc(a.given, func(g gpu.PodAllocation) bool { return g.UID == uid })
	}
	var given []gpu.PodAllocation
	for _, pod := range s.Pods {
		i := slices.IndexFunc(accounts, func(a allocation.Account) bool { return a.UID == pod.Pod.UID })
		before := at(pod.Pod.UID)
		switch {
		case i >= 0 && (accounts[i].Less || before >= 0):
			given = append(given, accounts[i].PodAllocation)
		case i < 0 && before >= 0:
			given = append(given, a.given[before])
		}
		if i >= 0 && accounts[i].Less && before < 0 {
			n.log.Warn("less is written of the pod than the kubelet has given it", zap.String("node", n.cfg.Node),
				zap.Stringer("pod", pod.Pod), zap.String("uid", pod.Pod.UID), zap.Any("given", accounts[i].Shares))
		}
	}
	slices.SortFunc(given, func(a, b gpu.PodAllocation) int { return cmp.Compare(a.UID, b.UID) })
	if a.known && reflect.DeepEqual(given, a.given) {
		return
	}
	a.given, a.known = given, true
	close(a.changed)
	a.changed = make(chan struct{})
}
