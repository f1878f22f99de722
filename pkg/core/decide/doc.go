// Package decide decides whether one pod can go to one node, and to which GPUs. Every part of gpumem
// uses this decision: the cache reserves the GPUs, the extender's Filter rejects the node, and the
// command line and the web page show the result.
//
//	chosen, refusal := decide.Decide(node, pod, request, policy)
//	if refusal != nil {
//		return refusal // an error with a one-word reason; package reasons renders the message
//	}
//
// decide.go combines the checks. nominate.go reserves memory for nominated pods, which wait until other
// pods leave the node.
//
// # Invariants
//
//   - Decide refuses a pod if and only if Bind would refuse it on a node in this state, provided that
//     the pod is on no node yet.
//   - For one pod and one node there is one refusal, with the same reason and message everywhere.
//   - Memory reserved for a nominated pod is withheld only from pods of equal or lower priority, and neither
//     from the pod itself nor from pods before it in the queue.
//   - All functions are total and have no side effects. The policy is an argument, because the
//     reservations of nominated pods depend on it.
//
// # Decisions
//
// The decision has three parts: the memory that nominated pods leave over (computed with package
// preemption), the fit and the GPUs (package placement), and pods that the kubelet could confuse
// (placement.Request.Confusable). Callers must not use one part alone: the command line once did, and
// reported a fit where the scheduler refused the pod.
//
// Two confusable pods that are not interchangeable must not wait for the kubelet on one node at the
// same time, unless they have the same GPUs. Decide refuses the second until the kubelet has admitted
// the first. Such a refusal is temporary, like a refusal because of pods whose GPUs are still unknown:
// callers evict no pods for it, on any node. If such refusals of a pod continue for a while, the pod is
// nominated to the node (placement.Holding.Waits), and then precedes all pods that could be confused
// with it.
//
// A nominated pod has a node, but no memory yet: it waits for evictions there, or for the kubelet
// (Holding.Waits). Reserved charges it to the GPU that it would get, so that no other pod takes that
// memory. Reserved picks this GPU anew for each call, because memory that becomes free elsewhere can
// change the choice. Only a nomination by defrag names the GPUs: defrag also evicts pods of equal
// priority, so Reserved could not determine the GPUs that become free.
//
// Questions about hypothetical nodes, without some pods or with failed GPUs back in use (packages
// preemption and defrag, and explain), use package placement instead. For such questions, confusable
// pods do not matter: the kubelet will have admitted them before a plan is carried out.
package decide
