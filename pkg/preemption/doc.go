// Package preemption says who would have to leave a node so that a request fits
// it, and keeps the room for which they leave. What fits is asked of package
// placement, on nodes as they would be.
//
// # Where to find what
//
// preempt.go chooses victims, by what their eviction costs and as budgets allow.
// nominate.go counts the pods that others leave for.
//
// # Invariants
//
//   - Victims have a lower priority than the request, or kube-scheduler has
//     proposed them. Without them the request fits.
//   - What is reserved for a nominated pod is held against pods of its priority or
//     a lower one, never against itself or one before it in line.
//   - Nothing is stored: the same question has the same answer.
//
// # Decisions
//
// Victims are chosen per GPU, in the order in which kube-scheduler chooses a
// node, and nobody is evicted whom the others' eviction makes needless. On one
// GPU this is the least for pods of one priority; over several GPUs or
// priorities, and with budgets, it is a good choice and not always the best.
//
// A nominated pod is one for which others were evicted. It is counted on the GPU
// where it would go by the same functions as any pod, so that nobody takes the
// room that was made for it. This is worked out anew for each question: room that
// becomes free elsewhere may change it. Where others are evicted of whom it may be
// that none has a lower priority (defrag), it is said to which GPUs it goes.
package preemption
