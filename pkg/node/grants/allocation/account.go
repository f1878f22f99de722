package allocation

import (
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Account is what the kubelet has given to a pod.
type Account struct {
	gpu.PodAllocation
	Less bool // by what is written of the pod it counts for less, on some GPU
}

// Accounts returns what the kubelet has given to the pods that it has admitted. Like Reconcile
// it wants State.Pods read before State.Allocated.
func Accounts(s State) (out []Account) {
	b := byPod(s)
	for _, t := range b.pods {
		if t.Admitted && t.begun() {
			given := b.account(t)
			out = append(out, Account{PodAllocation: given, Less: s.understates(t.pod, given)})
		}
	}
	return out
}

// account returns what a pod has of each GPU: its slots that the kubelet lists, or the most that the
// pod has had there where that is more, since the kubelet does not list those of init containers.
func (b *podStates) account(t *podState) gpu.PodAllocation {
	out := gpu.PodAllocation{UID: t.Pod.UID}
	given := b.shares(t.slots()) // of the same GPUs
	for i, s := range b.whereAllocated(t).Shares {
		s.Units, s.Cores = max(s.Units, given[i].Units), min(max(s.Cores, given[i].Cores), gpu.CoresPerDevice)
		out.Shares = append(out.Shares, s)
	}
	return out
}

// understates reports whether a pod counts for less than it was given, on some GPU, by what is
// written of it. One that is on no known GPU counts on each.
func (s State) understates(p Pod, given gpu.PodAllocation) bool {
	node := placement.NewNode("", s.Inventory, []placement.Holding{p.Holding})
	return len(node.Unattributed) == 0 && slices.ContainsFunc(given.Shares, func(share gpu.Share) bool {
		return slices.ContainsFunc(node.Devices, func(d placement.Device) bool {
			return d.UUID == share.Device && (d.Requested < share.Units || d.RequestedCores < share.Cores)
		})
	})
}
