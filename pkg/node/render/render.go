package render

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// Kernel limits the GPU memory of control groups. SetLimit sets the limit of a group. Release releases the kernel's
// reservations for a group.
type Kernel interface {
	SetLimit(ctx context.Context, group string, devices []gpu.Device, limitMiB int64) error
	Release(ctx context.Context, group string) error
}

// Containers provides the grants of the node's containers.
type Containers struct {
	cfg    Config
	kernel Kernel
	state  *grants.State
	pods   grants.Pods
	events event.Events
}

// New returns the containers of a node.
func New(cfg Config, kernel Kernel, state *grants.State, pods grants.Pods, events event.Events) *Containers {
	return &Containers{cfg: cfg, kernel: kernel, state: state, pods: pods, events: events}
}

// Environment returns the variables of a container that the runtime is about to create, from the container's
// recorded grant. For a container without a GPU memory request in a pod with GPU memory, it returns no
// variables and ok == true. For an unknown container, it returns ok == false. The map `environment` is the
// container's environment so far.
func (c *Containers) Environment(ctx context.Context, namespace, pod, container string, environment map[string]string) (env map[string]string, ok bool, err error) {
	h, err := c.findGrants(ctx, namespace, pod, container, environment)
	if err != nil {
		return nil, false, err
	}
	if h == nil {
		nothing, err := c.asksForNothing(ctx, namespace, pod, container)
		return nil, nothing, err
	}
	for _, d := range h.devices {
		if !d.Advertised() {
			return nil, false, &gpu.OutOfUse{Device: d}
		}
	}
	_, threads := environment[mpsThreads]
	env = h.environment(h.memory, c.cfg.withEnvironment(environment), c.cfg.servedBy(environment[mpsPipeDirectory]))
	maps.Copy(env, h.environment(h.cores, c.cfg.withEnvironment(environment), threads))
	return env, true, nil
}

// environment returns the variables of one grant: from the recorded response, or else from a new response with
// the settings `cfg`.
func (h *holding) environment(g *grants.Grant, cfg Config, withMPS bool) map[string]string {
	switch {
	case g == nil:
		return nil
	case g.Response != nil:
		return maps.Clone(g.Response.GetEnvs())
	}
	inv := h.inventory
	inv.Enforcement, inv.MPS = h.level, withMPS
	if g.GPUs[0].Cores > 0 {
		return cfg.Response(gpu.Cores, allocation.Grant{Devices: h.devices, SlotsPerDevice: g.GPUs[0].Cores}, inv).GetEnvs()
	}
	return cfg.Response(gpu.Memory, allocation.Grant{Devices: h.devices, SlotsPerDevice: int(g.GPUs[0].Units)}, inv).GetEnvs()
}

// asksForNothing reports whether a container of a pod with GPU memory requests no GPU memory. It returns an
// error if the kubelet lists the pod and the watch has not delivered it: the pod's spec, with the container's
// request, is then unknown.
func (c *Containers) asksForNothing(ctx context.Context, namespace, pod, container string) (bool, error) {
	pods, _, _ := c.pods.Pods()
	i := slices.IndexFunc(pods, func(one allocation.Pod) bool { return one.Pod.Namespace == namespace && one.Pod.Name == pod })
	if i < 0 && c.HoldsMemory(ctx, namespace, pod) {
		return false, errors.New("the API server has not reported the pod yet")
	}
	return i >= 0 && !slices.ContainsFunc(pods[i].Request.Containers.All(), func(one placement.Container) bool { return one.Name == container && one.Units > 0 }), nil
}

// HoldsMemory reports whether a pod has GPU memory. If the watch has not delivered the pod yet, HoldsMemory uses the
// kubelet's list.
func (c *Containers) HoldsMemory(ctx context.Context, namespace, pod string) bool {
	pods, _, _ := c.pods.Pods()
	if slices.ContainsFunc(pods, func(one allocation.Pod) bool { return one.Pod.Namespace == namespace && one.Pod.Name == pod }) {
		return true
	}
	s, _, _ := c.state.Snapshot(ctx) // or, with an error, the state from the kubelet's last list
	return slices.ContainsFunc(s.Allocated, func(h allocation.Allocated) bool { return h.Namespace == namespace && h.Name == pod })
}

