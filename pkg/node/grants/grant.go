package grants

import (
	"cmp"
	"slices"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/mps"
)

// Grant is one answer to Allocate: the memory or the cores that a container gets.
type Grant struct {
	// The container for which the kubelet most likely called. All fields are empty for an unknown pod. UID is
	// empty if PodResources lists a pod whose admission is uncertain. Container is empty if PodResources lists
	// the slots at another pod than the plugin had assumed, in a container with different slots of the
	// resource.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	UID       string `json:"uid,omitempty"`
	Container string `json:"container,omitempty"`
	Init      bool   `json:"init,omitempty"` // a plain init container, which PodResources does not list

	Slots    []gpu.SlotID                         `json:"slots"` // sorted by the table
	GPUs     []GPU                                `json:"gpus"`  // sorted by index
	Level    gpu.Enforcement                      `json:"level,omitempty"`
	MPS      int                                  `json:"mps,omitempty"` // protocol of the MPS daemon that the container is a client of; 0 if none
	Response *pluginapi.ContainerAllocateResponse `json:"response"`      // the answer that the kubelet stores; nil if unknown

	number int // sequence number in this process; 0 for a grant of an earlier process
}

// GPU is the amount of a grant on one GPU.
type GPU struct {
	UUID  gpu.UUID  `json:"uuid"`
	Units gpu.Units `json:"units,omitempty"`
	MiB   int64     `json:"mib,omitempty"`
	Cores int       `json:"cores,omitempty"` // per cent
}

// NewGrant returns the grant that records the answer `response` for a container from allocation.Admit.
func NewGrant(container allocation.Attributed, g allocation.Grant, inv gpu.Inventory, response *pluginapi.ContainerAllocateResponse) Grant {
	out := Grant{
		Namespace: container.Pod.Namespace, Pod: container.Pod.Name, UID: container.Pod.UID, Container: container.Container.Name,
		Init:  container.Pod.UID != "" && container.Container.Kind == placement.Init,
		Slots: g.Slots, Level: cmp.Or(inv.Enforcement, gpu.EnforcementAdvisory), Response: response,
	}
	if inv.MPS {
		out.MPS = mps.Protocol
	}
	for _, d := range g.Devices {
		if g.Resource == gpu.Cores {
			out.GPUs = append(out.GPUs, GPU{UUID: d.UUID, Cores: g.SlotsPerDevice})
			continue
		}
		out.GPUs = append(out.GPUs, GPU{UUID: d.UUID, Units: gpu.Units(g.SlotsPerDevice), MiB: d.MiB(gpu.Units(g.SlotsPerDevice), inv.UnitMiB)})
	}
	return out
}

// LimitMiB returns the memory limit on each GPU: the smallest amount of the grant on a GPU.
func (g Grant) LimitMiB() (least int64) {
	for i, part := range g.GPUs {
		if i == 0 || part.MiB < least {
			least = part.MiB
		}
	}
	return least
}

// Resource returns the resource of the grant.
func (g Grant) Resource() gpu.Resource { return g.Slots[0].Resource() }

// Attributed returns the grant as a value of package allocation.
func (g Grant) Attributed() allocation.Attributed {
	kind := placement.App
	if g.Init {
		kind = placement.Init
	}
	return allocation.Attributed{Pod: g.ref(), Container: placement.Container{Name: g.Container, Kind: kind}, Slots: g.Slots}
}

func (g Grant) ref() placement.PodRef {
	return placement.PodRef{Namespace: g.Namespace, Name: g.Pod, UID: g.UID}
}

// overlaps reports whether two grants share a slot. The slots of both must be sorted.
func (g Grant) overlaps(o Grant) bool {
	return slices.ContainsFunc(g.Slots, func(id gpu.SlotID) bool { _, has := slices.BinarySearch(o.Slots, id); return has })
}

// answers reports whether an environment contains all of gpumem's variables in the response, with the same values. It
// ignores other variables, because the image may set them too, and its value may precede the response's value.
func (g Grant) answers(env map[string]string) bool {
	n := 0
	for name, value := range g.Response.GetEnvs() {
		if !strings.HasPrefix(name, "GPUMEM_") {
			continue
		}
		if env[name] != value {
			return false
		}
		n++
	}
	return n > 0
}

// replaces reports whether grant g ends the older grant o. The argument `lost` is true if the kubelet may have
// lost grant o.
func (g Grant) replaces(o Grant, lost bool) bool {
	ofPod := g.UID != "" && g.Namespace == o.Namespace && g.Pod == o.Pod && (g.UID == o.UID || o.UID == "")
	switch {
	case g.Resource() != o.Resource():
		return false
	case ofPod && g.Container == o.Container && lost:
		return true // the kubelet has lost its records and calls again
	case ofPod && o.Init && g.Container != o.Container:
		return false
	}
	return g.overlaps(o)
}
