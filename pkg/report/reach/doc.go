// Package reach derives whether kube-scheduler may send pods to a node, however much GPU memory is free
// there: from the node's object, and from the pods' constraints on nodes.
//
// # Invariants
//
//   - kubectl inspect gpumem, the page and the metrics use the same functions, so that they agree about
//     each node and pod.
//   - The package reads only fields that the extender's watch stores (see package trim).
//
// # Decisions
//
// A node takes no new pods while it is cordoned, NotReady, or its kubelet does not offer the resource of
// its inventory. For NotReady, the condition Ready counts, and not the taints that follow it: even
// a pod that tolerates these taints cannot start if the kubelet does not answer.
//
// A taint does not close a node. It excludes pods that do not tolerate it, and the free memory is
// available to the others. Pods with GPU memory count as tolerating the taints that protect GPU nodes
// from pods without GPU memory: nvidia.com/gpu, which the chart's device plugin tolerates by default,
// and the names of gpumem's resources, which the admission plugin ExtendedResourceToleration adds as
// tolerations to each pod that requests them. Other taints reserve a part of the fleet for some pods.
//
// The extender's verb filter does not use this package, because kube-scheduler excludes such nodes before
// it calls the extender.
package reach
