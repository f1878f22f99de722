package placement

import (
	"iter"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Fit reports whether the request fits the node, and if not, why. What the pod
// itself already holds of the node must not be in it.
func Fit(req Request, node Node) Verdict {
	_, reason := candidates(req, node)
	return Verdict{Reason: reason, Request: req, Node: node}
}

// Amount is one of memory and one of cores, in per cent.
type Amount struct {
	Units gpu.Units
	Cores int
}

// Covers reports whether there is as much of both.
func (a Amount) Covers(units gpu.Units, cores int) bool { return a.Units >= units && a.Cores >= cores }

// Left returns what is left of a device for new pods. A pod of the node whose device is not
// known may be on any of them, so all that it requests is subtracted from each: how that is
// split is not known either.
func (n Node) Left(d Device) Amount {
	left := Amount{Units: d.Free(), Cores: d.FreeCores()}
	for _, h := range n.Unattributed {
		left.Units = max(0, left.Units-h.Request.Units())
		left.Cores = max(0, left.Cores-h.Request.Cores())
	}
	return left
}

// Allows reports whether the pod's globs let it use a device. Of several GPUs none is a MIG instance.
func (r Request) Allows(d Device) bool {
	q := query{request: &r}
	return q.allows(d)
}

// MayShare reports whether the request may share the device with the pods that are there, or may
// be there.
func (n Node) MayShare(r Request, d Device) bool {
	bars := func(h Holding) bool { return r.BarredBy(h.Request) }
	return !slices.ContainsFunc(d.Pods, bars) && !slices.ContainsFunc(n.Unattributed, bars)
}

// BarredBy reports whether the request may not be on one device with another.
func (r Request) BarredBy(other Request) bool {
	return r.Policy == Exclusive || other.Policy == Exclusive || r.ExclusiveGroup != (Group{}) && other.ExclusiveGroup == r.ExclusiveGroup
}

// HeldAlone reports whether a pod is on the device, or may be there, that is to be
// alone: no other gets any of it, whatever is free.
func (n Node) HeldAlone(d Device) bool { return !n.MayShare(Request{}, d) }

// MPSClients is how many processes the MPS server serves on one GPU, of the drivers that serve the fewest.
const MPSClients = 48

// HasClients reports whether the MPS server, where containers are its clients, has one
// left on the device for each container of the request. A container counts as one
// process: how many it has is not known before.
func (n Node) HasClients(r Request, d Device) bool {
	if !n.MPS && n.Enforcement != gpu.EnforcementMPS {
		return true
	}
	clients := r.Containers.processes
	for _, pods := range [...][]Holding{d.Pods, n.Unattributed} {
		for _, h := range pods {
			clients += h.Request.Containers.processes
		}
	}
	return clients <= n.Clients(d)
}

// Clients returns how many processes the MPS server serves on a device of the node (NVIDIA, "Multi-Process Service",
// Limitations): 60 client contexts from CUDA 13.1 on, which came with driver 590, and 48 with CUDA 13.0 and before, on Volta
// and newer. The server has fewer for clients that set CUDA_DEVICE_MAX_CONNECTIONS above 2, which gpumem does not see. On a
// MIG instance it is fewer, by its size (NVIDIA, "Multi-Instance GPU"): as on the smallest, with any driver.
func (n Node) Clients(d Device) int {
	switch {
	case d.MIG():
		return MPSClients / 7
	case gpu.Version(n.DriverVersion).AtLeast("590"):
		return 60
	default:
		return MPSClients
	}
}

// FreeFor returns what is free in all on the devices that the request may use,
// large enough or not: were it on one of them, it might do.
func (n Node) FreeFor(r Request) (sum Amount) {
	q := newQuery(&r, &n)
	for _, d := range n.Devices {
		if q.allows(d) && d.Status.TakesPods() && n.MayShare(r, d) && n.HasClients(r, d) {
			left := n.Left(d)
			sum.Units += left.Units
			sum.Cores += left.Cores
		}
	}
	return sum
}

// Check returns the first reason why one share of the request does not fit a device of the node: one of OtherUnits,
// NoSuchDevice, TooLarge, Unhealthy, Occupied and Insufficient.
func (n Node) Check(r Request, d Device) Reason {
	q := newQuery(&r, &n)
	return q.checkGPU(d)
}

// Checks yields the reason that Check returns for each device, by its place in the node.
func (n Node) Checks(r Request) iter.Seq2[int, Reason] {
	return func(yield func(int, Reason) bool) {
		q := newQuery(&r, &n)
		for i, d := range n.Devices {
			if !yield(i, q.checkGPU(d)) {
				return
			}
		}
	}
}

// Bears reports whether a pod of the node fits on the very devices that it is
// assigned to, next to the others.
func (n Node) Bears(h Holding) bool {
	n = n.Without([]Holding{h})
	fits := func(d Device) bool { return n.Check(h.Request, d) == Fits }
	for _, id := range h.Assignment.Devices() {
		if !slices.ContainsFunc(n.Devices, func(d Device) bool { return d.UUID == id && fits(d) }) {
			return false
		}
	}
	return true
}

// candidates returns the devices of the node on which the request fits, or the reason of the first check that too few
// devices pass.
func candidates(req Request, node Node) ([]int, Reason) {
	q := newQuery(&req, &node)
	if reason := q.check(); reason != Fits {
		return nil, reason
	}
	var rejected [len(checks)]int // devices, by reason
	var fitting []int
	for i, d := range node.Devices {
		reason := q.checkGPU(d)
		rejected[reason]++
		if reason == Fits {
			fitting = append(fitting, i)
		}
	}
	want, remain := req.GPUs(), len(node.Devices)
	for reason := NoDevices; reason < Fragmented; reason++ {
		remain -= rejected[reason]
		if remain > 0 && (remain >= want || !checks[reason].counts) {
			continue
		}
		if reason == Insufficient && node.FreeFor(req).Covers(gpu.Units(want)*q.units, want*q.cores) {
			return nil, Fragmented
		}
		return nil, reason
	}
	return fitting, Fits
}
