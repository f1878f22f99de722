// Package metrics names what gpumem's processes measure, for Prometheus.
//
// There is one type for each process, made with the registry that it is to be
// seen in, whose methods are what the parts of that process tell. A part knows
// an interface of its own with the methods that it needs, and nothing of
// Prometheus.
//
// # Decisions
//
// Names follow prometheus.io/docs/practices/naming: gpumem, the process, the
// thing, its unit; counters end in "_total". The labels of a metric have a fixed
// set of values, and each is there from the start with zero: a series that
// appears with its first event hides that event from rate().
//
// What is known of a node, a GPU or the fleet is read when Prometheus asks, so
// that nothing that is gone leaves a series behind. The text is kept for a second, for
// others that ask, and sent to sixteen in a second: it is megabytes for a large fleet, and the
// port is open to those who may reach it. Every replica of the extender
// tells the same of the fleet: take max() of them, and not sum().
package metrics
