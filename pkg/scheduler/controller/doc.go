// Package controller keeps the cache in step with the API server, and is the
// extender's hand there: it reads pods and sends bindings.
//
// # Invariants
//
//   - An event is data, not an instruction. Handlers take the whole state of the
//     object they are given, may run twice or late, and never fail: what cannot
//     be read of one object is logged, and the rest goes on.
//   - Pods are known by UID. A pod made again under its name may reach a handler
//     as an update of the old one; then the old one is removed first.
//   - A pod holds its memory until it is terminal or gone, also while it is
//     being deleted.
//
// # Decisions
//
// The pod watch leaves out terminal pods on the server's side, so completion
// arrives as deletion. Objects are trimmed before they are stored to what the
// cache needs: a cluster has far more pods than those with GPU memory. Of the
// containers' CPU only the pod's sum is kept, and equal lists of resources are
// shared between pods: a map of one entry takes as much memory as one of eight.
// Of nodes with GPU memory, and of pods that wait for it, is kept what package
// reach reads, for the page and the metrics: mostly the labels of nodes.
//
// Bindings are not limited by the client: the API server says when it is busy, and a limit
// here would keep a binding back until its time is over, with its memory reserved.
//
// Synced means that the handlers have seen the first list, not only that it has
// arrived.
//
// The Comparer checks the cache at intervals, as kube-scheduler's cache comparer
// does, against what the watches have stored: that costs no request, and all
// that has gone wrong between a watch and the cache shows. An event on its way
// there is not wrong, so a difference counts when it is found a second time and
// no event has changed the cached entry in between. Then the cache gets the entry of the
// stored object. An assumed pod is no difference: the watch does not show it yet.
//
// A watch that has fallen silent is for client-go to find: it pings the
// connection, and begins each watch again every few minutes.
package controller
