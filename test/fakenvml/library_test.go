//go:build cgo

package fakenvml

import (
	"context"
	"encoding/json"
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
)

// libraryPath is the library under test. A process binds go-nvml's functions to the first
// library that it loads, so all tests of this process share one.
var libraryPath string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "fakenvml-test-*")
		if err == nil {
			defer os.RemoveAll(dir)
			libraryPath, err = Build(context.Background(), dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// fake is an initialised library and the file behind it.
type fake struct {
	nvml.Interface
	path string
}

func start(t *testing.T, m Machine) fake {
	t.Helper()
	f := fake{nvml.New(nvml.WithLibraryPath(libraryPath)), writeMachine(t, m)}
	t.Setenv(ConfigEnv, f.path)
	check(t, f.Init())
	t.Cleanup(func() { check(t, f.Shutdown()) })
	return f
}

func (f fake) write(t *testing.T, m Machine) {
	t.Helper()
	if err := WriteConfig(f.path, m); err != nil {
		t.Fatal(err)
	}
}

func (f fake) device(t *testing.T, index int) nvml.Device {
	t.Helper()
	d, ret := f.DeviceGetHandleByIndex(index)
	check(t, ret)
	return d
}

func check(t *testing.T, ret nvml.Return) {
	t.Helper()
	expect(t, ret, nvml.SUCCESS)
}

func expect(t *testing.T, got, want nvml.Return) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v (%d), want %v (%d)", got, got, want, want)
	}
}

