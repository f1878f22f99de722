// Package deviceplugin is the kubelet's device plugin for GPU memory, and for
// the cores next to it (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1): units and
// per cent of GPUs as devices.
//
// Package grants has the life of one container's grant, from the kubelet's calls to its end.
//
// A Plugin is made of parts. Offers is the node's offer, State its pods and grants (package grants): the others read them. Server answers the kubelet's calls,
// Reconciler (package grants) writes the annotations of pods, Containers (package containers)
// answers the container runtime, and Announcer reports what is wrong with the GPUs.
//
// # Protocol
//
// Runner keeps a Server registered: it listens, proves by a call of its own that
// the plugin answers, registers, and begins again when the kubelet has
// restarted, which it sees by its own socket being gone or by kubelet.sock being
// another, and when the kubelet no longer listens for devices (ListAndWatch). While no
// kubelet answers it does not listen: one that starts removes all sockets first.
//
// It registers when no other process of the plugin serves any more. A pod that is
// deleted by force is followed by the next while it ends, and the kubelet, when it
// hears of the end, drops the plugin that has that name by then: all of the node's slots are
// unhealthy to it from then on (v1.36, devicemanager/plugin/v1beta1, runClient). The sockets of the earlier process answer until
// its running calls have ended, so that the next one loads all grants that they record.
//
// For each container the kubelet then asks
//
//	GetPreferredAllocation(available, must, n)   which IDs?     allocation.Prefer
//	Allocate(ids)                                may it, and    allocation.Resolve, Admit
//	                                             with which env?
//	PreStartContainer(ids)                       at every start: whose are they really?
//
// and none of these names a pod. It asks so for memory and for cores, on a
// socket each, in either order; PreStartContainer is for memory alone. The plugin
// reads the kubelet's PodResources inside each (grants.State.Look), which tells for whom the
// kubelet can be asking, and, once IDs are given, who holds them. What is found to differ
// from the pod's annotation is corrected in PreStartContainer, and by a loop (grants.Reconciler).
//
// A plugin that has to end leaves in order (Leave): schedulers hear that the
// node takes no more pods, the kubelet is served until it has admitted those that it
// has and made their containers, or has had its time, and then the plugin is gone. One that starts is heard of by the kubelet first
// (Runner.Listed), and then by schedulers.
//
// # Invariants
//
//   - A reply is true or an error whose text names the cause: the kubelet keeps
//     a reply for the life of the pod, and an error ends the pod.
//   - An RPC waits for nothing but the kubelet (Config.KubeletWait), news of the
//     pod (Config.PodWait) and, before a start, one write (Config.WriteWait).
//     None of them can hold a container for ever. NVML is never waited for.
//   - All slots of a GPU turn unhealthy together, and stay in the list.
//
// # Decisions
//
// That IDs name their GPU, and are read back from the kubelet, was chosen over
// three other ways to learn for whom the kubelet asks. To take the oldest pod of the
// amount is wrong when two equal pods are on their way to two GPUs. To let one pod
// at a time onto a node is right, and slow, and one that fails to give the node free
// jams it. To be called by the container runtime (package nri) is exact, and there is
// no NRI on every node.
//
// A pod that the kubelet lists is waited for, even when another pod that it does
// not list yet would fit the question: the one in question is listed.
//
// Until a kubelet has listed anything at all that it has given, a question that may be for a
// later container of one pod, or for another pod, is refused.
//
// A container that starts with IDs of gpushare's plugin is let through: the
// kubelet has kept that plugin's reply, and starts it as before. After the node
// has rebooted, the kubelet itself refuses such a pod, since no plugin offers its
// IDs any more.
//
// Without its plugin the kubelet fails every pod that asks for GPU memory, and the
// pod's controller makes the next at once, for the same node: kube-scheduler goes by
// what the kubelet last reported, which is up to 10 s old. So it is the inventory
// that is withdrawn, which the extender heeds at once. Slots that turn unhealthy
// would fail those pods as well. A plugin that is killed says nothing to anybody, and
// neither does one that has failed in part: it is back within seconds.
package deviceplugin
