package placement

import (
	"fmt"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Reason says why a request does not fit a node. The zero value means it fits.
type Reason uint8

// The reasons, from what can change least to what can change most. The order counts: before
// Unhealthy no pod that leaves helps (Unresolvable), and from Occupied on one may, all of these
// equally (package closest).
const (
	Fits              Reason = iota
	NoDevices                // the node offers no GPU, or all by claims
	OtherUnits               // the pod asks for shares and the node offers amounts of memory, or the other way about
	WeakerEnforcement        // the node cannot hold a container to its grant as the pod demands
	NoCores                  // the pod asks for cores, and the node offers none
	NoSuchDevice             // no GPU of the node passes the pod's globs, or all are MIG instances and it wants several
	TooLarge                 // no GPU is large enough, were it empty
	TooFew                   // GPUs are large enough, but not as many as wanted
	Unhealthy                // too many of them take no new pods: not healthy, cordoned, or without their device plugin
	Occupied                 // the pod may not be with the pods that are on them, or they are too many
	Insufficient             // not enough is free, on one GPU or in all
	Fragmented               // enough is free in all, on no GPU alone
)

func (r Reason) String() string { return checks[r].name }

// Doc describes the reason in Markdown.
func (r Reason) Doc() string { return checks[r].doc }

// OfGPU reports whether a GPU can have the reason, and not only its node.
func (r Reason) OfGPU() bool { return checks[r].of&aGPU != 0 }

// Verdict is the answer for one request on one node.
type Verdict struct {
	Reason  Reason
	Request Request
	Node    Node
}

// Fits reports whether the request fits the node.
func (v Verdict) Fits() bool { return v.Reason == Fits }

// Unresolvable reports whether the request can never fit the node as it is,
// whatever pods leave it. (Kubernetes: UnschedulableAndUnresolvable.)
func (v Verdict) Unresolvable() bool { return v.Reason > Fits && v.Reason < Unhealthy }

// Unfit says that a pod does not fit a node. It is an error; what
// people read is made of it by package reasons.
type Unfit struct {
	Pod     PodRef
	Verdict Verdict
}

func (u *Unfit) Error() string {
	return fmt.Sprintf("pod %s does not fit: %s", u.Pod, u.Verdict.Reason)
}

// Short says that the GPUs of a pod have fewer slots left than a container of it asks for. It is an
// error; what people read is made of it by package reasons.
type Short struct {
	Pod      PodRef // none: the pod that has the GPUs already, by its init containers
	Devices  []gpu.UUID
	Resource gpu.Resource
	Slots    int   // that it asks for
	UnitMiB  int64 // of the node
}

func (s *Short) Error() string { return fmt.Sprintf("GPU %v has too few slots left", s.Devices) }