// must returns the value of a call that succeeds.
func must[V any](value V, ret nvml.Return) func(*testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		check(t, ret)
		return value
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

const mib = 1 << 20

func TestSystem(t *testing.T) {
	f := start(t, Machine{DriverVersion: "570.1", NVMLVersion: "12.570.1", CUDADriverVersion: 12080})
	equal(t, "driver", must(f.SystemGetDriverVersion())(t), "570.1")
	equal(t, "NVML", must(f.SystemGetNVMLVersion())(t), "12.570.1")
	equal(t, "CUDA", must(f.SystemGetCudaDriverVersion())(t), 12080)
	equal(t, "CUDA v2", must(f.SystemGetCudaDriverVersion_v2())(t), 12080)
	equal(t, "count", must(f.DeviceGetCount())(t), 0)
	equal(t, "error string", f.ErrorString(nvml.ERROR_GPU_IS_LOST), "GPU is lost")

	f.write(t, Machine{})
	equal(t, "default driver", must(f.SystemGetDriverVersion())(t), "580.65.06")
	equal(t, "default NVML", must(f.SystemGetNVMLVersion())(t), "13.580.65.06")
	equal(t, "default CUDA", must(f.SystemGetCudaDriverVersion())(t), 13000)
}

func TestHandles(t *testing.T) {
	m := NewMachine(T4("a"), H100("b"))
	f := start(t, m)
	b := f.device(t, 1)
	equal(t, "uuid", must(b.GetUUID())(t), m.GPUs[1].UUID)
	equal(t, "index", must(b.GetIndex())(t), 1)
	equal(t, "minor", must(b.GetMinorNumber())(t), 1)
	if byUUID := must(f.DeviceGetHandleByUUID(m.GPUs[1].UUID))(t); byUUID != b {
		t.Error("another handle by UUID")
	}
	if byPCI := must(f.DeviceGetHandleByPciBusId(m.GPUs[1].PCI))(t); byPCI != b {
		t.Error("another handle by PCI address")
	}
	if bySerial := must(f.DeviceGetHandleBySerial(m.GPUs[1].Serial))(t); bySerial != b {
		t.Error("another handle by serial number")
	}
	_, ret := f.DeviceGetHandleByIndex(2)
	expect(t, ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = f.DeviceGetHandleByUUID("GPU-none")
	expect(t, ret, nvml.ERROR_NOT_FOUND)
	_, ret = f.DeviceGetHandleByPciBusId("00000000:EE:00.0")
	expect(t, ret, nvml.ERROR_NOT_FOUND)
	_, ret = f.DeviceGetHandleByPciBusId("rubbish")
	expect(t, ret, nvml.ERROR_INVALID_ARGUMENT)
}

func TestPresets(t *testing.T) {
	for _, tc := range []struct {
		gpu  GPU
		arch nvml.DeviceArchitecture
	}{
		{T4("x"), nvml.DEVICE_ARCH_TURING},
		{V100_16GB("x"), nvml.DEVICE_ARCH_VOLTA},
		{A10("x"), nvml.DEVICE_ARCH_AMPERE},
		{A100_40GB("x"), nvml.DEVICE_ARCH_AMPERE},
		{A100_80GB("x"), nvml.DEVICE_ARCH_AMPERE},
		{L4("x"), nvml.DEVICE_ARCH_ADA},
		{L40S("x"), nvml.DEVICE_ARCH_ADA},
		{H100("x"), nvml.DEVICE_ARCH_HOPPER},
		{H200("x"), nvml.DEVICE_ARCH_HOPPER},
		{RTX4090("x"), nvml.DEVICE_ARCH_ADA},
	} {
		t.Run(tc.gpu.Model, func(t *testing.T) {
			f := start(t, NewMachine(tc.gpu))
			d := f.device(t, 0)
			equal(t, "name", must(d.GetName())(t), tc.gpu.Model)
			equal(t, "architecture", must(d.GetArchitecture())(t), tc.arch)
			major, minor, ret := d.GetCudaComputeCapability()
			check(t, ret)
			equal(t, "compute capability", fmt.Sprintf("%d.%d", major, minor), tc.gpu.ComputeCapability)
			memory := must(d.GetMemoryInfo_v2())(t)
			equal(t, "total", memory.Total, uint64(tc.gpu.MemoryMiB)*mib)
			equal(t, "reserved", memory.Reserved, uint64(tc.gpu.ReservedMiB)*mib)
			equal(t, "PCI ID", must(d.GetPciInfo())(t).PciDeviceId, tc.gpu.PCIDeviceID)
			wantBrand := nvml.BRAND_NVIDIA
			if strings.Contains(tc.gpu.Model, "GeForce") {
				wantBrand = nvml.BRAND_GEFORCE
				_, ret := d.GetSerial()
				expect(t, ret, nvml.ERROR_NOT_SUPPORTED)
			}
			equal(t, "brand", must(d.GetBrand())(t), wantBrand)
		})
	}
}

func TestMemory(t *testing.T) {
	m := NewMachine(T4("a"))
	m.GPUs[0].Processes = []Process{{PID: 1, UsedMiB: 1000}, {PID: 2, UsedMiB: 24, Type: "graphics"}}
	f := start(t, m)
	d := f.device(t, 0)
	equal(t, "v1", must(d.GetMemoryInfo())(t),
		nvml.Memory{Total: 15360 * mib, Used: (1024 + 450) * mib, Free: (15360 - 1024 - 450) * mib})
	v2 := must(d.GetMemoryInfo_v2())(t)
	equal(t, "v2 used", v2.Used, uint64(1024*mib))
	equal(t, "v2 free", v2.Free, uint64((15360-1024-450)*mib))
	equal(t, "BAR1", must(d.GetBAR1MemoryInfo())(t).Bar1Total, uint64(256*mib))

	m.GPUs[0].UsedMiB = new(int64(99999)) // more than there is
	f.write(t, m)
	equal(t, "full", must(d.GetMemoryInfo_v2())(t).Free, uint64(0))
}

func TestPCI(t *testing.T) {
	m := NewMachine(T4("a"))
	m.GPUs[0].PCI = "0001:3b:00.0" // lower case and a short domain are read, the driver's form is written
	f := start(t, m)
	d := f.device(t, 0)
	info := must(d.GetPciInfo())(t)
	equal(t, "bus ID", cString(info.BusId[:]), "00000001:3B:00.0")
	equal(t, "legacy bus ID", cString(info.BusIdLegacy[:]), "0001:3B:00.0")
	equal(t, "bus", info.Bus, uint32(0x3B))
	ext := must(d.GetPciInfoExt())(t)
	equal(t, "ext bus ID", cString(ext.BusId[:]), "00000001:3B:00.0")
	equal(t, "class", ext.BaseClass, uint32(3))
}

func cString[C int8 | uint8](s []C) string {
	var b strings.Builder
	for _, c := range s {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

func TestStatus(t *testing.T) {
	m := NewMachine(A100_80GB("a"), T4("b"))
	g := &m.GPUs[0]
	g.UtilizationGPU, g.UtilizationMemory, g.Temperature, g.PowerW = 17, 5, 66, 123.5
	g.ECCUncorrected, g.ECCCorrected, g.VBIOS = 3, 8, "92.00.45.00.03"
	g.NUMANode, g.CPUAffinity = new(1), "0-1,66"
	f := start(t, m)
	d, t4 := f.device(t, 0), f.device(t, 1)

	equal(t, "utilization", must(d.GetUtilizationRates())(t), nvml.Utilization{Gpu: 17, Memory: 5})
	equal(t, "temperature", must(d.GetTemperature(nvml.TEMPERATURE_GPU))(t), uint32(66))
	v, ret := d.GetTemperatureV().V1()
	check(t, ret)
	equal(t, "temperature V", v.Temperature, int32(66))
	equal(t, "power", must(d.GetPowerUsage())(t), uint32(123500))
	equal(t, "power limit", must(d.GetEnforcedPowerLimit())(t), uint32(400000))
	equal(t, "vbios", must(d.GetVbiosVersion())(t), "92.00.45.00.03")
	equal(t, "persistence", must(d.GetPersistenceMode())(t), nvml.FEATURE_ENABLED)
	equal(t, "pstate", must(d.GetPerformanceState())(t), nvml.PSTATE_0)
	equal(t, "virtualization", must(d.GetVirtualizationMode())(t), nvml.GPU_VIRTUALIZATION_MODE_NONE)

	current, pending, ret := d.GetEccMode()
	check(t, ret)
	equal(t, "ECC", []nvml.EnableState{current, pending}, []nvml.EnableState{nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED})
	equal(t, "uncorrected", must(d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC))(t), uint64(3))
	equal(t, "corrected in memory",
		must(d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC, nvml.MEMORY_LOCATION_DEVICE_MEMORY))(t), uint64(8))
	equal(t, "corrected in L1",
		must(d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC, nvml.MEMORY_LOCATION_L1_CACHE))(t), uint64(0))

	equal(t, "NUMA set", must(d.GetMemoryAffinity(2, nvml.AFFINITY_SCOPE_NODE))(t)[0], uint(2))
	_, ret = d.GetNumaNodeId() // not a coherent machine
	expect(t, ret, nvml.ERROR_NOT_SUPPORTED)
	cpus := must(d.GetCpuAffinityWithinScope(128, nvml.AFFINITY_SCOPE_NODE))(t)
	equal(t, "CPU set", cpus[:2], []uint{3, 4})
	ones := 0
	for _, word := range must(t4.GetCpuAffinity(4096))(t) {
		ones += bits.OnesCount(word)
	}
	if ones == 0 {
		t.Error("no CPU near a GPU that names none")
	}

	mode, _, ret := d.GetMigMode()
	check(t, ret)
	equal(t, "MIG", mode, nvml.DEVICE_MIG_DISABLE)
	_, _, ret = t4.GetMigMode()
	expect(t, ret, nvml.ERROR_NOT_SUPPORTED)
	equal(t, "MIG devices", must(d.GetMaxMigDeviceCount())(t), 7)
	equal(t, "is MIG", must(d.IsMigDeviceHandle())(t), false)
	_, ret = d.GetMigDeviceHandleByIndex(0)
	expect(t, ret, nvml.ERROR_NOT_FOUND)
	_, ret = d.GetFanSpeed() // a stub
	expect(t, ret, nvml.ERROR_NOT_SUPPORTED)
}

func TestComputeMode(t *testing.T) {
	m := NewMachine(T4("a"))
	f := start(t, m)
	d := f.device(t, 0)
	check(t, d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	m.GPUs[0].Temperature = 50
	f.write(t, m) // a change of something else leaves the mode
	equal(t, "set", must(d.GetComputeMode())(t), nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
	m.GPUs[0].ComputeMode = int(nvml.COMPUTEMODE_PROHIBITED)
	f.write(t, m)
	equal(t, "from the file", must(d.GetComputeMode())(t), nvml.COMPUTEMODE_PROHIBITED)
	expect(t, d.SetComputeMode(77), nvml.ERROR_INVALID_ARGUMENT)

	calls, err := os.ReadFile(f.path + ".calls")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "record", string(calls), fmt.Sprintf("{\"call\":\"nvmlDeviceSetComputeMode\",\"gpu\":%q,\"value\":3}\n", m.GPUs[0].UUID))
}

func TestProcesses(t *testing.T) {
	m := NewMachine(T4("a"))
	for pid := range uint32(5) {
		m.GPUs[0].Processes = append(m.GPUs[0].Processes, Process{PID: 100 + pid, UsedMiB: int64(pid) + 1})
	}
	m.GPUs[0].Processes[1].Type = "graphics"
	m.GPUs[0].Processes[2].Type = "mps"
	m.GPUs[0].Processes[3].Type = "compute+graphics"
	m.GPUs[0].Processes[4].SMUtil = 42
	m.GPUs[0].Processes[4].Name = "trainer"
	f := start(t, m)
	d := f.device(t, 0)

	pids := func(infos []nvml.ProcessInfo) []uint32 {
		var pids []uint32
		for _, p := range infos {
			pids = append(pids, p.Pid)
			if p.UsedGpuMemory != uint64(p.Pid-99)*mib || p.GpuInstanceId != 0xFFFFFFFF {
				t.Errorf("%+v", p)
			}
		}
		return pids
	}
	equal(t, "compute", pids(must(d.GetComputeRunningProcesses())(t)), []uint32{100, 103, 104})
	equal(t, "graphics", pids(must(d.GetGraphicsRunningProcesses())(t)), []uint32{101, 103})
	equal(t, "mps", pids(must(d.GetMPSComputeRunningProcesses())(t)), []uint32{102})
	samples := must(d.GetProcessUtilization(0))(t)
	if len(samples) != 1 || samples[0].Pid != 104 || samples[0].SmUtil != 42 {
		t.Errorf("samples: %+v", samples)
	}
	newer, ret := d.GetProcessUtilization(samples[0].TimeStamp)
	for len(newer) == 0 {
		expect(t, ret, nvml.ERROR_NOT_FOUND) // until the next sample is taken
		newer, ret = d.GetProcessUtilization(samples[0].TimeStamp)
	}
	if len(newer) != 1 || newer[0].TimeStamp <= samples[0].TimeStamp {
		t.Errorf("since %d: %+v", samples[0].TimeStamp, newer)
	}
	_, ret = d.GetProcessUtilization(samples[0].TimeStamp + 1e9)
	expect(t, ret, nvml.ERROR_NOT_FOUND)
	equal(t, "name", must(f.SystemGetProcessName(104))(t), "trainer")
	_, ret = f.SystemGetProcessName(9)
	expect(t, ret, nvml.ERROR_NOT_FOUND)

	m.GPUs[0].Processes = nil
	f.write(t, m)
	equal(t, "none", len(must(d.GetComputeRunningProcesses())(t)), 0)
}

func TestTopology(t *testing.T) {
	m := NewMachine(A100_80GB("a"), A100_80GB("b"), A100_80GB("c"))
	m.GPUs[0].NVLinks = []NVLink{{PeerPCI: m.GPUs[1].PCI}, {PeerPCI: m.GPUs[2].PCI, Active: new(false)}}
	m.GPUs[0].Topology = []Topology{{Peer: m.GPUs[1].UUID, Level: "single"}}
	m.GPUs[2].NUMANode = new(1)
	f := start(t, m)
	a, b, c := f.device(t, 0), f.device(t, 1), f.device(t, 2)

	equal(t, "a-b", must(a.GetTopologyCommonAncestor(b))(t), nvml.TOPOLOGY_SINGLE)
	equal(t, "b-a", must(b.GetTopologyCommonAncestor(a))(t), nvml.TOPOLOGY_SINGLE)
	equal(t, "a-c", must(a.GetTopologyCommonAncestor(c))(t), nvml.TOPOLOGY_SYSTEM)
	equal(t, "P2P a-b", must(a.GetP2PStatus(b, nvml.P2P_CAPS_INDEX_NVLINK))(t), nvml.P2P_STATUS_OK)
	equal(t, "P2P a-c", must(a.GetP2PStatus(c, nvml.P2P_CAPS_INDEX_READ))(t), nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED)
	equal(t, "link 0", must(a.GetNvLinkState(0))(t), nvml.FEATURE_ENABLED)
	equal(t, "link 1", must(a.GetNvLinkState(1))(t), nvml.FEATURE_DISABLED)
	_, ret := a.GetNvLinkState(2)
	expect(t, ret, nvml.ERROR_NOT_SUPPORTED)
	remote := must(a.GetNvLinkRemotePciInfo(0))(t)
	equal(t, "remote", cString(remote.BusId[:]), m.GPUs[1].PCI)
	equal(t, "remote type", must(a.GetNvLinkRemoteDeviceType(0))(t), nvml.NVLINK_DEVICE_TYPE_GPU)
	equal(t, "capability", must(a.GetNvLinkCapability(0, nvml.NVLINK_CAP_P2P_SUPPORTED))(t), uint32(1))
}

func TestSwitch(t *testing.T) {
	m := NewMachine(H100("a"), H100("b"), H100("c"))
	for i := range 2 {
		m.GPUs[i].NVLinks = []NVLink{{PeerPCI: "00000000:C0:00.0"}, {PeerPCI: "00000000:C1:00.0"}}
	}
	f := start(t, m)
	a, b, c := f.device(t, 0), f.device(t, 1), f.device(t, 2)
	equal(t, "remote type", must(a.GetNvLinkRemoteDeviceType(1))(t), nvml.NVLINK_DEVICE_TYPE_SWITCH)
	equal(t, "P2P a-b", must(a.GetP2PStatus(b, nvml.P2P_CAPS_INDEX_NVLINK))(t), nvml.P2P_STATUS_OK)
	equal(t, "P2P a-c", must(a.GetP2PStatus(c, nvml.P2P_CAPS_INDEX_NVLINK))(t), nvml.P2P_STATUS_NOT_SUPPORTED)
	_, ret := c.GetNvLinkRemoteDeviceType(0)
	expect(t, ret, nvml.ERROR_NOT_SUPPORTED)
}

func TestLostAndBack(t *testing.T) {
	m := NewMachine(T4("a"), T4("b"))
	f := start(t, m)
	a, b := f.device(t, 0), f.device(t, 1)

	for state, want := range map[State]nvml.Return{Lost: nvml.ERROR_GPU_IS_LOST, UnknownError: nvml.ERROR_UNKNOWN, NotSupported: nvml.ERROR_NOT_SUPPORTED} {
		m.GPUs[1].State = state
		f.write(t, m)
		_, ret := b.GetMemoryInfo()
		expect(t, ret, want)
		_, ret = b.GetFanSpeed()
		expect(t, ret, want)
		_, ret = f.DeviceGetHandleByIndex(1)
		expect(t, ret, want)
		must(a.GetMemoryInfo())(t) // its neighbour is well
	}

	removed := m
	removed.GPUs = m.GPUs[:1]
	f.write(t, removed)
	equal(t, "count", must(f.DeviceGetCount())(t), 1)
	_, ret := b.GetUUID()
	expect(t, ret, nvml.ERROR_GPU_IS_LOST)
	_, ret = f.DeviceGetHandleByUUID(m.GPUs[1].UUID)
	expect(t, ret, nvml.ERROR_NOT_FOUND)

	m.GPUs[1].State = OK
	f.write(t, m)
	equal(t, "back", must(b.GetUUID())(t), m.GPUs[1].UUID)
	must(f.device(t, 1).GetMemoryInfo())(t)
}

func TestHang(t *testing.T) {
	m := NewMachine(T4("a"))
	f := start(t, m)
	d := f.device(t, 0)

	m.GPUs[0].State, m.GPUs[0].HangSeconds = Hang, 0.1
	f.write(t, m)
	began := time.Now()
	must(d.GetUUID())(t)
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("a hang of 100 ms took %v", took)
	}

	m.GPUs[0].HangSeconds = 0 // for ever
	f.write(t, m)
	f.device(t, 0) // a handle is there at once
	answers := make(chan nvml.Return, 1)
	go func() {
		_, ret := d.GetMemoryInfo()
		answers <- ret
	}()
	select {
	case ret := <-answers:
		t.Fatalf("a hanging GPU answered %v", ret)
	case <-time.After(100 * time.Millisecond):
	}
	m.GPUs[0].State = Lost
	f.write(t, m)
	expect(t, <-answers, nvml.ERROR_GPU_IS_LOST)
}

func TestEvents(t *testing.T) {
	m := NewMachine(T4("a"), T4("b"))
	m.Events = []Event{{Seq: 1, XID: 13, GPU: m.GPUs[0].UUID}} // before the set, so never seen
	f := start(t, m)
	a, b := f.device(t, 0), f.device(t, 1)
	set := must(f.EventSetCreate())(t)
	types := must(a.GetSupportedEventTypes())(t)
	if types&nvml.EventTypeXidCriticalError == 0 {
		t.Errorf("supported types %#x", types)
	}
	check(t, a.RegisterEvents(types, set))
	expect(t, a.RegisterEvents(1<<40, set), nvml.ERROR_NOT_SUPPORTED)
	_, ret := set.Wait(1)
	expect(t, ret, nvml.ERROR_TIMEOUT)

	m.Events = append(m.Events,
		Event{Seq: 2, XID: 31, GPU: m.GPUs[1].UUID}, // b is not registered
		Event{Seq: 4, GPU: m.GPUs[0].UUID, Type: "double-bit-ecc"},
		Event{Seq: 3, XID: 79, GPU: m.GPUs[0].UUID})
	events := make(chan nvml.EventData, 1)
	go func() {
		e, ret := set.Wait(60_000) // ends early: the event comes while it waits
		if ret != nvml.SUCCESS {
			t.Error(ret)
		}
		events <- e
	}()
	f.write(t, m)
	first := <-events
	equal(t, "XID", first.EventData, uint64(79))
	equal(t, "type", first.EventType, uint64(nvml.EventTypeXidCriticalError))
	equal(t, "GPU", must(first.Device.GetUUID())(t), m.GPUs[0].UUID)
	second := must(set.Wait(1000))(t)
	equal(t, "type", second.EventType, uint64(nvml.EventTypeDoubleBitEccError))
	_, ret = set.Wait(1)
	expect(t, ret, nvml.ERROR_TIMEOUT)

	check(t, b.RegisterEvents(types, set))
	m.Events = append(m.Events, Event{Seq: 5, GPU: m.GPUs[1].UUID, Type: "nvlink"})
	m.GPUs[1].State = Lost
	f.write(t, m)
	equal(t, "NVLink XID", must(set.Wait(1000))(t).EventData, uint64(74)) // the event first,
	_, ret = set.Wait(1000)
	expect(t, ret, nvml.ERROR_GPU_IS_LOST) // then the loss

	check(t, set.Free())
	_, ret = set.Wait(1)
	expect(t, ret, nvml.ERROR_INVALID_ARGUMENT)
	expect(t, set.Free(), nvml.ERROR_INVALID_ARGUMENT)
}

func TestDriverNotLoaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fakenvml.json")
	t.Setenv(ConfigEnv, path)
	library := nvml.New(nvml.WithLibraryPath(libraryPath))

	expect(t, library.Init(), nvml.ERROR_DRIVER_NOT_LOADED) // no file
	for _, tc := range []struct {
		machine Machine
		want    nvml.Return
	}{
		{Machine{DriverLoaded: new(false)}, nvml.ERROR_DRIVER_NOT_LOADED},
		{Machine{InitReturn: uint32(nvml.ERROR_LIB_RM_VERSION_MISMATCH)}, nvml.ERROR_LIB_RM_VERSION_MISMATCH},
		{Machine{}, nvml.SUCCESS},
	} {
		if err := WriteConfig(path, tc.machine); err != nil {
			t.Fatal(err)
		}
		expect(t, library.Init(), tc.want)
	}
	check(t, library.Init()) // counted
	check(t, library.Shutdown())
	must(library.DeviceGetCount())(t)
	check(t, library.Shutdown())
	_, ret := library.DeviceGetCount()
	expect(t, ret, nvml.ERROR_UNINITIALIZED)
	expect(t, library.Shutdown(), nvml.ERROR_UNINITIALIZED)
}

