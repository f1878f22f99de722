package nvml

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/node/speeds"
)

// session is an opened and initialised library.
type session struct {
	lib    nvml.Interface
	driver string
}

// hasFunctions reports whether the library has all of the functions. Calling a missing function ends the process.
func (s *session) hasFunctions(functions ...string) bool {
	return !slices.ContainsFunc(functions, func(name string) bool { return s.lib.Extensions().LookupSymbol(name) != nil })
}

// open loads and initialises the library. Users read its error as the reason why a node offers no GPU.
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
	s := &session{lib: lib}
	if version, ret := lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		s.driver = version
	}
	return s, nil
}

// inSession runs f in a new session. NVML counts its sessions, so another one may be open.
func inSession(find func() (nvml.Interface, string), f func(*session) error) (err error) {
	s, err := open(find)
	if err != nil {
		return err
	}
	defer func() {
		if ret := s.lib.Shutdown(); ret != nvml.SUCCESS {
			err = errors.Join(err, fmt.Errorf("shut NVML down: %s", ret.Error()))
		}
	}()
	return f(s)
}

const mib = 1 << 20

// reading contains the answers for one GPU or MIG instance.
type reading struct {
	index       int
	device      gpu.Device // without capacity and health, which type tracked adds
	reservedMiB int64      // the driver's own memory
	usage       usage
	processes   []inventory.Process
	sampled     uint64 // time of the newest utilization sample, in microseconds since 1970
	nvlinks     nvlinks
	mig         bool      // the GPU is in MIG mode
	instances   []reading // MIG instances of the GPU, if requested
	instance    *instance // nil for a GPU
	handle      nvml.Device
	failed      string // reason for a missing answer; then only index and instance are valid

	unlisted bool // NVML did not list the processes; measure keeps the list of the previous probe
}

// answered reports whether an optional call succeeded. It marks the reading as failed if the call reports a
// lost GPU.
func (r *reading) answered(ret nvml.Return) bool {
	if ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED {
		r.failed = cmp.Or(r.failed, failure(ret))
	}
	return ret == nvml.SUCCESS
}

