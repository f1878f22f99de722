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

// Grant is one answer to Allocate: the part of one resource that a container got.
type Grant struct {
	// The container for which the kubelet most likely asked. All are empty for an unknown pod. UID is empty where PodResources
	// reported a pod that may not be admitted yet, and Container where it reported another pod than the plugin had assumed.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	UID       string `json:"uid,omitempty"`
	Container string `json:"container,omitempty"`
	Init      bool   `json:"init,omitempty"` // a plain init container: PodResources does not list it

	Slots    []gpu.SlotID                         `json:"slots"` // the table sorts them
	GPUs     []GPU                                `json:"gpus"`  // by index
	Level    gpu.Enforcement                      `json:"level,omitempty"`
	MPS      int                                  `json:"mps,omitempty"` // protocol of the daemon that the container is a client of; 0: none
	Response *pluginapi.ContainerAllocateResponse `json:"response"`      // the answer that the kubelet stores; nil: unknown

	number int // of the grants of this process; 0: of an earlier one
}

// GPU is the part of one GPU that a grant has.
type GPU struct {
	UUID  gpu.UUID  `json:"uuid"`
	Units gpu.Units `json:"units,omitempty"`
	MiB   int64     `json:"mib,omitempty"`
	Cores int       `json:"cores,omitempty"` // per cent
}

// NewGrant returns the grant of an answer to the container that allocation.Admit returned.
func NewGrant(to allocation.Attributed, g allocation.Grant, inv gpu.Inventory, response *pluginapi.ContainerAllocateResponse) Grant {
	out := Grant{
		Namespace: to.Pod.Namespace, Pod: to.Pod.Name, UID: to.Pod.UID, Container: to.Container.Name,
		Init:  to.Pod.UID != "" && to.Container.Kind == placement.Init,
		Slots: g.Slots, Level: cmp.Or(inv.Enforcement, gpu.EnforcementAdvisory), Response: response,
	}
	if inv.MPS {
		out.MPS = mps.Protocol
	}
	for _, d := range g.Devices {
		if g.Resource == gpu.Cores {
			out.GPUs = append(out.GPUs, GPU{UUID: d.UUID, Cores: g.Each})
			continue
		}
		out.GPUs = append(out.GPUs, GPU{UUID: d.UUID, Units: gpu.Units(g.Each), MiB: d.MiB(gpu.Units(g.Each), inv.UnitMiB)})
	}
	return out
}

// LimitMiB returns the limit on each GPU of the grant.
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

// Attributed returns the grant as package allocation reads it.
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

// overlaps reports whether two grants share a slot. Both are sorted.
func (g Grant) overlaps(o Grant) bool {
	return slices.ContainsFunc(g.Slots, func(id gpu.SlotID) bool { _, has := slices.BinarySearch(o.Slots, id); return has })
}

// answers reports whether the response of a grant of memory has set gpumem's own variables of an environment. Other
// variables can have another value before the response's.
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

// replaces reports whether a grant ends an older one. The kubelet may have lost the older one.
func (g Grant) replaces(o Grant, lost bool) bool {
	ofPod := g.UID != "" && g.Namespace == o.Namespace && g.Pod == o.Pod && (g.UID == o.UID || o.UID == "")
	switch {
	case g.Resource() != o.Resource():
		return false
	case ofPod && g.Container == o.Container && lost:
		return true // a kubelet that lost its records asks again
	case ofPod && o.Init && g.Container != o.Container:
		return false
	}
	return g.overlaps(o)
}
