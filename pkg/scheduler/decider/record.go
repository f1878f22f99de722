package decider

import (
	"slices"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/history"
)

// RefusedNode is a node that has refused a pod, with the refusal.
type RefusedNode struct {
	Name string
	*decide.Refusal
}

// fewRefused is the number of refused nodes that Fits describes. These are not the closest ones, because
// sorting costs time.
const fewRefused = 2

// Fits records the number of feasible nodes among the asked ones, and removes the pod from the waiting pods.
func (d *Decider) Fits(c *Cycle, asked, fit int, refused []RefusedNode) {
	c.fitRecorded = true
	d.waiters.remove(c.Pod.UID)
	d.Record(c.Pod, history.Decision{
		Verb: history.Filter, Result: history.Fits, Asked: asked, Fit: fit, Sampled: c.Sampled,
		Nodes: describe(refused[:min(len(refused), fewRefused)]),
	})
}

// Unfit records that the pod fits no node, and adds it to the waiting pods (Wake). It returns the nodes that
// are closest to a fit.
func (d *Decider) Unfit(c *Cycle, refused []RefusedNode) []history.Node {
	decision := history.Decision{
		Verb: history.Filter, Result: history.Unfit, Asked: c.asked, Sampled: c.Sampled, Nodes: describe(refused),
		Reason: placement.NoDevices.String(), Message: "other plugins of kube-scheduler keep the pod off all nodes",
	}
	if len(decision.Nodes) > 0 {
		decision.Reason, decision.Message = decision.Nodes[0].Reason, decision.Nodes[0].Message
	}
	d.Record(c.Pod, decision)
	var names, temporary []string
	for _, node := range refused {
		names = append(names, node.Name)
		if node.Refusal != nil && node.Temporary {
			temporary = append(temporary, node.Name)
		}
	}
	p := &waiting{
		Question: c.Question, decided: d.Now(), seen: c.changes, sampled: c.Sampled, elsewhere: c.elsewhere != nil,
		refusing: d.Cache.Set(slices.Values(names)), temporary: temporary,
	}
	tries := 0
	if last := d.waiters.get(c.Pod.UID); last != nil {
		// Before kube-scheduler asks about the next sample, it asks about the nominated node only.
		tries, p.sampled = last.tries, p.sampled || last.sampled && c.asked == 1
	}
	if p.sampled && !p.elsewhere {
		if p.fitNode = d.fitting(c.Question, tries); p.fitNode != "" {
			p.fitsSince = p.decided
		}
	}
	d.waiters.add(p)
	return decision.Nodes
}

// describe returns the descriptions of the nodes that are closest to a fit. Nodes that refuse the pod for
// reasons other than their GPUs come first. The others follow in the order of their distance from a fit.
// describe omits nodes without a refusal: the cache has changed, and the pod fits them now.
func describe(nodes []RefusedNode) (out []history.Node) {
	var closest history.Closest
	for _, node := range nodes {
		switch {
		case node.Refusal == nil:
		case node.Verdict != nil:
			closest.Add(node.Verdict, node.Gap)
		case len(out) < history.MaxNodes:
			out = append(out, history.Node{Name: node.Name, Reason: node.Reason, Message: reasons.Refusal(node.Refusal)})
		}
	}
	out = append(out, closest.Nodes()...)
	return out[:min(len(out), history.MaxNodes)]
}

// NoEviction is the message for a pod that preempts no other pod because a node refuses it only temporarily.
const NoEviction = "no pod is evicted: the pod fits as soon as a node has admitted the pods that it has"

// MayEvict reports whether pods may be evicted for the pod. If a node refuses the pod only temporarily, or
// the pod fits a node that kube-scheduler's sample lacks, MayEvict returns false and records why. Parameter
// proposed is the number of nodes for which kube-scheduler proposes victims.
func (d *Decider) MayEvict(c *Cycle, proposed int) bool {
	p := d.waiters.get(c.Pod.UID)
	if !p.isTemporary(d.Now()) {
		return true
	}
	decision := history.Decision{Verb: history.Preempt, Result: history.Unfit, Asked: proposed, Reason: decide.Confusable, Message: NoEviction}
	if p.fitNode != "" {
		decision.Reason, decision.Message = "", "no pod is evicted: the pod fits node "+p.fitNode
	}
	d.Record(c.Pod, decision)
	return false
}

// Evicts records the result of a preemption: the number of proposed nodes, the number of nodes on which
// evictions make room for the pod, and the chosen node if it is known. If evictions help on no node, reason
// is the cause.
func (d *Decider) Evicts(c *Cycle, proposed, possible int, node, reason string) {
	decision := history.Decision{Verb: history.Preempt, Result: history.Fits, Asked: proposed, Fit: possible, Node: node}
	if possible == 0 {
		decision.Result, decision.Reason, decision.Message = history.Unfit, placement.Insufficient.String(), reason
	}
	d.Record(c.Pod, decision)
}
