package cache

import (
	"slices"
	"unique"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Question asks whether a pod fits a node. One Question serves for several nodes.
type Question struct {
	Pod      placement.PodRef
	Request  placement.Request
	Fallback placement.Policy

	// Expecting treats the memory of expected pods as allocated: see Expect.
	Expecting bool

	key unique.Handle[questionKey]
}

// questionKey identifies questions with equal decisions.
type questionKey struct {
	key      placement.Key
	fallback placement.Policy
}

// NewQuestion returns a question about a pod.
func NewQuestion(ref placement.PodRef, req placement.Request, fallback placement.Policy) Question {
	return Question{Pod: ref, Request: req, Fallback: fallback, key: unique.Make(questionKey{req.Key(), fallback})}
}

// Refusal returns the reason why the pod cannot go to a node, from decide.Decide, or nil if it can. The
// refusal is shared and must not be modified: it is stored for equal requests until the node changes.
func (s *nodes) Refusal(nodeName string, q Question) *decide.Refusal {
	_, refusal := s.EvaluateNode(nodeName, q)
	return refusal
}

// EvaluateNode is Refusal, and also returns the evaluated state of the node. The state is nil if the
// node is unknown.
func (s *nodes) EvaluateNode(nodeName string, q Question) (*placement.Node, *decide.Refusal) {
	if n, ok := s.readMap()[nodeName]; ok {
		if state := n.state.Load(); state != nil {
			return state, n.cachedRefusal(state, q)
		}
	}
	return nil, q.Evaluate(placement.Node{Name: nodeName})
}

// Evaluate decides for a node that need not be in the cache.
func (q Question) Evaluate(n placement.Node) *decide.Refusal {
	if q.Expecting {
		n = n.WithExpected(q.Pod)
	}
	_, refusal := decide.Decide(n, q.Pod, q.Request, q.Fallback)
	return refusal
}

// View returns a node minus the memory that expected pods will get and minus the memory reserved for
// nominated pods that precede the question's pod.
func (q Question) View(n *placement.Node) *placement.Node {
	remaining := decide.Reserved(n.WithExpected(q.Pod), q.Pod, q.Request, q.Fallback)
	return &remaining
}

// decisions are the latest decisions for one state of a node, newest first. They are immutable. If callers
// evaluate more kinds of requests at the same time than latest has entries, their decisions displace each
// other.
type decisions struct {
	state   *placement.Node
	expects bool // the node has expected pods
	latest  [8]decision
}

// decision is one decision. A nil refusal means that the pod fits.
type decision struct {
	key       unique.Handle[questionKey] // zero value: no decision
	expecting bool                       // the decision treats the memory of expected pods as allocated
	refusal   *decide.Refusal
}

// cachedRefusal returns the stored decision for a state, or makes one. If two goroutines make decisions at the
// same time, possibly only one of the decisions is stored. A stored decision is returned without reading the
// node's state, to avoid cache misses of the processor.
func (n *node) cachedRefusal(state *placement.Node, q Question) *decide.Refusal {
	last := n.answers.Load()
	if last == nil || last.state != state {
		last = &decisions{state: state, expects: len(state.Expected) > 0}
	}
	expecting := q.Expecting && last.expects
	own := func(h placement.Holding) bool { return h.Pod.UID == q.Pod.UID }
	if expecting && slices.ContainsFunc(state.Expected, own) {
		return q.Evaluate(*state)
	}
	for i := range last.latest {
		if kept := &last.latest[i]; kept.key == q.key && kept.expecting == expecting {
			return kept.refusal
		}
	}
	refusal := q.Evaluate(*state)
	if len(state.Nominated) > 0 {
		return refusal // the decision depends on the pod, because of the reservations
	}
	now := &decisions{state: state, expects: last.expects}
	now.latest[0] = decision{q.key, expecting, refusal}
	copy(now.latest[1:], last.latest[:])
	n.answers.Store(now)
	return refusal
}