// read reads one GPU, and its MIG instances if instances is true. The reading fails if identity or memory is
// unknown, and omits other facts that NVML does not return. Parameter sampled contains reading.sampled of each GPU
// at the last probe.
func (s *session) read(index int, sampled map[gpu.UUID]uint64, instances bool) reading {
	handle, ret := s.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return reading{index: index, failed: failure(ret)}
	}
	r := s.readDevice(handle, index, sampled)
	if r.failed != "" {
		return r
	}
	if reason := s.recovery(handle); reason != "" {
		return reading{index: index, failed: reason}
	}
	if s.hasFunctions("nvmlDeviceGetMigMode") {
		current, _, ret := handle.GetMigMode()
		if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED { // the GPU may be in MIG mode
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
	if s.hasFunctions("nvmlDeviceGetMemoryAffinity") {
		r.device.NUMANode = numaNode(handle)
	}
	if s.hasFunctions("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		r.nvlinks = s.nvlinks(handle)
	}
	if r.mig && instances && s.hasFunctions("nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetAttributes_v2") {
		r.instances = s.instances(handle, r, sampled)
	}
	if r.failed != "" {
		return reading{index: index, failed: r.failed}
	}
	return r
}

// readDevice reads the facts that GPUs and MIG instances have in common.
func (s *session) readDevice(handle nvml.Device, index int, sampled map[gpu.UUID]uint64) reading {
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
	if s.hasFunctions("nvmlDeviceGetUtilizationRates") {
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

func (s *session) memory(handle nvml.Device) (total, reserved, used uint64, ret nvml.Return) {
	if s.hasFunctions("nvmlDeviceGetMemoryInfo_v2") {
		if m, ret := handle.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			return m.Total, m.Reserved, m.Used, ret
		}
	}
	m, ret := handle.GetMemoryInfo()
	return m.Total, 0, m.Used, ret
}

// recovery returns the reason why an answering GPU is unusable, or an empty string. Drivers before 565 report no
// recovery action; the prober detects their faults by XIDs and remapping failures.
func (s *session) recovery(handle nvml.Device) string {
	if s.hasFunctions("nvmlDeviceGetFieldValues") {
		asked := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
		if handle.GetFieldValues(asked) == nvml.SUCCESS && nvml.Return(asked[0].NvmlReturn) == nvml.SUCCESS {
			switch nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(asked[0].Value[:])) {
			case nvml.GPU_RECOVERY_ACTION_GPU_RESET, nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
				return "by its driver, it " + needsReset
			case nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:
				return "by its driver, the machine must be rebooted"
			case nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:
				return "by its driver, programs that use several GPUs must end"
			default: // no action, or an action unknown to this version
			}
		}
	}
	if s.hasFunctions("nvmlDeviceGetRemappedRows") {
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

// numaNode returns the nearest NUMA node, or -1 if the driver reports none.
func numaNode(handle nvml.Device) int {
	const nodes = 1024 // Linux's maximum
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

// notAvailable is NVML's value for the memory of a process if it is unknown.
const notAvailable = 1<<64 - 1

// processes reads the memory of a GPU's processes, and their GPU time after parameter since, the time of a sample. A
// process that uses the GPU in several ways appears in several lists, with all of its memory in each.
func (s *session) processes(handle nvml.Device, since uint64, r *reading) {
	most := make(map[int]uint64)
	clients := make(map[int]bool) // clients of MPS
	for _, list := range []struct {
		there bool
		of    func() ([]nvml.ProcessInfo, nvml.Return)
		mps   bool
	}{
		{s.hasFunctions("nvmlDeviceGetComputeRunningProcesses"), handle.GetComputeRunningProcesses, false},
		{s.hasFunctions("nvmlDeviceGetGraphicsRunningProcesses"), handle.GetGraphicsRunningProcesses, false},
		{s.hasFunctions("nvmlDeviceGetMPSComputeRunningProcesses"), handle.GetMPSComputeRunningProcesses, true},
	} {
		if !list.there {
			continue
		}
		found, ret := list.of()
		if !r.answered(ret) {
			r.unlisted = r.unlisted || ret != nvml.ERROR_NOT_SUPPORTED
			continue
		}
		for _, p := range found {
			if p.UsedGpuMemory != notAvailable {
				most[int(p.Pid)] = max(most[int(p.Pid)], p.UsedGpuMemory)
			}
			clients[int(p.Pid)] = clients[int(p.Pid)] || list.mps
		}
	}
	sm, sampled, known := s.sm(handle, since)
	for _, pid := range slices.Sorted(maps.Keys(most)) {
		p := inventory.Process{PID: pid, Bytes: most[pid]}
		if share, has := sm[pid]; has {
			p.SM = share
		} else if known && !clients[pid] {
			p.SM = new(0) // NVML has no samples of idle processes
		}
		r.processes = append(r.processes, p)
	}
	r.sampled = sampled
}

// sm reads the utilization samples that are newer than parameter since. The first result contains, for each process
// with a sample, the percentage of time in which the GPU ran its kernels, or nil if NVML's number is out of range. The
// second is the time of the newest sample, and the third is false if NVML cannot return samples.
func (s *session) sm(handle nvml.Device, since uint64) (of map[int]*int, sampled uint64, known bool) {
	if !s.hasFunctions("nvmlDeviceGetProcessUtilization") {
		return nil, since, false
	}
	if since > uint64(time.Now().UnixMicro()) {
		since = 0 // the clock was set back: otherwise no sample would be newer until it catches up
	}
	samples, ret := newSamples(handle, since)
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_NOT_FOUND:
		return nil, since, true
	default:
		return nil, since, false
	}
	of, sampled = make(map[int]*int), since
	newest := make(map[int]uint64)
	for _, sample := range samples {
		sampled = max(sampled, sample.TimeStamp)
		pid := int(sample.Pid)
		if sample.TimeStamp < newest[pid] {
			continue
		}
		newest[pid], of[pid] = sample.TimeStamp, nil
		if sample.SmUtil <= 100 {
			of[pid] = new(int(sample.SmUtil))
		}
	}
	return of, sampled, true
}

// newSamples calls go-nvml and recovers from its panic. go-nvml panics if NVML has more samples than go-nvml's
// buffer, because NVML added some after go-nvml had read their number.
func newSamples(handle nvml.Device, since uint64) (samples []nvml.ProcessUtilizationSample, ret nvml.Return) {
	defer func() {
		if recover() != nil {
			samples, ret = nil, nvml.ERROR_INSUFFICIENT_SIZE
		}
	}()
	return handle.GetProcessUtilization(since)
}

// nvlinks counts a GPU's active NVLinks.
type nvlinks struct {
	lanes    map[string]int // links to other GPUs, by bus address
	switches int            // links to NVSwitches, which connect all GPUs
}

func (s *session) nvlinks(handle nvml.Device) nvlinks {
	out := nvlinks{lanes: make(map[string]int)}
	for link := range nvml.NVLINK_MAX_LINKS {
		if state, ret := handle.GetNvLinkState(link); ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue // link numbers can have gaps
		}
		if s.hasFunctions("nvmlDeviceGetNvLinkRemoteDeviceType") {
			if kind, ret := handle.GetNvLinkRemoteDeviceType(link); ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				out.switches++
				continue
			}
		}
		if pci, ret := handle.GetNvLinkRemotePciInfo(link); ret == nvml.SUCCESS {
			out.lanes[busID(pci)]++
		}
	}
	return out
}

// links returns the pairs of devices that NVLinks connect. links includes a link if either end reports it.
func links(devices []*tracked) []gpu.Link {
	var out []gpu.Link
	for i, b := range devices {
		for _, a := range devices[:i] {
			if a.instance != nil || b.instance != nil {
				continue // NVLinks are off in MIG mode
			}
			lanes := max(a.nvlinks.lanes[b.PCI], b.nvlinks.lanes[a.PCI])
			if lanes == 0 {
				lanes = min(a.nvlinks.switches, b.nvlinks.switches)
			}
			if lanes > 0 {
				out = append(out, gpu.Link{A: a.UUID, B: b.UUID, Lanes: lanes})
			}
		}
	}
	return out
}

// maxInstances is the maximum number of MIG instances on a GPU (NVIDIA, "Multi-Instance GPU").
const maxInstances = 7

// instance identifies a MIG instance within its GPU.
type instance struct {
	of     int    // index of the GPU
	id     uint32 // ID of the GPU instance
	place  int    // position in NVML's list
	slices int    // number of compute slices; 0 if unknown
	most   int    // maximum number of slices of the GPU; 0 if unknown
}

// instances reads the MIG instances of a GPU. Each instance gets a copy of the facts that NVML reports only for the
// whole GPU. NVML lists each compute instance with all memory of its GPU instance. If several compute instances
// share that memory, their readings fail.
func (s *session) instances(parent nvml.Device, of reading, sampled map[gpu.UUID]uint64) (out []reading) {
	most, _ := parent.GetMaxMigDeviceCount()
	for place := range maxInstances {
		handle, ret := parent.GetMigDeviceHandleByIndex(place)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // positions can have gaps, and their number depends on the GPU
		}
		r := reading{failed: failure(ret)}
		if ret == nvml.SUCCESS {
			r = s.readDevice(handle, of.index, sampled)
		}
		r.instance = &instance{of: of.index, place: place, id: wholeGPU, most: most}
		if r.failed == "" {
			r.device.ComputeCapability, r.device.PCI, r.device.NUMANode = of.device.ComputeCapability, of.device.PCI, of.device.NUMANode
			r.device.Parent = of.device.UUID
			id, ret := handle.GetGpuInstanceId()
			a, told := handle.GetAttributes()
			switch r.instance.slices = int(a.ComputeInstanceSliceCount); {
			case ret != nvml.SUCCESS:
				r.failed = failure(ret)
			case told != nvml.SUCCESS:
				r.failed = failure(told)
			case a.ComputeInstanceSliceCount != a.GpuInstanceSliceCount:
				r.failed = "it is a part of a GPU instance, and shares its memory with the other parts"
			default:
				r.instance.id = uint32(id)
			}
		}
		out = append(out, r)
	}
	return out
}

