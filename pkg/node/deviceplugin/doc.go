// Package deviceplugin is the kubelet's device plugin for GPU memory and GPU cores
// (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1). Its devices are units of memory and percentages of cores.
//
// Package grants documents the lifecycle of a container's grant, from the kubelet's calls to its end.
//
// A Plugin has these parts. Offers is the node's offer, and State contains the node's pods and grants (both in
// package grants). The other parts read Offers and State. Server answers the kubelet's calls. Reconciler
// (package grants) writes the annotations of pods. Package render answers the container
// runtime. Announcer records events about the GPUs.
//
// # Protocol
//
// Runner keeps a Server registered. It listens, verifies with a call to itself that the plugin answers, and
// registers. It does all this again after a restart of the kubelet, and when the kubelet ends its stream of
// devices (ListAndWatch). It detects a restart when its own socket is gone or kubelet.sock is a new file. It
// does not listen while no kubelet answers, because a starting kubelet removes all sockets.
//
// It registers only after the previous process of the plugin has ended. After a forced deletion of the plugin's
// pod, the next pod starts while the old process is still terminating. When the kubelet notices the old
// process's end, it drops the plugin that is registered for the resource at that moment, even a new one, and
// considers all of the node's slots unhealthy (v1.36, devicemanager/plugin/v1beta1, runClient). The sockets of
// the old process answer until its pending calls have ended, so that the next process loads the grants of these
// calls too.
//
// For each container, the kubelet then calls
//
//	GetPreferredAllocation(available, must, n)   which IDs?     allocation.Prefer
//	Allocate(ids)                                allowed? and   allocation.Resolve, Admit
//	                                             with which env?
//	PreStartContainer(ids)                       at every start: which container has them?
//
// None of these calls names a pod. The kubelet makes them separately for memory and for cores, on separate sockets and
// in either order; PreStartContainer is only for memory. In each call, the plugin reads the kubelet's PodResources API
// (grants.State.Snapshot). This API lists the pods for which the kubelet can be calling, and the containers with
// allocated IDs. PreStartContainer and a loop (grants.Reconciler) correct annotations that differ from the
// allocations.
//
// Before it ends, a plugin publishes that the node accepts no more pods (Shutdown). It serves the kubelet until
// the kubelet has admitted the bound pods and created their containers, or until a timeout. A starting plugin
// offers its devices first to the kubelet (Runner.Listed), and then to schedulers.
//
// # Invariants
//
//   - A reply is correct, or an error that contains the cause. The kubelet stores a reply for the lifetime of
//     the pod, and an error ends the pod.
//   - An RPC waits only for the kubelet (Config.KubeletWait), for an unknown pod (Config.PodWait) and, before a
//     start, for one write (Config.WriteWait). All waits are bounded. An RPC never waits for NVML.
//   - All slots of a GPU become unhealthy together, and stay in the list.
//
// # Decisions
//
// To find the pod for which the kubelet calls, the plugin reads the IDs of each pod back from the kubelet; an ID
// contains its GPU. Three other ways are worse. The choice of the oldest pod with the requested amount is wrong when
// two equal pods are bound to two GPUs. A scheduler that lets only one pod at a time wait on a node is correct but
// slow, and a pod that never starts blocks the node. Calls of the container runtime (package nri) are exact, but not
// every node has NRI.
//
// The plugin waits for a pod that the kubelet lists, even if an unlisted pod would match the call, because the
// kubelet lists every pod for which it calls.
//
// Until the kubelet has listed its allocations for the first time, the plugin rejects a call that could be
// either for a later container of one pod or for another pod.
//
// The plugin accepts a container with IDs of gpushare's plugin: the kubelet has stored that plugin's reply, and
// starts the container as before. After a reboot of the node, the kubelet itself rejects such a pod, because no
// plugin offers its IDs anymore.
//
// Without the plugin, the kubelet fails every pod that requests GPU memory, and the pod's controller
// immediately creates the next pod for the same node: kube-scheduler uses the kubelet's last report, which is
// up to 10 s old. So a plugin that leaves withdraws the inventory, which the scheduler respects immediately. If
// the plugin reported unhealthy slots instead, the kubelet would fail those pods too. A killed or failed plugin
// withdraws nothing, because it is back within seconds.
package deviceplugin
