package nvml

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// machine is a library with answers that a test changes during probes.
type machine struct {
	mu     sync.Mutex
	init   nvml.Return
	gpus   []*card
	inits  int
	events chan nvml.EventData
}

// card is one GPU. A non-nil hang blocks every call until it is closed.
type card struct {
	uuid               string
	totalMiB, reserved uint64
	ret                nvml.Return
	mig                int
	hang               chan struct{}
	nvlinks            []nvlink
	processes          [3][]nvml.ProcessInfo // compute, graphics, MPS
	samples            []nvml.ProcessUtilizationSample
	sampling           nvml.Return // result of reading samples; SUCCESS returns newer samples
	more               bool        // more samples appear between count and read
	since              []uint64    // times since which samples were requested
	asked              int
	device             nvml.Device
	instances          []*card // MIG instances by position; nil if there is none
	slices, ofSlices   uint32  // slices of an instance, and of its GPU instance if that has more
	migRet             nvml.Return
	acting             nvml.Return // result of reading the action below
	action             nvml.DeviceGpuRecoveryAction
	unmapped           bool // an error of the memory could not be remapped
}

// nvlink is one NVLink of a card.
type nvlink struct {
	to       string // bus address
	kind     nvml.IntNvLinkDeviceType
	inactive bool
}

func newMachine(cards ...*card) *machine {
	m := &machine{gpus: cards, events: make(chan nvml.EventData)}
	for _, c := range cards {
		c.device = m.device(c)
	}
	return m
}

// part returns a MIG instance with some of a GPU's slices.
func part(uuid string, totalMiB uint64, slices uint32) *card {
	return &card{uuid: uuid, totalMiB: totalMiB, slices: slices}
}

// change changes the machine under its lock.
func (m *machine) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *machine) index(c *card) int {
	for i, o := range m.gpus {
		if o == c {
			return i
		}
	}
	return -1
}

func (m *machine) open() (nvml.Interface, string) {
	lib := &mock.Interface{}
	lib.ExtensionsFunc = func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }}
	}
	lib.InitFunc = func() nvml.Return {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.inits++
		return m.init
	}
	lib.ShutdownFunc = func() nvml.Return { return nvml.SUCCESS }
	lib.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "580.65.06", nvml.SUCCESS }
	lib.DeviceGetCountFunc = func() (int, nvml.Return) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.gpus), nvml.SUCCESS
	}
	lib.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		m.mu.Lock()
		c := m.gpus[i]
		c.asked++
		hang, ret := c.hang, c.ret
		m.mu.Unlock()
		if hang != nil {
			<-hang
		}
		return c.device, ret
	}
	lib.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
			WaitFunc: func(ms uint32) (nvml.EventData, nvml.Return) {
				select {
				case e := <-m.events:
					return e, nvml.SUCCESS
				case <-time.After(time.Duration(ms) * time.Millisecond):
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
			},
		}, nvml.SUCCESS
	}
	return lib, "/driver/libnvidia-ml.so.1"
}

// busOf returns the bus address of the card with an index.
func busOf(index int) string { return fmt.Sprintf("00000000:%02X:00.0", 0x3B+index) }

func pciInfo(bus string) (out nvml.PciInfo) {
	for i, b := range []byte(bus) {
		out.BusId[i] = int8(b)
	}
	return out
}

// migDevice returns a mock of a MIG instance. Calls that NVML does not support for it panic.
func (m *machine) migDevice(c *card, place int) nvml.Device {
	all := m.device(c).(*mock.Device)
	return &mock.Device{
		GetUUIDFunc: all.GetUUIDFunc, GetMemoryInfo_v2Func: all.GetMemoryInfo_v2Func,
		GetNameFunc:                       func() (string, nvml.Return) { return "NVIDIA A100-SXM4-40GB MIG 1g.5gb", nvml.SUCCESS },
		GetComputeRunningProcessesFunc:    all.GetComputeRunningProcessesFunc,
		GetGraphicsRunningProcessesFunc:   all.GetGraphicsRunningProcessesFunc,
		GetMPSComputeRunningProcessesFunc: all.GetMPSComputeRunningProcessesFunc,
		GetUtilizationRatesFunc:           func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_INVALID_ARGUMENT },
		GetProcessUtilizationFunc: func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			return nil, nvml.ERROR_INVALID_ARGUMENT
		},
		GetGpuInstanceIdFunc: func() (int, nvml.Return) { return place + 7, nvml.SUCCESS },
		GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
			return nvml.DeviceAttributes{ComputeInstanceSliceCount: c.slices, GpuInstanceSliceCount: max(c.slices, c.ofSlices)}, nvml.SUCCESS
		},
	}
}

