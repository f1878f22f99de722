package gpu

import (
	"cmp"
	"slices"
	"strings"
)

// Units counts shares of GPU memory: one count of the extended resource.
type Units int64

// UUID identifies a GPU as the driver does: "GPU-" and 32 hexadecimal digits
// in five groups, and "MIG-" and as many of a MIG instance.
type UUID string

// SharesPerDevice is what a GPU offers in shares, whatever its size.
const SharesPerDevice = 10

// CoresPerDevice is what a whole GPU offers of the gpu-core resource: per cent
// of its streaming multiprocessors.
const CoresPerDevice = 100

// Device is one GPU that a node offers for sharing.
type Device struct {
	UUID   UUID
	Index  int    // NVML index, for people
	Parent UUID   // of a MIG instance: the GPU that it is a part of, where that is known
	Model  string // as NVML names it, for example "NVIDIA A100-SXM4-80GB"

	MemoryMiB   int64 // all of the GPU's memory, the driver's share included
	Allocatable Units // what pods may hold of it
	ShareMiB    int64 // of one of its units, where it is offered in shares; 0: they are the inventory's
	Foreign     Units // of Allocatable, what programs use that were granted none of it

	NUMANode          int    // -1 when unknown
	PCI               string // bus address, for example "00000000:3b:00.0"
	ComputeCapability string // for example "8.0"; empty when unknown
	Speed             int    // relative to other models, an A100 being 100; 0 when unknown

	Status Status
}

// Link is a way between two GPUs of a node that is faster than the bus.
type Link struct {
	A, B  UUID
	Lanes int // how many NVLinks it is made of
}

// PodAllocation is what the kubelet of a node has given to a pod whose annotations say less, or have
// said less. With a name it is of a pod that has GPUs by claims: nothing else records these.
type PodAllocation struct {
	UID, Namespace, Name string // of the pod; the name is that of a pod with claims
	Shares               []Share
}

// Share is what a pod has of one device.
type Share struct {
	Device UUID
	Units  Units
	Cores  int
}

// MIG reports whether the device is a MIG instance of a GPU. A program sees no other device next to one
// (NVIDIA, "Multi-Instance GPU").
func (d Device) MIG() bool { return strings.HasPrefix(string(d.UUID), "MIG-") }

// InShares reports whether the device is offered in shares of it, and not by the amount.
func (d Device) InShares() bool { return d.ShareMiB > 0 }

// MiB returns how much memory so many units of the device are, where unitMiB is its inventory's unit.
func (d Device) MiB(u Units, unitMiB int64) int64 { return int64(u) * cmp.Or(d.ShareMiB, unitMiB) }

// Inventory is what a node offers.
type Inventory struct {
	UnitMiB       int64 // 0 where its devices are offered in shares
	DriverVersion string
	Enforcement   Enforcement
	Weaker        string          // why the enforcement is no stronger; empty when it is the strongest, or was chosen
	MPS           bool            // containers are clients of an MPS daemon
	Coreless      bool            // it offers no cores of its GPUs
	Devices       []Device        // sorted by Index
	Links         []Link          // between these; each pair once
	Allocated     []PodAllocation // where the kubelet has given pods more than is written; sorted by UID
	CPU           int64           // that pods can have of the node as well, in millicores; 0: not known
}

// InShares reports whether the devices are offered in shares of them: all are, or none.
func (inv Inventory) InShares() bool { return len(inv.Devices) > 0 && inv.Devices[0].InShares() }

// Device returns the device with that UUID.
func (inv Inventory) Device(id UUID) (Device, bool) {
	for i := range inv.Devices { // a Device is large
		if inv.Devices[i].UUID == id {
			return inv.Devices[i], true
		}
	}
	return Device{}, false
}

// Advertised reports whether the kubelet offers the device, and as a healthy one: also while it is cordoned.
func (d Device) Advertised() bool { return d.Status.Works() && !d.Status.ByClaims }

// Allocatable returns the units of all devices together, healthy or not.
func (inv Inventory) Allocatable() (sum Units) {
	for _, d := range inv.Devices {
		sum += d.Allocatable
	}
	return sum
}

// UnitsIn returns how many whole units of unitMiB are usable of a GPU with
// totalMiB of memory, without reservedMiB that are not to be given away.
func UnitsIn(totalMiB, reservedMiB, unitMiB int64) Units {
	usable := totalMiB - reservedMiB
	if unitMiB <= 0 || usable <= 0 {
		return 0
	}
	return Units(usable / unitMiB)
}

// Enforcement says who holds a container to its grant. The zero value is
// EnforcementAdvisory.
type Enforcement string

// The levels, weakest first.
const (
	EnforcementAdvisory Enforcement = "advisory" // the framework in the container, if it obeys
	EnforcementMPS      Enforcement = "mps"      // the MPS server, per client process
	EnforcementKernel   Enforcement = "kernel"   // driver and kernel, per container
)

// LevelFor returns the level at which containers of pods with that many GPUs are limited to their
// grants. With MPS a limit is in the client's environment, in a list of GPUs, and a
// program that sees fewer of them has none of these limits (NVIDIA, "Per-GPU Compute and Memory
// Limits with MPS"): launchers of several workers show each worker one GPU.
func (inv Inventory) LevelFor(gpus int) Enforcement {
	if gpus > 1 && inv.Enforcement == EnforcementMPS {
		return EnforcementAdvisory
	}
	return inv.Enforcement
}

// AtLeast reports whether e enforces as strongly as want.
func (e Enforcement) AtLeast(want Enforcement) bool {
	limits := []Enforcement{EnforcementMPS, EnforcementKernel}
	return slices.Index(limits, e) >= slices.Index(limits, want)
}
