// Package metrics defines the Prometheus metrics of gpumem's processes.
//
// Each process has one type, whose constructor registers the metrics. The other packages of the process
// call the type's methods through their own small interfaces, and do not import Prometheus.
//
// # Decisions
//
// Names follow prometheus.io/docs/practices/naming: gpumem, the process, the thing, its unit; counters
// end in "_total". The labels of a counter have a fixed set of values, and the constructor creates the
// usual series with the value 0: rate() would miss the first event of a series that appears with this event.
//
// The package computes metrics of nodes, GPUs and the fleet at each scrape, so a removed GPU leaves no
// series behind. The text of a large fleet has megabytes, and anybody who reaches the port may scrape
// it. So the handler reuses the text for a second, and serves at most sixteen scrapes per second. All
// replicas of the extender report the same fleet: aggregate with max(), not with sum().
package metrics
