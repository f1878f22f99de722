// Package chaos runs gpumem on a real cluster while its parts are killed, and
// looks from outside whether its promises hold.
//
// # What happens
//
// Run: three nodes take pods of mixed shapes, made and deleted as fast as they go.
// Meanwhile gpumem-scheduler, or kube-scheduler and the extender in its place, the
// device plugin, the kubelet, the API server and etcd get SIGKILL. The random choices follow
// from a seed, and what the cluster does with them does not. Now and then all stop, and
// the rest is checked; in the end all pods are deleted, and one pod fills each GPU.
//
// Kubelets' answers about PodResources come late now and then: the device plugin then takes
// one of two equal pods for the other, and has to correct both. And a tenant, with the role
// edit, forges what is written of pods and what gpumem goes by.
//
// Failover: of two replicas of the scheduler's pod, the leader is killed in the middle of a burst
// of pods that all fit. The next one is frozen (SIGSTOP) in the middle of another burst, until
// another leads and has bound a pod of the burst after that.
//
// # What is checked
//
// The watcher shares no code with the product. It reads three things: what the
// API server has written of pods, what the kubelets have given (PodResources),
// and the environment of the processes in the containers.
//
//	I1  A GPU gives no more units than it has, and none of them to two
//	    containers; nor do the processes that live have grants for more than it.
//	I2  Per GPU, the shares written of bound pods that have not ended are no more
//	    than its units.
//	I4  A bound pod has exactly one valid assignment.
//	I5  Assignment, kubelet and environment say the same.
//
// Nothing that the tenant forges is let through by the API server, and in a run some
// assignments are corrected: otherwise the corrections were not tested.
//
// The sources cannot be read at one moment, so what looks wrong counts only when
// it is certain:
//
//   - I1 is read again at once: the same containers must still hold the same, or
//     the same processes still live. There is no other excuse.
//   - I2 and I4 are read in one list, which is one state of the API server. Of
//     pods that gpumem has bound and no one has changed since, they must
//     hold in each. Where the device plugin has written, they must hold
//     again within a time, as I5 must. Only the time counts in which all parts
//     are up: one that is down can repair nothing.
//
// At rest, when pods have stopped coming and going and all parts are up, I5 must
// hold exactly, a pod that is bound must run, and one that waits must have
// nowhere to go. A minute after the last fault, or after it came to fit, every pod
// that fits must run. Where the API server was away, the minute begins another one
// later: client-go may wait so long before it watches again, in kube-scheduler and
// the kubelet too. Where a pod fits is judged by a twin of a few lines from what the
// API server has written: the inventories, what the kubelets offer, and the
// assignments. Of a pod that is late is told what is free, its events, and what
// kube-scheduler counts (at SIGUSR2 it writes down its cache): what of it is gone,
// with the log's lines about that.
//
// # What is no violation
//
// A pod that the kubelet refuses because the device plugin has just died is
// counted and told of: Kubernetes admits a pod once. So is the overlap of a
// pod deleted by force with the next one: to the API and to the kubelet it is gone
// before its processes are, which is what force means. And kube-scheduler counts a
// pod for ever that was bound, deleted, and made again under its name while its
// watch was away: its informer then tells of one pod that has changed, and what
// kube-scheduler assumed of the first is never taken back (1.36; pull request 141255
// of kubernetes/kubernetes treats such a change as the two that it is). Where its own
// cache has pods that are gone, or its words are all that a pod waits for while all
// is free, it is started again and told of; the pod must run then.
//
// A fault waits until a pod has been bound since the last one, for a while: a
// cluster that only recovers does nothing that could go wrong. What is expected within
// a time must come at all; the limits are far above what a loaded machine needs.
package chaos
