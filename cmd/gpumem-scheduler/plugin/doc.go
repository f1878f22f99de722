// Package plugin contains GPUMemory, a plugin of kube-scheduler's framework. It schedules pods that request
// GPU memory within kube-scheduler's own process. Package decider makes the decisions at each extension
// point, as it does for the extender.
//
// # Extension points
//
// In the order of a pod's path:
//
//   - PreEnqueue keeps the pod out of the queue while its victims are being evicted.
//   - PreFilter reads the pod's request.
//   - The node hint (hintingFramework) names the best node. If it passes, kube-scheduler filters no other node.
//   - Filter rejects a node that the pod does not fit.
//   - PostFilter records the reasons if the pod fits no node, and evicts other pods.
//   - PreScore ranks the nodes, and Score returns a node's score.
//   - Reserve picks the pod's GPUs and reserves them.
//   - Bind sends the binding with the assignment.
//   - Unreserve releases the GPUs after a failure, unless the binding may still succeed.
//
// EventsToRegister lists the events that requeue a refused pod. SignPod distinguishes pods with different
// requests for kube-scheduler's batching.
//
// # Invariants
//
//   - One State serves the plugins of all profiles.
//   - Check rejects a configuration in which another plugin could bind or evict pods before GPUMemory, or in
//     which GPUMemory lacks an extension point.
//   - The process binds nothing after Drain has returned, because package lease releases the Lease then.
//   - The process sends no binding that could land when another process leads: see package lease.
//
// # Decisions
//
// Victims of preemption: kube-scheduler's own preemption tries to spare each pod in turn, pods of higher
// priority first, and older pods first among equals. So it may evict four young pods instead of one old one.
// gpumem compares sets of victims by preemption.Cheaper, in the plugin and in the extender: the number of
// violated budgets, the highest priority, the sum of priorities, which mainly reflects the number of
// pods, and the memory of the pods. The plugin wraps DefaultPreemption. If gpumem's victims cost less, and
// all filters pass without them, they replace kube-scheduler's victims.
//
// Pods with resource claims: kube-scheduler's own plugin filters the nodes, and allocates the first devices
// of the chosen node that fit. GPUMemory only ranks the nodes (rankClaims). It computes the ranks from
// the devices that will be the first to fit, and subtracts all allocations, also those that are still being
// written. GPUMemory does not choose the devices. To do so, it would have to replace kube-scheduler's plugin,
// which makes its choice in Filter already.
//
// Settings are flags, not arguments of the plugin in the configuration. Arguments belong to one profile, and
// all profiles share one State.
package plugin
