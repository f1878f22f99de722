package placement

import (
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// checks has a row for each reason, in the order of evaluation. Methods rejectsNode and rejectsGPU
// evaluate the checks, package reasons has their messages, and the tables of the documentation are
// generated from the checks and the messages.
var checks = [Fragmented + 1]check{
	Fits:              {name: "Fits"},
	NoDevices:         {name: "NoDevices", of: aNode, doc: "it offers no GPU, or all its GPUs by [claims](claims.md)"},
	OtherUnits:        {name: "OtherUnits", of: aNode | aGPU, doc: "the pod requests [shares](shares.md) and the node offers GiB, or the reverse"},
	WeakerEnforcement: {name: "WeakerEnforcement", of: aNode, doc: "its [level](limits.md) is weaker than the pod accepts"},
	NoCores:           {name: "NoCores", of: aNode, doc: "the pod requests cores, and the node offers none"},
	NoSuchDevice:      {name: "NoSuchDevice", of: aGPU, doc: "`gpu-model` or `gpu-uuid` matches no GPU there, or only MIG instances match and the pod requests several GPUs"},
	TooLarge:          {name: "TooLarge", of: aGPU, doc: "no GPU is large enough, even when empty"},
	TooFew:            {name: "TooFew", counts: true, doc: "fewer GPUs are large enough than `gpu-count` requests"},
	Unhealthy:         {name: "Unhealthy", of: aGPU, counts: true, doc: "GPUs take no new pods: they are unhealthy or cordoned, or their device plugin is stopped"},
	Occupied:          {name: "Occupied", of: aGPU, counts: true, doc: "the pod may not share a GPU with the pods on it, or MPS serves no more clients"},
	Insufficient:      {name: "Insufficient", of: aGPU, counts: true, doc: "too little is free"},
	Fragmented:        {name: "Fragmented", doc: "enough is free in all, and too little on one GPU"},
}

// check is a row of the table. A reason without a scope checks neither the node nor a GPU: candidates
// derives the reason from the number of GPUs that remain.
type check struct {
	name   string
	of     scope
	counts bool // true: rejects the node if fewer GPUs remain than requested; false: only if none remains
	doc    string
}

// scope is the set of objects that a check examines.
type scope uint8

const (
	aNode scope = 1 << iota
	aGPU
)

// query is the evaluation of one request on one node.
type query struct {
	request *Request
	node    *Node
	units   gpu.Units // on each GPU
	cores   int

	// The result of matching the model globs with the last device. Most nodes have GPUs of one model, so
	// the globs are usually matched once.
	model   string
	passes  bool
	matched bool
}

func newQuery(r *Request, n *Node) query {
	units, cores := r.Share()
	return query{request: r, node: n, units: units, cores: cores}
}

// allows reports whether the pod's globs match a device. A pod with several GPUs gets no MIG instances.
func (q *query) allows(d Device) bool {
	if !q.matched || d.Model != q.model {
		q.model, q.passes, q.matched = d.Model, q.request.Models.MatchModel(d.Model), true
	}
	return q.passes && q.request.UUIDs.Match(string(d.UUID)) && !(d.MIG() && q.request.GPUs() > 1)
}

// rejectsNode reports whether the check of a reason rejects the node.
func (q *query) rejectsNode(reason Reason) bool {
	switch reason {
	case NoDevices:
		return !slices.ContainsFunc(q.node.Devices, func(d Device) bool { return !d.Status.ByClaims })
	case OtherUnits:
		return q.node.InShares() != q.request.InShares
	case WeakerEnforcement:
		return !q.node.LevelFor(q.request.GPUs()).AtLeast(q.request.Enforcement)
	case NoCores:
		return q.cores > 0 && q.node.Coreless
	default:
		return false
	}
}

// rejectsGPU reports whether the check of a reason rejects a GPU of the node.
func (q *query) rejectsGPU(reason Reason, d Device) bool {
	switch reason {
	case OtherUnits:
		return q.request.InShares != d.InShares()
	case NoSuchDevice:
		return !q.allows(d)
	case TooLarge:
		return q.units > d.Allocatable || q.cores > gpu.CoresPerDevice
	case Unhealthy:
		return !d.Status.TakesPods()
	case Occupied:
		return !q.node.CanShare(*q.request, d) || !q.node.HasClients(*q.request, d)
	case Insufficient:
		return !q.node.FreeOn(d).Covers(q.units, q.cores)
	default:
		return false
	}
}

// check returns the first reason that rejects the node as a whole.
func (q *query) check() Reason {
	for reason := range checks {
		if checks[reason].of&aNode != 0 && q.rejectsNode(Reason(reason)) {
			return Reason(reason)
		}
	}
	return Fits
}

// checkGPU returns the first reason that rejects a GPU of the node.
func (q *query) checkGPU(d Device) Reason {
	for reason := range checks {
		if checks[reason].of&aGPU != 0 && q.rejectsGPU(Reason(reason), d) {
			return Reason(reason)
		}
	}
	return Fits
}
