package inspect

import (
	"cmp"

	"github.com/gpumem/gpumem/pkg/cache"
	"github.com/gpumem/gpumem/pkg/placement"
	"github.com/gpumem/gpumem/pkg/preemption"
)

// Chance is what a pod that waits has of one node.
type Chance struct {
	placement.Verdict
	Refusal *cache.Refusal // why the node does not take it, whatever is free; nil: it does
	KeptOff bool           // by the pod's own spec: the node is none that the pod could go to
}

// Chance returns what a pod has of a node.
func (f Facts) Chance(pod WaitFacts, n placement.Node) Chance {
	c := Chance{Verdict: placement.Fit(pod.Request, preemption.Reserved(n, pod.Pod, pod.Request, fallback)), Refusal: pod.KeptOff[n.Name]}
	if c.KeptOff = c.Refusal != nil; !c.KeptOff {
		c.Refusal = f.Nodes[n.Name].Refusal(pod.Request)
	}
	return c
}

// Refusal returns why the node takes no new pod with this request, whatever is
// free; nil: it does.
func (f NodeFacts) Refusal(req placement.Request) *cache.Refusal {
	if f.Refuses == nil && req.Cores() > 0 {
		return f.RefusesCores
	}
	return f.Refuses
}

// Good reports whether the pod fits the node, and may go there.
func (c Chance) Good() bool { return c.Fits() && c.Refusal == nil }

// Why says in a line what there is, or what keeps the pod off.
func (c Chance) Why() string {
	switch {
	case c.Refusal == nil:
		return c.String()
	case c.KeptOff || c.Fits():
		return c.Refusal.Message
	default:
		return c.String() + "; " + c.Refusal.Message
	}
}

// Compare puts the better chance first: that of a node where the pod got further.
// Among equals, it is that of the reason that can change most, and then that of the
// node with most free on a single GPU.
func (c Chance) Compare(other Chance) int {
	return cmp.Or(
		cmp.Compare(c.rank(), other.rank()),
		cmp.Compare(other.Reason, c.Reason),
		cmp.Compare(other.free(), c.free()),
	)
}

func (c Chance) free() int64 { return int64(c.Node.LargestFree()) * c.Node.UnitMiB }

func (c Chance) rank() int {
	switch {
	case c.KeptOff && c.Refusal.Unresolvable:
		return 5
	case c.KeptOff:
		return 4
	case c.Good():
		return 0
	case c.Fits():
		return 1
	case c.Refusal == nil:
		return 2
	default:
		return 3
	}
}

// best returns the best chance that a pod has: the first where it is good. Without
// nodes, it is that of a node without a name.
func (f Facts) best(pod WaitFacts, nodes []placement.Node) Chance {
	best := Chance{Verdict: placement.Fit(pod.Request, placement.Node{})}
	for _, n := range nodes {
		if len(n.Devices) == 0 {
			continue
		}
		if c := f.Chance(pod, n); best.Node.Name == "" || c.Compare(best) < 0 {
			best = c
		}
		if best.Good() {
			break
		}
	}
	return best
}
