package extender

import (
	"iter"
	"slices"
	"strings"
	"sync"
	"weak"

	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/decisions"
)

// tellFailure tells that a question about a pod could not be answered.
func (e *Extender) tellFailure(verb string, pod *v1.Pod, message string) {
	if pod != nil {
		e.Record(api.Ref(pod), decisions.Decision{Verb: verb, Result: decisions.Failed, Reason: decisions.Error, Message: message})
	}
}

// refusals are the nodes that were refused to a pod, as they were asked about.
type refusals struct{ nodes []refusedNode }

// names yields the names of the nodes.
func (r refusals) names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, node := range r.nodes {
			if !yield(node.name) {
				return
			}
		}
	}
}

// temporary returns the names of the nodes that refuse the pod for a moment alone.
func (r refusals) temporary() (names []string) {
	for _, node := range r.nodes {
		if node.Temporary {
			names = append(names, node.name)
		}
	}
	return names
}

type refusedNode struct {
	name string
	*decide.Refusal
}

// passedOn returns a message as kube-scheduler is to get it. It takes it for
// the format of the pod's event (k8s.io/kubernetes/pkg/scheduler,
// handleSchedulingFailure), where a percent sign of an annotation would be a
// mistake, and writes it as it is into the pod's condition, where a doubled one
// would be two. The full-width sign is itself in both.
func passedOn(message string) string { return strings.ReplaceAll(message, "%", "％") }

// mostDescribed is how many nodes an answer describes in full. kube-scheduler writes all
// that it gets into a condition of the pod, once for each text: those of 5,000 nodes were
// half a megabyte. And a pod whose condition has changed is tried again at once.
const mostDescribed = decisions.MaxNodes

// answer is what kube-scheduler gets: why each node was refused, and apart from them
// those to which no eviction could bring the pod. Where the pod fits on no node and there
// are many, those are described that come closest; of a sample, in which there are others
// each time, none.
func (r refusals) answer(fit int, sampled bool, said *sentences) (failed, never extenderv1.FailedNodesMap) {
	failed, never = make(extenderv1.FailedNodesMap), make(extenderv1.FailedNodesMap)
	var described map[string]bool // nil: all
	if fit == 0 && len(r.nodes) > mostDescribed {
		described = r.closest(sampled)
	}
	brief := make(map[placement.Reason]string)
	said.mu.Lock()
	defer said.mu.Unlock()
	for _, node := range r.nodes {
		var message string
		if node.Verdict != nil && described != nil && !described[node.name] {
			if _, ok := brief[node.Verdict.Reason]; !ok {
				brief[node.Verdict.Reason] = passedOn(reasons.Brief(*node.Verdict))
			}
			message = brief[node.Verdict.Reason]
		} else {
			message = said.of(node.Refusal)
		}
		to := failed
		if node.Unresolvable {
			to = never
		}
		to[node.name] = message
	}
	return failed, never
}

// sentences are what was said of refusals, as kube-scheduler is to get it. The cache gives
// the same refusal again until the node changes. A refusal has its whole node, and is not kept
// for its sentence.
type sentences struct {
	mu   sync.Mutex
	kept map[weak.Pointer[decide.Refusal]]string
}

// mostSentences is how many are kept at most: they are all forgotten then.
const mostSentences = 1 << 16

// of returns the sentence of a refusal; the lock is the caller's.
func (s *sentences) of(r *decide.Refusal) string {
	key := weak.Make(r)
	sentence, ok := s.kept[key]
	if !ok {
		if s.kept == nil || len(s.kept) >= mostSentences {
			s.kept = make(map[weak.Pointer[decide.Refusal]]string)
		}
		sentence = passedOn(reasons.Refusal(r))
		s.kept[key] = sentence
	}
	return sentence
}

// closest returns by name the nodes that come closest, of those that pods may leave; of a
// sample none.
func (r refusals) closest(sampled bool) map[string]bool {
	out := make(map[string]bool)
	if sampled {
		return out
	}
	var c decisions.Closest
	for _, node := range r.nodes {
		if node.Verdict != nil && !node.Unresolvable {
			c.Add(node.Verdict, node.Gap)
		}
	}
	for name := range c.Names() {
		out[name] = true
	}
	return out
}

// fewRefused is how many of the nodes that were refused are described next to
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
		d.Reason, d.Message = r.nodes[other].Reason, reasons.Refusal(r.nodes[other].Refusal)
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
			others = append(others, decisions.Node{Name: node.name, Reason: node.Reason, Message: reasons.Refusal(node.Refusal)})
		}
	}
	others = append(others, c.Nodes()...)
	return others[:min(len(others), decisions.MaxNodes)]
}

// waits is what preempt has decided about a pod that a node refuses for a moment alone.
func waits(proposed int) decisions.Decision {
	return decisions.Decision{
		Verb: decisions.Preempt, Result: decisions.Unfit, Asked: proposed, Reason: decide.Confusable,
		Message: "no pod is evicted: the pod fits as soon as a node has admitted the pods that it has",
	}
}

// preempted is what preempt has decided.
func preempted(proposed, possible int) decisions.Decision {
	d := decisions.Decision{Verb: decisions.Preempt, Result: decisions.Fits, Asked: proposed, Fit: possible}
	if possible == 0 {
		d.Result, d.Reason = decisions.Unfit, placement.Insufficient.String()
		d.Message = "no eviction frees enough on one GPU of the nodes that kube-scheduler asked about; it asks about none whose sum is enough"
	}
	return d
}
