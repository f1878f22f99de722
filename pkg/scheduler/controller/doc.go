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
// objects are stored, they are trimmed to the fields that gpumem reads, because a cluster has far more pods
// than those with GPU memory. Of the containers' CPU, only the pod's sum is stored. Pods share equal resource
// lists, because a map of one entry takes as much memory as a map of eight. The fields that package
// nodefilter reads, mostly labels of nodes, are stored only for nodes with GPU memory and for pods that wait
// for GPU memory. The page and the metrics need them.
//
// The client does not limit the rate of bindings. The API server signals when it is busy. A limit in the
// client could delay a binding past its deadline, while the pod's memory is reserved.
//
// Controller.Missing reports a list as missing until the handlers have processed it. It is not enough that the
// list has arrived.
//
// The Comparer periodically compares the cache with the objects that the watches have stored, like
// kube-scheduler's cache comparer. The comparison needs no request, and finds all faults between a watch
// and the cache. An event may still be on its way to the cache. So the Comparer replaces a cached entry only
// if it finds the difference twice and no event has changed the entry in between. An assumed pod is no
// difference, because the watch does not show it yet.
//
// client-go detects a broken watch: it pings the connection, and restarts each watch every few minutes.
package controller
