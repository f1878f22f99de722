// Package nodepods is the device plugin's view of the API server: the pods that
// are bound to its node, as the core wants them, and all that the plugin writes.
//
// # Protocol
//
//   - Pods is a watch of the node's pods that have not ended, cut down to what
//     the core reads before it is stored; on a node that hands out claims, to the claims of each container. Refresh lists them at once, for a watch
//     may be behind. Correct patches the annotations of one pod, and nothing else
//     of it.
//   - Node is a watch of the node's own object. It writes the inventory
//     annotation whenever it is not what the node offers: when the GPUs change,
//     when somebody edits it, when the object is made again. So it does with the
//     condition that says whether the GPUs are healthy. It reads which GPUs
//     people have cordoned. With the inventory it writes, once a second at most, what the
//     kubelet has given to pods whose annotations say less. It writes nothing before
//     that is known. Withdraw has it write, as its last word, that no GPU
//     takes new pods.
//   - Events says on pods and on the node what has been done to them.
//
// # Invariants
//
//   - A patch carries the pod's UID as a precondition: a pod made again under
//     the same name never gets the annotations of the one before it.
//   - Watch events are data. Each replaces what was known of its pod, and one
//     that is older than what is known is dropped.
//   - No lock is kept over a call.
//
// # Decisions
//
// An inventory is withdrawn by its GPUs being not healthy, with the reason: that
// every reader understands, of older versions too. The condition does not follow it,
// since what watches the condition takes a node for broken.
//
// Pods that have ended are left out by the field selector, so that to the core
// they are simply gone. A pod that is being deleted is in: its containers run.
package nodepods
