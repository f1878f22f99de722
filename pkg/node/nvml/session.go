package nvml

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// session is the library, opened and initialised.
type session struct {
	lib    nvml.Interface
	driver string

	// Calling a function that an old library lacks ends the process.
	memoryV2, affinity, mig, instanced, utilization, compute, graphics, mps, samples, nvlink, nvlinkType, fields, rows bool
}

// open loads and initialises the library. The error is for people: it becomes
// the reason why a node offers nothing.
func open(find func() (nvml.Interface, string)) (*session, error) {
	lib, path := find()
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("NVIDIA's library cannot be loaded from %s: no driver is installed, or not yet", path)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, fmt.Errorf("the NVIDIA driver is not loaded")
	default:
		return nil, fmt.Errorf("NVML does not start: %s", ret.Error())
	}
	has := func(symbol string) bool { return lib.Extensions().LookupSymbol(symbol) == nil }
	s := &session{
		lib:      lib,
		memoryV2: has("nvmlDeviceGetMemoryInfo_v2"),
		affinity: has("nvmlDeviceGetMemoryAffinity"),
		mig:      has("nvmlDeviceGetMigMode"),

		instanced: has("nvmlDeviceGetMigDeviceHandleByIndex") && has("nvmlDeviceGetGpuInstanceId") && has("nvmlDeviceGetAttributes_v2"),

		utilization: has("nvmlDeviceGetUtilizationRates"),

		compute:  has("nvmlDeviceGetComputeRunningProcesses"),
		graphics: has("nvmlDeviceGetGraphicsRunningProcesses"),
		mps:      has("nvmlDeviceGetMPSComputeRunningProcesses"),
		samples:  has("nvmlDeviceGetProcessUtilization"),

		nvlink:     has("nvmlDeviceGetNvLinkState") && has("nvmlDeviceGetNvLinkRemotePciInfo_v2"),
		nvlinkType: has("nvmlDeviceGetNvLinkRemoteDeviceType"),

		fields: has("nvmlDeviceGetFieldValues"),
		rows:   has("nvmlDeviceGetRemappedRows"),
	}
	if version, ret := lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		s.driver = version
	}
	return s, nil
}

const mib = 1 << 20

// reading is what one GPU or MIG instance answered.
type reading struct {
	index       int
	device      gpu.Device // without capacity and health; of a known GPU the prober keeps what it has, see found
	reservedMiB int64      // what the driver keeps for itself
	usage       usage
	processes   []inventory.Process
	sampled     uint64 // when the newest sample of what processes do was taken, in microseconds since 1970
	nvlinks     nvlinks
	mig         bool      // it is in MIG mode
	instances   []reading // of a GPU in MIG mode, where they are asked for
	instance    *instance // nil of a GPU
	handle      nvml.Device
	failed      string // why there is no answer; the rest is then empty

	unlisted bool // NVML did not list the processes: the list of the last probe counts
}

// answered reports whether a call about the GPU succeeded that it can do without. A lost GPU has failed, whatever the call.
func (r *reading) answered(ret nvml.Return) bool {
	if ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED {
		r.failed = cmp.Or(r.failed, failure(ret))
	}
	return ret == nvml.SUCCESS
}

// read asks one GPU everything, and its MIG instances where they are wanted. Only what the account
// depends on must succeed. Sampled is the reading.sampled of each GPU at the last probe.
func (s *session) read(index int, sampled map[gpu.UUID]uint64, instances bool) reading {
	handle, ret := s.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return reading{index: index, failed: failure(ret)}
	}
	r := s.ask(handle, index, sampled)
	if r.failed != "" {
		return r
	}
	if reason := s.recovery(handle); reason != "" {
		return reading{index: index, failed: reason}
	}
	if s.mig {
		current, _, ret := handle.GetMigMode()
		if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED { // it might be in MIG mode
			return reading{index: index, failed: failure(ret)}
		}
		r.mig = ret == nvml.SUCCESS && current == nvml.DEVICE_MIG_ENABLE
	}
	if major, minor, ret := handle.GetCudaComputeCapability(); r.answered(ret) {
		r.device.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	}
	if pci, ret := handle.GetPciInfo(); r.answered(ret) {
		r.device.PCI = busID(pci)
	}
	if s.affinity {
		r.device.NUMANode = numaNode(handle)
	}
	if s.nvlink {
		r.nvlinks = s.nvlinks(handle)
	}
	if r.mig && instances && s.instanced {
		r.instances = s.instances(handle, r, sampled)
	}
	if r.failed != "" {
		return reading{index: index, failed: r.failed}
	}
	return r
}

