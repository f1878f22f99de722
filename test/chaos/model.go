package chaos

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/test/cluster"
)

// What the product is called in the API. Names are written out, and formats are
// read here again, so that a fault of the product's own code cannot hide itself.
const (
	gpuMem        = "gpumem.dev/gpu-mem"
	countKey      = "gpumem.dev/gpu-count"
	policyKey     = "gpumem.dev/policy"
	uuidKey       = "gpumem.dev/gpu-uuid"
	assignmentKey = "gpumem.dev/assignment"
	inventoryKey  = "gpumem.dev/inventory"
	schedulerName = "gpumem-scheduler"
	devicePlugin  = "gpumem-device-plugin"
	unitMiB       = 1024
)

// device is one GPU of the cluster.
type device struct {
	node  string
	uuid  string
	index int
	units int64

	healthy bool
}

// prefix is what the IDs of the device's units begin with.
func (d device) prefix() string { return strings.TrimPrefix(d.uuid, "GPU-")[:len("01234567")] }

// devices are those of all nodes, in order.
type devices []device

// devicesOf reads what a node says that it has.
func devicesOf(node *v1.Node) (devices, error) {
	var inventory struct {
		GPUs []struct {
			UUID    string
			Index   int
			Units   int64
			Healthy bool
		}
	}
	if err := json.Unmarshal([]byte(node.Annotations[inventoryKey]), &inventory); err != nil {
		return nil, fmt.Errorf("inventory of node %s: %w", node.Name, err)
	}
	var out devices
	for _, g := range inventory.GPUs {
		out = append(out, device{node: node.Name, uuid: g.UUID, index: g.Index, units: g.Units, healthy: g.Healthy})
	}
	return out, nil
}

type share struct {
	uuid  string
	units int64
}

// pod is what the API server has written of a pod that asks for GPU memory.
type pod struct {
	uid        types.UID
	name       string // namespace/name
	node       string // empty: not bound
	ended      bool
	deleting   bool
	ready      bool
	shape      string
	touched    bool // by the device plugin, after it was bound
	exclusive  bool
	pinned     string // UUID of the GPU that it asks for, if it does
	count      int
	need       int64
	containers map[string]int64  // units of each container that has any
	names      map[string]string // of containers, by the ID of the last start
	running    map[string]string // the same, of those that run
	shares     []share
	problem    string // why the shares could not be read
	waits      string // why it is not placed
}

func (p pod) String() string { return fmt.Sprintf("%s (%s)", p.name, p.uid) }

func (p pod) uuids() []string {
	var out []string
	for _, s := range p.shares {
		out = append(out, s.uuid)
	}
	slices.Sort(out)
	return out
}

// podOf reads a pod; ok is false for one that asks for no GPU memory.
func podOf(in *v1.Pod) (p pod, ok bool) {
	p = pod{
		uid: in.UID, name: in.Namespace + "/" + in.Name, node: in.Spec.NodeName,
		ended:      in.Status.Phase == v1.PodSucceeded || in.Status.Phase == v1.PodFailed,
		deleting:   in.DeletionTimestamp != nil,
		shape:      in.Labels[shapeLabel],
		exclusive:  in.Annotations[policyKey] == "exclusive",
		pinned:     in.Annotations[uuidKey],
		count:      1,
		containers: make(map[string]int64),
		names:      make(map[string]string),
		running:    make(map[string]string),
	}
	_, _ = fmt.Sscan(in.Annotations[countKey], &p.count) // not set: one
	for _, c := range in.Status.Conditions {
		switch {
		case c.Type == v1.PodReady:
			p.ready = c.Status == v1.ConditionTrue
		case c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse:
			p.waits = c.Message
		}
	}
	for _, m := range in.ManagedFields {
		p.touched = p.touched || m.Manager == devicePlugin && m.Subresource == ""
	}
	var sidecars int64
	for _, c := range in.Spec.InitContainers {
		units := p.container(c)
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sidecars += units
			continue
		}
		p.need = max(p.need, sidecars+units)
	}
	sum := sidecars
	for _, c := range in.Spec.Containers {
		sum += p.container(c)
	}
	p.need = max(p.need, sum)
	for _, s := range slices.Concat(in.Status.InitContainerStatuses, in.Status.ContainerStatuses) {
		_, id, ok := strings.Cut(s.ContainerID, "://")
		if ok {
			p.names[id] = s.Name
		}
		if ok && s.State.Running != nil {
			p.running[id] = s.Name
		}
	}
	p.shares, p.problem = sharesOf(in.Annotations[assignmentKey])
	return p, p.need > 0
}

func (p pod) container(c v1.Container) int64 {
	q := c.Resources.Limits[gpuMem]
	if units := q.Value(); units > 0 {
		p.containers[c.Name] = units
	}
	return q.Value()
}

func sharesOf(annotation string) ([]share, string) {
	if annotation == "" {
		return nil, "it has no assignment"
	}
	var a struct {
		V       int
		UnitMiB int64
		GPUs    []struct {
			UUID  string
			Units int64
		}
	}
	if err := json.Unmarshal([]byte(annotation), &a); err != nil {
		return nil, fmt.Sprintf("its assignment cannot be read: %v: %s", err, annotation)
	}
	if a.V != 1 || a.UnitMiB != unitMiB {
		return nil, fmt.Sprintf("its assignment is of version %d with units of %d MiB", a.V, a.UnitMiB)
	}
	var out []share
	for _, g := range a.GPUs {
		out = append(out, share{g.UUID, g.Units})
	}
	return out, ""
}

// holding is what a kubelet has given to a container.
type holding struct {
	pod       string // namespace/name: the kubelet tells no UID
	container string
	ids       []string
}

func (h holding) String() string { return h.pod + "/" + h.container }

// process is one in a container that was granted GPU memory.
type process struct {
	cluster.ContainerProcess
	uuids    []string
	limitMiB int64 // of each GPU
}
