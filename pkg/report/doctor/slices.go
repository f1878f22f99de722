package doctor

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/published"
)

// checkSlices tells of GPUs that are offered twice: those of a node by the extended resource and by
// claims, and those that another driver publishes.
func checkSlices(s *State, object string, node *v1.Node, inv gpu.Inventory) (found []Finding) {
	others := make(published.GPUs)
	byClaims := 0
	for i := range s.Slices {
		slice := &s.Slices[i]
		if slice.Spec.NodeName == nil || *slice.Spec.NodeName != node.Name {
			continue
		}
		if slice.Spec.Driver == s.Names.Domain() {
			byClaims += len(slice.Spec.Devices)
			continue
		}
		others.Add(slice)
	}
	if byClaims > 0 && api.Offers(node, s.Names.GPUMem()) {
		found = append(found, Finding{Warning, object, fmt.Sprintf("offers its GPUs by claims and as %s", s.Names.GPUMem()),
			"this passes within a minute of a change of its label " + s.Names.API() + "; where it does not, deleting the device plugin's pod on the node has the next one begin with one of them"})
	}
	for _, d := range inv.Devices {
		if by := others[d.UUID]; by != "" && d.Status.Open() {
			found = append(found, Finding{Warning, object, fmt.Sprintf("GPU %d (%s) is published by driver %s as well: both hand it out", d.Index, d.UUID, by),
				"split the GPUs between the two (devicePlugin.devices), or keep one of them from the node; with claims.enabled, gpumem leaves such GPUs alone"})
		}
	}
	return found
}
