package decider

import (
	"iter"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/decisions"
	"github.com/gpumem/gpumem/pkg/scheduler/waker"
)

// tellFits records on how many nodes the pod fits, of those that were asked about.
func (d *Decider) tellFits(c *Cycle, asked, fit int) {
	c.said = true
	d.waker.Answered(c.question.Pod.UID)
	d.Binder.Record(c.question.Pod, decisions.Decision{Verb: decisions.Filter, Result: decisions.Fits, Asked: asked, Fit: fit})
}

// mostDescribed is how many of many nodes kube-scheduler's message describes.
const mostDescribed = 3

// Unfit takes note that the pod fits on none of so many nodes, and has it woken when it fits on
// one of those that were refused for want of GPU memory. Of many it describes those that come
// closest.
func (d *Decider) Unfit(c *Cycle, asked int, refused iter.Seq[Node]) (described []string) {
	var closest decisions.Closest
	var names, temporary []string
	decision := decisions.Decision{Verb: decisions.Filter, Result: decisions.Unfit, Asked: asked}
	for node := range refused {
		names = append(names, node.Name)
		refusal := d.refuses(c, node)
		if refusal == nil {
			continue // it fits by now: the cache has heard more since
		}
		if refusal.Temporary {
			temporary = append(temporary, node.Name)
		}
		if refusal.Verdict != nil {
			closest.Add(refusal.Verdict, refusal.Gap)
		} else if decision.Reason == "" {
			decision.Reason, decision.Message = refusal.Reason, reasons.Refusal(refusal)
		}
	}
	decision.Nodes = closest.Nodes()
	switch {
	case len(decision.Nodes) > 0:
		decision.Reason, decision.Message = decision.Nodes[0].Reason, decision.Nodes[0].Message
	case decision.Reason == "":
		decision.Reason, decision.Message = placement.NoDevices.String(), "other plugins of kube-scheduler keep the pod off all nodes"
	}
	d.Binder.Record(c.question.Pod, decision)
	d.waker.Refused(&waker.Refusal{
		Question: c.question, At: d.Binder.Now(), Changes: c.changes, Count: len(names), Elsewhere: c.on != "",
		Asked: d.Binder.Cache.Set(slices.Values(names)), Temporary: temporary,
	})
	if c.many {
		for _, n := range decision.Nodes[:min(len(decision.Nodes), mostDescribed)] {
			described = append(described, n.Name+" "+n.Message)
		}
	}
	return described
}

// Waits reports whether some node refuses the pod for a moment alone, after Unfit. Nothing is to be
// evicted for it then, on any node.
func (d *Decider) Waits(c *Cycle) bool { return d.waker.Waits(c.question.Pod.UID, d.Binder.Now()) }

// Evicts tells that others are evicted for the pod from a node, or, where that is empty, why
// none are.
func (d *Decider) Evicts(c *Cycle, node, why string) {
	decision := decisions.Decision{Verb: decisions.Preempt, Result: decisions.Fits, Node: node, Fit: 1}
	if node == "" {
		decision = decisions.Decision{Verb: decisions.Preempt, Result: decisions.Unfit, Reason: placement.Insufficient.String(), Message: why}
	}
	d.Binder.Record(c.question.Pod, decision)
}
