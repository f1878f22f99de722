package plugin

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
)

// claimScores contains the scores of nodes for a pod with a claim, by node name.
type claimScores map[string]int64

// Clone returns s itself, because s does not change.
func (s claimScores) Clone() fwk.StateData { return s }

// rankClaims ranks nodes for the pod's first unallocated claim of gpumem's device class, as for a pod with the
// extended resource. It skips claims for whole GPUs, which request no amount. kube-scheduler's own plugin
// filters the nodes and allocates the GPUs. To choose GPUs, gpumem would have to replace that plugin, which
// makes its choice in Filter already.
func (p *Plugin) rankClaims(state fwk.CycleState, pod *v1.Pod, infos []fwk.NodeInfo) *fwk.Status {
	claim := p.claimOf(pod)
	if claim == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	allocated, err := p.handle.SharedDRAManager().ResourceClaims().GatherAllocatedState()
	if err != nil {
		return fwk.NewStatus(fwk.Skip) // allocations are changing, so only other scores decide
	}
	var nodes []*placement.Node
	var unitMiB int64
	for _, info := range infos {
		if n := p.decider.Cache.GetNode(info.Node().Name); n != nil {
			nodes, unitMiB = append(nodes, n), cmp.Or(unitMiB, n.UnitMiB)
		}
	}
	request := requestOf(claim, unitMiB)
	for i, n := range nodes {
		nodes[i] = p.nodeByClaims(n, request, allocated)
	}
	scores := make(claimScores, len(nodes))
	for _, one := range ranking.Rank(len(nodes), p.decider.Policies, request, nodes, nil).Best {
		scores[one.Node.Name] = one.Score
	}
	state.Write(Name, scores)
	return nil
}

// claimOf returns the request of the claim for which rankClaims ranks nodes; nil: there is no such claim.
func (p *Plugin) claimOf(pod *v1.Pod) *resourceapi.ExactDeviceRequest {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		claim, err := p.handle.SharedDRAManager().ResourceClaims().Get(pod.Namespace, *name)
		if err != nil || claim.Status.Allocation != nil || len(claim.Spec.Devices.Requests) != 1 {
			continue
		}
		asks := claim.Spec.Devices.Requests[0].Exactly
		if asks == nil || asks.DeviceClassName != p.decider.Names.Domain() || asks.Capacity == nil {
			continue
		}
		_, memory := asks.Capacity.Requests[resourceslices.CapacityMemory]
		_, shares := asks.Capacity.Requests[resourceslices.CapacityShares]
		if memory != shares {
			return asks
		}
	}
	return nil
}

// requestOf converts the request of a claim to units.
func requestOf(asks *resourceapi.ExactDeviceRequest, unitMiB int64) placement.Request {
	memory, cores := asks.Capacity.Requests[resourceslices.CapacityMemory], asks.Capacity.Requests[resourceslices.CapacityCores]
	gpus := max(1, asks.Count)
	units := unitsOf(memory.Value(), unitMiB)
	shares, inShares := asks.Capacity.Requests[resourceslices.CapacityShares]
	if inShares {
		units = gpu.Units(shares.Value())
	}
	return placement.Request{
		Count: int(gpus), InShares: inShares,
		Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: units * gpu.Units(gpus), Cores: int(cores.Value() * gpus)}),
	}
}

// unitsOf converts bytes to units, rounded up as kube-scheduler rounds up requests.
func unitsOf(bytes, unitMiB int64) gpu.Units {
	unit := max(1, unitMiB) << 20
	return gpu.Units(bytes/unit + min(1, bytes%unit))
}

// nodeByClaims returns a node with its GPUs for claims, and with the amounts that kube-scheduler has allocated
// there. The cache has only the amounts of prepared claims, which may be lower. In the result, only the GPUs that
// kube-scheduler's own plugin will allocate take pods: the first ones that fit, in the published order.
func (p *Plugin) nodeByClaims(known *placement.Node, request placement.Request, allocated *structured.AllocatedState) *placement.Node {
	n := *known
	n.Devices, n.Nominated = nil, nil
	units, cores := request.Share()
	left := request.GPUs()
	for _, i := range resourceslices.Order(known.Devices, func(d placement.Device) gpu.Device { return *d.Device }) {
		d := placement.Device{Device: known.Devices[i].Device}
		if !d.Status.ByClaims {
			continue
		}
		for name, amount := range allocated.AggregatedCapacity[structured.MakeDeviceID(p.decider.Names.Domain(), n.Name, resourceslices.DeviceName(d.UUID))] {
			switch name {
			case resourceslices.CapacityMemory:
				d.Requested = unitsOf(amount.Value(), n.UnitMiB)
			case resourceslices.CapacityShares:
				d.Requested = gpu.Units(amount.Value())
			case resourceslices.CapacityCores:
				d.RequestedCores = int(amount.Value())
			}
		}
		if left > 0 && d.Status.Open() && d.Free() >= units && d.FreeCores() >= cores {
			left--
			status := d.Status
			status.ByClaims = false
			d = d.With(status)
		}
		n.Devices = append(n.Devices, d)
	}
	return &n
}
