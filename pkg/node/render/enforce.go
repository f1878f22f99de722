package render

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/mps"
)

// Variables that enforce a container's grant, and their readers.
const (
	enforcementLevel = "GPUMEM_ENFORCEMENT"               // people, and package nri
	mpsPipeDirectory = "CUDA_MPS_PIPE_DIRECTORY"          // libcuda: the location of the MPS daemon
	mpsPinnedLimit   = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" // the MPS server: limits by the GPU's index in the container
	mpsThreads       = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	memoryRequest    = "NVIDIA_GPU_MEMORY_REQUEST" // the hook of NVIDIA's container toolkit, in MiB
	memoryLimit      = "NVIDIA_GPU_MEMORY_LIMIT"
)

// enforce adds the variables that enforce the grant at the node's level. If an MPS daemon runs (inv.MPS),
// enforce makes the container its client at every level: level kernel needs the daemon for the share of cores,
// and a pod with several GPUs is a client although its level is advisory. The list of limits names the GPUs by
// their index in the container, so it is valid only while the container sees all of its GPUs.
func enforce(out *pluginapi.ContainerAllocateResponse, g allocation.Grant, inv gpu.Inventory, mpsDir string) {
	limit := LimitMiB(g, inv)
	if inv.Enforcement.AtLeast(gpu.EnforcementKernel) {
		out.Envs[memoryRequest] = strconv.FormatInt(limit, 10)
		out.Envs[memoryLimit] = strconv.FormatInt(limit, 10)
	}
	if !inv.MPS {
		return
	}
	pipe := mps.Pipe(mpsDir)
	if len(g.Devices) == 1 {
		pipe = mps.Pipe(mps.DirOf(mpsDir, g.Devices[0]))
	}
	var limits []string
	for i := range g.Devices {
		limits = append(limits, fmt.Sprintf("%d=%dM", i, limit))
	}
	out.Envs[mpsPinnedLimit] = strings.Join(limits, ",")
	out.Envs[mpsPipeDirectory] = pipe
	out.Mounts = append(out.Mounts,
		// Read-only: a client connects to the daemon's socket, and must not be able to remove it.
		&pluginapi.Mount{ContainerPath: pipe, HostPath: pipe, ReadOnly: true},
		// Client and server share memory in this directory, so that pods do not need hostIPC.
		&pluginapi.Mount{ContainerPath: "/dev/shm", HostPath: mpsDir + "/shm"},
	)
}

// servedBy reports whether a container with this pipe directory in its environment is a client of an MPS daemon.
func (cfg Config) servedBy(pipe string) bool {
	return pipe == mps.Pipe(cfg.MPSDir) || strings.HasPrefix(pipe, filepath.Join(cfg.MPSDir, "MIG-"))
}
