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

// claimsKey is the key of claimScores in the state of a cycle.
const claimsKey = Name + "/claims"

// claimScores contains the scores of nodes for a pod with a claim, by node name.
type claimScores map[string]int64

// Clone returns s itself, because s does not change.
func (s claimScores) Clone() fwk.StateData { return s }

// rankClaims ranks nodes for the pod's first unallocated claim of gpumem's device class. The ranking is the
// same as for a pod with the extended resource. kube-scheduler's own plugin chooses the GPUs on the node.
// rankClaims skips claims for whole GPUs, which request no amount.
func (p *Plugin) rankClaims(state fwk.CycleState, pod *v1.Pod, infos []fwk.NodeInfo) *fwk.Status {
	claim := p.claimOf(pod)
	if claim == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	allocated, err := p.handle.SharedDRAManager().ResourceClaims().GatherAllocatedState()
	if err != nil {
		return fwk.NewStatus(fwk.Skip) // allocations are changing, so only other scores decide
	}
	nodes := make([]*placement.Node, len(infos))
	var unitMiB int64
	for i, info := range infos {
		nodes[i] = p.nodeByClaims(info.Node().Name, allocated)
		unitMiB = cmp.Or(unitMiB, nodes[i].UnitMiB)
	}
	request := requestOf(claim, unitMiB)
	for _, n := range nodes {
		firstFit(n, request)
	}
	order := ranking.Rank(len(nodes), p.decider.Policies, request, nodes, nil)
	scores := make(claimScores, len(nodes))
	for _, one := range order.Best {
		scores[one.Node.Name] = one.Score
	}
	state.Write(claimsKey, scores)
	return nil
}

// firstFit marks all GPUs of a node as cordoned, except those that kube-scheduler's own plugin will choose
// for the request: the first GPUs that fit, in the published order. So the rank of a node reflects the actual
// allocation.
func firstFit(n *placement.Node, request placement.Request) {
	units, cores := request.Share()
	left := request.GPUs()
	for _, i := range resourceslices.Order(n.Devices, func(d placement.Device) gpu.Device { return *d.Device }) {
		d := n.Devices[i]
		if left > 0 && d.Status.Open() && d.Free() >= units && d.FreeCores() >= cores {
			left--
			continue
		}
		status := d.Status
		status.Cordoned = true
		n.Devices[i] = d.With(status)
	}
}

// claimScore returns the score of a node for a pod with a claim.
func claimScore(state fwk.CycleState, node string) int64 {
	kept, err := state.Read(claimsKey)
	if err != nil {
		return 0
	}
	scores, _ := kept.(claimScores)
	return scores[node] * (maxScore / ranking.MaxScore)
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
		if asks == nil || asks.DeviceClassName != p.names.Domain() || asks.Capacity == nil {
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
	units := gpu.Units(bytes / unit)
	if bytes%unit > 0 {
		units++
	}
	return units
}

// nodeByClaims returns a node with only those GPUs that pods get by claims, and with the amounts that
// kube-scheduler has allocated there. The cache has only the amounts of prepared claims, which may be lower.
func (p *Plugin) nodeByClaims(name string, allocated *structured.AllocatedState) *placement.Node {
	known := p.decider.Binder.Cache.GetNode(name)
	if known == nil {
		return &placement.Node{Name: name}
	}
	n := *known
	n.Devices, n.Nominated = nil, nil
	for _, d := range known.Devices {
		if !d.Status.ByClaims {
			continue
		}
		taken := allocated.AggregatedCapacity[structured.MakeDeviceID(p.names.Domain(), name, resourceslices.DeviceName(d.UUID))]
		status := d.Status
		status.ByClaims = false
		d = placement.Device{Device: d.With(status).Device}
		if memory := taken[resourceslices.CapacityMemory]; memory != nil {
			d.Requested = unitsOf(memory.Value(), n.UnitMiB)
		}
		if shares := taken[resourceslices.CapacityShares]; shares != nil {
			d.Requested = gpu.Units(shares.Value())
		}
		if cores := taken[resourceslices.CapacityCores]; cores != nil {
			d.RequestedCores = int(cores.Value())
		}
		n.Devices = append(n.Devices, d)
	}
	return &n
}
