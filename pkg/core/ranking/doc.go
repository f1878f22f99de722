// Package ranking orders the nodes on which a request fits and scores them. Package placement decides
// whether it fits, and on which GPUs of a node.
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
// A pod's preferences (placement.Choice) precede the policy, between nodes as between GPUs.
//
// A pod's policy applies to GPUs and nodes. A second policy for nodes would duplicate
// topologySpreadConstraints and affinity.
//
// Nodes are ranked by the memory that stays free on the chosen GPU plus the cost to future pods
// (Prices), in the same unit. Free memory alone packs well until pods find GPUs without CPU, find the
// models that they name full, or find no node with enough free GPUs. The cost predicts these cases from
// the requests of past pods (Mix).
//
// Idle CPU has a cost (Cost.Idle) in proportion to the pods without GPU memory. Those go to the nodes
// with the most free CPU, and no extender can change that. If pods with GPU memory use up the CPU of
// busy nodes first, pods without it take less from nodes that pods with several GPUs need. A higher
// weight reduces the number of pods that fit if no pod leaves: see idleWeight.
//
// The price for pods with several GPUs ignores CPU. If pods come and go, a node with free GPUs and no
// free CPU becomes available as soon as the pod with the CPU ends.
//
// Spread compares free fractions instead of amounts. By amount, the largest GPU would get pod after pod
// until it had as little free memory as the smaller ones. Spread compares the GPU before the node, so
// that pods share no GPU while another is empty.
package ranking
