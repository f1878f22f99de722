// Package throughput measures how many pods a real kube-scheduler binds in a
// second, with gpumem's extender beside it and without any.
//
// # What happens
//
// etcd, an API server and kube-scheduler are real; nodes are objects with an
// inventory and no kubelet, so a pod is done when it is bound. In turn, with the
// extender and without, some pods are made all at once, and then more in a
// steady stream. kube-scheduler has the configuration that the chart renders,
// with the extender cut out or not, but may talk to the API server as fast as
// it can: otherwise its client's own limit would be measured on both sides.
// The extender is the binary, with its defaults. In its turn comes an extender
// that decides nothing (package bench has it): what that costs, kube-scheduler's protocol
// costs with any extender.
//
// # What is compared
//
// Each round with the extender is divided by the round without it that came
// next, so what else the machine does at the time weighs on both; of these
// ratios, the median counts. The time that all processes were on a processor, per
// pod, comes first: it depends the least on what else runs.
//
// Two figures are of the extender alone, of the pods made at once, which all fit:
// how many Binds it refused, by its own metrics, and how long the pod waited that
// waited longest. Who wants many bursts for these measures one side:
//
//	gpumem-throughput -nodes 500 -sides with -rounds 10 -stream 1
//
// What 512 clients cost that scrape the extender without end, for a minute or more, is not
// measured unless it is asked for:
//
//	gpumem-throughput -nodes 1000 -sides with,flooded -rounds 1 -stream 2400
package throughput
