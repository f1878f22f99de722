package containers

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

// Variables that hold a container to its grant, and who reads them.
const (
	enforcementLevel = "GPUMEM_ENFORCEMENT"               // people, and package nri
	mpsPipeDirectory = "CUDA_MPS_PIPE_DIRECTORY"          // libcuda: where the MPS daemon is
	mpsPinnedLimit   = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" // the MPS server, by the index that the container sees
	mpsThreads       = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	memoryRequest    = "NVIDIA_GPU_MEMORY_REQUEST" // the hook of NVIDIA's container toolkit, in MiB
	memoryLimit      = "NVIDIA_GPU_MEMORY_LIMIT"
)

// enforce adds what holds the container to its grant at its level, and what makes it a client of
// the MPS daemon, where one runs: at the level kernel for its share of cores, and a pod of
// several GPUs at advisory too, whose list of limits holds while it sees all of its GPUs.
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
		// Read only: a client speaks to the daemon's socket, and must not take it away.
		&pluginapi.Mount{ContainerPath: pipe, HostPath: pipe, ReadOnly: true},
		// Client and server share memory there, which saves user pods hostIPC.
		&pluginapi.Mount{ContainerPath: "/dev/shm", HostPath: mpsDir + "/shm"},
	)
}

// servedBy reports whether a container is a client of an MPS daemon, by the pipe directory in its
// environment.
func (cfg Config) servedBy(pipe string) bool {
	return pipe == mps.Pipe(cfg.MPSDir) || strings.HasPrefix(pipe, filepath.Join(cfg.MPSDir, "MIG-"))
}
