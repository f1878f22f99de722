package placement

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Share is a pod's part of one device.
type Share = gpu.Share

// Assignment records a pod's GPUs on its node, ordered by device index. The zero value means that no
// GPU is assigned yet.
type Assignment struct {
	Shares []Share

	// UnitMiB is the unit in the pod's annotation, for readers that do not have the node. No decision
	// depends on it: all pods of a node have the node's unit.
	UnitMiB int64

	// Enforcement is the level at the time of assignment; empty means the node's level at that time.
	Enforcement gpu.Enforcement

	// ByNode is set if the node's device plugin picked the devices, because no gpumem scheduler placed the
	// pod: another scheduler bound it by the node's sum, or its spec names the node.
	ByNode bool

	// Allocated is set if the kubelet has allocated slots of these devices. Their number can differ from
	// the request, which may have changed since.
	Allocated bool

	// Leaving lists the pod's former devices after an exchange of devices with other pods. The pod's share
	// is charged to each of them. The device plugin corrects the annotations of these pods one after the
	// other. Until all are correct, each pod is charged to its former and its present devices, so that no
	// further pod gets memory that only seems free.
	Leaving []gpu.UUID
}

// None reports whether no device is assigned.
func (a Assignment) None() bool { return len(a.Shares) == 0 }

// Devices returns the UUIDs of the assigned devices.
func (a Assignment) Devices() []gpu.UUID {
	out := make([]gpu.UUID, 0, len(a.Shares))
	for _, s := range a.Shares {
		out = append(out, s.Device)
	}
	return out
}

// SameDevices reports whether two assignments name the same devices, in any order. It ignores Leaving.
func (a Assignment) SameDevices(b Assignment) bool { return sameSet(a.Devices(), b.Devices()) }

// Same reports whether two assignments name the same devices and leave the same devices.
func (a Assignment) Same(b Assignment) bool {
	return a.SameDevices(b) && sameSet(slices.Clone(a.Leaving), slices.Clone(b.Leaving))
}