func TestBrokenFileKeepsLastState(t *testing.T) {
	m := NewMachine(T4("a"))
	f := start(t, m)
	for _, broken := range []string{
		"", "{", "[]", `{"gpus":[{}]}`, `{"gpu":[]}`, `{"gpus":[{"uuid":"x","model":"y","memoryMiB":"z"}]}`,
		`{"gpus":[{"uuid":"x","model":"y","memoryMiB":1},{"uuid":"x","model":"y","memoryMiB":1}]}`,
	} {
		if err := os.WriteFile(f.path, []byte(broken), 0o644); err != nil {
			t.Fatal(err)
		}
		equal(t, broken, must(f.DeviceGetCount())(t), 1)
	}
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	equal(t, "removed", must(f.DeviceGetCount())(t), 1)
	f.write(t, NewMachine(T4("a"), T4("b")))
	equal(t, "repaired", must(f.DeviceGetCount())(t), 2)
}

// Every write is seen by the next call, however fast they follow each other.
func TestEveryWriteIsSeen(t *testing.T) {
	m := NewMachine(T4("a"))
	f := start(t, m)
	d := f.device(t, 0)
	for i := range 500 {
		m.GPUs[0].Temperature = 10 + i%90 // two digits: the size stays
		f.write(t, m)
		if got := must(d.GetTemperature(nvml.TEMPERATURE_GPU))(t); int(got) != m.GPUs[0].Temperature {
			t.Fatalf("write %d: temperature %d, want %d", i, got, m.GPUs[0].Temperature)
		}
	}
}

