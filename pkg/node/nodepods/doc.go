// Package nodepods is the device plugin's view of the API server: the pods of its node as core types, and all writes of the
// plugin.
//
// # Protocol
//
//   - Pods watches the node's pods that have not ended. It stores the fields that the core reads, or the claims of each container
//     on a node that hands out claims. Refresh lists the pods at once, because a watch may be behind. Correct and RecordUse patch
//     the annotations of one pod, and nothing else of it. Evict requests an eviction.
//   - Node watches the node's own object. It writes the inventory annotation whenever it differs from the node's offer: when the
//     GPUs change, when somebody edits it, when the object is made again. It writes the condition of the GPUs' health in the same
//     way, and reads which GPUs people have cordoned. With the inventory it writes, once a second at most, the grants of pods
//     whose annotations have less. It writes nothing before these are known. Withdraw lets it write, as its last write, that no
//     GPU takes new pods.
//   - Events records Events of pods and of the node.
//
// # Invariants
//
//   - A patch carries the pod's UID as a precondition: a pod made again under the same name never gets the annotations of the
//     one before it.
//   - Each watch event replaces the stored pod, unless it is older.
//   - No lock is kept over a call.
//
// # Decisions
//
// A withdrawn inventory has GPUs that are not healthy, with the reason: every reader understands that, of older versions too. The
// condition does not follow it, because those who watch the condition take the node for broken.
//
// The field selector leaves out pods that have ended, so the core sees none. A pod that is being deleted is in: its
// containers run.
package nodepods
