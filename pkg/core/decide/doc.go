// Package decide answers whether one pod may go to one node, and to which of its
// GPUs: the one question that is asked in many places.
//
// The cache reserves what Decide chooses, the extender's Filter refuses what it
// refuses, and the command line and the page show its answer:
//
//	chosen, refusal := decide.Decide(node, pod, request, policy)
//	if refusal != nil {
//		return refusal // an error, with a reason in a word and a message for people
//	}
//
// # Where to find what
//
// decide.go puts the answer together. nominate.go counts the pods that are
// nominated to a node, for which others leave it.
//
// # Invariants
//
//   - Decide refuses a pod if and only if Bind would refuse it on a node in this
//     state, where the pod is on no node yet.
//   - There is one refusal for one pod and one node. Its reason and its message are
//     the same wherever it is shown.
//   - What is reserved for a nominated pod counts against pods of its priority or
//     a lower one, never against itself or one before it in line.
//   - All functions are total and without effect: the same question has the same
//     answer. The policy is an argument, never assumed: what a nominated pod leaves
//     to others depends on it.
//
// # Decisions
//
// The answer is made of three that each belong to another package: what nominated pods
// leave over (which takes package preemption), whether the pod fits there,
// and where (package placement), and whether the kubelet could take the pod for
// another (placement.Request.Confusable). Asking for one of them alone was how
// the command line came to say "fits" of a pod that the extender refused.
//
// Pods that the kubelet could take for one another and that are not
// interchangeable do not wait for the kubelet on one node at the same time,
// unless on the same GPUs: the second is refused until the first is admitted.
// Such a refusal is temporary, and so is one for pods that the node has yet to
// place: callers evict no pod for it, on any node. A pod that was refused so
// for a while is nominated to the node (placement.Holding.Waits), and then
// precedes all that could be taken for it.
//
// A nominated pod is one for which others were evicted. It is counted on the GPU
// where it would go by the same functions as any pod, so that no other takes the
// memory that was freed for it. This is worked out for each question: memory that
// becomes free elsewhere may change it. Where pods are evicted that may have the
// same priority (defrag), the nomination names the GPUs.
//
// What is asked of nodes as they would be, with pods gone or GPUs in use again
// (packages preemption and defrag, and what explain says of GPUs that are out of
// use), is asked of package placement: a pod that the kubelet has not admitted yet
// is in the way for a moment alone, and no reason for a plan.
package decide
