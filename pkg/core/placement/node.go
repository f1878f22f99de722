package placement

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Share is what a pod holds of one device.
type Share = gpu.Share

// Assignment is which GPUs of its node a pod was given, by index of the device.
// The zero value means: none yet.
type Assignment struct {
	Shares []Share

	// UnitMiB is the unit of the shares as the annotation has it, for readers who do not see the
	// node. Nothing is decided by it: all pods of a node have the node's unit.
	UnitMiB int64

	// Enforcement is the level at which the pod was given its devices; empty: that
	// of the node when it was assigned.
	Enforcement gpu.Enforcement

	// ByNode says that the node's device plugin chose the devices: no scheduler had
	// asked, for one that knows sums alone chose the node, or the pod names it itself.
	ByNode bool

	// Allocated says that these are the devices whose slots the kubelet has given to the pod: it
	// was given as many, whatever number it asks for by now.
	Allocated bool

	// Leaving are other devices that are charged with the same share. Pods that
	// exchange devices are corrected one by one: each is charged on both sides
	// until all are where they belong, so that no pod takes the gap between.
	Leaving []gpu.UUID
}

// None reports whether nothing is assigned.
func (a Assignment) None() bool { return len(a.Shares) == 0 }

// Devices returns the UUIDs of the assigned devices.
func (a Assignment) Devices() []gpu.UUID {
	out := make([]gpu.UUID, 0, len(a.Shares))
	for _, s := range a.Shares {
		out = append(out, s.Device)
	}
	return out
}

// SameDevices reports whether two assignments name the same devices, in any
// order. Those that they leave do not count.
func (a Assignment) SameDevices(b Assignment) bool { return sameSet(a.Devices(), b.Devices()) }

// Same reports whether two assignments name the same devices and leave the same.
func (a Assignment) Same(b Assignment) bool {
	return a.SameDevices(b) && sameSet(slices.Clone(a.Leaving), slices.Clone(b.Leaving))
}

func sameSet(x, y []gpu.UUID) bool {
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

// WithShares returns the assignment to the same devices with the amounts that
// a request has of each.
func (a Assignment) WithShares(r Request) Assignment {
	units, cores := r.Share()
	a.Shares = slices.Clone(a.Shares)
	for i := range a.Shares {
		a.Shares[i].Units, a.Shares[i].Cores = units, cores
	}
	return a
}

// Holding is one pod on a node: what it asked for and where it is. A holding
// that is assigned nothing, or a device that the node lacks, may be anywhere.
type Holding struct {
	Pod        PodRef
	Request    Request
	Assignment Assignment
	Admitted   bool // the kubelet has admitted the pod: its GPUs no longer change

	// Allocated is what the kubelet has given to the pod, where its node says so: what is written of
	// the pod was less. See On.
	Allocated []Share

	Started     time.Time // when the kubelet admitted it; zero before
	Terminating bool      // it is being deleted, and holds what it has to the end
	Nominated   bool      // it is not on the node yet: others leave for it
	Waits       time.Time // of a nominated pod: since when it waits for pods of the node to be admitted; zero: for others to leave
}

// On returns what the pod is charged with on a device of its node: the larger of what is written
// of it and of what the kubelet has given to it, of memory and of cores.
func (h Holding) On(id gpu.UUID) Share {
	s, given := shareOn(h.Assignment.Shares, id), shareOn(h.Allocated, id)
	if slices.Contains(h.Assignment.Leaving, id) {
		s = h.Assignment.Shares[0]
	}
	return Share{Device: id, Units: max(s.Units, given.Units), Cores: max(s.Cores, given.Cores)}
}

// Devices returns the devices that the pod has, as is written of it or as the kubelet has given
// them. Those that it leaves are not among them.
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

// CompareImportance puts the more important pod first, as kube-scheduler does: by
// priority, then by age, in seconds. It knows no difference between pods that
// started in the same one.
// (k8s.io/kubernetes/pkg/scheduler/util, MoreImportantPod)
func CompareImportance(a, b Holding) int {
	return cmp.Or(
		cmp.Compare(b.Request.Priority, a.Request.Priority),
		CompareBool(a.Started.IsZero(), b.Started.IsZero()),
		a.Started.Compare(b.Started),
	)
}

// MoreImportant is the same with an order among equals.
func MoreImportant(a, b Holding) int {
	return cmp.Or(CompareImportance(a, b), a.Pod.Compare(b.Pod))
}

// Device is one GPU of a node with what pods hold of it.
type Device struct {
	*gpu.Device              // of the node's inventory
	Requested      gpu.Units // the sum of what Pods have of it
	RequestedCores int       // the same
	Pods           []Holding // by namespace and name, those that leave it included
}

// With returns the device with another status.
func (d Device) With(status gpu.Status) Device {
	other := *d.Device
	other.Status, d.Device = status, &other
	return d
}

// Free returns the units that are neither allocated nor used: never negative.
func (d Device) Free() gpu.Units { return max(0, d.Allocatable-d.Foreign-d.Requested) }

// FreeShare returns which part of the device is neither allocated nor used, from 0 to 1.
func (d Device) FreeShare() float64 { return float64(d.Free()) / float64(max(1, d.Allocatable)) }

// FreeCores returns the per cent of cores that are not allocated: never negative.
func (d Device) FreeCores() int { return max(0, gpu.CoresPerDevice-d.RequestedCores) }

// Node is one node: what it offers, and who holds what of it. It is not changed once made.
type Node struct {
	Name string
	gpu.Inventory

	Devices      []Device // those of the inventory, or some of them (Only), with the pods that are on them
	RequestedCPU int64    // by all pods of the node, with GPU memory or without

	// Unattributed are pods on this node that no device is known of.
	Unattributed []Holding

	// Nominated are pods that are to come here once others have left, the first
	// in line first. They hold nothing yet: see decide.Reserved.
	Nominated []Holding

	// Expected are pods that kube-scheduler is about to bind here. They hold nothing yet, and refuse
	// no pod: see WithExpected.
	Expected []Holding
}

// NewNode puts holdings on the devices of an inventory. The order of the
// holdings does not matter.
func NewNode(name string, inv gpu.Inventory, holdings []Holding) Node {
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
		// The pod is among the holdings as well, for its CPU and its share by the extended resource.
		holdings = append(holdings, Holding{Pod: PodRef{Namespace: g.Namespace, Name: g.Name, UID: g.UID}, Allocated: g.Shares, Admitted: true})
	}
	slices.SortFunc(holdings, func(a, b Holding) int { return a.Pod.Compare(b.Pod) })
	for _, h := range holdings {
		if shares, ok := given[h.Pod.UID]; ok && len(h.Allocated) == 0 {
			h.Allocated = shares
		}
		n.RequestedCPU += h.Request.CPU
		if h.Assignment.None() && len(h.Allocated) == 0 && (h.Request.Empty() || len(inv.Devices) > 0 && h.Request.InShares != inv.InShares()) {
			continue // it names the resource, and asks for none of it, or of none that the kubelet gives here
		}
		if h.Assignment.None() && !h.Request.Empty() || n.lacks(h) {
			n.Unattributed = append(n.Unattributed, h)
			continue
		}
		n.charge(h, append(h.Devices(), h.Assignment.Leaving...))
	}
	return n
}

