// Package extender answers kube-scheduler: filter, prioritize, preempt and bind as
// functions of the protocol's types, and the HTTP routes that carry them. Package binder
// binds.
//
// # Protocol
//
// k8s.io/kube-scheduler/extender/v1, with nodeCacheCapable: names in and names
// out. Full Node objects are answered too, from what they say themselves when
// the cache does not know them: an autoscaler asks about nodes that do not exist
// yet.
//
// # Invariants
//
//   - A pod that fits at least one node by all that its request says is bound to one such
//     node, within five seconds after kube-scheduler's own back-off. What delays it by
//     design: kube-scheduler's other filters, pods of higher priority, a pod that the
//     kubelet could take for it and has not admitted yet, a binding of its own that may have
//     been written, until the review, and the back-off, which grows from one second to
//     podMaxBackoffSeconds with each try.
//   - Filter, Prioritize and Preempt reserve nothing. Where a pod is expected after them
//     counts for what is ranked next; no pod is refused everywhere for it.
//   - Bind has the invariants of package binder, which does the work.
//   - Every request gets an answer that says what was wrong. Failures of the
//     matter travel as HTTP 200 with Error (kube-scheduler drops the body of
//     anything else); only what is no request at all is a 4xx.
//
// # Decisions
//
// An extender is slower than a plugin compiled into kube-scheduler, by an HTTP
// request for each verb (docs/scaling.md has what that costs). But it works with
// the kube-scheduler of each release and of each vendor; a plugin would be a
// kube-scheduler of our own, to be built again for each.
//
// kube-scheduler asks about the next pod while a Bind is under way, and packing sends
// both to the same node. Were the first one's memory reserved by Filter, a pod that
// kube-scheduler then drops would keep others away. So it is only expected there. Without
// that, one Bind in eight was refused in a burst of 2,000 pods, each for a second try after
// a back-off of a second.
//
// Where Alone is set, Filter names one node, and kube-scheduler scores nothing: the place
// of the pod is known for certain, and a question and its answer are spared. What
// kube-scheduler's own plugins prefer does not count then.
//
// kube-scheduler tries a pod again that this extender has refused when it hears of
// something, and otherwise after five minutes. But it may hear of a change before the cache
// here does, and of some it does not hear: that people keep GPUs for a pod no more. So the
// extender looks once a second at the pods that it has refused everywhere, and where one
// fits by now that was not asked about since, changes an annotation of it, which has
// kube-scheduler try it (Wake). The same finds, by a few tries, a node that
// kube-scheduler left out because it asks about a sample (percentageOfNodesToScore). An
// extender that begins takes the pods that wait from their PodScheduled conditions.
// To ask kube-scheduler for a try by an error in place of a refusal needs no write, but
// then it evicts nothing for the pod and says nothing of why it waits.
//
// kube-scheduler's watch may tell of a pod that is gone a moment before the
// extender's does. A pod that is refused in that moment would wait for the next
// event, or for five minutes: one that replaces another of its size is likely to
// be. So Filter waits shortly before it refuses a pod everywhere (see SecondLook),
// but for a tenth of the time at most, for all other pods wait meanwhile. To ask the API
// server instead would cost a list of all pods of all nodes.
//
// Questions and answers go through github.com/go-json-experiment/json, which is the
// encoding/json/v2 of Go 1.27 as a released module, and with that Go nothing but another name for
// it: half of the time that a filter of 5,000 nodes
// took went into encoding/json, which sorts the names of the nodes that it refuses
// and allocates for each. kube-scheduler writes no name twice and all in their
// case, so the stricter rules of v2 refuse nothing that it sends.
//
// What in a pod cannot be read fails every node as unresolvable, with that
// reason, so that people find it where they look: in the pod's events.
//
// Preempt replaces victims and removes nodes, and adds none: kube-scheduler
// chooses the nodes by sums, before it asks, and passes over those where the sum
// fits already. Whom it proposes for another resource than GPU memory cannot be
// known for certain. One whom the sums of GPU memory do not explain is kept as a
// victim; one whom they do, and who stands in the way of CPU as well, is spared
// here, and kube-scheduler proposes it again in its next try. In two rounds no
// more pods go than if all had been taken at once, and mostly fewer.
package extender
