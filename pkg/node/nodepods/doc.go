// Package nodepods connects the device plugin with the API server: it provides the pods of the node as core
// types, and makes all writes of the plugin.
//
// # Protocol
//
//   - Pods watches the node's pods that have not ended. It stores the fields that the core reads, or the claims
//     of each container on a node that allocates by claims. Refresh lists the pods immediately, because a watch
//     may lag. Correct and RecordUse patch annotations of one pod, and change nothing else. Evict requests an
//     eviction.
//   - Publisher watches the node's object. It writes the inventory annotation whenever it differs from the node's
//     offer: when the GPUs change, when somebody edits it, or when the object is recreated. It maintains the
//     condition of the GPUs' health in the same way, and reads the list of cordoned GPUs. The inventory
//     contains the grants of pods whose annotations show less; Publisher updates these at most once a second. It
//     writes nothing before they are known. After Withdraw, its last write stops all GPUs from accepting new
//     pods.
//   - Events records Events on pods and on the node.
//
// # Invariants
//
//   - A patch contains the pod's UID as a precondition, so a recreated pod of the same name never receives the
//     annotations of its predecessor.
//   - Each watch event replaces the stored pod, unless it is older.
//   - No call is made while a lock is held.
//
// # Decisions
//
// In a withdrawn inventory, the GPUs are unhealthy, with a reason: all readers support that, including older
// versions. The condition stays unchanged, because tools that watch it would treat the node as broken.
//
// The field selector excludes pods that have ended. It includes pods with a deletion timestamp, because their
// containers still run.
package nodepods
