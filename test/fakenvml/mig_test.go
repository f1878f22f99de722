//go:build cgo

package fakenvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestMIG(t *testing.T) {
	g := A100InSevenths("a")
	g.MIGDevices[1].Slices, g.MIGDevices[1].Processes = 3, []Process{{PID: 7, UsedMiB: 100}}
	g.MIGDevices = g.MIGDevices[:2]
	m := NewMachine(g, T4("b"))
	m.Events = []Event{{Seq: 1, XID: 43, GPU: g.UUID}}
	f := start(t, m)
	equal(t, "GPUs", must(f.DeviceGetCount())(t), 2)
	parent := f.device(t, 0)
	d, ret := parent.GetMigDeviceHandleByIndex(1)
	check(t, ret)
	_, ret = parent.GetMigDeviceHandleByIndex(2)
	expect(t, ret, nvml.ERROR_NOT_FOUND)
	_, ret = parent.GetMigDeviceHandleByIndex(7)
	expect(t, ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = f.device(t, 1).GetMigDeviceHandleByIndex(0)
	expect(t, ret, nvml.ERROR_NOT_FOUND)

	equal(t, "UUID", must(d.GetUUID())(t), g.MIGDevices[1].UUID)
	equal(t, "name", must(d.GetName())(t), "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
	equal(t, "is MIG", must(d.IsMigDeviceHandle())(t), true)
	equal(t, "instance", must(d.GetGpuInstanceId())(t), 2)
	equal(t, "slices", must(d.GetAttributes())(t).ComputeInstanceSliceCount, uint32(3))
	memory := must(d.GetMemoryInfo_v2())(t)
	equal(t, "total, reserved, used", []uint64{memory.Total / mib, memory.Reserved / mib, memory.Used / mib}, []uint64{4864, 12, 100})
	equal(t, "processes", must(d.GetComputeRunningProcesses())(t)[0].Pid, uint32(7))
	equal(t, "processes of the GPU's own", len(must(parent.GetComputeRunningProcesses())(t)), 0)
	byUUID, ret := f.DeviceGetHandleByUUID(g.MIGDevices[1].UUID)
	check(t, ret)
	equal(t, "the same by its UUID", byUUID == d, true)
	of, ret := d.GetDeviceHandleFromMigDeviceHandle()
	check(t, ret)
	equal(t, "its GPU", must(of.GetUUID())(t), g.UUID)
	_, ret = d.GetUtilizationRates()
	expect(t, ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = d.GetComputeMode()
	expect(t, ret, nvml.ERROR_INVALID_ARGUMENT)

	set, ret := f.EventSetCreate()
	check(t, ret)
	expect(t, d.RegisterEvents(nvml.EventTypeXidCriticalError, set), nvml.ERROR_INVALID_ARGUMENT)
	check(t, parent.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	m.Events = append(m.Events, Event{Seq: 2, XID: 79, GPU: g.UUID}, Event{Seq: 3, XID: 31, GPU: g.MIGDevices[1].UUID})
	f.write(t, m)
	for _, want := range []uint32{0xFFFFFFFF, 2} {
		e, ret := set.Wait(1000)
		check(t, ret)
		equal(t, "instance of an event", e.GpuInstanceId, want)
		equal(t, "GPU of an event", e.Device == parent, true)
	}

	m.GPUs[0].MIGMode = false
	f.write(t, m)
	_, ret = d.GetUUID()
	expect(t, ret, nvml.ERROR_GPU_IS_LOST)
	_, ret = parent.GetMigDeviceHandleByIndex(0)
	expect(t, ret, nvml.ERROR_NOT_FOUND)
}
