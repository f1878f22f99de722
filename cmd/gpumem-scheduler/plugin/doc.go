// Package plugin is GPUMemory, a plugin of kube-scheduler's framework. It places pods that request
// GPU memory within kube-scheduler's own process: package decider decides at each point, as it does
// for the extender.
//
// # Invariants
//
//   - One State serves the plugins of all profiles.
//   - A configuration in which another plugin binds or evicts before this one, or in which a
//     point of it is missing, is refused (Check).
//   - Nothing is bound after Drain has returned: the Lease is given back then.
//   - Nothing is sent that could land when another leads: see package lease.
//
// # Decisions
//
// Whom to evict: kube-scheduler's own preemption lets pods stay one after the other, the more
// important first and of one priority the older, so four young pods go rather than one old one.
// The order of both modes is that of preemption.Cheaper: budgets violated, the highest priority,
// the sum of priorities, which is first of all the number of pods, and then the memory that they
// hold. So DefaultPreemption is wrapped: where the core's choice costs less, and all filters
// pass without those pods, they are the victims.
//
// Pods with claims: kube-scheduler's own plugin filters nodes, and allocates on its node the first
// devices that fit. This one ranks the nodes (rankClaims), by the core, by the devices that will be
// the first to fit, and with all that is allocated, also what is being written. To choose the devices as
// well, that plugin would have to be replaced: its choice is made in Filter, before a plugin could write
// another.
//
// The plugin reads its settings from flags, not from the configuration's arguments: these are
// given for each profile, and the State is one.
package plugin
