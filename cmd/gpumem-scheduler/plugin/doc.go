// Package plugin is GPUMemory, a plugin of kube-scheduler's framework: it places pods that ask
// for GPU memory, within kube-scheduler's own process. What is decided is decided by the same
// core as in the extender; package binder binds, and package waker wakes.
//
// # Invariants
//
//   - One State serves the plugins of all profiles. A second cache would give a GPU away twice.
//   - Choice and reservation are one critical section (Reserve). A reservation that is taken
//     back (Unreserve) stays while a binding may still land.
//   - Filter answers for the pods that NodeInfo has, which preemption takes away and puts back,
//     and for those of whose bindings no watch has told. What NodeInfo lacks is taken out of the
//     cache only where the watch has stored that it is gone.
//   - A pod that has begun to fit is tried again, by a QueueingHint or, where the cache hears
//     later than kube-scheduler, by the waker within about two seconds.
//   - A configuration in which another plugin binds or evicts before this one, or in which a
//     point of it is missing, is refused (Check).
//   - Nothing is bound after Drain has returned, so that the Lease is given back when all
//     bindings are answered. A process that finds another's name in the Lease binds nothing.
//
// # Decisions
//
// The cache is that of the extender, fed by kube-scheduler's own informers: one watch, and the
// page, the metrics, the self-check and the command line see what Filter sees. The other way is
// to make a node's view from NodeInfo by its generation. But NodeInfo has no GPUs of a pod
// between Reserve and the watch, and nothing of a binding whose outcome is not known, and the
// page and the metrics may not read it, so there would be two sources of one truth. Instead
// NodeInfo and the cache are compared when one of them has changed, which is the price: two
// look-ups for each node in Filter.
//
// NodeInfo and the cache hear of the same events by two handlers of one informer, in any order.
// Without the comparison a pod that waits for another to leave is refused by what the cache had
// not heard, and preemption clears a second GPU, because it counts the pods that have left the
// first as still there.
//
// Whom to evict: kube-scheduler's own preemption lets pods stay one after the other, the more
// important first and of one priority the older, so four young pods go rather than one old one.
// The order of both modes is that of preemption.Cheaper: budgets violated, the highest priority,
// the sum of priorities, which is first of all the number of pods, and then the memory that they
// hold. So DefaultPreemption is wrapped: where the core's choice costs less, and all filters
// pass without those pods, they are the victims.
//
// The plugin reads its settings from flags, not from the configuration's arguments: these are
// given for each profile, and the State is one.
package plugin
