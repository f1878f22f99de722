package nodefilter

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/cordons"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// Reasons why nodes refuse pods, however much memory is free.
const (
	Cordoned    = "SchedulingDisabled"
	NotReady    = "NotReady"
	Withheld    = "Withheld"
	Coreless    = "Coreless"
	KeptAway    = "NodeAffinity"
	Untolerated = "UntoleratedTaint"
)

// Advertises returns the resource that the node's device plugin offers to the kubelet; empty if it
// offers none.
func Advertises(names api.Names, n placement.Node) v1.ResourceName {
	if !slices.ContainsFunc(n.Devices, func(d placement.Device) bool { return d.Advertised() && d.Allocatable > 0 }) {
		return ""
	}
	return names.Offered(n.InShares())
}

// NodeFacts returns the facts from the object of a node. Parameter advertises is the resource of the
// node's inventory; empty if the node has no inventory.
func NodeFacts(names api.Names, node *v1.Node, advertises v1.ResourceName) inspect.NodeFacts {
	notes := make(map[gpu.UUID]string)
	for id, note := range cordons.ParseNotes(names, node) {
		notes[id] = note.String()
	}
	f := inspect.NodeFacts{
		NotReady: api.NotReady(node) != nil,
		Withheld: advertises != "" && !api.Offers(node, advertises),
		Cordons:  notes,
	}
	switch {
	case node.Spec.Unschedulable:
		f.Refuses = &decide.Refusal{Reason: Cordoned, Message: inspect.NodeCordoned}
	case f.NotReady:
		f.Refuses = &decide.Refusal{Reason: NotReady, Message: inspect.NodeNotReady}
	case f.Withheld:
		f.Refuses = &decide.Refusal{Reason: Withheld, Message: fmt.Sprintf("its kubelet offers no %s: see kubectl inspect gpumem doctor", advertises)}
	}
	if !api.Offers(node, names.GPUCore()) {
		f.RefusesCores = &decide.Refusal{Reason: Coreless, Message: fmt.Sprintf("the node offers no %s", names.GPUCore())}
	}
	if len(node.Spec.Taints) > 0 {
		f.Taint, _ = untoleratedTaint(node, assumedTolerations(names))
	}
	return f
}

// assumedTolerations returns the tolerations that every pod with GPU memory is assumed to have: see the package comment.
func assumedTolerations(names api.Names) (out []v1.Toleration) {
	for _, key := range []string{"nvidia.com/gpu", string(names.GPUMem()), string(names.GPUShares()), string(names.GPUCore())} {
		out = append(out, v1.Toleration{Key: key, Operator: v1.TolerationOpExists})
	}
	return out
}

// untoleratedTaint returns the key of a node's taint that excludes pods with these tolerations, and whether
// there is such a taint. It ignores the effect PreferNoSchedule, and the taints that Kubernetes adds to
// a cordoned or NotReady node.
func untoleratedTaint(node *v1.Node, tolerations []v1.Toleration) (key string, barred bool) {
	taint, barred := corev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, tolerations, func(t *v1.Taint) bool {
		isCordon := node.Spec.Unschedulable && t.Key == v1.TaintNodeUnschedulable
		isDown := api.NotReady(node) != nil && (t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable)
		return t.Effect != v1.TaintEffectPreferNoSchedule && !isCordon && !isDown
	}, false)
	return taint.Key, barred
}
