// Package nodefilter derives whether kube-scheduler may send pods to a node, however much GPU memory is free
// there: from the node's object, and from the pods' constraints on nodes.
//
// # Invariants
//
//   - kubectl inspect gpumem, the page and the metrics use the same functions, so that they agree about
//     each node and pod.
//   - The package reads only fields that the watch of gpumem's scheduler stores (see package trim).
//
// # Decisions
//
// A node takes no new pods while it is cordoned, NotReady, or its kubelet does not offer the resource of
// its inventory. For NotReady, the package reads the condition Ready and ignores the taints that
// Kubernetes derives from it: even a pod that tolerates them cannot start if the kubelet does not answer.
//
// A taint alone does not make a node refuse all pods: pods that tolerate the taint can use the free
// memory. The package assumes that pods with GPU memory tolerate the taints that keep other pods off GPU
// nodes: nvidia.com/gpu, which the chart's device plugin tolerates by default, and the names of gpumem's
// resources. The admission plugin ExtendedResourceToleration adds tolerations of these names to pods that
// request the resources. Other taints reserve a part of the fleet for some pods.
//
// gpumem's scheduling decisions do not use this package, because kube-scheduler itself excludes such nodes.
// The exception is the choice of a node outside kube-scheduler's sample (package decider).
package nodefilter
