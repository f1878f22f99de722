package plugin

import (
	"cmp"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/decisions"
	"github.com/gpumem/gpumem/pkg/scheduler/waker"
)

// tellFits tells on how many nodes the pod fits.
func (p *Plugin) tellFits(c *cycle, fit int) {
	c.told = true
	p.waker.Answered(c.question.Pod.UID)
	p.binder.Tell(c.question.Pod, decisions.Decision{
		Verb: decisions.Filter, Result: decisions.Fits, Asked: fit + int(c.refused.Load()), Fit: fit,
	})
}

// remember tells that the pod fits nowhere, and takes note for it to be woken when it fits on a
// node that was refused for want of GPU memory.
func (p *Plugin) remember(c *cycle, statuses fwk.NodeToStatusReader) {
	infos, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return // a snapshot's lister has none
	}
	var closest decisions.Closest
	var names []string
	d := decisions.Decision{Verb: decisions.Filter, Result: decisions.Unfit, Asked: len(infos)}
	for _, info := range infos {
		name := info.Node().Name
		if status := statuses.Get(name); status.Plugin() != Name && status.Plugin() != "" {
			continue // something else keeps the pod away
		}
		names = append(names, name)
		refusal := p.refuses(c, info)
		if refusal == nil {
			continue // it fits by now: the cache has heard more since
		}
		if refusal.Verdict != nil {
			closest.Add(refusal.Verdict, refusal.Gap)
		} else if d.Reason == "" {
			d.Reason, d.Message = refusal.Reason, reasons.Refusal(refusal)
		}
	}
	d.Nodes = closest.Nodes()
	switch {
	case len(d.Nodes) > 0:
		d.Reason, d.Message = d.Nodes[0].Reason, d.Nodes[0].Message
	case d.Reason == "":
		d.Reason, d.Message = placement.NoDevices.String(), "other plugins of kube-scheduler keep the pod off all nodes"
	}
	p.binder.Tell(c.question.Pod, d)
	p.waker.Refused(&waker.Refusal{
		Question: c.question, At: p.binder.Now(), Changes: c.changes, Count: len(names), Elsewhere: c.on != "",
		Asked: p.Cache.Set(slices.Values(names)),
	})
}

// tellPreemption tells whether others are evicted for the pod.
func (p *Plugin) tellPreemption(c *cycle, result *fwk.PostFilterResult, status *fwk.Status) {
	d := decisions.Decision{Verb: decisions.Preempt, Result: decisions.Unfit, Reason: placement.Insufficient.String(), Message: status.Message()}
	if status.IsSuccess() && result != nil && result.NominatingInfo != nil {
		d.Result, d.Reason, d.Message, d.Node, d.Fit = decisions.Fits, "", "", result.NominatedNodeName, 1
	}
	p.binder.Tell(c.question.Pod, d)
}

// ranked is what PreScore has decided: the best nodes by their scores, of all that were ranked.
func ranked(nodes []*placement.Node, scores []int64) decisions.Decision {
	d := decisions.Decision{Verb: decisions.Prioritize, Result: decisions.Fits, Asked: len(nodes), Fit: len(nodes)}
	var best []int
	for i := range nodes {
		at, _ := slices.BinarySearchFunc(best, i, func(a, b int) int {
			return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(nodes[a].Name, nodes[b].Name))
		})
		if at < decisions.MaxNodes {
			best = slices.Insert(best[:min(len(best), decisions.MaxNodes-1)], at, i)
		}
	}
	for _, i := range best {
		d.Nodes = append(d.Nodes, decisions.Node{Name: nodes[i].Name, Score: &scores[i]})
	}
	if len(best) > 0 && scores[best[0]] == ranking.MaxScore {
		d.Node = nodes[best[0]].Name
	}
	return d
}
