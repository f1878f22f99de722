package api

import (
	"encoding/json"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// RetiredMPSClient reports whether version 0.2 of the device plugin made the pod a client of MPS protocol 3,
// which gpumem no longer runs. In this case the inventory of the pod's node has that protocol, and the pod's
// level is mps or kernel. A pod with a claim has no assignment, but an entry in the inventory. The chart
// implements the same rule (templates/validation/values.yaml).
func (n Names) RetiredMPSClient(node *v1.Node, pod *v1.Pod) bool {
	var inv struct {
		MPS       int         `json:"mps"`
		Allocated []givenJSON `json:"given"`
	}
	if json.Unmarshal([]byte(node.Annotations[n.Inventory()]), &inv) != nil || inv.MPS <= mpsProtocol || pod.Spec.NodeName != node.Name {
		return false
	}
	if slices.ContainsFunc(inv.Allocated, func(g givenJSON) bool { return g.Pod == pod.Namespace+"/"+pod.Name }) {
		return true
	}
	a, err := n.AssignmentOf(pod)
	return err == nil && !a.None() && a.Enforcement.AtLeast(gpu.EnforcementMPS)
}