// flatten appends the MIG instances to the list of GPUs. An instance's index does not depend on the presence of
// other instances.
func flatten(gpus []reading) []reading {
	out := gpus
	for _, r := range gpus {
		for _, i := range r.instances {
			i.index = len(gpus) + maxInstances*r.index + i.instance.place
			i.device.Index = i.index
			out = append(out, i)
		}
	}
	return out
}

// speed returns the relative speed of a device. An instance's speed is proportional to its slices.
func (r reading) speed(of speeds.Tables) int {
	speed := of.Speed(r.device.Model)
	if r.instance == nil || r.instance.slices == 0 || r.instance.most == 0 || speed == 0 {
		return speed
	}
	return max(1, speed*r.instance.slices/r.instance.most)
}

const libraryName = "libnvidia-ml.so.1"

// libraryDirs are the directories in which distributions and driver containers install the library.
var libraryDirs = [...]string{
	"usr/lib64",
	"usr/lib/x86_64-linux-gnu",
	"usr/lib/aarch64-linux-gnu",
	"usr/lib",
	"lib64",
	"lib/x86_64-linux-gnu",
	"lib/aarch64-linux-gnu",
	"lib",
}

// FindInDriver returns the path of a driver library: the first that exists under the driver's root, or the bare
// name, which the dynamic linker resolves.
func FindInDriver(name, driverRoot string) string {
	if driverRoot != "" {
		for _, dir := range libraryDirs {
			candidate := filepath.Join(driverRoot, dir, name)
			if _, err := os.Stat(candidate); err == nil {
				return candidate
			}
		}
	}
	return name
}

// Opener returns a function for Config.Open that searches for the library on each call.
func Opener(path, driverRoot string) func() (nvml.Interface, string) {
	return func() (nvml.Interface, string) {
		found := cmp.Or(path, FindInDriver(libraryName, driverRoot))
		from := found
		if found == libraryName && driverRoot != "" {
			from += fmt.Sprintf(" (which is not in %s below %s)", strings.Join(libraryDirs[:], ", "), driverRoot)
		}
		return nvml.New(nvml.WithLibraryPath(found)), from
	}
}
