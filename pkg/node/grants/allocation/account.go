package allocation

import (
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Account is the memory and the cores that the kubelet has allocated to a pod.
type Account struct {
	gpu.PodAllocation
	Understated bool // the pod's annotations show less on some GPU
}

// Accounts returns the accounts of the pods that the kubelet has admitted. As for Reconcile, State.Pods must
// have been read before State.Allocated.
func Accounts(s State) (out []Account) {
	b := byPod(s)
	for _, t := range b.pods {
		if t.Admitted && t.isServed() {
			allocated := b.account(t)
			out = append(out, Account{PodAllocation: allocated, Understated: s.understates(t.pod, allocated)})
		}
	}
	return out
}

// account returns a pod's allocation on each GPU: its listed slots or, if larger, its request. The kubelet does
// not list the slots of init containers, which can be more than the listed ones.
func (b *podStates) account(t *podState) gpu.PodAllocation {
	out := gpu.PodAllocation{UID: t.Pod.UID}
	allocated := b.shares(t.slots()) // in the same order of GPUs
	for i, s := range b.allocatedAssignment(t).Shares {
		s.Units, s.Cores = max(s.Units, allocated[i].Units), min(max(s.Cores, allocated[i].Cores), gpu.CoresPerDevice)
		out.Shares = append(out.Shares, s)
	}
	return out
}

// understates reports whether a pod's annotations show less than its allocation on some GPU. A pod without a
// known GPU counts on every GPU, so its annotations cannot show less.
func (s State) understates(p Pod, allocated gpu.PodAllocation) bool {
	node := placement.NewNode("", s.Inventory, []placement.Holding{p.Holding})
	return len(node.Unattributed) == 0 && slices.ContainsFunc(allocated.Shares, func(share gpu.Share) bool {
		return slices.ContainsFunc(node.Devices, func(d placement.Device) bool {
			return d.UUID == share.Device && (d.Requested < share.Units || d.RequestedCores < share.Cores)
		})
	})
}
