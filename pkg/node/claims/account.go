package claims

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Allocations returns what pods have by the claims that are prepared, by their UIDs, that this is
// known, and a channel that is closed when it is something else. A claim counts for the first pod that
// it was reserved for, and by its own name for none. Units are those of the node, rounded up: a claim
// may have been prepared when they were others.
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

// with returns the shares with one more, which is added to that of the same device.
func with(shares []gpu.Share, s gpu.Share) []gpu.Share {
	for i := range shares {
		if shares[i].Device == s.Device {
			shares[i].Units, shares[i].Cores = shares[i].Units+s.Units, min(shares[i].Cores+s.Cores, gpu.CoresPerDevice)
			return shares
		}
	}
	return append(shares, s)
}