// lacks reports whether the node has not all devices that a pod is assigned to.
func (n *Node) lacks(h Holding) bool {
	return slices.ContainsFunc(h.Assignment.Shares, func(s Share) bool { _, ok := n.Device(s.Device); return !ok })
}

// charge puts a pod on some of the devices.
func (n *Node) charge(h Holding, on []gpu.UUID) {
	for i := range n.Devices {
		if d := &n.Devices[i]; slices.Contains(on, d.UUID) {
			s := h.On(d.UUID)
			d.Requested += s.Units
			d.RequestedCores += s.Cores
			d.Pods = append(d.Pods, h)
		}
	}
}

// FreeCPU returns the CPU that is not requested: never negative, and endless where
// it is not known.
func (n Node) FreeCPU() int64 {
	if n.CPU == 0 {
		return math.MaxInt64
	}
	return max(0, n.CPU-n.RequestedCPU)
}

// Unrequested returns what is free on the node to kube-scheduler, which knows its sums alone:
// what the kubelet is offered of the devices, less what all pods ask for. It is less than what
// is free on the devices, or negative, where one has failed or shrunk under its pods.
func (n Node) Unrequested() (units gpu.Units, cores int) {
	for _, d := range n.Devices {
		over, coresOver := d.Excess()
		units, cores = units-over, cores-coresOver
	}
	for _, h := range n.Unattributed {
		units, cores = units-h.Request.Units(), cores-h.Request.Cores()
	}
	return units, cores
}

// Excess returns what pods ask for beyond what the kubelet is offered of the device: negative
// where some of that is free. A pod that is charged on more devices than it has counts on those
// that it has: where that is known from the kubelet, what is written next to it is not so, and
// what the pod leaves counts where it goes.
func (d Device) Excess() (units gpu.Units, cores int) {
	for i := range d.Pods { // a Holding is large
		has := d.Pods[i].Allocated
		if len(has) == 0 {
			has = d.Pods[i].Assignment.Shares
		}
		s := shareOn(has, d.UUID)
		units, cores = units+s.Units, cores+s.Cores
	}
	if d.Advertised() {
		units, cores = units-d.Allocatable, cores-gpu.CoresPerDevice
	}
	return units, cores
}

// InSum reports whether the sums of the node are enough for a request, as kube-scheduler
// checks it before it asks for GPUs.
func (n Node) InSum(r Request) bool {
	units, cores := n.Unrequested()
	return r.Units() <= units && (r.Cores() == 0 || r.Cores() <= cores)
}
