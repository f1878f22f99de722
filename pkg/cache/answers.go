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

	Unresolvable bool // the verdict is
}

// NewRefusal returns the refusal for an error.
func NewRefusal(err error) *Refusal {
	r := &Refusal{Err: err, Message: err.Error()}
	if unfit := (*UnfitError)(nil); errors.As(err, &unfit) {
		r.Verdict, r.Unresolvable = &unfit.Verdict, unfit.Unresolvable()
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
	case v.promised:
		return q.Ask(v.Node)
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

// view is a node as readers see it, with the latest answers about it. What is
// looked at for each answer comes first, for the sake of the processor's cache.
type view struct {
	answers  atomic.Pointer[answers]
	promised bool // to nominated pods: what is left to others depends on who asks
	placement.Node
}

func newView(n placement.Node) *view { return &view{Node: n, promised: len(n.Nominated) > 0} }

// answers are some of them, the latest first: pods that ask in more ways than
// that at the same time drive one another's out. They do not change once made.
type answers [8]answer

// answer is one of them; no refusal: it fits.
type answer struct {
	key     string // empty: none
	refusal *Refusal
}

// answer gives a kept answer, or a new one. Of two that are found at the same
// time, one may not be kept.
func (v *view) answer(q Question) *Refusal {
	kept := v.answers.Load()
	if kept == nil {
		kept = new(answers)
	}
	for i := range kept {
		if kept[i].key == q.key {
			return kept[i].refusal
		}
	}
	now := answers{{key: q.key, refusal: q.Ask(v.Node)}}
	copy(now[1:], kept[:])
	v.answers.Store(&now)
	return now[0].refusal
}
