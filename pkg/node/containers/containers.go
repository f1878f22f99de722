package containers

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

// Kernel holds control groups to limits.
type Kernel interface {
	Hold(ctx context.Context, group string, devices []gpu.Device, limitMiB int64) error
	Release(ctx context.Context, group string) error
}

// Containers knows what containers were given.
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

// Environment returns the variables of a container that the runtime is about to make. They come from its recorded
// grant. A container that asks for nothing in a pod with GPU memory has none.
// It is not ok for an unknown container. Given is the container's environment before.
func (c *Containers) Environment(ctx context.Context, namespace, pod, container string, given map[string]string) (env map[string]string, ok bool, err error) {
	h, err := c.holding(ctx, namespace, pod, container, given)
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
	_, threads := given[mpsThreads]
	env = h.environment(h.memory, c.cfg.as(given), c.cfg.servedBy(given[mpsPipeDirectory]))
	maps.Copy(env, h.environment(h.cores, c.cfg.as(given), threads))
	return env, true, nil
}

// environment returns the variables of one grant: those of its response or, where that is unknown, of a response with these
// settings.
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
		return cfg.Response(gpu.Cores, allocation.Grant{Devices: h.devices, Each: g.GPUs[0].Cores}, inv).GetEnvs()
	}
	return cfg.Response(gpu.Memory, allocation.Grant{Devices: h.devices, Each: int(g.GPUs[0].Units)}, inv).GetEnvs()
}

// asksForNothing reports whether a container is known to ask for none of the GPU memory of its pod. It fails for a pod
// that the kubelet lists and the watch has not shown: its environment proves nothing.
func (c *Containers) asksForNothing(ctx context.Context, namespace, pod, container string) (bool, error) {
	pods, _, _ := c.pods.Pods()
	i := slices.IndexFunc(pods, func(one allocation.Pod) bool { return one.Pod.Namespace == namespace && one.Pod.Name == pod })
	if i < 0 && c.Holds(ctx, namespace, pod) {
		return false, errors.New("the API server has not reported the pod yet")
	}
	return i >= 0 && !slices.ContainsFunc(pods[i].Request.Containers.All(), func(one placement.Container) bool { return one.Name == container && one.Units > 0 }), nil
}

// Holds reports whether a pod has GPU memory. The watch may not have shown the pod yet: then the kubelet's list counts.
func (c *Containers) Holds(ctx context.Context, namespace, pod string) bool {
	pods, _, _ := c.pods.Pods()
	if slices.ContainsFunc(pods, func(one allocation.Pod) bool { return one.Pod.Namespace == namespace && one.Pod.Name == pod }) {
		return true
	}
	s, _, _ := c.state.Look(ctx) // or the last list
	return slices.ContainsFunc(s.Allocated, func(h allocation.Allocated) bool { return h.Namespace == namespace && h.Name == pod })
}

// Hold makes sure of the limit that a container was promised, before its program runs, or of one that
// was started without.
func (c *Containers) Hold(ctx context.Context, namespace, pod, container, cgroupsPath string, given map[string]string) error {
	h, err := c.holding(ctx, namespace, pod, container, given)
	switch {
	case err != nil:
		return err
	case h == nil && levelIn(given) == gpu.EnforcementKernel:
		return errors.New("it was promised a limit of GPU memory, and neither the kubelet nor the API server tells of how much")
	case h == nil:
		return nil
	}
	if h.init {
		c.state.Attribute(*h.pod, container, *h.memory) // CreateContainer refuses a pod that sets the variables itself
	}
	if h.level != gpu.EnforcementKernel && h.ofPod != gpu.EnforcementKernel {
		return nil
	}
	group, err := enforcement.GroupOf(cgroupsPath)
	if err != nil {
		return err
	}
	if err := c.kernel.Hold(ctx, group, h.devices, h.memory.LimitMiB()); err != nil {
		err = fmt.Errorf("its limit of GPU memory does not hold: %w", err)
		if h.pod != nil {
			c.events.Pod(h.pod.Pod, event.NotEnforced, fmt.Sprintf("container %s: %v", container, err))
		}
		return err
	}
	return nil
}

