// Package record is the node agent's table of grants: the answers to the kubelet's Allocate, with the values that each
// container got. Everything else that the agent reports of a container follows from it: level, limit, environment.
//
// # Protocol
//
// The device plugin records a grant (Put) before it answers the kubelet. The kubelet stores the same answer and uses it
// at each start of the container, so a container has the values of its first start. Settings that changed since
// apply to new containers only.
//
// Load reads the checkpoint once no other process serves GPU memory to the kubelet: until then that process writes it. A
// Table that was not loaded, or that gave way to another process since (GiveWay), writes nothing. Before Load it
// has the grants that the checkpoint had at the start of the process, for readers that begin earlier. A checkpoint that is lost or unusable leaves an empty table.
//
// Adopt makes the grants of listed containers that the table lacks (of version 0.2, or of a lost checkpoint). These have no
// response: it is rebuilt from the environment that the kubelet stored. They are made again by the next process.
//
// # Invariants
//
//   - A slot belongs to the last grant that has it. Only init containers share slots with later containers of
//     their pod, as the kubelet gives them the same ones.
//   - The kubelet's call names no pod. Find therefore goes by slots, which PodResources lists by container; the name of
//     the container decides only between containers with the same slots. Adopt corrects names.
//   - The table is never longer than the slots of the node and the init containers of its pods: Keep
//     drops grants of pods that are gone, and grants without a pod that the kubelet does not list.
//   - A grant that the kubelet lists ends only when another container gets its slots.
package record