// SetLimit sets the kernel limit that a container was promised. Package nri calls it before the container's
// program runs, and later for a container that started without its limit.
func (c *Containers) SetLimit(ctx context.Context, namespace, pod, container, cgroupsPath string, environment map[string]string) error {
	h, err := c.findGrants(ctx, namespace, pod, container, environment)
	switch {
	case err != nil:
		return err
	case h == nil && levelIn(environment) == gpu.EnforcementKernel:
		return errors.New("it was promised a limit of GPU memory, and neither the kubelet nor the API server tells of how much")
	case h == nil:
		return nil
	}
	if h.init {
		c.state.Attribute(h.pod.Pod, container, *h.memory) // the environment is reliable, because CreateContainer rejects a pod that sets gpumem's variables
	}
	if h.level != gpu.EnforcementKernel && h.ofPod != gpu.EnforcementKernel {
		return nil
	}
	err = Limit(ctx, c.kernel, cgroupsPath, h.devices, h.memory.LimitMiB())
	if err != nil && h.pod != nil {
		c.events.Pod(h.pod.Pod, event.NotEnforced, fmt.Sprintf("container %s: %v", container, err))
	}
	return err
}

// Limit sets the kernel's limit for a container, for this package and for package claims.
func Limit(ctx context.Context, kernel Kernel, cgroupsPath string, devices []gpu.Device, limitMiB int64) error {
	group, err := enforcement.GroupOf(cgroupsPath)
	if err != nil {
		return err
	}
	if err := kernel.SetLimit(ctx, group, devices, limitMiB); err != nil {
		return fmt.Errorf("its limit of GPU memory does not hold: %w", err)
	}
	return nil
}

// Release releases the kernel's reservations for a container that has ended, if the container was promised
// level kernel.
func (c *Containers) Release(ctx context.Context, cgroupsPath string, environment map[string]string) error {
	return Release(ctx, c.kernel, cgroupsPath, environment)
}

// Release implements Containers.Release for callers without a Containers.
func Release(ctx context.Context, kernel Kernel, cgroupsPath string, environment map[string]string) error {
	if levelIn(environment) != gpu.EnforcementKernel {
		return nil
	}
	group, err := enforcement.GroupOf(cgroupsPath)
	if err != nil {
		return err
	}
	return kernel.Release(ctx, group)
}

// levelIn returns the level that a container's environment promises.
func levelIn(environment map[string]string) gpu.Enforcement {
	return gpu.Enforcement(environment[enforcementLevel])
}

// holding contains the grants of one container, with their GPUs and level.
type holding struct {
	pod           *allocation.Pod // nil if the watch has not delivered it
	init          bool            // a plain init container
	memory, cores *grants.Grant   // cores can be nil
	devices       []gpu.Device    // the GPUs of the memory grant
	level         gpu.Enforcement // of the memory grant
	ofPod         gpu.Enforcement // for an init container: the level of the pod's other containers
	inventory     gpu.Inventory
}

