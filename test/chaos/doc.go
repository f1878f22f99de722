// Package chaos runs gpumem on a real cluster while its parts are killed at
// random, and looks from outside whether its promises hold.
//
// # What happens
//
// Three nodes take pods of mixed shapes, made and deleted as fast as they go:
// one container or several, sidecars and init containers, two GPUs, policies,
// pods with a nodeName, Jobs, names used again, deletion with grace, without, and
// by force. Meanwhile the extender, the device plugin, the kubelet, kube-scheduler in
// its pod, the API server and etcd get SIGKILL. The random choices follow
// from a seed; the cluster's part is its own, so the same seed makes the same
// choices and not the same run.
//
// # What is checked
//
// The Watcher shares no code with the product. It reads three things: what the
// API server has written of pods, what the kubelets have given (PodResources),
// and the environment of the processes in the containers (/proc).
//
//	I1  A GPU gives no more units than it has, and none of them to two pods; nor
//	    do the processes that live have grants for more than the GPU.
//	I2  Per GPU, the shares written of bound pods that have not ended are no more
//	    than its units.
//	I4  A bound pod has exactly one valid assignment.
//	I5  Assignment, kubelet and environment say the same.
//
// The sources cannot be read at one moment, so what looks wrong is
// counted only when it is certain:
//
//   - I1 is read again at once: the same pods must still hold the same, or the
//     same processes still live. There is no other excuse.
//   - I2 and I4 are read in one list, which is one state of the API server. Of
//     pods that the extender has bound and nobody has touched since, they must
//     hold in each. Where the device plugin has written, they must hold
//     again within a time, as I5 must. Only the time counts in which all parts
//     are up: one that is down can mend nothing.
//
// At rest, when pods have stopped coming and going and all parts are up, I5 must
// hold exactly, and a pod that is bound must run.
//
// # What is no violation
//
// A pod that the kubelet refuses because the device plugin has just died is
// counted and told of: Kubernetes admits a pod once. So is the overlap of a
// pod deleted by force with the next one: to the API and to the kubelet it is gone
// before its processes are, which is what force means.
package chaos
