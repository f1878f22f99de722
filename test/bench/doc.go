// Command bench measures what gpumem costs, side by side with what there is
// without it, and says which goals are met:
//
//	handlers    the extender's verbs beside handlers that decode and encode the same
//	stress      a hundred schedulers at one extender
//	memory      what the extender keeps of 5,000 nodes and 100,000 pods
//	node        what the kubelet waits for when a pod starts on a full node
//
// Times depend on the machine and on what else runs there, so goals are ratios
// of two things that are measured in turns, many times, by the CPU time that they
// take. What is told is the median of the ratios, with the range in which half of
// them are; absolute figures stand beside them for orientation.
package main
