package cache

import (
	"slices"
	"unique"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Question is whether a pod fits, asked about one node after another.
type Question struct {
	Pod      placement.PodRef
	Request  placement.Request
	Fallback placement.Policy

	// Expecting has the pods count that are expected on the node: see Expect.
	Expecting bool

	key unique.Handle[asked]
}

// asked is the same for questions that have the same answer.
type asked struct {
	key      placement.Key
	fallback placement.Policy
}

// NewQuestion prepares a question.
func NewQuestion(ref placement.PodRef, req placement.Request, fallback placement.Policy) Question {
	return Question{Pod: ref, Request: req, Fallback: fallback, key: unique.Make(asked{req.Key(), fallback})}
}

// Refused returns why the pod cannot go to a node, as decide.Decide says of it, or nil.
// The answer must not be changed: it is kept until the node changes, for the
// next pod that asks for the same.
func (s *nodes) Refused(nodeName string, q Question) *decide.Refusal {
	_, refusal := s.Answer(nodeName, q)
	return refusal
}

// Answer is Refused, with the state of the node that it is about; nil: the node is not known.
func (s *nodes) Answer(nodeName string, q Question) (*placement.Node, *decide.Refusal) {
	if n, ok := s.readable()[nodeName]; ok {
		if state := n.state.Load(); state != nil {
			return state, n.refused(state, q)
		}
	}
	return nil, q.Evaluate(placement.Node{Name: nodeName})
}

// Evaluate asks about a node that the cache does not know.
func (q Question) Evaluate(n placement.Node) *decide.Refusal {
	if q.Expecting {
		n = n.WithExpected(q.Pod)
	}
	_, refusal := decide.Decide(n, q.Pod, q.Request, q.Fallback)
	return refusal
}

// View returns a node without the memory that expected pods will get there, and that is reserved for
// nominated pods that precede the pod.
func (q Question) View(n *placement.Node) *placement.Node {
	left := decide.Reserved(n.WithExpected(q.Pod), q.Pod, q.Request, q.Fallback)
	return &left
}

// answers are the latest about a state of a node, the last first: pods
// that ask in more ways than that at the same time drive one another's out. They
// do not change once made.
type answers struct {
	of      *placement.Node
	expects bool // pods are expected there
	kept    [8]answer
}

// answer is one of them; no refusal: it fits.
type answer struct {
	key       unique.Handle[asked] // the zero value: none
	expecting bool                 // pods that are expected on the node count
	refusal   *decide.Refusal
}

// refused gives a kept answer about a state, or a new one. Of two that are found at the same
// time, one may not be kept. The node itself is not looked at for a kept one,
// for the sake of the processor's cache.
func (n *node) refused(state *placement.Node, q Question) *decide.Refusal {
	last := n.answers.Load()
	if last == nil || last.of != state {
		last = &answers{of: state, expects: len(state.Expected) > 0}
	}
	expecting := q.Expecting && last.expects
	own := func(h placement.Holding) bool { return h.Pod.UID == q.Pod.UID }
	if expecting && slices.ContainsFunc(state.Expected, own) {
		return q.Evaluate(*state)
	}
	for i := range last.kept {
		if kept := &last.kept[i]; kept.key == q.key && kept.expecting == expecting {
			return kept.refusal
		}
	}
	refusal := q.Evaluate(*state)
	if len(state.Nominated) > 0 {
		return refusal // what is left to others depends on who asks
	}
	now := &answers{of: state, expects: last.expects}
	now.kept[0] = answer{q.key, expecting, refusal}
	copy(now.kept[1:], last.kept[:])
	n.answers.Store(now)
	return refusal
}
