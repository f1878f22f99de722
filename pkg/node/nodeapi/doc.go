// Package nodeapi connects the device plugin with the API server: it provides the node's pods in the types of
// pkg/core, and writes pods, the node's object and Events.
//
// # Protocol
//
//   - Pods watches the node's pods that have not ended. It stores the fields that the core reads or, on a node
//     that allocates by claims, the claims of each container. Refresh lists the pods immediately, because a watch
//     may lag. Correct and RecordUse patch annotations and labels of one pod, and change nothing else. Evict
//     requests an eviction.
//   - Publisher watches the node's object. It writes the inventory annotation whenever the annotation differs
//     from the node's offer: when the GPUs change, when somebody edits the annotation, or when the object is
//     recreated. It maintains the condition of the GPUs' health in the same way, removes the startup taint, and
//     reads the administrators' settings, such as the cordoned GPUs. The inventory also contains the accounts:
//     grants that exceed the annotations of their pods (package grants), or prepared claims (package claims).
//     Publisher reads the accounts at most once a second, and writes nothing before they are known. After
//     Withdraw, its last write stops all GPUs from accepting new pods.
//   - Events records Events on pods and on the node.
//
// # Invariants
//
//   - A patch contains the pod's UID as a precondition, so a recreated pod of the same name never receives the
//     annotations of its predecessor.
//   - Each watch event replaces the stored pod, unless the event is older.
//   - The package calls the API server only while it holds no lock.
//
// # Decisions
//
// The annotation of a withdrawn inventory shows the GPUs as unhealthy, with a reason, because older readers
// recognize no other way to stop new pods. The condition stays unchanged, because tools that watch it would treat
// the node as broken.
//
// The field selector excludes pods that have ended. It includes pods with a deletion timestamp, because their
// containers still run.
package nodeapi