// findGrants returns the grants of a container, or nil if none are known.
func (c *Containers) findGrants(ctx context.Context, namespace, pod, container string, environment map[string]string) (*holding, error) {
	s, _, err := c.state.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	h := &holding{inventory: s.Inventory}
	if i := slices.IndexFunc(s.Pods, func(one allocation.Pod) bool { return one.Pod.Namespace == namespace && one.Pod.Name == pod }); i >= 0 {
		h.pod = &s.Pods[i]
	}
	i := slices.IndexFunc(s.Allocated, func(held allocation.Allocated) bool {
		return held.Namespace == namespace && held.Name == pod && held.Container == container
	})
	switch {
	case i >= 0 && slices.ContainsFunc(s.Allocated[i].Slots, gpu.SlotID.GPUShare):
		return nil, nil // the container keeps its environment from gpushare's plugin
	case i >= 0:
		if h.memory, h.cores = c.state.Grants(s.Allocated[i]); h.memory == nil {
			_, err := allocation.Resolve(s, gpu.Memory, s.Allocated[i].SlotsOf(gpu.Memory))
			return nil, fmt.Errorf("its GPU memory is unknown: %w", err)
		}
		h.level = c.levelOfHeld(s, h.pod, *h.memory, environment)
	case h.pod == nil:
		return nil, nil
	default:
		h.init = true
		h.memory, h.cores, err = c.ofInit(s, *h.pod, container, environment)
		if h.memory == nil || err != nil {
			return nil, err
		}
		h.level, h.ofPod = h.memory.Level, c.state.LevelOf(s, *h.pod)
		if h.memory.Response == nil {
			h.level = levelIn(environment)
		}
	}
	for _, part := range h.memory.GPUs {
		d, ok := s.Inventory.Device(part.UUID)
		if !ok {
			return nil, fmt.Errorf("its GPU %s is gone", part.UUID)
		}
		h.devices = append(h.devices, d)
	}
	return h, nil
}

// ofInit returns the grants of a plain init container, which the kubelet does not list. It returns nil for a
// container that requests no GPU memory. If no grants are recorded, ofInit builds them from the amount that the
// pod requests for the container. It uses the GPUs of the pod's other containers or, if these have none, the
// GPUs in the pod's annotation. The caller then takes the level from the container's environment. If the pod's
// spec sets another level there, the environment contains both values, and CreateContainer rejects the
// container.
func (c *Containers) ofInit(s allocation.State, pod allocation.Pod, container string, environment map[string]string) (memory, cores *grants.Grant, err error) {
	containers := pod.Request.Containers.All()
	i := slices.IndexFunc(containers, func(c placement.Container) bool {
		return c.Name == container && c.Kind == placement.Init && c.Units > 0
	})
	if i < 0 {
		return nil, nil, nil
	}
	if memory, cores = c.state.FindInit(pod.Pod, container, int(containers[i].Units), environment); memory != nil {
		return memory, cores, nil
	}
	has := allocation.Actual(s, pod)
	if has.None() {
		has = pod.Assignment
	}
	devices := slices.DeleteFunc(slices.Clone(s.Inventory.Devices), func(d gpu.Device) bool { return !slices.Contains(has.Devices(), d.UUID) })
	gpus := pod.Request.GPUs()
	if len(devices) != gpus {
		return nil, nil, fmt.Errorf("pod %s has %d GPUs of this node and asks for %d", pod.Pod, len(devices), gpus)
	}
	rebuilt := func(r gpu.Resource) *grants.Grant {
		g := allocation.Grant{Resource: r, Devices: devices, SlotsPerDevice: allocation.Amount(r, containers[i]) / gpus}
		out := grants.NewGrant(allocation.Attributed{Pod: pod.Pod, Container: containers[i]}, g, s.Inventory, nil)
		return &out
	}
	if containers[i].Cores >= gpus {
		cores = rebuilt(gpu.Cores)
	}
	return rebuilt(gpu.Memory), cores, nil
}

// levelOfHeld returns the level of a listed container's grant: the recorded level, or the level in the
// environment if that is stronger. The kubelet stores the environment. A variable of the image can precede the
// kubelet's variable, but CreateContainer detects that if the runtime calls it. If neither level is known,
// levelOfHeld returns the weakest level of the pod's containers.
func (c *Containers) levelOfHeld(s allocation.State, pod *allocation.Pod, memory grants.Grant, environment map[string]string) gpu.Enforcement {
	level, recorded := levelIn(environment), memory.Level
	switch {
	case recorded != "" && recorded.AtLeast(level):
		return recorded
	case level != "" || pod == nil:
		return level
	default:
		return c.state.LevelOf(s, *pod)
	}
}
