package cache

import (
	"errors"
	"sync/atomic"

	"github.com/gpumem/gpumem/pkg/placement"
)

// Question is whether a pod fits, asked about one node after another.
type Question struct {
	Pod      placement.PodRef
	Request  placement.Request
	Fallback placement.Policy

	key string
}

// NewQuestion prepares a question.
func NewQuestion(ref placement.PodRef, req placement.Request, fallback placement.Policy) Question {
	return Question{Pod: ref, Request: req, Fallback: fallback, key: string(fallback) + " " + req.Key()}
}

// Refusal is why a pod does not fit a node.
type Refusal struct {
	Err     error
	Message string             // what it says
	Verdict *placement.Verdict // of an *UnfitError
}

// NewRefusal returns the refusal for an error.
func NewRefusal(err error) *Refusal {
	r := &Refusal{Err: err, Message: err.Error()}
	if unfit := (*UnfitError)(nil); errors.As(err, &unfit) {
		r.Verdict = &unfit.Verdict
	}
	return r
}

// Refused returns why the pod cannot go to a node, as Decide says of it, or nil.
// The answer must not be changed: it is kept until the node
// changes, for the next pod that asks for the same.
func (c *Cache) Refused(nodeName string, q Question) *Refusal {
	v := c.view(nodeName)
	switch {
	case v == nil:
		return q.Ask(placement.Node{Name: nodeName})
	case len(v.Nominated) > 0:
		return q.Ask(v.Node) // what is left to others depends on who asks
	}
	return v.answer(q)
}

// Ask asks about a node that the cache does not know.
func (q Question) Ask(n placement.Node) *Refusal {
	_, err := Decide(n, q.Pod, q.Request, q.Fallback)
	if err == nil {
		return nil
	}
	return NewRefusal(err)
}

// view is a node as readers see it, with the latest answers about it.
type view struct {
	placement.Node
	answers atomic.Pointer[[]answer] // the latest first; not changed once made
}

// answer is one of them; no refusal: it fits.
type answer struct {
	key     string
	refusal *Refusal
}

// answersKept is how many answers are kept of each node: pods that ask in more
// ways than that at the same time drive one another's out.
const answersKept = 8

// answer gives a kept answer, or a new one. Of two that are found at the same
// time, one may not be kept.
func (v *view) answer(q Question) *Refusal {
	var kept []answer
	if p := v.answers.Load(); p != nil {
		kept = *p
	}
	for i := range kept {
		if kept[i].key == q.key {
			return kept[i].refusal
		}
	}
	now := answer{key: q.key, refusal: q.Ask(v.Node)}
	v.keep(now, kept)
	return now.refusal
}

// keep puts an answer before those that are kept.
func (v *view) keep(now answer, others []answer) {
	all := append([]answer{now}, others[:min(len(others), answersKept-1)]...)
	v.answers.Store(&all)
}
