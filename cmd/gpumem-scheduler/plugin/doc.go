// Package plugin contains GPUMemory, a plugin of kube-scheduler's framework. It schedules pods that request
// GPU memory within kube-scheduler's own process. Package decider makes the decisions at each extension
// point, as it does for the extender.
//
// kube-scheduler calls PreEnqueue, PreFilter, the node hint (hintingFramework), Filter, PreScore, Score,
// Reserve and Bind, in this order. It calls PostFilter if no node passes the filters, and Unreserve if a
// plugin fails after Reserve.
//
// # Invariants
//
//   - One State serves the plugins of all profiles. So settings are flags, and not arguments of the plugin
//     in the configuration, which belong to one profile.
//   - The process binds nothing after Drain has returned, because package lease releases the Lease then.
package plugin