// Eight threads see one machine or the other, never a mixture.
func TestConcurrentCalls(t *testing.T) {
	m := NewMachine(T4("a"), H100("b"))
	f := start(t, m)
	d := f.device(t, 0)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var bad sync.Map
	for range 8 {
		wg.Go(func() {
			for !stop.Load() {
				v2, ret := d.GetMemoryInfo_v2()
				if ret != nvml.SUCCESS || v2.Total != v2.Used+v2.Free+v2.Reserved || !slices.Contains([]uint64{0, 4096 * mib}, v2.Used) {
					bad.Store(fmt.Sprint(v2, ret), true)
				}
				if n, ret := f.DeviceGetCount(); ret != nvml.SUCCESS || n < 1 || n > 2 {
					bad.Store(fmt.Sprint("count ", n, ret), true)
				}
				infos, ret := d.GetComputeRunningProcesses()
				if ret != nvml.SUCCESS || len(infos) > 8 {
					bad.Store(fmt.Sprint(len(infos), ret), true)
				}
			}
		})
	}
	for i := range 300 {
		next := Machine{GPUs: slices.Clone(m.GPUs[:1+i%2])}
		if i%2 == 1 {
			next.GPUs[0].Processes = slices.Repeat([]Process{{PID: 7, UsedMiB: 512}}, 8)
		}
		f.write(t, next)
	}
	stop.Store(true)
	wg.Wait()
	bad.Range(func(what, _ any) bool {
		t.Error(what)
		return true
	})
}

