// Package metrics defines the Prometheus metrics of gpumem's processes.
//
// Each process has a type, created with the registry of its metrics. The other packages of the process
// call the methods of this type through their own small interfaces, and do not import Prometheus.
//
// # Decisions
//
// Names follow prometheus.io/docs/practices/naming: gpumem, the process, the thing, its unit; counters
// end in "_total". The labels of a metric have a fixed set of values, and every series starts at zero.
// rate() would miss the first event of a series that appears only with this event.
//
// Metrics of nodes, GPUs and the fleet are computed at each scrape, so a GPU that is gone leaves no
// series behind. The text of a large fleet has megabytes, and anybody who reaches the port may scrape
// it. So the handler reuses the text for a second, and serves at most sixteen scrapes per second. All
// replicas of the extender report the same fleet: aggregate with max(), not with sum().
package metrics
