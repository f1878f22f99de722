package claims

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Allocations returns the amounts of prepared claims by pod, and a channel that is closed when they change. The
// result known is always true. Allocations attributes a claim to the first pod that the claim was reserved for. A
// claim without such a pod appears as a pod with the claim's name and UID. Amounts are in the node's units,
// rounded up, because the unit may have been different when the claim was prepared.
func (d *Driver) Allocations() (given []gpu.PodAllocation, known bool, changed <-chan struct{}) {
	offer, _ := d.offers.Current()
	d.mu.Lock()
	defer d.mu.Unlock()
	byPod := make(map[placement.PodRef]map[gpu.UUID]gpu.Share)
	for _, c := range d.claims {
		unit := int64(1)
		if !c.InShares() {
			unit = max(1, offer.Inventory.UnitMiB)
		}
		pod := placement.PodRef{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name}
		if c.Pod != nil {
			pod.UID, pod.Name = string(c.Pod.UID), c.Pod.Name
		}
		if byPod[pod] == nil {
			byPod[pod] = make(map[gpu.UUID]gpu.Share)
		}
		for _, s := range c.Shares {
			sum := byPod[pod][s.UUID]
			units := gpu.Units((s.amount() + unit - 1) / unit)
			byPod[pod][s.UUID] = gpu.Share{Device: s.UUID, Units: sum.Units + units, Cores: min(sum.Cores+int(s.Cores), gpu.CoresPerDevice)}
		}
	}
	for pod, shares := range byPod {
		sorted := slices.SortedFunc(maps.Values(shares), func(a, b gpu.Share) int { return cmp.Compare(a.Device, b.Device) })
		given = append(given, gpu.PodAllocation{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Shares: sorted})
	}
	slices.SortFunc(given, func(a, b gpu.PodAllocation) int { return cmp.Compare(a.UID, b.UID) })
	return given, true, d.changed
}