// Without the variable the file is found from the place of the library. This needs a process
// of its own, for the library has another path.
func TestDriverRoot(t *testing.T) {
	if library := os.Getenv("FAKENVML_TEST_CHILD"); library != "" {
		l := nvml.New(nvml.WithLibraryPath(library))
		check(t, l.Init())
		equal(t, "name", must(must(l.DeviceGetHandleByIndex(0))(t).GetName())(t), "NVIDIA L4")
		return
	}
	for _, dir := range []string{"usr/lib64", "usr/lib/x86_64-linux-gnu"} {
		t.Run(dir, func(t *testing.T) {
			root := t.TempDir()
			for _, d := range []string{dir, "etc"} {
				if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			library := filepath.Join(root, dir, LibraryName)
			if err := os.Link(libraryPath, library); err != nil {
				t.Fatal(err)
			}
			if err := WriteConfig(filepath.Join(root, "etc", "fakenvml.json"), NewMachine(L4("a"))); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDriverRoot$")
			cmd.Env = append(os.Environ(), "FAKENVML_TEST_CHILD="+library, ConfigEnv+"=")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// The example in the README names every member, and both the library and the Go types take it.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```json\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no example")
	}
	decoder := json.NewDecoder(strings.NewReader(example))
	decoder.DisallowUnknownFields()
	var m Machine
	if err := decoder.Decode(&m); err != nil {
		t.Fatal(err)
	}
	f := start(t, Machine{})
	if err := os.WriteFile(f.path, []byte(example), 0o644); err != nil {
		t.Fatal(err)
	}
	equal(t, "name", must(f.device(t, 0).GetName())(t), "Tesla T4")

	for _, typ := range []reflect.Type{reflect.TypeFor[Machine](), reflect.TypeFor[GPU](), reflect.TypeFor[MIG](), reflect.TypeFor[Process](),
		reflect.TypeFor[NVLink](), reflect.TypeFor[Topology](), reflect.TypeFor[Event]()} {
		for field := range typ.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if !strings.Contains(example, fmt.Sprintf("%q:", name)) {
				t.Errorf("the example lacks %q of %s", name, typ.Name())
			}
		}
	}
}
