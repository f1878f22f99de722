package placement

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// Choose picks the GPUs of a node for a request, by the request's policy or
// else by fallback. The verdict says why when the assignment is none.
//
// A device that already holds a pod of the same group comes before all others,
// then the model that the pod prefers. Of several GPUs, those that are nearest
// to one another are taken. Binpack takes the devices on which the least stays
// free (best fit), Spread those with the most free. Ties fall to the lowest
// index. As a fallback, Exclusive is no more than Binpack: whom a pod keeps off
// must be in the pod.
func Choose(fallback Policy, req Request, node Node) (Assignment, Verdict) {
	chosen, reason := choose(fallback, req, node)
	units, cores := req.Share()
	var a Assignment
	for _, d := range chosen {
		a.Shares = append(a.Shares, Share{Device: d.UUID, Units: units, Cores: cores})
	}
	return a, Verdict{Reason: reason, Request: req, Node: node}
}

// choose returns the devices for a request, by index.
func choose(fallback Policy, req Request, node Node) ([]Device, Reason) {
	fitting, reason := candidates(req, node)
	if reason != Fits {
		return nil, reason
	}
	liked := func(a, b Device) int {
		return cmp.Or(
			-CompareBool(req.inGroup(a), req.inGroup(b)),
			cmp.Compare(req.Preference.cost(a.Speed), req.Preference.cost(b.Speed)),
		)
	}
	slices.SortFunc(fitting, func(a, b Device) int {
		return cmp.Or(
			liked(a, b),
			compareFree(cmp.Or(req.Policy, fallback), a.Free(), b.Free()),
			cmp.Compare(a.Index, b.Index),
		)
	})
	want := req.GPUs()
	// Those that are liked better than the last of them are in any case taken,
	// and those that are liked less in none.
	last := fitting[want-1]
	first := slices.IndexFunc(fitting, func(d Device) bool { return liked(d, last) == 0 })
	fitting = slices.DeleteFunc(fitting, func(d Device) bool { return liked(d, last) > 0 })
	chosen := nearest(node, fitting, first, want)
	slices.SortFunc(chosen, func(a, b Device) int { return cmp.Compare(a.Index, b.Index) })
	return chosen, Fits
}

func compareFree(p Policy, a, b gpu.Units) int {
	if p == Spread {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

// CompareBool puts false first.
func CompareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

func (r Request) inGroup(d Device) bool {
	return r.Group != "" && slices.ContainsFunc(d.Pods, func(h Holding) bool { return h.Request.Group == r.Group })
}
