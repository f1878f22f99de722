package nvml

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// tape returns the fuzzer's bytes, and then zeros.
type tape struct{ data []byte }

func (t *tape) number(n int) int {
	if len(t.data) == 0 {
		return 0
	}
	b := t.data[0]
	t.data = t.data[1:]
	return int(b) % n
}

// ret returns success in three of four cases.
func (t *tape) ret() nvml.Return {
	if n := t.number(40); n >= 30 {
		return nvml.Return(n - 29)
	}
	return nvml.SUCCESS
}

func (t *tape) amount() uint64 { return uint64(t.number(256)) << uint(t.number(64)) }

// liar is a library whose answers all come from the tape.
type liar struct {
	*machine
	tape    *tape
	devices []nvml.Device // the prober reads them concurrently, so open determines all answers in advance
	rets    []nvml.Return
}

func (l *liar) open() (nvml.Interface, string) {
	opened, path := l.machine.open()
	lib := opened.(*mock.Interface)
	lib.InitFunc = func() nvml.Return { return l.tape.ret() }
	lib.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return fmt.Sprint(l.tape.number(3)), l.tape.ret() }
	lib.DeviceGetCountFunc = func() (int, nvml.Return) {
		l.devices, l.rets = nil, nil
		uuids := []string{"GPU-aaaa", "GPU-bbbb", "GPU-cccc", "", "\x00", "GPU-AAAA"}
		for range l.tape.number(5) {
			i := l.tape.number(len(uuids)) // no two GPUs share a UUID
			l.devices = append(l.devices, l.device(uuids[i]))
			uuids = slices.Delete(uuids, i, i+1)
			l.rets = append(l.rets, l.tape.ret())
		}
		n := len(l.devices)
		if n == 0 {
			n = []int{0, -1, math.MaxInt}[l.tape.number(3)]
		}
		return n, l.tape.ret()
	}
	lib.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) { return l.devices[i], l.rets[i] }
	return lib, path
}

func (l *liar) device(uuid string) nvml.Device {
	memory, reserved, mig, set := l.tape.amount(), l.tape.amount(), l.tape.number(3), uint(l.tape.amount())
	links := l.tape.number(256) // one bit each for state, kind, and the GPU at the other end
	rets := make([]nvml.Return, 11)
	for i := range rets {
		rets[i] = l.tape.ret()
	}
	processes := func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: uint32(set), UsedGpuMemory: memory}, {Pid: uint32(mig), UsedGpuMemory: reserved}}, rets[8]
	}
	return &mock.Device{
		GetComputeRunningProcessesFunc: processes, GetGraphicsRunningProcessesFunc: processes, GetMPSComputeRunningProcessesFunc: processes,
		GetProcessUtilizationFunc: func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			return []nvml.ProcessUtilizationSample{{Pid: uint32(set), TimeStamp: memory, SmUtil: uint32(reserved)}}, rets[6]
		},
		GetUUIDFunc:    func() (string, nvml.Return) { return uuid, rets[0] },
		GetMigModeFunc: func() (int, int, nvml.Return) { return mig, mig, rets[1] },
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: memory, Reserved: reserved}, rets[2]
		},
		GetMemoryInfoFunc:            func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: memory}, rets[3] },
		GetNameFunc:                  func() (string, nvml.Return) { return "Tesla T4", rets[4] },
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return -1, mig, rets[5] },
		GetPciInfoFunc:               func() (nvml.PciInfo, nvml.Return) { return someBus(mig), rets[6] },
		GetMemoryAffinityFunc:        func(int, nvml.AffinityScope) ([]uint, nvml.Return) { return []uint{0, set}, rets[7] },
		GetNvLinkStateFunc: func(link int) (nvml.EnableState, nvml.Return) {
			return nvml.EnableState(links >> (link % 8) & 1), rets[8]
		},
		GetNvLinkRemoteDeviceTypeFunc: func(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.IntNvLinkDeviceType(links >> (link % 3) & 3), rets[9]
		},
		GetNvLinkRemotePciInfoFunc: func(link int) (nvml.PciInfo, nvml.Return) { return someBus(links >> (link % 5) & 3), rets[10] },
		GetUtilizationRatesFunc:    func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: uint32(set)}, rets[4] },
		GetSupportedEventTypesFunc: func() (uint64, nvml.Return) { return uint64(set), rets[5] },
		RegisterEventsFunc:         func(uint64, nvml.EventSet) nvml.Return { return rets[7] },
		GetFieldValuesFunc: func(values []nvml.FieldValue) nvml.Return {
			values[0].Value[0] = byte(mig)
			return rets[9]
		},
		GetRemappedRowsFunc: func() (int, int, bool, bool, nvml.Return) { return 0, 0, mig > 0, set > 1<<40, rets[10] },
	}
}

// someBus returns one of a few bus addresses, or none.
func someBus(n int) (pci nvml.PciInfo) {
	if n == 0 {
		return pci
	}
	for i, b := range []byte(fmt.Sprintf("00000000:%02X:00.0", 0x3B+n)) {
		pci.BusId[i] = int8(b)
	}
	return pci
}

// FuzzAnswers verifies that after any answers of NVML, the prober publishes an offer or a reason. No GPU has more
// units than fit into its memory, no two GPUs have the same index, and an unhealthy GPU has a reason.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 0, 1, 0}) // -1 GPUs
	f.Add([]byte{0, 0, 0, 0, 2, 0}) // more than the tests allow memory for
	f.Add([]byte{0, 0, 0, 3, 0, 0, 0, 200, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 1, 0, 2, 0, 1, 255, 36, 1, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 31, 32, 33, 34, 35, 36, 37, 38, 39})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1000 {
			return // enough probes
		}
		synctest.Test(t, func(t *testing.T) {
			cfg := config((&liar{machine: newMachine(), tape: &tape{data}}).open)
			p := New(cfg, zap.NewNop())
			for range 5 {
				reason := p.probe(t.Context())
				p.publish(reason)
				checkInventory(t, p)
			}
			p.close(t.Context())
			time.Sleep(time.Minute) // until the watchers have ended
		})
	})
}

func checkInventory(t *testing.T, p *Prober) {
	t.Helper()
	inv, reason, _ := p.Inventory()
	if (len(inv.Devices) == 0) == (reason == "") {
		t.Fatalf("%d GPUs, and the reason for having none is %q", len(inv.Devices), reason)
	}
	indexes := make(map[int]bool)
	for _, d := range inv.Devices {
		if indexes[d.Index] {
			t.Errorf("index %d twice: %+v", d.Index, inv.Devices)
		}
		indexes[d.Index] = true
		if d.Allocatable < 0 || int64(d.Allocatable) > d.MemoryMiB/inv.UnitMiB {
			t.Errorf("%s has %d units in %d MiB", d.UUID, d.Allocatable, d.MemoryMiB)
		}
		if d.Status.Unhealthy != (d.Status.Reason != "") {
			t.Errorf("%s has the status %+v", d.UUID, d.Status)
		}
	}
	_, _ = gpu.NewSlots(inv)
}
