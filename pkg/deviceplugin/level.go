package deviceplugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/allocation"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

// Variables that hold a container to its grant, and who reads them.
const (
	mpsPipeDirectory = "CUDA_MPS_PIPE_DIRECTORY"          // libcuda: where the MPS daemon is
	mpsPinnedLimit   = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" // the MPS server, by the index that the container sees
	mpsThreads       = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	memoryRequest    = "NVIDIA_GPU_MEMORY_REQUEST" // the hook of NVIDIA's container toolkit, in MiB
	memoryLimit      = "NVIDIA_GPU_MEMORY_LIMIT"
)

// enforce adds what holds the container to its grant at the node's level. The
// kernel's accounting is done by the MPS daemon too, so level kernel has all that
// mps has.
func enforce(out *pluginapi.ContainerAllocateResponse, g allocation.Grant, inv gpu.Inventory, mpsDir string) {
	limit := int64(g.Each) * inv.UnitMiB
	if inv.Enforcement.AtLeast(gpu.EnforcementKernel) {
		out.Envs[memoryRequest] = strconv.FormatInt(limit, 10)
		out.Envs[memoryLimit] = strconv.FormatInt(limit, 10)
	}
	if !inv.Enforcement.AtLeast(gpu.EnforcementMPS) {
		return
	}
	var limits []string
	for i := range g.Devices {
		limits = append(limits, fmt.Sprintf("%d=%dM", i, limit))
	}
	out.Envs[mpsPinnedLimit] = strings.Join(limits, ",")
	out.Envs[mpsPipeDirectory] = mpsDir + "/pipe"
	out.Mounts = append(out.Mounts,
		// Read only: a client speaks to the daemon's socket, and must not take it away.
		&pluginapi.Mount{ContainerPath: mpsDir + "/pipe", HostPath: mpsDir + "/pipe", ReadOnly: true},
		// Client and server share memory there, which saves user pods hostIPC.
		&pluginapi.Mount{ContainerPath: "/dev/shm", HostPath: mpsDir + "/shm"},
	)
}

// levels remembers at which level slots were handed out.
type levels map[gpu.SlotID]gpu.Enforcement

func (l levels) handOut(slots []gpu.SlotID, level gpu.Enforcement) {
	for _, id := range slots {
		l[id] = cmp.Or(level, gpu.EnforcementAdvisory)
	}
}

// of returns the weakest level of some slots; empty when one is not remembered,
// for it was handed out before this process started.
func (l levels) of(slots []gpu.SlotID) gpu.Enforcement {
	level := gpu.EnforcementKernel
	for _, id := range slots {
		one, ok := l[id]
		if !ok {
			return ""
		}
		level = gpu.WeakerOf(level, one)
	}
	return level
}

// levelOf returns the level at which the pod was given what it holds: as
// remembered, or else as it is written.
func (p *Plugin) levelOf(s allocation.State, pod allocation.Pod) gpu.Enforcement {
	var slots []gpu.SlotID
	for _, h := range s.Held {
		if h.Of(pod.Pod) {
			slots = append(slots, h.Only(gpu.Memory)...)
		}
	}
	slots = slices.DeleteFunc(slots, gpu.SlotID.GPUShare)
	p.mu.Lock()
	defer p.mu.Unlock()
	if level := p.levels.of(slots); level != "" && len(slots) > 0 {
		return level
	}
	return pod.Assignment.Enforcement
}

// mayStart says why a container must not start: what its environment says of its
// limit would not hold.
func (p *Plugin) mayStart(ctx context.Context, s allocation.State, pod allocation.Pod, container string) error {
	level := p.levelOf(s, pod)
	if !level.AtLeast(pod.Request.Enforcement) {
		return fmt.Errorf("pod %s wants enforcement %s and was given %s: delete it, to have it placed again", pod.Pod, pod.Request.Enforcement, cmp.Or(level, gpu.EnforcementAdvisory))
	}
	if err := p.ready(ctx, level); err != nil {
		return fmt.Errorf("container %s of pod %s waits: %w", container, pod.Pod, err)
	}
	return nil
}

// initMayStart says why an init container must not start that holds some slots. The
// kubelet does not tell whose it is, and puts the reason into an event of its pod.
func (p *Plugin) initMayStart(ctx context.Context, slots []gpu.SlotID) error {
	p.mu.Lock()
	level := p.levels.of(slots)
	p.mu.Unlock()
	if err := p.ready(ctx, level); err != nil {
		p.log.Warn("init container does not start", zap.String("node", p.cfg.Node), zap.Error(err))
		return asStatus(fmt.Errorf("the init container waits: %w", err))
	}
	return nil
}

// ready says why a level does not hold now.
func (p *Plugin) ready(ctx context.Context, level gpu.Enforcement) error {
	asking, cancel := context.WithTimeout(ctx, p.cfg.KubeletWait)
	defer cancel()
	return p.cfg.Ready(asking, level)
}

// unenforced reports of a container that it waits for its limit to hold.
func (p *Plugin) unenforced(pod placement.PodRef, err error) error {
	p.log.Warn("container does not start", zap.String("node", p.cfg.Node), zap.Stringer("pod", pod), zap.String("uid", pod.UID), zap.Error(err))
	p.events.Pod(pod, true, "GPUMemoryNotEnforced", err.Error())
	return asStatus(err)
}
