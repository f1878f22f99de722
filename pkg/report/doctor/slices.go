package doctor

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/published"
)

// checkSlices tells of GPUs that are offered twice: those of a node by the extended resource and by
// claims, and those that another driver publishes. And it tells of those that claims cannot get.
func checkSlices(s *State, object string, node *v1.Node, inv gpu.Inventory) (found []Finding) {
	others := make(published.GPUs)
	var ours []resourceapi.Device
	for i := range s.Slices {
		slice := &s.Slices[i]
		if slice.Spec.NodeName == nil || *slice.Spec.NodeName != node.Name {
			continue
		}
		if slice.Spec.Driver == s.Names.Domain() {
			ours = append(ours, slice.Spec.Devices...)
			continue
		}
		others.Add(slice)
	}
	byClaims := func(d gpu.Device) bool { return d.Status.ByClaims && d.Allocatable > 0 }
	switch {
	case len(ours) == 0 && s.read("resourceslices") && slices.ContainsFunc(inv.Devices, byClaims):
		found = append(found, Finding{Error, object, "hands out its GPUs by claims, and publishes none of them: no claim gets any",
			"its device plugin's log says why; kubectl api-resources --api-group=resource.k8s.io shows whether the cluster has dynamic resource allocation"})
	case len(ours) > 0 && api.Offers(node, s.Names.GPUMem()):
		found = append(found, Finding{Warning, object, fmt.Sprintf("offers its GPUs by claims and as %s", s.Names.GPUMem()),
			"this passes within a minute of a change of its label " + s.Names.API() + "; where it does not, deleting the device plugin's pod on the node has the next one begin with one of them"})
	}
	if slices.ContainsFunc(ours, func(d resourceapi.Device) bool { return d.AllowMultipleAllocations == nil }) {
		found = append(found, Finding{Error, object, "its GPUs are for several claims each, and the API server keeps that they are for one: the feature gate DRAConsumableCapacity is off there",
			"turn it on at kube-apiserver and kube-scheduler (--feature-gates=DRAConsumableCapacity=true), and delete the device plugin's pod on the node: the next one writes them again"})
	}
	for _, d := range inv.Devices {
		if by := others[d.UUID]; by != "" && d.Status.Open() {
			found = append(found, Finding{Warning, object, fmt.Sprintf("GPU %d (%s) is published by driver %s as well: both hand it out", d.Index, d.UUID, by),
				"split the GPUs between the two (devicePlugin.devices), or keep one of them from the node; with claims.enabled, gpumem leaves such GPUs alone"})
		}
	}
	return found
}