// ask asks a GPU or a MIG instance what both can tell.
func (s *session) ask(handle nvml.Device, index int, sampled map[gpu.UUID]uint64) reading {
	uuid, ret := handle.GetUUID()
	switch {
	case ret != nvml.SUCCESS:
		return reading{index: index, failed: failure(ret)}
	case uuid == "":
		return reading{index: index, failed: "it has no UUID"}
	}
	r := reading{index: index, handle: handle, device: gpu.Device{UUID: gpu.UUID(uuid), Index: index, NUMANode: -1}}
	total, reserved, used, ret := s.memory(handle)
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED:
		return reading{index: index, failed: "it shares the machine's memory, which gpumem does not support"}
	case ret != nvml.SUCCESS:
		return reading{index: index, failed: failure(ret)}
	}
	r.device.MemoryMiB = int64(total / mib)
	r.reservedMiB = int64((reserved + mib - 1) / mib)
	r.usage = usage{usedBytes: used, busy: -1}
	if s.utilization {
		if rates, ret := handle.GetUtilizationRates(); r.answered(ret) {
			r.usage.busy = float64(rates.Gpu) / 100
		}
	}
	s.processes(handle, sampled[r.device.UUID], &r)
	if name, ret := handle.GetName(); r.answered(ret) {
		r.device.Model = name
	}
	if r.failed != "" {
		return reading{index: index, failed: r.failed}
	}
	return r
}

// memory returns the bytes of a GPU: all of them, the driver's, and those that programs use.
func (s *session) memory(handle nvml.Device) (total, reserved, used uint64, ret nvml.Return) {
	if s.memoryV2 {
		if m, ret := handle.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			return m.Total, m.Reserved, m.Used, ret
		}
	}
	m, ret := handle.GetMemoryInfo()
	return m.Total, 0, m.Used, ret
}

// recovery returns why a GPU is of no use although it answers. Drivers before 565 do not report it: there only its XIDs do.
func (s *session) recovery(handle nvml.Device) string {
	if s.fields {
		asked := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
		if handle.GetFieldValues(asked) == nvml.SUCCESS && nvml.Return(asked[0].NvmlReturn) == nvml.SUCCESS {
			switch nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(asked[0].Value[:])) {
			case nvml.GPU_RECOVERY_ACTION_GPU_RESET, nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
				return "by its driver, it " + needsReset
			case nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:
				return "by its driver, the machine must be rebooted"
			case nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:
				return "by its driver, programs that use several GPUs must end"
			default: // none, or one that this version does not know
			}
		}
	}
	if s.rows {
		if _, _, _, failed, ret := handle.GetRemappedRows(); ret == nvml.SUCCESS && failed {
			return "its memory has an error that cannot be remapped"
		}
	}
	return ""
}

func failure(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return "the driver has lost it"
	case nvml.ERROR_RESET_REQUIRED:
		return "it " + needsReset
	default:
		return "NVML: " + ret.Error()
	}
}

func busID(pci nvml.PciInfo) string {
	id := make([]byte, 0, len(pci.BusId))
	for _, c := range pci.BusId {
		id = append(id, byte(c))
	}
	id, _, _ = bytes.Cut(id, []byte{0})
	return strings.ToLower(string(id))
}

// numaNode returns the node whose memory is nearest, -1 when there is none to tell.
func numaNode(handle nvml.Device) int {
	const nodes = 1024 // the most that Linux has
	set, ret := handle.GetMemoryAffinity(nodes, nvml.AFFINITY_SCOPE_NODE)
	if ret != nvml.SUCCESS {
		return -1
	}
	for i, word := range set {
		if word != 0 {
			return i*bits.UintSize + bits.TrailingZeros(word)
		}
	}
	return -1
}
