package placement

import (
	"fmt"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Reason is the reason why a request does not fit a node. The zero value means that it fits.
type Reason uint8

// The reasons, from the most to the least permanent. The order matters: evictions cannot resolve a
// reason before Unhealthy (see Unresolvable), and may resolve any reason from Occupied on. Package
// nearmiss gives all reasons from Occupied on the same stage.
const (
	Fits              Reason = iota
	NoDevices                // the node offers no GPU, or all by claims
	OtherUnits               // the pod requests shares and the node offers amounts of memory, or the reverse
	WeakerEnforcement        // the node's enforcement level is weaker than the pod accepts
	NoCores                  // the pod requests cores, and the node offers none
	NoSuchDevice             // no GPU matches the pod's globs, or only MIG instances do and the pod requests several GPUs
	TooLarge                 // no GPU is large enough, even when empty
	TooFew                   // fewer GPUs are large enough than requested
	Unhealthy                // too many GPUs take no new pods: unhealthy, cordoned, or without their device plugin
	Occupied                 // the pod cannot share the GPUs with the pods on them, or the MPS server has no client left
	Insufficient             // too little is free, on single GPUs and in total
	Fragmented               // enough is free in total, but not on single GPUs
)

func (r Reason) String() string { return checks[r].name }

// Doc describes the reason in Markdown.
func (r Reason) Doc() string { return checks[r].doc }

// OfGPU reports whether the reason can apply to a single GPU.
func (r Reason) OfGPU() bool { return checks[r].of&aGPU != 0 }

// Verdict is the result of checking one request on one node.
type Verdict struct {
	Reason  Reason
	Request Request
	Node    Node
}

// Fits reports whether the request fits the node.
func (v Verdict) Fits() bool { return v.Reason == Fits }

// Unresolvable reports whether the request cannot fit the node even if all pods leave it
// (UnschedulableAndUnresolvable in Kubernetes).
func (v Verdict) Unresolvable() bool { return v.Reason > Fits && v.Reason < Unhealthy }

// Unfit is the error for a pod that does not fit a node. Package reasons renders it for people.
type Unfit struct {
	Pod     PodRef
	Verdict Verdict
}

func (u *Unfit) Error() string {
	return fmt.Sprintf("pod %s does not fit: %s", u.Pod, u.Verdict.Reason)
}

// Short is the error for a pod whose GPUs have fewer free slots than a container requests. Package
// reasons renders it for people.
type Short struct {
	Pod      PodRef // empty: the pod is unknown, and the kubelet requires slots of its init containers, on Devices
	Devices  []gpu.UUID
	Resource gpu.Resource
	Slots    int   // requested slots
	UnitMiB  int64 // unit of the node
}

func (s *Short) Error() string { return fmt.Sprintf("GPU %v has too few slots left", s.Devices) }
