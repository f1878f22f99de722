// Package ranking orders the nodes on which a request fits and scores them. Package placement decides
// whether a request fits a node, and on which GPUs.
//
// rank.go scores nodes. mix.go counts the requests of past pods, market.go stores the counts, and
// prices.go estimates the cost of a placement to future pods. index.go maintains the order of nodes.
//
// # Invariants
//
//   - Only nodes on which the request fits get a score.
//   - Scores depend neither on the cache of an Index nor on the order of the nodes.
//   - Prices are at least 0 and immutable. A Cost can be negative: a pod with little CPU leaves more CPU
//     for the GPU memory of its node.
//
// # Decisions
//
// A pod's preferences (placement.Choice) take precedence over the policy, for nodes as for GPUs.
//
// A pod's policy applies to GPUs and nodes. A second policy for nodes would duplicate
// topologySpreadConstraints and affinity.
//
// Nodes are ranked by the memory that stays free on the chosen GPU plus the cost to future pods
// (Prices), in the same unit. Ranking by free memory alone packs well until the free GPUs are on nodes
// without CPU, the requested models are full, or no node has enough free GPUs for a pod with several.
// The cost predicts these cases from the requests of past pods (Mix).
//
// Idle CPU has a cost (Cost.Idle) in proportion to the pods without GPU memory. kube-scheduler places
// those pods on the nodes with the most free CPU, and no extender can change that. If pods with GPU
// memory use up the CPU of busy nodes first, pods without GPU memory take less CPU from nodes that pods
// with several GPUs need. A higher price of idle CPU reduces the number of pods that fit if no pod
// leaves: see idleWeight.
//
// The price for pods with several GPUs ignores CPU: a node with free GPUs and no free CPU becomes
// available as soon as the pod with the CPU ends.
//
// Spread compares free fractions instead of amounts. By amount, the largest GPU would get pod after pod
// until it had as little free memory as the smaller GPUs. Spread compares the GPU before the node, so
// that pods share no GPU while another is empty.
package ranking
