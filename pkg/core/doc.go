// Package core is a folder. What is in it decides: does a pod fit a node, on which of its GPUs, on
// which node, who is evicted, and who holds what. Its packages are values and functions over the
// standard library alone. They have no clock, no goroutine of their own and no input or output.
//
//	gpu         units, devices, IDs
//	placement   does a pod fit a node, on which of its GPUs, or why not
//	ranking     on which node
//	preemption  who is evicted for whom
//	decide      may a pod go to a node: the question that every part asks
//	cache       who holds what in a cluster: the scheduler's half
//	allocation  who holds what on a node: the device plugin's half
//	closest     which nodes came closest, where a pod fits on none
//	defrag      whom to evict where what is free is in pieces
package core
