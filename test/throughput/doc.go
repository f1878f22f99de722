// Package throughput measures how many pods a real kube-scheduler binds in a
// second, and what that costs: alone, with gpumem's plugin in it, and with gpumem's extender
// beside it.
//
// # What happens
//
// etcd, an API server and kube-scheduler are real; nodes are objects with an
// inventory and no kubelet, so a pod is done when it is bound. On each side in turn some pods
// are made all at once, and then more in a steady stream. kube-scheduler has the
// configuration that the chart renders, but may talk to the API server as fast as
// it can: otherwise its client's own limit would be measured on all sides.
// The extender and gpumem-scheduler are the binaries, with the flags of the chart. The sides:
//
//	plain     kube-scheduler alone
//	off       gpumem-scheduler, whose plugin has nothing to do: the control, which says how far
//	          the figures can be believed
//	plugin    gpumem-scheduler as the chart has it: it looks at as many nodes as kube-scheduler
//	          does by default
//	all       the same, and it looks at all nodes (not measured by default)
//	extender  the extender as the chart has it: asked about all nodes, it names one
//	sampled   the same, asked about as many nodes as kube-scheduler looks at by default
//	scored    the extender names all nodes that fit, and scores them (not measured by default)
//	idle      an extender that decides nothing (package bench has it): what that costs,
//	          kube-scheduler's protocol costs with any extender (not measured by default)
//
// # What is compared
//
// Each round of a side is divided by the round of plain kube-scheduler that is of the same turn,
// so what else the machine does at the time weighs on both; of these
// ratios, the median counts. What depends more than processor time on what else runs may be
// as bad as with the control. The requests that the API server answered are told with each
// round: those of the harness itself are the same on all sides.
//
// Two figures are of the pods made at once, which all fit:
// how many Binds gpumem refused, by its own metrics, and how long the pod waited that
// waited longest. Who wants many bursts for these measures one side:
//
//	gpumem-throughput -nodes 500 -sides extender -rounds 10 -stream 1
//
// What 512 clients cost that scrape the extender without end, for a minute or more, is not
// measured unless it is asked for:
//
//	gpumem-throughput -nodes 1000 -sides extender,flooded -rounds 1 -stream 2400
package throughput
