package containers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/record"
)

// State is what is known on the node.
type State interface {
	Look(ctx context.Context) (s allocation.State, podsChanged <-chan struct{}, err error)
	LevelOf(s allocation.State, pod allocation.Pod) gpu.Enforcement
	LevelOfContainer(h allocation.Allocated) gpu.Enforcement
	Grants(h allocation.Allocated) (memory, cores *record.Grant)
	InitGrants(pod allocation.Pod, container string, units gpu.Units) (memory, cores *record.Grant)
}

// Pods tells which pods are bound to the node, and whether these are all.
type Pods interface {
	Pods() (pods []allocation.Pod, complete bool, changed <-chan struct{})
}

// Kernel holds control groups to limits.
type Kernel interface {
	Hold(ctx context.Context, group string, devices []gpu.Device, limitMiB int64) error
	Release(ctx context.Context, group string) error
}

// Containers knows what containers were given.
type Containers struct {
	cfg    Config
	kernel Kernel
	state  State
	pods   Pods
	events event.Events
}

// New returns the containers of a node.
func New(cfg Config, kernel Kernel, state State, pods Pods, events event.Events) *Containers {
	return &Containers{cfg: cfg, kernel: kernel, state: state, pods: pods, events: events}
}

// Environment returns the variables of a container that the runtime is about to make. They come from its recorded
// grant, or from its slots if no grant is recorded. A container that asks for nothing in a pod with GPU memory has none.
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
	for _, d := range h.memory.Devices {
		if !d.Advertised() {
			return nil, false, &gpu.OutOfUse{Device: d}
		}
	}
	rebuilt := c.cfg.as(given)
	_, threads := given[mpsThreads]
	env = make(map[string]string)
	answer := func(recorded *record.Grant, r gpu.Resource, g allocation.Grant, withMPS bool) {
		h.inventory.MPS = withMPS
		switch {
		case recorded != nil:
			maps.Copy(env, recorded.Response.GetEnvs())
		case g.Each > 0:
			maps.Copy(env, rebuilt.Response(r, g, h.inventory).GetEnvs())
		}
	}
	answer(h.recorded.memory, gpu.Memory, h.memory, c.cfg.servedBy(given[mpsPipeDirectory]))
	answer(h.recorded.cores, gpu.Cores, h.cores, threads)
	return env, true, nil
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
	case h == nil || h.inventory.Enforcement != gpu.EnforcementKernel && h.ofPod != gpu.EnforcementKernel:
		return nil
	}
	group, err := enforcement.GroupOf(cgroupsPath)
	if err != nil {
		return err
	}
	if err := c.kernel.Hold(ctx, group, h.memory.Devices, h.limitMiB()); err != nil {
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

// A holding is what one container was given.
type holding struct {
	pod           *allocation.Pod // nil: the watch has not shown it
	memory, cores allocation.Grant
	inventory     gpu.Inventory   // with the level at which it was given
	ofPod         gpu.Enforcement // of an init container's pod: the other containers' level

	recorded struct{ memory, cores *record.Grant } // nil where none is recorded
}

// limitMiB returns the limit on each GPU, as the container's environment has it.
func (h *holding) limitMiB() int64 {
	if h.recorded.memory != nil {
		return h.recorded.memory.LimitMiB()
	}
	return LimitMiB(h.memory, h.inventory)
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
		h.recorded.memory, h.recorded.cores = c.state.Grants(s.Allocated[i])
		h.inventory.Enforcement = c.levelOfHeld(s, h.pod, s.Allocated[i], given)
		return h, h.resolve(s, s.Allocated[i].Only(gpu.Memory), s.Allocated[i].Only(gpu.Cores))
	case h.pod == nil:
		return nil, nil
	default:
		h.inventory.Enforcement, h.ofPod = levelIn(given), c.state.LevelOf(s, *h.pod)
		return c.ofInit(h, s, container)
	}
}

// resolve reads what the kubelet has given.
func (h *holding) resolve(s allocation.State, memory, cores []gpu.SlotID) (err error) {
	if h.memory, err = granted(s, gpu.Memory, memory); err != nil || len(cores) == 0 {
		return err
	}
	h.cores, err = granted(s, gpu.Cores, cores)
	return err
}

// granted is allocation.Resolve, also of GPUs that are offered no more: a container that runs there has
// what it was given.
func granted(s allocation.State, r gpu.Resource, ids []gpu.SlotID) (allocation.Grant, error) {
	g, err := allocation.Resolve(s, r, ids)
	if _, out := errors.AsType[*gpu.OutOfUse](err); out {
		return g, nil
	}
	return g, err
}

// ofInit returns what a plain init container got, which the kubelet does not list. It is the recorded grant. Where
// none is recorded it is the amount that the pod asks for it, of the GPUs of the pod's other containers or, where these
// have none, of the pod's annotation, at the level of the container's environment. A pod that has set another level
// in that environment has variables of the true one next to it, and is not made. It returns nil for a container that
// asks for nothing.
func (c *Containers) ofInit(h *holding, s allocation.State, container string) (*holding, error) {
	request := h.pod.Request
	containers := request.Containers.All()
	i := slices.IndexFunc(containers, func(c placement.Container) bool {
		return c.Name == container && c.Kind == placement.Init && c.Units > 0
	})
	if i < 0 {
		return nil, nil
	}
	if memory, cores := c.state.InitGrants(*h.pod, container, containers[i].Units); memory != nil {
		h.recorded.memory, h.recorded.cores = memory, cores
		h.inventory.Enforcement = memory.Level
		var slots []gpu.SlotID
		if cores != nil {
			slots = cores.Slots
		}
		return h, h.resolve(s, memory.Slots, slots)
	}
	has := allocation.Actual(s, *h.pod)
	if has.None() {
		has = h.pod.Assignment
	}
	for _, d := range h.inventory.Devices {
		if slices.Contains(has.Devices(), d.UUID) {
			h.memory.Devices = append(h.memory.Devices, d)
		}
	}
	if len(h.memory.Devices) != request.GPUs() {
		return nil, fmt.Errorf("pod %s has %d GPUs of this node and asks for %d", h.pod.Pod, len(h.memory.Devices), request.GPUs())
	}
	h.memory.Each = int(containers[i].Units) / request.GPUs()
	h.cores = allocation.Grant{Devices: h.memory.Devices, Each: containers[i].Cores / request.GPUs()}
	return h, nil
}

// levelOfHeld returns the level at which a container got its slots: the stronger one of its record and its environment,
// which the kubelet keeps. Its image can have put another value before the kubelet's. CreateContainer finds that,
// if the runtime calls then. Other containers of the pod can have a weaker level.
func (c *Containers) levelOfHeld(s allocation.State, pod *allocation.Pod, h allocation.Allocated, given map[string]string) gpu.Enforcement {
	level, recorded := levelIn(given), c.state.LevelOfContainer(h)
	switch {
	case recorded != "" && recorded.AtLeast(level):
		return recorded
	case level != "" || pod == nil:
		return level
	default:
		return c.state.LevelOf(s, *pod)
	}
}
