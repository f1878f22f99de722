package placement

import (
	"cmp"
	"math"
	"slices"
)

// Choose picks the GPUs of a node for a request, by the request's policy or
// else by fallback. The verdict says why when the assignment is none.
//
// A device that already holds a pod of the same group comes before all others,
// then the model that the pod prefers. Of several GPUs, those that are nearest
// to one another are taken, then the policy decides, and of equals the lowest index.
// As a fallback, Exclusive chooses like Binpack and excludes no pod: only a pod that
// names it is alone. An unknown policy takes the lowest indexes.
func Choose(fallback Policy, req Request, node Node) (Assignment, Verdict) {
	chosen, reason := choose(fallback, req, node)
	units, cores := req.Share()
	var a Assignment
	for _, i := range chosen {
		a.Shares = append(a.Shares, Share{Device: node.Devices[i].UUID, Units: units, Cores: cores})
	}
	return a, Verdict{Reason: reason, Request: req, Node: node}
}

// Choice is which devices of a node Choose takes for a request, for those who
// compare nodes.
type Choice struct {
	Devices []int // of Node.Devices
	Order
}

// Order is how a request likes a choice, whatever the policy.
type Order struct {
	Grouped   bool     // one of the devices holds a pod of the request's group
	ModelCost int      // of the model that the request likes least, the lower the better
	distance  distance // but for lanes: those of different models are not alike
}

// Compare orders choices, the better one first: by the group, then by the model, then by nearness.
func (a Order) Compare(b Order) int {
	return cmp.Or(CompareBool(b.Grouped, a.Grouped), cmp.Compare(a.ModelCost, b.ModelCost), a.distance.compare(b.distance))
}

// NewChoice chooses devices of a node. It reports false when the request does not
// fit.
func NewChoice(fallback Policy, req Request, node Node) (Choice, bool) {
	chosen, reason := choose(fallback, req, node)
	if reason != Fits {
		return Choice{}, false
	}
	c := Choice{slices.Clone(chosen), Order{ModelCost: math.MinInt, distance: node.span(chosen)}}
	c.distance.lanes = 0
	for _, i := range chosen {
		c.Grouped = c.Grouped || req.inGroup(&node.Devices[i])
		c.ModelCost = max(c.ModelCost, req.Preference.Cost(node.Devices[i].Speed))
	}
	return c, true
}

// choose returns the devices for a request, in their order.
func choose(fallback Policy, req Request, node Node) ([]int, Reason) {
	fitting, reason := candidates(req, node)
	if reason != Fits {
		return nil, reason
	}
	liked := func(a, b int) int {
		x, y := &node.Devices[a], &node.Devices[b]
		return cmp.Or(
			-CompareBool(req.inGroup(x), req.inGroup(y)),
			cmp.Compare(req.Preference.Cost(x.Speed), req.Preference.Cost(y.Speed)),
		)
	}
	byPolicy := cmp.Or(req.Policy, fallback).row().devices
	slices.SortFunc(fitting, func(a, b int) int {
		return cmp.Or(
			liked(a, b),
			byPolicy(&node.Devices[a], &node.Devices[b]),
			cmp.Compare(a, b),
		)
	})
	want := req.GPUs()
	// Those that are liked better than the last of them are in any case taken,
	// and those that are liked less in none.
	last := fitting[want-1]
	first := slices.IndexFunc(fitting, func(i int) bool { return liked(i, last) == 0 })
	fitting = slices.DeleteFunc(fitting, func(i int) bool { return liked(i, last) > 0 })
	chosen := nearest(node, fitting, first, want)
	slices.Sort(chosen)
	return chosen, Fits
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

func (r Request) inGroup(d *Device) bool {
	return r.Group != (Group{}) && slices.ContainsFunc(d.Pods, func(h Holding) bool { return h.Request.Group == r.Group })
}
