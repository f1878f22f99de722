package nvml

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/node/speeds"
)

// sliced returns a GPU in MIG mode with instances at positions 0 and 2, of one and three slices.
func sliced(uuid string) *card {
	c := t4(uuid)
	c.mig = nvml.DEVICE_MIG_ENABLE
	c.instances = []*card{part("MIG-a", 4864, 1), nil, part("MIG-b", 19968, 3)}
	return c
}

func TestInstancesAreGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := sliced("GPU-a")
		a.instances[0].processes[0] = []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 100 << 20}}
		cfg := config(newMachine(a, t4("GPU-b")).open)
		cfg.MIG, cfg.Speeds = true, speeds.Default()
		p, _ := watched(t, cfg)
		inv, _, _ := p.Inventory()
		device := func(uuid gpu.UUID, index int, mib int64, units gpu.Units, speed int) gpu.Device {
			return gpu.Device{
				UUID: uuid, Index: index, Model: "NVIDIA A100-SXM4-40GB MIG 1g.5gb", MemoryMiB: mib, Allocatable: units, Speed: speed,
				NUMANode: 65, PCI: "00000000:3b:00.0", ComputeCapability: "7.5", Parent: "GPU-a",
			}
		}
		want := []gpu.Device{
			{UUID: "GPU-b", Index: 1, Model: "Tesla T4", MemoryMiB: 15360, Allocatable: 14, Speed: 21, NUMANode: 65, PCI: "00000000:3c:00.0", ComputeCapability: "7.5"},
			device("MIG-a", 2, 4864, 4, 14), // a seventh of an A100's speed
			device("MIG-b", 4, 19968, 19, 42),
		}
		if diff := cmp.Diff(want, inv.Devices); diff != "" {
			t.Errorf("devices (-want +got):\n%s", diff)
		}
		of, _ := p.Processes()
		if diff := cmp.Diff(map[gpu.UUID][]inventory.Process{"MIG-a": {{PID: 7, Bytes: 100 << 20}}, "MIG-b": nil, "GPU-b": nil}, of); diff != "" {
			t.Errorf("processes (-want +got):\n%s", diff)
		}
	})
}

// TestInstancesComeAndGo verifies that instances appear and disappear like GPUs, and that the others keep their
// indexes.
func TestInstancesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := sliced("GPU-a")
		m := newMachine(a)
		cfg := config(m.open)
		cfg.MIG = true
		p, _ := watched(t, cfg)
		wantHealth(t, p, "MIG-a: healthy", "MIG-b: healthy")
		m.change(func() { a.instances = []*card{nil, part("MIG-c", 9728, 2), a.instances[2]} })
		pass(interval)
		wantHealth(t, p, "MIG-a: the driver no longer lists it", "MIG-c: healthy", "MIG-b: healthy")
		m.change(func() { a.ret = nvml.ERROR_GPU_IS_LOST })
		pass(interval)
		wantHealth(t, p, "MIG-a: the driver has lost it", "MIG-c: the driver has lost it", "MIG-b: the driver has lost it")
		m.change(func() { a.ret, a.mig = nvml.SUCCESS, 0 })
		pass(interval)
		inv, _, _ := p.Inventory()
		if len(inv.Devices) != 4 || !inv.Devices[0].Status.TakesPods() || inv.Devices[1].Status.TakesPods() || inv.Devices[3].Status.TakesPods() {
			t.Errorf("the GPU has left MIG mode, and the devices are %+v", inv.Devices)
		}
	})
}

// TestErrorsOfInstances: NVML reports errors by GPU.
func TestErrorsOfInstances(t *testing.T) {
	const all = 0xFFFFFFFF
	for name, tc := range map[string]struct {
		instance uint32
		want     []string
	}{
		"an instance's":            {7, []string{"MIG-a: XID 74: NVLink error", "MIG-b: healthy"}},
		"the GPU's":                {all, []string{"MIG-a: XID 74: NVLink error", "MIG-b: XID 74: NVLink error"}},
		"of one that is not known": {3, []string{"MIG-a: healthy", "MIG-b: healthy"}}, // the prober probes again instead
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := sliced("GPU-a")
				m := newMachine(a)
				m.events = make(chan nvml.EventData)
				cfg := config(m.open)
				cfg.MIG = true
				p, _ := watched(t, cfg)
				m.events <- nvml.EventData{Device: a.device, EventType: nvml.EventTypeXidCriticalError, EventData: 74, GpuInstanceId: tc.instance}
				synctest.Wait()
				wantHealth(t, p, tc.want...)
			})
		})
	}
}

// TestPartsOfAnInstanceAreNotOffered: NVML reports all of the instance's memory for each part.
func TestPartsOfAnInstanceAreNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := sliced("GPU-a")
		a.instances[2].slices, a.instances[2].ofSlices = 1, 3
		cfg := config(newMachine(a).open)
		cfg.MIG = true
		p, logs := watched(t, cfg)
		wantHealth(t, p, "MIG-a: healthy")
		if said := logs.FilterMessage("GPU is not offered").All(); len(said) != 1 || said[0].ContextMap()["reason"] != "it is a part of a GPU instance, and shares its memory with the other parts" {
			t.Errorf("%v", said)
		}
	})
}