func sameSet(x, y []gpu.UUID) bool {
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

// WithShares returns the assignment with the request's share on each device.
func (a Assignment) WithShares(r Request) Assignment {
	units, cores := r.Share()
	a.Shares = slices.Clone(a.Shares)
	for i := range a.Shares {
		a.Shares[i].Units, a.Shares[i].Cores = units, cores
	}
	return a
}

// Holding is one pod on a node, with its request and its devices. A pod without an assignment, or with
// an assignment to a device that the node lacks, may be on any device.
type Holding struct {
	Pod        PodRef
	Request    Request
	Assignment Assignment
	Admitted   bool // the kubelet has admitted the pod: its GPUs no longer change

	// Allocated is the kubelet's allocation, if the node's inventory lists it. ShareOn charges the larger of
	// Allocated and Assignment.
	Allocated []Share

	Started     time.Time // when the kubelet admitted the pod; zero before
	Terminating bool      // the pod is being deleted; its memory is allocated until it ends
	Nominated   bool      // the pod is not on the node yet: it waits for evictions, or for the kubelet (see Waits)
	Waits       time.Time // start of a nominated pod's wait for the node to admit or place other pods; zero: the pod waits for evictions
}

// ShareOn returns the pod's charge on a device of its node: for memory and for cores, the larger of the
// assignment and the kubelet's allocation.
func (h Holding) ShareOn(id gpu.UUID) Share {
	s, given := shareOn(h.Assignment.Shares, id), shareOn(h.Allocated, id)
	if slices.Contains(h.Assignment.Leaving, id) {
		s = h.Assignment.Shares[0]
	}
	return Share{Device: id, Units: max(s.Units, given.Units), Cores: max(s.Cores, given.Cores)}
}

// Devices returns the devices of the pod's assignment and of the kubelet's allocation. It omits the devices
// that the pod is leaving.
func (h Holding) Devices() []gpu.UUID {
	out := h.Assignment.Devices()
	for _, s := range h.Allocated {
		if !slices.Contains(out, s.Device) {
			out = append(out, s.Device)
		}
	}
	return out
}

func shareOn(shares []Share, id gpu.UUID) Share {
	for _, s := range shares {
		if s.Device == id {
			return s
		}
	}
	return Share{Device: id}
}

// CompareImportance orders the more important pod first, as kube-scheduler does: by priority, then by
// age in seconds. Pods that started in the same second are equal. (MoreImportantPod in
// k8s.io/kubernetes/pkg/scheduler/util)
func CompareImportance(a, b Holding) int {
	return cmp.Or(
		cmp.Compare(b.Request.Priority, a.Request.Priority),
		CompareBool(a.Started.IsZero(), b.Started.IsZero()),
		a.Started.Compare(b.Started),
	)
}

// MoreImportant is CompareImportance with the pods' names as a tie-breaker.
func MoreImportant(a, b Holding) int {
	return cmp.Or(CompareImportance(a, b), a.Pod.Compare(b.Pod))
}

// Device is one GPU of a node and the pods on it.
type Device struct {
	*gpu.Device               // points into Inventory.Devices
	Requested      gpu.Units  // sum over Pods
	RequestedCores int        // sum over Pods, in per cent
	Pods           []*Holding // by namespace and name, including pods that leave the device; immutable, because nodes share them
}

// With returns a copy of the device with a changed status.
func (d Device) With(status gpu.Status) Device {
	other := *d.Device
	other.Status, d.Device = status, &other
	return d
}

// Free returns the units that are neither allocated nor used by other processes. It is never negative.
func (d Device) Free() gpu.Units { return max(0, d.Allocatable-d.Foreign-d.Requested) }

// FreeShare returns the free fraction of the device, from 0 to 1.
func (d Device) FreeShare() float64 { return float64(d.Free()) / float64(max(1, d.Allocatable)) }

// FreeCores returns the per cent of cores that are not allocated. It is never negative.
func (d Device) FreeCores() int { return max(0, gpu.CoresPerDevice-d.RequestedCores) }

// Node is a node with its GPUs and their allocations. It is immutable.
type Node struct {
	Name string
	gpu.Inventory

	Devices      []Device // the inventory's devices, or some of them (see Only), with their pods
	RequestedCPU int64    // of all pods on the node, with or without GPU memory

	// Unattributed are pods on this node whose devices are unknown.
	Unattributed []Holding

	// Nominated are pods that wait to run on this node, in the order of the queue. They have no memory
	// allocated yet: see decide.Reserved.
	Nominated []Holding

	// Expected are pods that kube-scheduler is about to bind here. They have no memory allocated yet, and
	// only WithExpected charges them.
	Expected []Holding
}

// NewNode assigns holdings to the devices of an inventory. The order of the holdings is irrelevant.
func NewNode(name string, inv gpu.Inventory, holdings []Holding) Node {
	holdings = slices.Clone(holdings)
	shared := make([]*Holding, len(holdings))
	for i := range holdings {
		shared[i] = &holdings[i]
	}
	return NewSharedNode(name, inv, shared)
}

// NewSharedNode is NewNode without a copy of each holding. The caller must not change the holdings
// afterwards.
func NewSharedNode(name string, inv gpu.Inventory, holdings []*Holding) Node {
	n := Node{Name: name, Inventory: inv, Devices: make([]Device, len(inv.Devices))}
	for i := range inv.Devices {
		n.Devices[i].Device = &inv.Devices[i]
	}
	holdings = slices.Clone(holdings)
	given := make(map[string][]Share, len(inv.Allocated))
	for _, g := range inv.Allocated {
		if g.Name == "" {
			given[g.UID] = g.Shares
			continue
		}
		// This holding has no CPU and no request: another holding of the same pod contains them.
		holdings = append(holdings, &Holding{Pod: PodRef{Namespace: g.Namespace, Name: g.Name, UID: g.UID}, Allocated: g.Shares, Admitted: true})
	}
	slices.SortFunc(holdings, func(a, b *Holding) int { return a.Pod.Compare(b.Pod) })
	for _, h := range holdings {
		if shares, ok := given[h.Pod.UID]; ok && len(h.Allocated) == 0 {
			with := *h
			with.Allocated = shares
			h = &with
		}
		n.RequestedCPU += h.Request.CPU
		if h.Assignment.None() && len(h.Allocated) == 0 && (h.Request.Empty() || len(inv.Devices) > 0 && h.Request.InShares != inv.InShares()) {
			continue // the pod requests no GPU memory, or in a kind of unit that this node does not offer
		}
		if h.Assignment.None() && !h.Request.Empty() || n.lacks(h) {
			n.Unattributed = append(n.Unattributed, *h)
			continue
		}
		n.charge(h, append(h.Devices(), h.Assignment.Leaving...))
	}
	return n
}

// lacks reports whether the node lacks a device of the pod's assignment.
func (n *Node) lacks(h *Holding) bool {
	return slices.ContainsFunc(h.Assignment.Shares, func(s Share) bool { _, ok := n.Device(s.Device); return !ok })
}

// charge adds a pod to the given devices.
func (n *Node) charge(h *Holding, on []gpu.UUID) {
	for i := range n.Devices {
		if d := &n.Devices[i]; slices.Contains(on, d.UUID) {
			s := h.ShareOn(d.UUID)
			d.Requested += s.Units
			d.RequestedCores += s.Cores
			d.Pods = append(d.Pods, h)
		}
	}
}

// FreeCPU returns the CPU that no pod requests, in millicores. It is never negative, and MaxInt64 if
// the node's CPU is unknown.
func (n Node) FreeCPU() int64 {
	if n.CPU == 0 {
		return math.MaxInt64
	}
	return max(0, n.CPU-n.RequestedCPU)
}

// Unrequested returns the free amount of the node in kube-scheduler's view, which knows only sums: the
// advertised amount minus the requests of all pods. It is less than the free amount of the devices, or
// negative, if a device has failed or shrunk below its allocations.
func (n Node) Unrequested() (units gpu.Units, cores int) {
	for _, d := range n.Devices {
		over, coresOver := d.Excess()
		units, cores = units-over, cores-coresOver
	}
	unattributed := n.UnattributedAmount()
	return units - unattributed.Units, cores - unattributed.Cores
}

// UnattributedAmount returns the sum of the requests of pods whose devices are unknown.
func (n Node) UnattributedAmount() (sum Amount) {
	for _, h := range n.Unattributed {
		sum.Units += h.Request.Units()
		sum.Cores += h.Request.Cores()
	}
	return sum
}

// Excess returns the amount that is allocated beyond the advertised amount of the device. It is negative
// if part of the device is free. A pod is charged to the devices of its kubelet allocation, or of its
// assignment if no such allocation is known, and not to the devices that it leaves.
func (d Device) Excess() (units gpu.Units, cores int) {
	for _, h := range d.Pods {
		has := h.Allocated
		if len(has) == 0 {
			has = h.Assignment.Shares
		}
		s := shareOn(has, d.UUID)
		units, cores = units+s.Units, cores+s.Cores
	}
	if d.Advertised() {
		units, cores = units-d.Allocatable, cores-gpu.CoresPerDevice
	}
	return units, cores
}

// InSum reports whether the node's sums suffice for a request. kube-scheduler's own
// filter checks this.
func (n Node) InSum(r Request) bool {
	units, cores := n.Unrequested()
	return r.Units() <= units && (r.Cores() == 0 || r.Cores() <= cores)
}
