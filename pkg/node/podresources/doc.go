// Package podresources reads the devices of each container from the kubelet, over the unix socket of its
// PodResources API (v1).
//
// The kubelet answers from memory within about a millisecond, even during its calls to the device plugin, because
// its device manager holds no lock during those calls. It identifies pods by namespace and name, without UID. It
// lists a pod from just before the pod's admission, with app containers and sidecars by name, but without plain
// init containers.
//
// # Decisions
//
// The kubelet's checkpoint file has the same data by UID, and includes init containers. But the file's format
// changes between releases, and the file is in the directory with the sockets of all plugins. The PodResources
// API is stable.
package podresources
