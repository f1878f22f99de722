// Package waker has kube-scheduler try those waiting pods again that have begun to fit, where
// kube-scheduler has not heard of what made them fit, or has heard of it before the cache did.
//
// # Invariants
//
//   - A pod is woken at most once after each refusal, and the longer it has been woken in
//     vain the more seldom.
//   - Only nodes count that the pod was refused for want of GPU memory: one that something
//     else keeps away from a node is not woken for it.
package waker
