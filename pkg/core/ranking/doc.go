// Package ranking says on which of several nodes a request is best placed. Where
// it fits, and on which GPUs of a node, is package placement's to say.
//
// # Where to find what
//
// rank.go scores nodes. mix.go has what pods have asked for, market.go keeps that, and prices.go has what a
// pod takes from more of them.
//
// # Invariants
//
//   - Only nodes on which the request fits have a score.
//   - What a Ranker keeps does not show in its scores, nor does the order of the
//     nodes. It keeps what it found of a node for as long as the node's State is
//     the same.
//   - Prices are 0 or more, and do not change once made. A Cost may be less than 0: a pod
//     with little CPU leaves more to the GPU memory of its node.
//
// # Decisions
//
// What a pod likes (placement.Choice) goes before the policy, between nodes as
// between the GPUs of one.
//
// A pod's own policy is of GPUs and of nodes. One for nodes alone would be a
// second word for what topologySpreadConstraints and affinity say of pods.
//
// Nodes are ranked by the memory that is left free on the GPU chosen, and by what
// the pod takes from pods to come (Prices), in the same units. The first alone packs well
// until pods find GPUs without CPU for them, the models that they name full, or no node
// with as many free GPUs as they need; the second sees these before they happen. What pods
// ask for is learned from those that have come (Mix).
//
// Idle CPU counts (Cost.Idle) as far as there are pods without GPU memory. These go where most CPU is free,
// whatever an extender would say. Where the CPU of nodes in use is taken first, they take less from nodes
// that pods of several GPUs need. The more it counts, the less fits where no pod leaves: docs/packing.md.
//
// Slots for pods of several GPUs do not count CPU. Where pods leave, an idle node whose CPU
// another pod has for now is as good as any other as soon as that pod has gone.
//
// Spread goes by parts and not by amounts: by what is free of it, the largest GPU of a
// cluster would take pod after pod until as little was left as smaller ones have. And it
// goes by the GPU before the node, so that no pod has a neighbour while a GPU is empty.
package ranking
