package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/cluster"
)

// The names of gpumem's API. They are written out, and the formats are parsed here, so that a fault of the
// product's code cannot hide itself.
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

type gpu struct {
	node, uuid string
	index      int
	units      int64
	healthy    bool
}

// prefix begins the IDs of the GPU's units.
func (g gpu) prefix() string { return strings.TrimPrefix(g.uuid, "GPU-")[:len("01234567")] }

type node struct {
	name      string
	takesPods bool
	units     int64 // allocatable
	gpus      []gpu
}

func parseNode(in *v1.Node) (node, error) {
	var inventory struct {
		GPUs []struct {
			UUID    string
			Index   int
			Units   int64
			Healthy bool
		}
	}
	if err := json.Unmarshal([]byte(in.Annotations[inventoryKey]), &inventory); err != nil {
		return node{}, fmt.Errorf("inventory of node %s: %w", in.Name, err)
	}
	allocatable := in.Status.Allocatable[gpuMem]
	ready := slices.ContainsFunc(in.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue })
	tainted := slices.ContainsFunc(in.Spec.Taints, func(t v1.Taint) bool { return t.Effect != v1.TaintEffectPreferNoSchedule })
	n := node{name: in.Name, units: allocatable.Value(), takesPods: ready && !tainted && !in.Spec.Unschedulable}
	for _, g := range inventory.GPUs {
		n.gpus = append(n.gpus, gpu{node: in.Name, uuid: g.UUID, index: g.Index, units: g.Units, healthy: g.Healthy})
	}
	return n, nil
}

func gpusOf(nodes []node) (out []gpu) {
	for _, n := range nodes {
		out = append(out, n.gpus...)
	}
	return out
}

type share struct {
	UUID  string
	Units int64
}

// pod is a pod that requests GPU memory.
type pod struct {
	*v1.Pod
	name       string           // namespace/name
	units      int64            // requested
	count      int64            // of GPUs
	containers map[string]int64 // units of each container that requests any
	shares     []share          // of the assignment
	problem    string           // of the assignment
}

func (p pod) String() string { return fmt.Sprintf("%s (%s)", p.name, p.UID) }

func (p pod) ended() bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

func (p pod) restarts() bool { return p.Labels[shapeLabel] == restarts }

// repairable reports whether the device plugin writes the pod's assignment. It may be wrong for a moment. The
// scheduler's own assignment may not: it comes with the binding.
func (p pod) repairable() bool {
	return p.Labels[shapeLabel] == direct ||
		slices.ContainsFunc(p.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == devicePlugin && m.Subresource == "" })
}

// on returns the units of a GPU that are allocated to the pod.
func (p pod) on(g gpu) (units int64) {
	if p.Spec.NodeName != g.node || p.ended() {
		return 0
	}
	for _, s := range p.shares {
		if s.UUID == g.uuid {
			units += s.Units
		}
	}
	return units
}

func (p pod) uuids() (out []string) {
	for _, s := range p.shares {
		out = append(out, s.UUID)
	}
	slices.Sort(out)
	return out
}

// reason returns why the scheduler has not placed the pod.
func (p pod) reason() string {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

// parsePod returns ok false for a pod that requests no GPU memory.
func parsePod(in *v1.Pod) (p pod, ok bool) {
	p = pod{Pod: in, name: in.Namespace + "/" + in.Name, count: 1, containers: make(map[string]int64)}
	if n, err := strconv.ParseInt(in.Annotations[countKey], 10, 64); err == nil {
		p.count = n
	}
	var sidecars int64
	for _, c := range in.Spec.InitContainers {
		units := p.request(c)
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sidecars += units
		}
		p.units = max(p.units, sidecars+units)
	}
	sum := sidecars
	for _, c := range in.Spec.Containers {
		sum += p.request(c)
	}
	p.units = max(p.units, sum)
	p.shares, p.problem = parseAssignment(in.Annotations[assignmentKey])
	return p, p.units > 0
}

func (p pod) request(c v1.Container) int64 {
	q := c.Resources.Limits[gpuMem]
	if q.Value() > 0 {
		p.containers[c.Name] = q.Value()
	}
	return q.Value()
}

func parseAssignment(annotation string) (shares []share, problem string) {
	if annotation == "" {
		return nil, "it has no assignment"
	}
	var a struct {
		V       int
		UnitMiB int64
		GPUs    []share
	}
	if err := json.Unmarshal([]byte(annotation), &a); err != nil {
		return nil, fmt.Sprintf("its assignment is invalid: %v: %s", err, annotation)
	}
	if a.V != 1 || a.UnitMiB != unitMiB {
		return nil, fmt.Sprintf("its assignment has version %d and units of %d MiB", a.V, a.UnitMiB)
	}
	return a.GPUs, ""
}

// holding is what a kubelet has allocated to a container.
type holding struct {
	pod       string // namespace/name: PodResources has no UID
	container string
	ids       []string
}

func (h holding) String() string { return h.pod + "/" + h.container }

// process runs in a container that has GPU memory by its environment.
type process struct {
	cluster.ContainerProcess
	uuids    []string
	limitMiB int64 // of each GPU
}

func isReady(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
}

func (b *bench) listNodes(ctx context.Context) (out []node, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		n, err := parseNode(&list.Items[i])
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// listPods returns one state of the API server: without a resource version it does not list from a cache.
func (b *bench) listPods(ctx context.Context) (out []pod, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if p, ok := parsePod(&list.Items[i]); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

// listHeld returns what the kubelet of a node has allocated.
func (b *bench) listHeld(ctx context.Context, node string) (out []holding, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := b.cluster.PodResources(ctx, node)
	if err != nil {
		return nil, err
	}
	for _, pod := range list.GetPodResources() {
		for _, c := range pod.GetContainers() {
			h := holding{pod: pod.GetNamespace() + "/" + pod.GetName(), container: c.GetName()}
			for _, d := range c.GetDevices() {
				if d.GetResourceName() == gpuMem {
					h.ids = append(h.ids, d.GetDeviceIds()...)
				}
			}
			if len(h.ids) > 0 {
				slices.Sort(h.ids)
				out = append(out, h)
			}
		}
	}
	return out, nil
}

// listProcesses returns the processes of the sample image that have GPU memory.
func (b *bench) listProcesses() (out []process, err error) {
	all, err := b.cluster.ContainerProcesses("sample")
	for _, one := range all {
		env, err := one.Environment()
		if err != nil {
			continue // it has just ended
		}
		limit, err := strconv.ParseInt(env["GPUMEM_LIMIT_MIB"], 10, 64)
		if err == nil {
			out = append(out, process{one, strings.Split(env["NVIDIA_VISIBLE_DEVICES"], ","), limit})
		}
	}
	return out, err
}
