// Package reach says to which nodes kube-scheduler sends pods, whatever is free there: what it
// knows of nodes apart from GPU memory, and what the pods say of nodes.
//
// # Invariants
//
//   - kubectl inspect gpumem, the page and the metrics ask the same functions, so that they say the
//     same of a node and of a pod.
//   - It reads no more of a node and of a pod than the extender's watch keeps: see package trim.
//
// # Decisions
//
// A node takes no new pods while it is cordoned, NotReady, or its kubelet offers none of what its
// inventory has. What counts is the condition Ready, not the taints that follow it: a pod that
// tolerates those is not helped where the kubelet does not answer.
//
// A taint is no refusal of the node, but of the pod that does not tolerate it: what is free there
// is for those that do. Pods with GPU memory are taken to tolerate the taints that keep pods
// without it off nodes with GPUs: nvidia.com/gpu, which the chart's device plugin tolerates as it
// comes, and the names of gpumem's resources, which the admission plugin ExtendedResourceToleration
// tolerates for each pod that asks for them. Other taints keep a part of the fleet for some pods.
//
// Filter does not ask this package: kube-scheduler leaves such nodes out before it asks.
package reach
