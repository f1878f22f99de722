// Package load measures what gpumem costs. Each section compares gpumem with the same work done
// without it, because times depend on the machine and on its other load. "gpumem-load -h" lists the sections.
//
// The package sees gpumem from outside: it runs the
// programs, or the Go benchmarks that stand beside the code.
//
// # Rounds and ratios
//
// The sides of a comparison take turns. The order changes from round to round, so that no side
// always runs first or always follows the same other side. A ratio divides two values of the same
// round. A figure is the median of its rounds, with the range from the lowest to the highest. The
// control shows the error of the measurement: its ratio would be 1 on a quiet machine.
//
// The report ends with a line "result: NAME VALUE goal GOAL met" (or "missed") for each goal of the
// selected sections.
package load
