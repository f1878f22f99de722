package extender

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cache"
	"github.com/gpumem/gpumem/pkg/decisions"
	"github.com/gpumem/gpumem/pkg/placement"
)

// tell passes on what has been decided about a pod.
func (e *Extender) tell(ref placement.PodRef, d decisions.Decision) {
	if e.Decided != nil {
		d.Time = e.Now()
		e.Decided(ref, d)
	}
}

// tellFailure tells that a question about a pod could not be answered.
func (e *Extender) tellFailure(verb string, pod *v1.Pod, message string) {
	if pod != nil {
		e.tell(api.Ref(pod), decisions.Decision{Verb: verb, Result: decisions.Failed, Reason: decisions.Error, Message: message})
	}
}

// refusals are the nodes that were refused to a pod, as they were asked about.
type refusals struct{ nodes []refusedNode }

type refusedNode struct {
	name string
	*cache.Refusal
}

// passedOn returns a message as kube-scheduler is to be told it. It takes it for
// the format of the pod's event (k8s.io/kubernetes/pkg/scheduler,
// handleSchedulingFailure), where a percent sign of an annotation would be a
// mistake, and writes it as it is into the pod's condition, where a doubled one
// would be two. The full-width sign is itself in both.
func passedOn(message string) string { return strings.ReplaceAll(message, "%", "％") }

// answer is what kube-scheduler is told: why each node was refused, and apart
// from them those to which no eviction could bring the pod.
func (r refusals) answer() (failed, never extenderv1.FailedNodesMap) {
	unresolvable := 0
	for _, node := range r.nodes {
		if node.Unresolvable {
			unresolvable++
		}
	}
	failed = make(extenderv1.FailedNodesMap, len(r.nodes)-unresolvable)
	never = make(extenderv1.FailedNodesMap, unresolvable)
	for _, node := range r.nodes {
		if node.Unresolvable {
			never[node.name] = passedOn(node.Message)
		} else {
			failed[node.name] = passedOn(node.Message)
		}
	}
	return failed, never
}

// fewRefused is how many of the nodes that were refused are described beside
// others that fit: any of them, for it costs time.
const fewRefused = 2

// decision is what filter has decided, where the pod fits on so many nodes.
func (r refusals) decision(fit int) decisions.Decision {
	d := decisions.Decision{Verb: decisions.Filter, Result: decisions.Fits, Asked: fit + len(r.nodes), Fit: fit}
	if fit > 0 {
		d.Nodes = closest(r.nodes[:min(len(r.nodes), fewRefused)])
		return d
	}
	d.Result, d.Nodes = decisions.Unfit, closest(r.nodes)
	other := slices.IndexFunc(r.nodes, func(node refusedNode) bool { return node.Verdict == nil })
	switch {
	case other >= 0:
		d.Reason, d.Message = r.nodes[other].Reason, r.nodes[other].Message
	case len(d.Nodes) > 0:
		d.Reason, d.Message = d.Nodes[0].Reason, d.Nodes[0].Message
	default:
		d.Reason, d.Message = placement.NoDevices.String(), "kube-scheduler asked about no node"
	}
	return d
}

// closest describes those of the nodes that came closest: first those whose GPUs are
// not what is in the way, and then by their verdicts.
func closest(nodes []refusedNode) []decisions.Node {
	var c decisions.Closest
	var others []decisions.Node
	for _, node := range nodes {
		switch {
		case node.Verdict != nil:
			c.Add(node.Verdict, node.Gap)
		case len(others) < decisions.MaxNodes:
			others = append(others, decisions.Node{Name: node.name, Reason: node.Reason, Message: node.Message})
		}
	}
	others = append(others, c.Nodes()...)
	return others[:min(len(others), decisions.MaxNodes)]
}

// reasonOf names an error in a word.
func reasonOf(err error) string {
	if refusal := (*cache.Refusal)(nil); errors.As(err, &refusal) {
		return refusal.Reason
	}
	return decisions.Error
}

// ranked is what prioritize has decided: the best nodes by their scores.
func ranked(nodes []*placement.Node, scores []int64, best string) decisions.Decision {
	d := decisions.Decision{Verb: decisions.Prioritize, Result: decisions.Fits, Node: best, Asked: len(nodes), Fit: len(nodes)}
	for i, node := range nodes {
		d.Nodes = insertScored(d.Nodes, decisions.Node{Name: node.Name, Score: &scores[i]})
	}
	return d
}

// insertScored keeps the nodes with the highest scores, in order.
func insertScored(best []decisions.Node, n decisions.Node) []decisions.Node {
	at, _ := slices.BinarySearchFunc(best, n, func(a, b decisions.Node) int {
		return cmp.Or(cmp.Compare(*b.Score, *a.Score), cmp.Compare(a.Name, b.Name))
	})
	if at == decisions.MaxNodes {
		return best
	}
	return slices.Insert(best[:min(len(best), decisions.MaxNodes-1)], at, n)
}

// preempted is what preempt has decided.
func preempted(proposed, possible int) decisions.Decision {
	d := decisions.Decision{Verb: decisions.Preempt, Result: decisions.Fits, Asked: proposed, Fit: possible}
	if possible == 0 {
		d.Result, d.Reason = decisions.Unfit, placement.Insufficient.String()
		d.Message = "no eviction makes room on one GPU of the nodes that kube-scheduler asked about; it asks about none whose sum has room"
	}
	return d
}

// bound is what bind has decided about the GPUs of a node, as they were before.
func (e *Extender) bound(ref placement.PodRef, before placement.Node, name string, assignment placement.Assignment, err error) decisions.Decision {
	d := decisions.Decision{Verb: decisions.Bind, Result: decisions.Bound, Node: name, Asked: 1, Fit: 1}
	if err != nil {
		d.Result, d.Reason, d.Message, d.Fit = decisions.Refused, reasonOf(err), err.Error(), 0
	}
	if pod := e.Cluster.Pod(ref.Namespace, ref.Name); pod != nil && before.Name != "" {
		if req, err := e.Names.Request(pod); err == nil {
			d.Nodes = []decisions.Node{decisions.Look(req, before, assignment)}
		}
	}
	return d
}
