// Package chaos runs gpumem on a real cluster, kills its parts, and checks its promises from outside.
// It shares no code with the product: it reads the API server's objects, the kubelets' PodResources and the
// environment of the processes in the containers.
//
// # Runs
//
// TestChaos: three nodes take pods of mixed shapes, created and deleted as fast as the cluster allows.
// Meanwhile the scheduler's programs, the device plugin, the kubelet, the API server and etcd get SIGKILL,
// kubelets answer late about PodResources, and a tenant with the role edit forges annotations. Every 100
// seconds all of this pauses for the checks at rest. At the end all pods are deleted, and one pod fills each
// GPU. The choices follow from a seed; the cluster's timing does not.
//
// TestFailover: of two replicas of the scheduler, the leader is killed in a burst of pods that all fit. The
// next leader is stopped (SIGSTOP) in another burst, and continues once another leader has bound a pod.
//
// # Checks
//
// All the time, and so after each kill:
//
//	I1  A kubelet allocates no unit to two containers, and none that its GPUs do not have.
//	I2  Per GPU, the assignments of bound pods add up to no more than its units.
//	I4  A bound pod has one valid assignment.
//	I11 The API server accepts none of the tenant's annotations.
//
// I1 is read twice: both answers must have it. I2 and I4 are read in one list, which is one state of the API
// server. While pods come and go they count only for pods whose assignment the scheduler alone has written:
// the device plugin corrects the others within a time.
//
// At rest:
//
//	I2, I4 hold for all pods.
//	I5     Assignment, PodResources and environment name the same GPUs and amounts.
//	idle   Every pod that fits runs a minute after the last fault. After an outage of the API server the minute
//	       begins a minute later: client-go waits that long before it watches again.
//	stuck  A bound pod runs, a deleted one is gone, and a waiting one fits nowhere and has a reason.
//	leaked No kubelet has units allocated for a pod that does not exist.
//
// # Other findings
//
// A kubelet refuses pods while the device plugin is away: that is no violation. kube-scheduler 1.36 keeps a
// pod in its cache that was bound, deleted and created again under its name while its watch was away (pull
// request 141255 of kubernetes/kubernetes). If its cache has pods that do not exist, the report counts that,
// and kube-scheduler is started again.
package chaos