// Release gives back what is reserved for a container that has ended, if it had a limit.
func (c *Containers) Release(ctx context.Context, cgroupsPath string, given map[string]string) error {
	return Release(ctx, c.kernel, cgroupsPath, given)
}

// Release gives back what a kernel reserves for a container that was promised a limit by it, and has
// ended.
func Release(ctx context.Context, kernel Kernel, cgroupsPath string, given map[string]string) error {
	if levelIn(given) != gpu.EnforcementKernel {
		return nil
	}
	group, err := enforcement.GroupOf(cgroupsPath)
	if err != nil {
		return err
	}
	return kernel.Release(ctx, group)
}

// levelIn returns the level that a container was promised.
func levelIn(given map[string]string) gpu.Enforcement {
	return gpu.Enforcement(given[enforcementLevel])
}

// A holding is the grant of one container.
type holding struct {
	pod           *allocation.Pod // nil: the watch has not shown it
	init          bool            // a plain init container
	memory, cores *grants.Grant   // cores can be nil
	devices       []gpu.Device    // of memory
	level         gpu.Enforcement // at which the memory was given
	ofPod         gpu.Enforcement // of an init container's pod: the other containers' level
	inventory     gpu.Inventory
}

// holding returns what a container was given; nil, where that is not known.
func (c *Containers) holding(ctx context.Context, namespace, pod, container string, given map[string]string) (*holding, error) {
	s, _, err := c.state.Look(ctx)
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
		return nil, nil // it keeps what gpushare's plugin gave it
	case i >= 0:
		if h.memory, h.cores = c.state.Grants(s.Allocated[i]); h.memory == nil {
			_, err := allocation.Resolve(s, gpu.Memory, s.Allocated[i].Only(gpu.Memory))
			return nil, fmt.Errorf("its GPU memory is unknown: %w", err)
		}
		h.level = c.levelOfHeld(s, h.pod, *h.memory, given)
	case h.pod == nil:
		return nil, nil
	default:
		h.init = true
		h.memory, h.cores, err = c.ofInit(s, *h.pod, container, given)
		if h.memory == nil || err != nil {
			return nil, err
		}
		h.level, h.ofPod = h.memory.Level, c.state.LevelOf(s, *h.pod)
		if h.memory.Response == nil {
			h.level = levelIn(given)
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

// ofInit returns what a plain init container got, which the kubelet does not list. It is the recorded grant. Where
// none is recorded it is the amount that the pod asks for it, of the GPUs of the pod's other containers or, where these
// have none, of the pod's annotation, at the level of the container's environment. A pod that has set another level
// in that environment has variables of the true one next to it, and is not made. It returns nil for a container that
// asks for nothing.
func (c *Containers) ofInit(s allocation.State, pod allocation.Pod, container string, given map[string]string) (memory, cores *grants.Grant, err error) {
	containers := pod.Request.Containers.All()
	i := slices.IndexFunc(containers, func(c placement.Container) bool {
		return c.Name == container && c.Kind == placement.Init && c.Units > 0
	})
	if i < 0 {
		return nil, nil, nil
	}
	if memory, cores = c.state.InitGrants(pod, container, containers[i].Units, given); memory != nil {
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
		g := allocation.Grant{Resource: r, Devices: devices, Each: allocation.Amount(r, containers[i]) / gpus}
		out := grants.NewGrant(allocation.Attributed{Pod: pod.Pod, Container: containers[i]}, g, s.Inventory, nil)
		return &out
	}
	if containers[i].Cores >= gpus {
		cores = rebuilt(gpu.Cores)
	}
	return rebuilt(gpu.Memory), cores, nil
}

// levelOfHeld returns the level at which a container got its slots: the stronger one of its record and its environment,
// which the kubelet keeps. Its image can have put another value before the kubelet's. CreateContainer finds that,
// if the runtime calls then. Other containers of the pod can have a weaker level.
func (c *Containers) levelOfHeld(s allocation.State, pod *allocation.Pod, memory grants.Grant, given map[string]string) gpu.Enforcement {
	level, recorded := levelIn(given), memory.Level
	switch {
	case recorded != "" && recorded.AtLeast(level):
		return recorded
	case level != "" || pod == nil:
		return level
	default:
		return c.state.LevelOf(s, *pod)
	}
}
