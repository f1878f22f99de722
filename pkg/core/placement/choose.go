package placement

import (
	"cmp"
	"math"
	"slices"
)

// Choose picks the GPUs of a node for a request. It uses the request's policy, or fallback if the
// request names none. If the request does not fit, the assignment is empty and the verdict has the
// reason.
//
// Choose prefers a device that already holds a pod of the same group, then the model that the pod
// prefers. For several GPUs it prefers the set with the best interconnect. Then the policy decides,
// and among equal devices the lowest index. As a fallback, Exclusive chooses like Binpack and allows
// other pods: only a pod that names the policy gets a GPU for itself. An unknown policy picks the
// lowest indexes.
func Choose(fallback Policy, req Request, node Node) (Assignment, Verdict) {
	chosen, reason := choose(fallback, req, node)
	units, cores := req.Share()
	var a Assignment
	for _, i := range chosen {
		a.Shares = append(a.Shares, Share{Device: node.Devices[i].UUID, Units: units, Cores: cores})
	}
	return a, Verdict{Reason: reason, Request: req, Node: node}
}

// Choice is the set of devices that Choose picks on a node, for callers that compare nodes.
type Choice struct {
	Devices []int // indexes into Node.Devices
	Order
}

// Order ranks a choice by the request's preferences, independently of the policy.
type Order struct {
	Grouped   bool     // a chosen device holds a pod of the request's group
	ModelCost int      // of the least preferred model; lower is better
	distance  distance // without lanes: the NVLinks of different models are not comparable
}

// Compare orders choices, the better one first: by group, then by model, then by distance.
func (a Order) Compare(b Order) int {
	return cmp.Or(CompareBool(b.Grouped, a.Grouped), cmp.Compare(a.ModelCost, b.ModelCost), a.distance.compare(b.distance))
}

// NewChoice picks devices of a node. It returns false if the request does not fit.
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

// choose returns the indexes of the picked devices in ascending order.
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
	// The last device is the least preferred one that the request needs. Every solution contains all
	// devices that are preferred to the last device, and no device that is less preferred.
	last := fitting[want-1]
	first := slices.IndexFunc(fitting, func(i int) bool { return liked(i, last) == 0 })
	fitting = slices.DeleteFunc(fitting, func(i int) bool { return liked(i, last) > 0 })
	chosen := nearest(node, fitting, first, want)
	slices.Sort(chosen)
	return chosen, Fits
}

// CompareBool orders false before true.
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
	return r.Group != (Group{}) && slices.ContainsFunc(d.Pods, func(h *Holding) bool { return h.Request.Group == r.Group })
}
