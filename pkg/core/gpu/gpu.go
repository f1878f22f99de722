package gpu

import (
	"cmp"
	"slices"
	"strings"
)

// Units counts units of GPU memory, the quantity of the extended resource.
type Units int64

// UUID identifies a GPU or a MIG instance in the driver's form: "GPU-" or "MIG-", and 32 hexadecimal
// digits in five groups.
type UUID string

// SharesPerDevice is the number of shares that a GPU of any size offers.
const SharesPerDevice = 10

// CoresPerDevice is the quantity of the gpu-core resource that a whole GPU offers: per cent of its
// streaming multiprocessors.
const CoresPerDevice = 100

// Device is one GPU that a node offers for sharing.
type Device struct {
	UUID   UUID
	Index  int    // NVML index, for display
	Parent UUID   // the GPU that contains the MIG instance; empty if unknown
	Model  string // name from NVML, for example "NVIDIA A100-SXM4-80GB"

	MemoryMiB   int64 // total memory, the driver's share included
	Allocatable Units // units that the device offers to pods
	ShareMiB    int64 // MiB of one unit if the GPU is offered in shares; 0: Inventory.UnitMiB
	Foreign     Units // part of Allocatable that processes without a grant use

	NUMANode          int    // -1 if unknown
	PCI               string // bus address, for example "00000000:3b:00.0"
	ComputeCapability string // for example "8.0"; empty if unknown
	Speed             int    // relative to an A100, which is 100; 0 if unknown

	Status Status
}

// Link is an NVLink connection between two GPUs of a node.
type Link struct {
	A, B  UUID
	Lanes int // number of NVLinks
}

// PodAllocation is a pod's allocation by the kubelet. The inventory lists an allocation if the pod's
// annotations record less of it, or recorded less at any time. Pods with claims have no such
// annotations, so all of them are listed.
type PodAllocation struct {
	UID, Namespace, Name string // of the pod; Namespace and Name are set only for pods with claims
	Shares               []Share
}

// Share is a pod's part of one device.
type Share struct {
	Device UUID
	Units  Units
	Cores  int
}

// MIG reports whether the device is a MIG instance. A CUDA program that uses a MIG instance can use no
// other device (NVIDIA, "Multi-Instance GPU").
func (d Device) MIG() bool { return strings.HasPrefix(string(d.UUID), "MIG-") }

// InShares reports whether the device is offered in shares instead of amounts of memory.
func (d Device) InShares() bool { return d.ShareMiB > 0 }

// MiB converts units of the device to MiB. Parameter unitMiB is the unit of the device's inventory.
func (d Device) MiB(u Units, unitMiB int64) int64 { return int64(u) * cmp.Or(d.ShareMiB, unitMiB) }

// Inventory describes the GPUs that a node offers.
type Inventory struct {
	UnitMiB       int64 // 0 if the devices are offered in shares
	DriverVersion string
	Enforcement   Enforcement
	Weaker        string          // reason why the level is not kernel; empty if it is kernel or was configured
	MPS           bool            // containers are clients of an MPS daemon
	Coreless      bool            // the node does not offer the gpu-core resource
	Devices       []Device        // sorted by Index
	Links         []Link          // between Devices; each pair once
	Allocated     []PodAllocation // allocations that pods' annotations do not record in full; sorted by UID
	CPU           int64           // allocatable CPU of the node in millicores; 0 if unknown
}

// InShares reports whether the node offers its devices in shares: either all of them, or none.
func (inv Inventory) InShares() bool { return len(inv.Devices) > 0 && inv.Devices[0].InShares() }

// Device returns the device with the UUID.
func (inv Inventory) Device(id UUID) (Device, bool) {
	for i := range inv.Devices { // avoid copying Devices
		if inv.Devices[i].UUID == id {
			return inv.Devices[i], true
		}
	}
	return Device{}, false
}

// Advertised reports whether the device plugin lists the device as healthy. A cordoned device is
// advertised too.
func (d Device) Advertised() bool { return d.Status.Works() && !d.Status.ByClaims }

// Allocatable returns the units of all devices, healthy or not.
func (inv Inventory) Allocatable() (sum Units) {
	for _, d := range inv.Devices {
		sum += d.Allocatable
	}
	return sum
}

// UnitsIn returns the number of whole units, each of unitMiB, in the memory of a GPU, less the reserved
// memory.
func UnitsIn(totalMiB, reservedMiB, unitMiB int64) Units {
	usable := totalMiB - reservedMiB
	if unitMiB <= 0 || usable <= 0 {
		return 0
	}
	return Units(usable / unitMiB)
}

// Enforcement is the level at which a container's memory is limited to its grant. The zero value is
// EnforcementAdvisory.
type Enforcement string

// The levels, weakest first.
const (
	EnforcementAdvisory Enforcement = "advisory" // by the container's framework, if the framework reads the limit from its environment
	EnforcementMPS      Enforcement = "mps"      // by the MPS server, per client process
	EnforcementKernel   Enforcement = "kernel"   // by driver and kernel, per container
)

// LevelFor returns the enforcement level for pods with the given number of GPUs. MPS reads a client's
// limits from a list of GPUs in its environment. These limits do not apply to a program that sees fewer
// GPUs than the list has (NVIDIA, "Per-GPU Compute and Memory Limits with MPS"), and launchers of
// several workers show each worker one GPU. So a pod with several GPUs gets the advisory level.
func (inv Inventory) LevelFor(gpus int) Enforcement {
	if gpus > 1 && inv.Enforcement == EnforcementMPS {
		return EnforcementAdvisory
	}
	return inv.Enforcement
}

// AtLeast reports whether level e is at least as strong as level want.
func (e Enforcement) AtLeast(want Enforcement) bool {
	limits := []Enforcement{EnforcementMPS, EnforcementKernel}
	return slices.Index(limits, e) >= slices.Index(limits, want)
}
