package event

import (
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Events records Events. It never blocks on the API server.
type Events interface {
	Pod(ref placement.PodRef, e OnPod, note string)
	Node(e OnNode, note string)
}

// OnPod is an Event on a pod.
type OnPod uint8

// The Events on pods.
const (
	Refused OnPod = iota
	Placed
	Restored
	Swapped // the kubelet allocated another GPU to the pod, or allocated the planned GPU of a waiting pod to another pod
	Mixed
	OverUse
	WithinGrant
	Evicted
	NotEvicted
	Disrupted
	LevelLowered
	LevelRaised
	NotEnforced
	LostGPU
)

// OnNode is an Event on a node.
type OnNode uint8

// The Events on nodes.
const (
	Unhealthy OnNode = iota
	Healthy
	NotOffered
	UnitsNotChanged
	Conflict
)

// Row describes an Event. Two rows can have the same reason if their types differ.
type Row struct {
	Reason string
	Type   string // v1.EventTypeNormal or v1.EventTypeWarning
	Doc    string // content of the note, in Markdown
}

var onPods = [...]Row{
	Refused:      {"GPUMemoryRefused", v1.EventTypeWarning, "the reason why the device plugin refuses the pod"},
	Placed:       {"GPUMemoryPlaced", v1.EventTypeNormal, "the GPU that the pod got although no scheduler of gpumem had placed it"},
	Restored:     {"GPUMemoryCorrected", v1.EventTypeWarning, "the assignment that gpumem writes again after somebody changed or removed it"},
	Swapped:      {"GPUMemoryCorrected", v1.EventTypeNormal, "the GPU that the kubelet gave to the pod instead of the recorded one"},
	Mixed:        {"GPUMemoryMixed", v1.EventTypeWarning, "the kubelet gave the pod slots of more GPUs than it requests"},
	OverUse:      {"GPUMemoryOverUse", v1.EventTypeWarning, "the container that uses more memory than its grant"},
	WithinGrant:  {"GPUMemoryWithinGrant", v1.EventTypeNormal, "the container that uses no more than its grant again"},
	Evicted:      {"GPUMemoryEvicted", v1.EventTypeWarning, "the container whose use evicted the pod"},
	NotEvicted:   {"GPUMemoryNotEvicted", v1.EventTypeWarning, "the container that uses more than its grant in a static pod, which the API server cannot evict"},
	Disrupted:    {"GPUMemoryDisrupted", v1.EventTypeWarning, "the reason why Kubernetes terminates the pod (preemption, eviction, drain). At the level `mps`, [its neighbours may fail](limits.md#risks-of-mps) if it is killed after its grace period"},
	LevelLowered: {"GPUMemoryEnforcement", v1.EventTypeWarning, "the [level](limits.md) that limits the pod, weaker than at its binding"},
	LevelRaised:  {"GPUMemoryEnforcement", v1.EventTypeNormal, "the level that limits the pod, stronger than at its binding"},
	NotEnforced:  {"GPUMemoryNotEnforced", v1.EventTypeWarning, "the reason why a container waits, does not start, or runs without its limit"},
	LostGPU:      {"GPUUnhealthy", v1.EventTypeWarning, "the reason why the pod's GPU takes no new pods"},
}

var onNodes = [...]Row{
	Unhealthy:       {"GPUUnhealthy", v1.EventTypeWarning, "the reason why a GPU takes no new pods"},
	Healthy:         {"GPUHealthy", v1.EventTypeNormal, "the GPU that takes new pods again"},
	NotOffered:      {"GPUMemoryNotOffered", v1.EventTypeWarning, "the reason why the node offers nothing although it has GPUs"},
	UnitsNotChanged: {"GPUUnitsNotChanged", v1.EventTypeWarning, "the reason why the node still serves GiB, [shares](shares.md), claims or another unit, although its label or the chart wants something else"},
	Conflict:        {"GPUMemoryConflict", v1.EventTypeWarning, "the GPU that is in use twice: as gpumem's and as `nvidia.com/gpu`"},
}

// Row returns the row of an Event on a pod.
func (e OnPod) Row() Row { return onPods[e] }

// Row returns the row of an Event on a node.
func (e OnNode) Row() Row { return onNodes[e] }
