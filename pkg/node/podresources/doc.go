// Package podresources asks the kubelet which devices it has given to which
// container, over the unix socket of its PodResources API (v1).
//
// The kubelet answers from memory, in about a millisecond, also while it waits
// for one of the device plugin's own answers: its device manager holds no lock
// during those. It names pods by namespace and name, without UID, and lists
// each from the moment before its admission, app containers and sidecars by
// name, plain init containers not at all.
//
// # Decisions
//
// The kubelet's checkpoint file has the same by UID and with init containers. But its form changes with releases, and it lies
// next to the sockets of all plugins. This API is stable.
package podresources
