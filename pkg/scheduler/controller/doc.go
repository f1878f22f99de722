// Package controller keeps the cache in step with the API server. It also reads pods and sends bindings for
// the extender and the plugin.
//
// # Invariants
//
//   - An event is data, not an instruction. A handler uses the whole state of its object, may run
//     twice or late, and never fails. If a part of an object is unreadable, the handler logs this and
//     uses the rest.
//   - The UID identifies a pod. A handler may receive a pod that was created again with the same name
//     as an update of the old pod. It then removes the old pod first.
//   - A pod has its memory until it is terminal or gone, also while it is being deleted.
//
// # Decisions
//
// The API server filters terminal pods from the pod watch, so a pod that ends appears as deleted. Before
// objects are stored, package trim removes the fields that gpumem does not read, because a cluster has far
// more pods than those with GPU memory.
//
// Controller.Missing reports a list of nodes or pods as missing until the handlers have processed it. It is not
// enough that the list has arrived.
//
// The Comparer periodically compares the cache with the objects that the watches have stored, like
// kube-scheduler's cache comparer. The comparison needs no request, and finds all faults between a watch
// and the cache. An event may still be on its way to the cache, so the Comparer corrects only differences that
// persist. An assumed pod is no difference, because the watch does not show it yet.
//
// client-go detects a broken watch: it pings the connection, and restarts each watch every few minutes.
package controller
