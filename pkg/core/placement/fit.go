package placement

import (
	"iter"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Fit decides whether the request fits the node, and returns the reason if it does not. The node must not
// include the pod's own allocation.
func Fit(req Request, node Node) Verdict {
	_, reason := candidates(req, node)
	return Verdict{Reason: reason, Request: req, Node: node}
}

// Amount is an amount of memory and of cores. Cores are in per cent of one GPU.
type Amount struct {
	Units gpu.Units
	Cores int
}

// Covers reports whether the amount contains at least the given units and cores.
func (a Amount) Covers(units gpu.Units, cores int) bool { return a.Units >= units && a.Cores >= cores }

// FreeOn returns the free amount of a device, less the whole request of each pod whose devices are unknown: such
// a pod can be on any device, with any split.
func (n Node) FreeOn(d Device) Amount {
	left := Amount{Units: d.Free(), Cores: d.FreeCores()}
	for _, h := range n.Unattributed {
		left.Units = max(0, left.Units-h.Request.Units())
		left.Cores = max(0, left.Cores-h.Request.Cores())
	}
	return left
}

// Allows reports whether the pod's globs match a device. A pod with several GPUs gets no MIG instances.
func (r Request) Allows(d Device) bool {
	q := query{request: &r}
	return q.allows(d)
}

// CanShare reports whether no pod of PodsOn conflicts with the request (see ConflictsWith).
func (n Node) CanShare(r Request, d Device) bool {
	for h := range n.PodsOn(d) {
		if r.ConflictsWith(h.Request) {
			return false
		}
	}
	return true
}

// PodsOn yields the pods on a device of the node, and the pods whose devices are unknown, because they can be
// on this device.
func (n *Node) PodsOn(d Device) iter.Seq[*Holding] {
	return func(yield func(*Holding) bool) {
		for _, h := range d.Pods {
			if !yield(h) {
				return
			}
		}
		for i := range n.Unattributed {
			if !yield(&n.Unattributed[i]) {
				return
			}
		}
	}
}

// ConflictsWith reports whether two requests exclude each other from one device.
func (r Request) ConflictsWith(other Request) bool {
	return r.Policy == Exclusive || other.Policy == Exclusive || r.ExclusiveGroup != (Group{}) && other.ExclusiveGroup == r.ExclusiveGroup
}

// IsExclusive reports whether PodsOn yields an exclusive pod. No other pod can then use the device, even if
// memory is free.
func (n Node) IsExclusive(d Device) bool { return !n.CanShare(Request{}, d) }

// MPSClients is the smallest limit of processes per GPU among the MPS servers of supported drivers.
const MPSClients = 48

// HasClients reports whether the MPS server can serve one more client per container of the request on the
// device. HasClients returns true on nodes without MPS. A container counts as one process, because the real
// number is unknown in advance.
func (n Node) HasClients(r Request, d Device) bool {
	if !n.MPS && n.Enforcement != gpu.EnforcementMPS {
		return true
	}
	clients := r.Containers.processes
	for h := range n.PodsOn(d) {
		clients += h.Request.Containers.processes
	}
	return clients <= n.Clients(d)
}

// Clients returns the maximum number of processes that the MPS server serves on a device of the node
// (NVIDIA, "Multi-Process Service", Limitations): on Volta and newer, 60 client contexts from CUDA 13.1
// (driver 590) on, and 48 before. The server supports fewer if clients set
// CUDA_DEVICE_MAX_CONNECTIONS above 2, which gpumem cannot detect. For a MIG instance the limit depends
// on its size (NVIDIA, "Multi-Instance GPU"); Clients returns the limit of the smallest instance.
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

// FreeFor returns the total free amount of the devices that the request can use, including devices with too
// little for one share. If the total covers a request that fits no device, the free memory is fragmented.
func (n Node) FreeFor(r Request) (sum Amount) {
	q := newQuery(&r, &n)
	for _, d := range n.Devices {
		if q.allows(d) && d.Status.TakesPods() && n.CanShare(r, d) && n.HasClients(r, d) {
			left := n.FreeOn(d)
			sum.Units += left.Units
			sum.Cores += left.Cores
		}
	}
	return sum
}

// Check returns the first reason why a share of the request does not fit a device of the node:
// OtherUnits, NoSuchDevice, TooLarge, Unhealthy, Occupied or Insufficient. It returns Fits if the share
// fits.
func (n Node) Check(r Request, d Device) Reason {
	q := newQuery(&r, &n)
	return q.checkGPU(d)
}

// Checks yields the result of Check for each device, with the device's index in Devices.
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

// StillFits reports whether an assigned pod still fits the devices of its assignment, next to the other
// pods.
func (n Node) StillFits(h Holding) bool {
	n = n.Without([]Holding{h})
	fits := func(d Device) bool { return n.Check(h.Request, d) == Fits }
	for _, id := range h.Assignment.Devices() {
		if !slices.ContainsFunc(n.Devices, func(d Device) bool { return d.UUID == id && fits(d) }) {
			return false
		}
	}
	return true
}

// candidates returns the indexes of the devices on which the request fits. If these devices are too few, it
// returns the reason of the first check that leaves too few.
func candidates(req Request, node Node) ([]int, Reason) {
	q := newQuery(&req, &node)
	if reason := q.check(); reason != Fits {
		return nil, reason
	}
	var rejected [len(checks)]int // number of devices by reason
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
