// Package metrics defines the Prometheus metrics of gpumem's processes.
//
// Type DevicePlugin has the metrics of gpumem-device-plugin, and type Extender has the metrics of gpumem-extender
// and gpumem-scheduler. Their constructors register the metrics. Other packages call the methods of these types
// through their own small interfaces, and do not import Prometheus.
//
// # Decisions
//
// Names follow prometheus.io/docs/practices/naming: gpumem, the process ("extender" for gpumem-scheduler too), the
// thing, its unit; counters end in "_total". The labels of a counter have a fixed set of values, and the constructor
// creates the usual series with the value 0: rate() would miss the first event of a series that begins with this
// event.
//
// The package computes metrics of nodes, GPUs and the fleet at each scrape, so a removed GPU leaves no series
// behind. The text of a large fleet has megabytes, and anybody who reaches the port may scrape it. So the handler
// reuses the text for a second, and serves at most sixteen scrapes per second. All replicas of gpumem-scheduler or
// gpumem-extender report the same fleet: aggregate with max(), not with sum().
package metrics
