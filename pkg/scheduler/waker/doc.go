// Package waker has kube-scheduler try those waiting pods again that have begun to fit, where
// kube-scheduler has not heard of what made them fit, or has heard of it before the cache did.
//
// # Invariants
//
//   - A pod is woken at most once after each refusal, and the longer it has been woken in
//     vain the more seldom.
//   - Only nodes count that the pod was refused for want of GPU memory: one that something
//     else keeps away from a node is not woken for it.
//   - Nothing is evicted for a pod that a node refuses for a moment alone. A pod that such
//     refusals have kept waiting goes before those that caused them. Both end after a minute.
package waker