// TestAGPUWhoseModeIsNotToldIsNotOffered: the GPU may be in MIG mode.
func TestAGPUWhoseModeIsNotToldIsNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := sliced("GPU-a")
		m := newMachine(a)
		cfg := config(m.open)
		cfg.MIG = true
		p, _ := watched(t, cfg)
		m.change(func() { a.migRet = nvml.ERROR_UNKNOWN })
		pass(interval)
		wantHealth(t, p, "MIG-a: NVML: ERROR_UNKNOWN", "MIG-b: NVML: ERROR_UNKNOWN")
	})
}

func all(devices []gpu.Device) map[gpu.UUID]bool {
	selected := make(map[gpu.UUID]bool)
	for _, d := range devices {
		selected[d.UUID] = true
	}
	return selected
}

func TestInstancesOfAMachine(t *testing.T) {
	m := newMachine(sliced("GPU-a"), t4("GPU-b"))
	machine := NewMachine(m.open, time.Minute)
	driver, gpus, instances, lost, err := machine.Parts(100, all)
	want := []inventory.Part{{UUID: "MIG-a", Index: 2, MiB: 4764, Free: 4861}, {UUID: "MIG-b", Index: 4, MiB: 19868, Free: 19965}}
	whole := []inventory.Part{{UUID: "GPU-a", Index: 0, MiB: gpus[0].MiB, Free: gpus[0].Free, Closed: true}, {UUID: "GPU-b", Index: 1, MiB: 14810, Free: 14907}}
	if diff := cmp.Diff([][]inventory.Part{want, whole}, [][]inventory.Part{instances, gpus}); diff != "" || err != nil || driver != "580.65.06" || lost != 0 {
		t.Errorf("%v, driver %s, %d lost (-want +got):\n%s", err, driver, lost, diff)
	}
	modes, err := machine.Modes()
	if diff := cmp.Diff(map[string]int{"GPU-b": 0}, modes); diff != "" || err != nil {
		t.Errorf("compute modes: %v (-want +got):\n%s", err, diff)
	}
}

// TestInstancesThatDoNotAnswer verifies that Parts omits instances without an ID, attributes or a UUID.
func TestInstancesThatDoNotAnswer(t *testing.T) {
	for function, ret := range map[string]nvml.Return{
		"GetGpuInstanceId": nvml.ERROR_UNKNOWN, "GetAttributes": nvml.ERROR_NOT_SUPPORTED, "GetUUID": nvml.ERROR_GPU_IS_LOST,
	} {
		m := newMachine(sliced("GPU-a"))
		handle, _ := m.gpus[0].device.GetMigDeviceHandleByIndex(0)
		replace(t, handle, function, ret, 0)
		s, err := open(m.open)
		if err != nil {
			t.Fatal(err)
		}
		of := s.read(0, nil, true).instances
		if len(of) != 2 || of[0].failed != failure(ret) || of[1].failed != "" {
			t.Errorf("%s returns %v: instances %+v", function, ret, of)
		}
		if _, _, instances, _, err := (NewMachine(m.open, time.Minute)).Parts(0, all); err != nil || len(instances) != 1 || instances[0].UUID != "MIG-b" {
			t.Errorf("%s returns %v: parts %+v, %v", function, ret, instances, err)
		}
	}
}

func TestPartsOfAMachine(t *testing.T) {
	m := newMachine(t4("GPU-a"), t4("GPU-b"), t4("GPU-split"), t4("GPU-others"), sliced("GPU-lost"), sliced("GPU-sliced"))
	m.gpus[1].reserved, m.gpus[2].mig, m.gpus[4].ret = 1024, nvml.DEVICE_MIG_ENABLE, nvml.ERROR_GPU_IS_LOST
	ours := func(devices []gpu.Device) map[gpu.UUID]bool {
		selected := all(devices)
		delete(selected, "GPU-others")
		delete(selected, "MIG-b")
		return selected
	}
	_, gpus, instances, lost, err := NewMachine(m.open, time.Minute).Parts(0, ours)
	var got []string
	for _, p := range append(gpus, instances...) {
		got = append(got, fmt.Sprint(p.UUID, " ", p.Index, " ", p.Closed))
	}
	// A lost GPU does not change the indexes of instances, because the prober counts it too.
	want := []string{"GPU-a 0 false", "GPU-b 1 false", "GPU-split 2 true", "GPU-others 3 true", "GPU-sliced 5 true", fmt.Sprint("MIG-a ", 6+maxInstances*5, " false")}
	if diff := cmp.Diff(want, got); err != nil || diff != "" || lost != 1 {
		t.Errorf("%v, %d lost (-want +got):\n%s", err, lost, diff)
	}
}

// TestSpeedOfAnInstance verifies that an instance has the speed of the whole GPU if its number of slices, or
// their maximum, is unknown.
func TestSpeedOfAnInstance(t *testing.T) {
	tables := speeds.Tables{{"A100": 98}}
	for _, tc := range []struct {
		instance *instance
		model    string
		want     int
	}{
		{nil, "A100", 98},
		{&instance{slices: 3, most: 7}, "A100", 42},
		{&instance{slices: 1, most: 700}, "A100", 1},
		{&instance{slices: 0, most: 7}, "A100", 98},
		{&instance{slices: 3, most: 0}, "A100", 98},
		{&instance{slices: 3, most: 7}, "another", 0},
	} {
		r := reading{device: gpu.Device{Model: tc.model}, instance: tc.instance}
		if got := r.speed(tables); got != tc.want {
			t.Errorf("%s with %+v: %d, want %d", tc.model, tc.instance, got, tc.want)
		}
	}
}
