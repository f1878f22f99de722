// Package sim is a deterministic simulation of gpumem and the cluster around it.
// A seed is one run, bit for bit, in virtual time (testing/synctest). After each
// step the invariants of the product are checked against a dumb model that
// recomputes everything; then the faults end, and everything has to settle.
//
// # What is real
//
// The extender's HTTP handlers, its cache, its event handlers, its review of
// assumptions and its self-check; the device plugin's RPCs and its Reconcile;
// what the plugin knows of pods, and the patches that it writes.
//
// In one run of two gpumem decides within kube-scheduler instead (plugged.go, inside.go): real are
// packages decider and lease, and all that they share with the extender. cmd/gpumem-scheduler/plugin,
// which calls them, is run with kube-scheduler itself in test/scheduler.
//
// Claims are not here: a random test of package claims has the driver, its checkpoint and its CDI files.
//
// # What is modelled
//
//   - The API server: Binding and patches with their preconditions, watches with
//     delays, duplicates, gaps and new lists, answers that are slow or lost,
//     refusals, restarts, a wall clock that jumps. The product measures time by
//     the monotonic clock, which does not.
//   - kube-scheduler: one cycle at a time and several bindings meanwhile, pods that
//     are filtered and not bound, preemption and nominated pods, a Lease, and a leader
//     that goes on after another has taken over. One replica asks about all nodes that
//     pass its own filters, the other about a few. Its queue is that of 1.31, 1.32 or
//     1.33 (queue.go). With gpumem in it, the cache and its own handlers hear of one
//     watch at different times, and a leader may be cut off from the Lease, killed, told
//     to end, or frozen in a burst of pods for longer than the Lease lasts, which
//     another may have given back by then.
//   - The kubelet's device manager: one pod at a time, in batches in another
//     order than they were bound, IDs at random, those of init containers again,
//     a checkpoint, restarts that admit everything again. It has the real one's
//     fault of forgetting IDs while it waits for Allocate. In some runs there are
//     cores, a second resource with a registration and a stream of its own, asked
//     for before memory or after it.
//   - What other programs use of GPUs, and people who cordon GPUs.
//   - In one run in three, an adversary (adversary.go): a tenant with a namespace of its
//     own, who makes, edits, forges and deletes pods. The seed says whether the chart's
//     policies stop it.
//
// Most runs have two nodes, some have nine, and a test has fleets of hundreds: there
// other programs use the GPUs of most nodes, and kube-scheduler does not know it.
//
// # Invariants
//
// I1 to I9 are checked after each step, or at the moment of a decision: no GPU has more
// IDs given away than it has (I1), nor more units in the cache (I2); the cache is what
// comes of the API's objects and of what was assumed (I3); each pod has one valid
// assignment (I4), which is at rest what the kubelet gave it and what its environment says (I5); no
// assumption outlives its time (I6); questions change nothing (I7); no call of the API is
// made under a lock (I8); nothing panics (I9).
//
// I10: at rest, no waiting pod fits anywhere.
//
// Within kube-scheduler no binding lands that was sent by one who has not the Lease any more, and
// no pod is evicted from a node that the pod fits without, by what kube-scheduler and the cache have
// been told together.
//
// I11: what a tenant writes on its own objects changes the accounting of no other pod. An
// extender counts of each other pod what comes of that pod's object or binding, and the
// plugin moves none to GPUs that are only by an adversary's word free. Without policies
// the adversary's pods may count for more than they have while they are there, and at rest
// for no less than the kubelet has given them on each GPU; its own groups, policies and
// assignments are not checked then. Where it has pods, no other can be said to fit (I10).
//
// # Liveness
//
// When the faults are over and their consequences too, people go on for a while. From then
// on I10 is judged (liveness.go): a pod that fits some node by all that the API server has is
// bound to one within five seconds, or after kube-scheduler's back-off. That leaves out what
// fitsWithin says, pods that cannot be read, and the time in which no
// kube-scheduler leads.
//
// # What is excused
//
//   - A GPU that has shrunk may hold more than it has.
//
//   - A pod to which a rule of excuse.go applies, for as long as its bound. An extender or a plugin
//     chose its GPUs without news of another pod on them, or the API server has an older state than
//     the kubelet. An extender has to know its own bindings, and a plugin all that it has been told.
//     Such a pod keeps its GPUs, and its policy binds the pods that get one of them after the bound.
//
//   - A pod that the kubelet admits before the plugin has heard of it: it is given
//     one GPU, as for a pod of which no scheduler knows. If it asks for several it
//     never starts, and its events say so. If it asks for cores, it is refused. The
//     same for a pod that is admitted while the kubelet still has another of its
//     name: PodResources tells no UID.
//
//   - IDs of a plain init container that the kubelet has forgotten: nothing shows
//     them to the plugin.
//
// # Traces
//
// testdata has runs that once broke an invariant. A seed is a run of the model as
// it was then: what it found is pinned by a test of the package at fault, and the
// trace stays as one more run.
package sim
