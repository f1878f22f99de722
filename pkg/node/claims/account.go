package claims

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Allocations returns the allocations of pods by prepared claims, and a channel that is closed when they change.
// They are always known. A claim counts for the first pod that it was reserved for. If there is none, it counts
// like a pod with the claim's name and UID. Amounts are in the node's units, rounded up, because the unit may
// have been different when the claim was prepared.
func (d *Driver) Allocations() (given []gpu.PodAllocation, known bool, changed <-chan struct{}) {
	offer, _ := d.offers.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	of := make(map[types.UID]*gpu.PodAllocation)
	for _, c := range d.claims {
		unit := int64(1)
		if !c.InShares() {
			unit = max(1, offer.Inventory.UnitMiB)
		}
		pod := Pod{UID: c.UID, Name: c.Name}
		if c.Pod != nil {
			pod = *c.Pod
		}
		if of[pod.UID] == nil {
			of[pod.UID] = &gpu.PodAllocation{UID: string(pod.UID), Namespace: c.Namespace, Name: pod.Name}
		}
		for _, s := range c.Shares {
			of[pod.UID].Shares = with(of[pod.UID].Shares, gpu.Share{Device: s.UUID, Units: gpu.Units((s.amount() + unit - 1) / unit), Cores: int(s.Cores)})
		}
	}
	for _, g := range of {
		slices.SortFunc(g.Shares, func(a, b gpu.Share) int { return cmp.Compare(a.Device, b.Device) })
		given = append(given, *g)
	}
	slices.SortFunc(given, func(a, b gpu.PodAllocation) int { return cmp.Compare(a.UID, b.UID) })
	return given, true, d.changed
}

// with returns the shares with s added: to the share of the same device, or as a new one.
func with(shares []gpu.Share, s gpu.Share) []gpu.Share {
	for i := range shares {
		if shares[i].Device == s.Device {
			shares[i].Units, shares[i].Cores = shares[i].Units+s.Units, min(shares[i].Cores+s.Cores, gpu.CoresPerDevice)
			return shares
		}
	}
	return append(shares, s)
}