func (m *machine) device(c *card) nvml.Device {
	d := &mock.Device{}
	d.GetMigDeviceHandleByIndexFunc = func(place int) (nvml.Device, nvml.Return) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if place >= len(c.instances) || c.instances[place] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		i := c.instances[place]
		if i.device == nil {
			i.device = m.migDevice(i, place)
		}
		return i.device, i.ret
	}
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return maxInstances, nvml.SUCCESS }
	d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) {
		if c.mig == nvml.DEVICE_MIG_ENABLE {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return 0, nvml.SUCCESS
	}
	d.GetUUIDFunc = func() (string, nvml.Return) { return c.uuid, nvml.SUCCESS }
	d.GetMigModeFunc = func() (int, int, nvml.Return) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return c.mig, c.mig, c.migRet
	}
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return nvml.Memory_v2{Total: c.totalMiB << 20, Reserved: c.reserved << 20, Used: 3 << 20}, nvml.SUCCESS
	}
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 25}, nvml.SUCCESS }
	processes := func(kind int) func() ([]nvml.ProcessInfo, nvml.Return) {
		return func() ([]nvml.ProcessInfo, nvml.Return) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return c.processes[kind], nvml.SUCCESS
		}
	}
	d.GetComputeRunningProcessesFunc, d.GetGraphicsRunningProcessesFunc, d.GetMPSComputeRunningProcessesFunc = processes(0), processes(1), processes(2)
	d.GetProcessUtilizationFunc = func(since uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		m.mu.Lock()
		defer m.mu.Unlock()
		c.since = append(c.since, since)
		var newer []nvml.ProcessUtilizationSample
		for _, s := range c.samples {
			if s.TimeStamp > since {
				newer = append(newer, s)
			}
		}
		switch {
		case c.sampling != nvml.SUCCESS:
			return nil, c.sampling
		case len(newer) == 0:
			return nil, nvml.ERROR_NOT_FOUND
		case c.more:
			n := cap(newer) + 1
			return newer[:n], nvml.ERROR_INSUFFICIENT_SIZE // truncated like go-nvml's buffer
		default:
			return newer, nvml.SUCCESS
		}
	}
	d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		m.mu.Lock()
		defer m.mu.Unlock()
		values[0].NvmlReturn = uint32(c.acting)
		binary.NativeEndian.PutUint32(values[0].Value[:], uint32(c.action))
		return nvml.SUCCESS
	}
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 1, true, c.unmapped, nvml.SUCCESS }
	d.GetNameFunc = func() (string, nvml.Return) { return "Tesla T4", nvml.SUCCESS }
	d.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) { return 7, 5, nvml.SUCCESS }
	d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return pciInfo(busOf(m.index(c))), nvml.SUCCESS
	}
	d.GetMemoryAffinityFunc = func(int, nvml.AffinityScope) ([]uint, nvml.Return) { return []uint{0, 2}, nvml.SUCCESS }
	at := func(link int) (nvlink, nvml.Return) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if link >= len(c.nvlinks) {
			return nvlink{}, nvml.ERROR_NOT_SUPPORTED
		}
		return c.nvlinks[link], nvml.SUCCESS
	}
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		l, ret := at(link)
		if l.inactive {
			return nvml.FEATURE_DISABLED, ret
		}
		return nvml.FEATURE_ENABLED, ret
	}
	d.GetNvLinkRemoteDeviceTypeFunc = func(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		l, ret := at(link)
		return l.kind, ret
	}
	d.GetNvLinkRemotePciInfoFunc = func(link int) (nvml.PciInfo, nvml.Return) {
		l, ret := at(link)
		return pciInfo(l.to), ret
	}
	d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeAll, nvml.SUCCESS }
	d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
	return d
}
