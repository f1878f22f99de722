// Package decider decides within kube-scheduler's own process, at the points of its scheduling
// cycle: where a pod fits, which of these nodes is best, which GPUs it gets, and which waiting
// pods an event helps. The plugin of gpumem-scheduler translates between kube-scheduler's types
// and those of this package, and the simulation runs it against a model of kube-scheduler.
//
// # Invariants
//
//   - One Decider serves all profiles of a process. A second cache would give a GPU away twice.
//   - Choice and reservation are one critical section (Reserve). A reservation that is taken
//     back (Unreserve) is kept while a binding may still land.
//   - Refuses answers for the pods that kube-scheduler has on the node, which preemption takes
//     away and puts back, and for those whose bindings no watch has shown. What kube-scheduler
//     lacks is taken out of the cache only where the watch has stored that it is gone.
//   - A pod that has begun to fit is tried again, by a hint (GoneHelps, ChangeHelps, NodeHelps)
//     or, where the cache hears later than kube-scheduler, by Wake within about two seconds.
//
// # Decisions
//
// The cache is that of the extender, fed by kube-scheduler's own informers: one watch, and the
// page, the metrics, the self-check and the command line see what Refuses sees. The other way is
// to make a node's view from kube-scheduler's own by its generation. But that has no GPUs of a
// pod between Reserve and the watch, and nothing of a binding whose outcome is not known, and the
// page and the metrics may not read it, so there would be two sources of one truth. Instead
// both are compared when one of them has changed, which is the price: two look-ups for each
// node.
//
// kube-scheduler and the cache hear of the same events by two handlers of one informer, in any
// order. Without the comparison a pod that waits for another to leave is refused by what the
// cache had not heard, and preemption clears a second GPU, because it counts the pods that have
// left the first as still there.
package decider
