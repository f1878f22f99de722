// Package podresources reads the devices of each container from the kubelet, over the unix socket of its
// PodResources API (v1).
//
// The kubelet answers from memory within about a millisecond, even during its calls to the device plugin,
// because its device manager holds no lock during those. It identifies pods by namespace and name, without UID.
// It lists a pod from just before its admission: app containers and sidecars by name, but no plain init
// containers.
//
// # Decisions
//
// The kubelet's checkpoint file has the same data by UID, and includes init containers. But its format changes
// between releases, and it is in the directory with the sockets of all plugins. This API is stable.
package podresources
