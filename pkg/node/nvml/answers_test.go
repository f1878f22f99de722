package nvml

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// replace replaces one function of a mock. After the delay, the new function returns ret, or the original answer if
// ret is SUCCESS.
func replace(t *testing.T, of any, function string, ret nvml.Return, delay time.Duration) {
	t.Helper()
	field := reflect.ValueOf(of).Elem().FieldByName(function + "Func")
	if !field.IsValid() || field.IsNil() {
		t.Fatalf("%T has no %s", of, function)
	}
	was := reflect.ValueOf(field.Interface())
	field.Set(reflect.MakeFunc(field.Type(), func(args []reflect.Value) (out []reflect.Value) {
		time.Sleep(delay)
		if ret == nvml.SUCCESS {
			return was.Call(args)
		}
		for i := range field.Type().NumOut() - 1 {
			out = append(out, reflect.Zero(field.Type().Out(i)))
		}
		return append(out, reflect.ValueOf(ret))
	}))
}

// TestEachAnswerOfEachCall tries five answers for each call: success, not supported, unknown, lost and slow. A failed
// call that the memory accounting needs makes only its GPU unhealthy. A failed optional call does so only if the GPU
// is lost. The next probe uses the answer to a slow call.
func TestEachAnswerOfEachCall(t *testing.T) {
	const lost, slow = "the driver has lost it", "does not answer"
	notSupported, unknown := failure(nvml.ERROR_NOT_SUPPORTED), failure(nvml.ERROR_UNKNOWN)
	for function, needed := range map[string]bool{
		"GetUUID": true, "GetMemoryInfo": true, "GetMigMode": true, "GetName": false, "GetUtilizationRates": false, "GetPciInfo": false,
		"GetCudaComputeCapability": false, "GetComputeRunningProcesses": false, "GetGraphicsRunningProcesses": false,
		"GetMPSComputeRunningProcesses": false, "GetProcessUtilization": false, "GetMemoryAffinity": false, "GetNvLinkState": false,
		"GetNvLinkRemoteDeviceType": false, "GetNvLinkRemotePciInfo": false, "GetFieldValues": false, "GetRemappedRows": false,
		"GetSupportedEventTypes": false, "RegisterEvents": false,
	} {
		for _, answer := range []struct {
			ret    nvml.Return
			delay  time.Duration
			reason string
		}{
			{nvml.SUCCESS, 0, ""},
			{nvml.ERROR_NOT_SUPPORTED, 0, notSupported},
			{nvml.ERROR_UNKNOWN, 0, unknown},
			{nvml.ERROR_GPU_IS_LOST, 0, lost},
			{nvml.SUCCESS, timeout + time.Second, slow},
		} {
			if function == "GetNvLinkState" { // one call for each link
				answer.delay /= 10
			}
			t.Run(fmt.Sprint(function, " ", answer.ret, " ", answer.delay), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					t.Cleanup(func() { pass(time.Minute) })
					m := newMachine(t4("GPU-a"), t4("GPU-b"))
					device := m.gpus[1].device.(*mock.Device)
					device.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 15360 << 20}, nvml.SUCCESS }
					if m.gpus[1].nvlinks = []nvlink{{to: busOf(0)}}; function == "GetMemoryInfo" {
						device.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_NOT_SUPPORTED }
					}
					p, _ := watched(t, config(m.open))
					wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy")
					m.change(func() { replace(t, device, function, answer.ret, answer.delay) })
					pass(interval)
					reason := answer.reason
					if function == "GetMemoryInfo" && reason == notSupported {
						reason = "it shares the machine's memory, which gpumem does not support"
					}
					atGPU := function != "GetSupportedEventTypes" && function != "RegisterEvents" // the watcher makes these two calls
					ignored := !atGPU || !needed && answer.reason != lost && answer.reason != slow
					mig := function == "GetMigMode" && answer.reason == notSupported // a GPU without MIG mode
					quiet := slices.Contains([]string{"GetProcessUtilization", "GetMemoryAffinity", "GetNvLinkState", "GetNvLinkRemoteDeviceType", "GetNvLinkRemotePciInfo", "GetFieldValues", "GetRemappedRows"}, function)
					if reason == "" || ignored || mig || quiet && answer.reason == lost {
						reason = "healthy"
					}
					wantHealth(t, p, "GPU-a: healthy", "GPU-b: "+reason)
					if answer.reason == slow {
						pass(5 * interval)
						wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy")
						pass(20 * interval)
						wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy")
					}
				})
			})
		}
	}
}

// TestEachAnswerOfTheLibrary verifies that while a call about all GPUs fails, each GPU has the reason, and
// recovers afterwards.
func TestEachAnswerOfTheLibrary(t *testing.T) {
	for function, first := range map[string]bool{"DeviceGetCount": false, "Shutdown": false, "Init": true, "EventSetCreate": false, "SystemGetDriverVersion": true} {
		for _, answer := range []struct {
			ret   nvml.Return
			delay time.Duration
		}{
			{nvml.ERROR_NOT_SUPPORTED, 0}, {nvml.ERROR_UNKNOWN, 0}, {nvml.ERROR_GPU_IS_LOST, 0}, {nvml.SUCCESS, timeout + time.Second},
		} {
			t.Run(fmt.Sprint(function, " ", answer.ret, " ", answer.delay), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					t.Cleanup(func() { pass(time.Minute) })
					m := newMachine(t4("GPU-a"), t4("GPU-b"))
					var opened, shut atomic.Int64
					var failing atomic.Bool
					failing.Store(first)
					p, _ := watched(t, config(func() (nvml.Interface, string) {
						lib, path := m.open()
						mocked := lib.(*mock.Interface)
						init, shutdown := mocked.InitFunc, mocked.ShutdownFunc
						mocked.InitFunc = func() nvml.Return { opened.Add(1); return init() }
						mocked.ShutdownFunc = func() nvml.Return { shut.Add(1); return shutdown() }
						if failing.Load() {
							replace(t, mocked, function, answer.ret, answer.delay)
						}
						return lib, path
					}))
					failing.Store(!first)
					m.change(func() { m.gpus[1].ret = nvml.ERROR_GPU_IS_LOST })
					pass(10 * interval)
					m.change(func() { m.gpus[1].ret = nvml.SUCCESS })
					failing.Store(false)
					pass((maxReopen + 6) * interval)
					wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy")
					if inv, _, _ := p.Inventory(); inv.DriverVersion != "580.65.06" {
						t.Errorf("the driver's version is %q", inv.DriverVersion)
					}
					if n := opened.Load() - shut.Load(); n > 2 && function != "Shutdown" {
						t.Errorf("%d of %d sessions were not shut down", n, opened.Load())
					}
				})
			})
		}
	}
}

// TestASlowCountOfGPUs verifies that the prober uses the previous number of GPUs until the slow call returns, and that
// no GPU disappears.
func TestASlowCountOfGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { pass(time.Minute) })
		m := newMachine(t4("GPU-a"))
		p, logs := watched(t, config(func() (nvml.Interface, string) {
			lib, path := m.open()
			replace(t, lib.(*mock.Interface), "DeviceGetCount", nvml.SUCCESS, timeout+time.Second)
			return lib, path
		}))
		pass(10 * interval)
		before := logs.FilterMessage("GPU is not healthy").Len()
		pass(50 * interval)
		wantHealth(t, p, "GPU-a: healthy")
		if n := logs.FilterMessage("GPU is not healthy").Len(); n != before {
			t.Errorf("the GPU failed %d times", n-before)
		}
	})
}

// TestASessionThatOpensLateIsUsed verifies that such a session becomes the next one, and is closed in the end: NVML
// lists other GPUs only after all of its sessions have ended.
func TestASessionThatOpensLateIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"), t4("GPU-b"))
		var calls, refs, initialised atomic.Int64
		cfg := config(func() (nvml.Interface, string) {
			lib, path := m.open()
			mocked := lib.(*mock.Interface)
			mocked.InitFunc = func() nvml.Return {
				if calls.Add(1) == 1 {
					time.Sleep(timeout + time.Second)
				}
				if refs.Add(1) == 1 {
					initialised.Add(1)
				}
				return nvml.SUCCESS
			}
			mocked.ShutdownFunc = func() nvml.Return { refs.Add(-1); return nvml.SUCCESS }
			return lib, path
		})
		p, _ := watched(t, cfg)
		pass(2 * interval)
		wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy")
		before := initialised.Load()
		m.change(func() { m.gpus[1].ret = nvml.ERROR_GPU_IS_LOST })
		pass(5 * interval)
		if n := initialised.Load() - before; n < 2 {
			t.Errorf("in five probes with a GPU that is lost NVML was initialised again %d times (%d calls of nvmlInit, %d not shut down)", n, calls.Load(), refs.Load())
		}
	})
}

// TestAWaitForEventsThatFailsMakesNoHotLoop verifies that the prober probes at most once a second, and later at
// its interval.
func TestAWaitForEventsThatFailsMakesNoHotLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"))
		var waits atomic.Int64
		p, _ := watched(t, config(func() (nvml.Interface, string) {
			lib, path := m.open()
			lib.(*mock.Interface).EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
				return &mock.EventSet{
					FreeFunc: func() nvml.Return { return nvml.SUCCESS },
					WaitFunc: func(ms uint32) (nvml.EventData, nvml.Return) {
						if waits.Add(1) > 200 { // let the test end
							time.Sleep(time.Duration(ms) * time.Millisecond)
							return nvml.EventData{}, nvml.ERROR_TIMEOUT
						}
						return nvml.EventData{}, nvml.ERROR_UNKNOWN
					},
				}, nvml.SUCCESS
			}
			return lib, path
		}))
		if n := waits.Load(); n < 2 || n > 5 {
			t.Errorf("it waited %d times in %s, want pauses of 1, 2, 4, ... seconds", n, interval/2)
		}
		pass(10 * time.Minute)
		if n := waits.Load(); n > 30 {
			t.Errorf("it waited %d times", n)
		}
		m.mu.Lock()
		inits := m.inits
		m.mu.Unlock()
		if inits > 8 {
			t.Errorf("NVML was initialised %d times in 10 minutes", inits)
		}
		wantHealth(t, p, "GPU-a: healthy")
	})
}

// TestAUUIDThatIsListedTwice verifies that one of the GPUs is offered, and the other is reported once.
func TestAUUIDThatIsListedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"), t4("GPU-a"))
		p, logs := watched(t, config(m.open))
		pass(10 * interval)
		if n := logs.FilterMessage("GPU has another index").Len(); n > 0 {
			t.Errorf("in ten probes of two GPUs with the same UUID: %d times another index", n)
		}
		if n := logs.FilterMessage("GPU is not offered").Len(); n != 1 {
			t.Errorf("%d lines about the second GPU", n)
		}
		wantHealth(t, p, "GPU-a: healthy")
		m.change(func() { m.gpus[0].ret, m.gpus[1].ret = nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_IS_LOST })
		pass(interval)
		m.change(func() { m.gpus[0].ret, m.gpus[1].ret = nvml.SUCCESS, nvml.SUCCESS })
		pass(2 * interval)
		wantHealth(t, p, "GPU-a: the driver has lost it")
		pass(interval)
		wantHealth(t, p, "GPU-a: healthy")
	})
}

// host creates the kernel's files for a loaded driver.
func host(t *testing.T) Host {
	t.Helper()
	h := Host{Sys: t.TempDir(), Proc: t.TempDir()}
	for _, dir := range []string{"module/nvidia", "bus/pci/drivers/nvidia/0000:3b:00.0", "bus/pci/drivers/nvidia/module"} {
		if err := os.MkdirAll(filepath.Join(h.Sys, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.boot(t, "1")
	return h
}

func (h Host) boot(t *testing.T, id string) {
	t.Helper()
	file := filepath.Join(h.Proc, "sys/kernel/random/boot_id")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(id+"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// reload recreates the module's directory with a new inode number, like the kernel.
func (h Host) reload(t *testing.T) {
	t.Helper()
	module := filepath.Join(h.Sys, "module/nvidia")
	if err := errors.Join(os.Mkdir(module+"2", 0o755), os.Remove(module), os.Rename(module+"2", module)); err != nil {
		t.Fatal(err)
	}
}

// TestAGPUThatNeedsAResetStaysOut verifies that the GPU stays unhealthy although NVML answers normally for it.
func TestAGPUThatNeedsAResetStaysOut(t *testing.T) {
	for xid, resets := range map[uint64]bool{46: true, 62: true, 64: true, 79: true, 95: true, 109: true, 119: true, 120: true, 140: true, 48: false, 74: false} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t4("GPU-a"))
			cfg := config(m.open)
			cfg.Host, cfg.Resets = host(t), filepath.Join(t.TempDir(), "resets.json")
			p, _ := watched(t, cfg)
			m.events <- nvml.EventData{Device: m.gpus[0].device, EventType: nvml.EventTypeXidCriticalError, EventData: xid, GpuInstanceId: wholeGPU}
			synctest.Wait()
			if got := health(p); got[0] == "GPU-a: healthy" || strings.Contains(got[0], needsReset) != resets {
				t.Errorf("after XID %d: %s", xid, got)
			}
			pass(20 * interval)
			if got := health(p); strings.Contains(got[0], needsReset) != resets {
				t.Errorf("20 probes after XID %d: %s", xid, got)
			}
			if !resets {
				return
			}
			if m.inits != 1 {
				t.Errorf("NVML was opened %d times for a GPU that answers", m.inits)
			}
			next, _ := watched(t, cfg)
			if got := health(next); !strings.Contains(got[0], needsReset) {
				t.Errorf("the next process after XID %d: %s", xid, got)
			}
			switch xid {
			case 95:
				if unknown, err := ClearResets(cfg.Resets, "GPU-a", "GPU-x"); err != nil || !slices.Equal(unknown, []gpu.UUID{"GPU-x"}) {
					t.Errorf("not in the file: %v, %v", unknown, err)
				}
			case 119:
				cfg.Host.boot(t, "2")
			default:
				cfg.Host.reload(t)
			}
			pass(4 * interval)
			for _, p := range []*Prober{p, next} {
				wantHealth(t, p, "GPU-a: healthy")
			}
			last, _ := watched(t, cfg)
			wantHealth(t, last, "GPU-a: healthy")
		})
	}
}

// TestAResetIsKeptWhereTheLoadIsUnknown covers a process to which the kernel does not show the driver's module.
func TestAResetIsKeptWhereTheLoadIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"))
		cfg := config(m.open)
		cfg.Resets = filepath.Join(t.TempDir(), "resets.json")
		watched(t, cfg)
		m.events <- nvml.EventData{Device: m.gpus[0].device, EventType: nvml.EventTypeXidCriticalError, EventData: 79, GpuInstanceId: wholeGPU}
		synctest.Wait()
		next, _ := watched(t, cfg)
		wantHealth(t, next, "GPU-a: XID 79: the GPU has fallen off the bus: it needs a reset")
	})
}

// TestAResetThatCannotBeWrittenDown verifies that the process keeps the reset in memory, and writes it once the
// file is writable.
func TestAResetThatCannotBeWrittenDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"), t4("GPU-b"))
		dir := filepath.Join(t.TempDir(), "d")
		cfg := config(m.open)
		cfg.Resets = filepath.Join(dir, "resets.json")
		p, logs := watched(t, cfg)
		report := func(card int, xid uint64) {
			m.events <- nvml.EventData{Device: m.gpus[card].device, EventType: nvml.EventTypeXidCriticalError, EventData: xid, GpuInstanceId: wholeGPU}
			synctest.Wait()
		}
		report(0, 95)
		pass(5 * interval)
		want := "XID 95: uncontained ECC error: it needs a reset"
		wantHealth(t, p, "GPU-a: "+want, "GPU-b: healthy")
		if n := logs.FilterMessage("the file of GPUs that need a reset cannot be read or written").Len(); n != 1 {
			t.Errorf("%d lines about one file", n)
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		pass(interval)
		report(0, 119) // caused by XID 95
		if f, err := readResets(cfg.Resets); err != nil || !maps.Equal(f.GPUs, map[gpu.UUID]string{"GPU-a": want}) {
			t.Errorf("the file has %v, %v", f, err)
		}
		if err := os.WriteFile(cfg.Resets, []byte("{"), 0o644); err != nil {
			t.Fatal(err)
		}
		pass(5 * interval)
		wantHealth(t, p, "GPU-a: "+want, "GPU-b: healthy")
	})
}

// TestProgramsXIDsTakeNoGPUOut also verifies that the XID for a new recovery action does not change the GPU's
// health.
func TestProgramsXIDsTakeNoGPUOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"))
		cfg := config(m.open)
		cfg.IgnoreXIDs = []uint64{1000}
		p, _ := watched(t, cfg)
		for _, xid := range append(applicationXIDs(), recoveryActionChanged, 1000) {
			if _, reset := xidEvent(xid); reset {
				t.Errorf("XID %d is of a program, and needs a reset", xid)
			}
			m.events <- nvml.EventData{Device: m.gpus[0].device, EventType: nvml.EventTypeXidCriticalError, EventData: xid, GpuInstanceId: wholeGPU}
			synctest.Wait()
			wantHealth(t, p, "GPU-a: healthy")
		}
	})
}

// TestTheDriverSaysWhatAGPUNeeds covers recovery actions that the driver reports while NVML's other answers are good.
func TestTheDriverSaysWhatAGPUNeeds(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*card)
		want   string
	}{
		"reset":           {func(c *card) { c.action = nvml.GPU_RECOVERY_ACTION_GPU_RESET }, "by its driver, it needs a reset"},
		"drain and reset": {func(c *card) { c.action = nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET }, "by its driver, it needs a reset"},
		"reboot":          {func(c *card) { c.action = nvml.GPU_RECOVERY_ACTION_NODE_REBOOT }, "by its driver, the machine must be rebooted"},
		"drain":           {func(c *card) { c.action = nvml.GPU_RECOVERY_ACTION_DRAIN_P2P }, "by its driver, programs that use several GPUs must end"},
		"none":            {func(*card) {}, "healthy"},
		"not told": {func(c *card) {
			c.action, c.acting = nvml.GPU_RECOVERY_ACTION_GPU_RESET, nvml.ERROR_NOT_SUPPORTED
		}, "healthy"},
		"rows": {func(c *card) { c.unmapped = true }, "its memory has an error that cannot be remapped"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t4("GPU-a"), t4("GPU-b"))
				p, _ := watched(t, config(m.open))
				m.change(func() { tc.change(m.gpus[1]) })
				m.events <- nvml.EventData{Device: m.gpus[1].device, EventType: nvml.EventTypeXidCriticalError, EventData: recoveryActionChanged, GpuInstanceId: wholeGPU}
				pass(2 * time.Second)
				wantHealth(t, p, "GPU-a: healthy", "GPU-b: "+tc.want)
				m.change(func() { m.gpus[1].action, m.gpus[1].unmapped = nvml.GPU_RECOVERY_ACTION_NONE, false })
				pass(6 * interval)
				wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy")
			})
		})
	}
}

// TestAGPUThatIsPluggedIn verifies that the prober finds a new GPU although all others are healthy.
func TestAGPUThatIsPluggedIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"))
		cfg := config(func() (nvml.Interface, string) {
			lib, path := m.open()
			n := 0
			m.change(func() { n = len(m.gpus) }) // NVML lists the GPUs that existed at its initialisation
			lib.(*mock.Interface).DeviceGetCountFunc = func() (int, nvml.Return) { return n, nvml.SUCCESS }
			return lib, path
		})
		cfg.Host = host(t)
		p, _ := watched(t, cfg)
		pass(3 * interval)
		b := t4("GPU-b")
		m.change(func() { b.device = m.device(b); m.gpus = append(m.gpus, b) })
		if err := os.Mkdir(filepath.Join(cfg.Host.Sys, "bus/pci/drivers/nvidia/0000:3c:00.0"), 0o755); err != nil {
			t.Fatal(err)
		}
		pass(interval)
		wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy")
		if m.inits != 2 {
			t.Errorf("NVML was opened %d times", m.inits)
		}
	})
}

// TestAGPUThatIsGoneCostsLittle verifies that a missing GPU stays in the inventory, and that the prober reopens
// NVML at growing intervals.
func TestAGPUThatIsGoneCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := t4("GPU-a"), t4("GPU-b")
		m := newMachine(a, b)
		p, _ := watched(t, config(m.open))
		m.change(func() { m.gpus = []*card{a} })
		pass(100 * interval)
		wantHealth(t, p, "GPU-a: healthy", "GPU-b: the driver no longer lists it")
		if m.inits > 12 {
			t.Errorf("NVML was opened %d times in 100 probes", m.inits)
		}
	})
}

// TestAGPUThatMovedIsNotTakenForOneThatFails covers GPUs with new indexes: the GPU that now has the former index of a
// healthy GPU does not answer.
func TestAGPUThatMovedIsNotTakenForOneThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := t4("GPU-a"), t4("GPU-b"), t4("GPU-c")
		m := newMachine(a, b)
		p, _ := watched(t, config(m.open))
		c.ret = nvml.ERROR_UNKNOWN
		m.change(func() { c.device = m.device(c); m.gpus = []*card{c, a, b} })
		pass(interval)
		wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy")
	})
}

// TestTheDriversVersionOutlivesNVML: requirements of pods for a driver, and the level, must not change with a
// failure of NVML.
func TestTheDriversVersionOutlivesNVML(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"))
		cfg := config(m.open)
		cfg.Host = host(t)
		p, _ := watched(t, cfg)
		m.change(func() { m.init = nvml.ERROR_DRIVER_NOT_LOADED })
		cfg.Host.reload(t)
		pass(2 * interval)
		wantHealth(t, p, "GPU-a: the NVIDIA driver is not loaded")
		if inv, _, _ := p.Inventory(); inv.DriverVersion != "580.65.06" {
			t.Errorf("the driver's version is %q", inv.DriverVersion)
		}
	})
}

// TestReservedMemoryIsRoundedUp verifies that the prober offers no MiB that the driver partly uses.
func TestReservedMemoryIsRoundedUp(t *testing.T) {
	c := t4("GPU-a")
	m := newMachine(c)
	c.device.(*mock.Device).GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: 15360 << 20, Reserved: 450<<20 + 1}, nvml.SUCCESS
	}
	s, err := open(m.open)
	if err != nil {
		t.Fatal(err)
	}
	if r := s.read(0, nil, false); r.reservedMiB != 451 {
		t.Errorf("%d MiB are reserved, want 451", r.reservedMiB)
	}
}

// TestProcessesThatCannotBeListed verifies that the prober keeps the previous list, so that no used memory is offered
// after a failed call.
func TestProcessesThatCannotBeListed(t *testing.T) {
	for ret, want := range map[nvml.Return]int{nvml.ERROR_UNKNOWN: 1, nvml.ERROR_NOT_SUPPORTED: 0} {
		synctest.Test(t, func(t *testing.T) {
			c := t4("GPU-a")
			c.processes[0] = []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 1 << 30}}
			m := newMachine(c)
			p, _ := watched(t, config(m.open))
			m.change(func() { replace(t, c.device, "GetComputeRunningProcesses", ret, 0) })
			pass(3 * interval)
			if of, _ := p.Processes(); len(of["GPU-a"]) != want {
				t.Errorf("after %v: %v, want %d", ret, of, want)
			}
		})
	}
}

// TestOneLostGPUOfAMachine verifies that the calls about the other GPUs continue.
func TestOneLostGPUOfAMachine(t *testing.T) {
	m := newMachine(t4("GPU-a"), t4("GPU-b"), t4("GPU-c"))
	m.gpus[1].ret = nvml.ERROR_GPU_IS_LOST
	machine := NewMachine(m.open, time.Minute)
	_, gpus, _, lost, err := machine.Parts(100, all)
	if diff := cmp.Diff([]inventory.Part{{UUID: "GPU-a", MiB: 14810, Free: 14907}, {UUID: "GPU-c", Index: 2, MiB: 14810, Free: 14907}}, gpus); diff != "" || err != nil || lost != 1 {
		t.Errorf("%v, %d lost (-want +got):\n%s", err, lost, diff)
	}
	if modes, err := machine.Modes(); err != nil || len(modes) != 2 {
		t.Errorf("modes %v, %v", modes, err)
	}
	m.gpus[0].ret, m.gpus[2].ret = nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_IS_LOST
	if _, _, _, _, err := machine.Parts(100, all); err == nil || !strings.Contains(err.Error(), "GPU 0: the driver has lost it") {
		t.Errorf("all are lost: %v", err)
	}
}

// TestAMachineThatFails covers failures of calls that concern all GPUs.
func TestAMachineThatFails(t *testing.T) {
	m := newMachine(t4("GPU-a"))
	for _, tc := range []struct {
		n    int
		ret  nvml.Return
		want string
	}{
		{0, nvml.SUCCESS, "NVML reports no GPU"},
		{1, nvml.ERROR_UNKNOWN, "NVML reports 1 GPUs: "},
		{-1, nvml.SUCCESS, "NVML reports -1 GPUs: "},
		{maxGPUs, nvml.SUCCESS, "GPU 0: the driver has lost it"},
		{maxGPUs + 1, nvml.SUCCESS, "NVML reports 1025 GPUs: "},
	} {
		open := func() (nvml.Interface, string) {
			lib, from := m.open()
			if of, ok := lib.(*mock.Interface); ok {
				of.DeviceGetCountFunc = func() (int, nvml.Return) { return tc.n, tc.ret }
				of.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
			}
			return lib, from
		}
		if _, _, _, _, err := NewMachine(open, time.Minute).Parts(0, all); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%d, %v: %v; want %q", tc.n, tc.ret, err, tc.want)
		}
	}
	open := func() (nvml.Interface, string) {
		lib, from := m.open()
		replace(t, lib, "Shutdown", nvml.ERROR_UNKNOWN, 0)
		return lib, from
	}
	if modes, err := NewMachine(open, time.Minute).Modes(); len(modes) != 1 || err == nil || !strings.Contains(err.Error(), "shut NVML down") {
		t.Errorf("a library that does not shut down: %v, %v", modes, err)
	}
}

// TestComputeModesThatCannotBeRead verifies that Modes omits GPUs without an answer, and fails if no GPU answers.
func TestComputeModesThatCannotBeRead(t *testing.T) {
	for _, function := range []string{"GetUUID", "GetComputeMode"} {
		m := newMachine(t4("GPU-a"), t4("GPU-b"))
		machine := NewMachine(m.open, time.Minute)
		replace(t, m.gpus[0].device, function, nvml.ERROR_GPU_IS_LOST, 0)
		if modes, err := machine.Modes(); err != nil || !maps.Equal(modes, map[string]int{"GPU-b": 0}) {
			t.Errorf("%s fails on one of two: %v, %v", function, modes, err)
		}
		replace(t, m.gpus[1].device, function, nvml.ERROR_UNKNOWN, 0)
		if modes, err := machine.Modes(); len(modes) > 0 || err == nil || !strings.Contains(err.Error(), "GPU 0: the driver has lost it") || !strings.Contains(err.Error(), "GPU 1: NVML: ") {
			t.Errorf("%s fails on both: %v, %v", function, modes, err)
		}
	}
}

// TestSupportedEvents verifies that a watcher registers only for events that the prober handles.
func TestSupportedEvents(t *testing.T) {
	c := t4("GPU-a")
	newMachine(c)
	if got := supported(c.device); got != failures {
		t.Errorf("events %#x of a GPU that supports all, want %#x", got, failures)
	}
	replace(t, c.device, "GetSupportedEventTypes", nvml.ERROR_NOT_SUPPORTED, 0)
	if got := supported(c.device); got != nvml.EventTypeXidCriticalError {
		t.Errorf("events %#x of a GPU that does not list them", got)
	}
}

// TestAFileOfResetsThatCannotBeRead verifies that ClearResets returns an error for an unreadable file.
func TestAFileOfResetsThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	if _, err := ClearResets(dir, "GPU-a"); err == nil {
		t.Error("a directory is read as a file")
	}
	file := filepath.Join(dir, "resets.json")
	if unknown, err := ClearResets(file, "GPU-a"); err != nil || !slices.Equal(unknown, []gpu.UUID{"GPU-a"}) {
		t.Errorf("without a file: %v, %v", unknown, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ClearResets(file, "GPU-a"); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file without JSON: %v", err)
	}
}

// TestALoadThatIsUnknown verifies that Load needs the module and the boot ID.
func TestALoadThatIsUnknown(t *testing.T) {
	h := host(t)
	if h.Load() == "" {
		t.Error("the load of a loaded driver is unknown")
	}
	if got := (Host{Sys: h.Sys, Proc: t.TempDir()}).Load(); got != "" {
		t.Errorf("load %q without a boot ID", got)
	}
	if got := (Host{Sys: t.TempDir(), Proc: h.Proc}).Load(); got != "" {
		t.Errorf("load %q without a module", got)
	}
}

// TestWhatIsKnownOfALostLibrary verifies that the last usage does not count as current after NVML has failed.
func TestWhatIsKnownOfALostLibrary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := t4("GPU-a")
		c.processes[0] = []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 1 << 30}}
		m := newMachine(c)
		cfg := config(m.open)
		cfg.Host = host(t)
		p, _ := watched(t, cfg)
		if of, _ := p.Processes(); len(of["GPU-a"]) != 1 {
			t.Errorf("processes %v", of)
		}
		_, probed := p.Processes()
		m.change(func() { m.init = nvml.ERROR_DRIVER_NOT_LOADED })
		cfg.Host.reload(t)
		pass(2 * interval)
		if _, _, ok := p.Usage("GPU-a"); ok {
			t.Error("the usage is known")
		}
		if of, _ := p.Processes(); len(of) > 0 {
			t.Errorf("processes %v", of)
		}
		select {
		case <-probed:
		default:
			t.Error("readers of processes do not learn that the probe failed")
		}
	})
}

// TestEventSetsAreFreed verifies that each set of events ends with its watcher.
func TestEventSetsAreFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made, freed atomic.Int32
		m := newMachine(t4("GPU-a"), t4("GPU-b"))
		open := func() (nvml.Interface, string) {
			lib, from := m.open()
			of, ok := lib.(*mock.Interface)
			if !ok {
				t.Fatalf("a library of type %T", lib)
			}
			create := of.EventSetCreateFunc
			of.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
				set, ret := create()
				made.Add(1)
				if one, ok := set.(*mock.EventSet); ok {
					one.FreeFunc = func() nvml.Return { freed.Add(1); return nvml.SUCCESS }
				}
				return set, ret
			}
			return of, from
		}
		p, _ := watched(t, config(open))
		if made.Load() != 1 || freed.Load() != 0 {
			t.Errorf("%d sets, %d of them freed", made.Load(), freed.Load())
		}
		m.change(func() { m.gpus[1].ret = nvml.ERROR_GPU_IS_LOST }) // the next watcher watches one GPU
		pass(interval + 2*eventWaitMS*time.Millisecond)
		if made.Load() < 2 || freed.Load() != made.Load()-1 {
			t.Errorf("%d sets, %d of them freed", made.Load(), freed.Load())
		}
		wantHealth(t, p, "GPU-a: healthy", "GPU-b: the driver has lost it")
	})
}

// TestAWaitForEventsThatHangs verifies that no second watcher starts while the first hangs in the driver.
func TestAWaitForEventsThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int32
		hang := make(chan struct{})
		m := newMachine(t4("GPU-a"), t4("GPU-b"))
		open := func() (nvml.Interface, string) {
			lib, from := m.open()
			if of, ok := lib.(*mock.Interface); ok {
				of.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
					made.Add(1)
					return &mock.EventSet{
						FreeFunc: func() nvml.Return { return nvml.SUCCESS },
						WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
							<-hang
							time.Sleep(time.Second)
							return nvml.EventData{}, nvml.ERROR_TIMEOUT
						},
					}, nvml.SUCCESS
				}
			}
			return lib, from
		}
		p, _ := watched(t, config(open))
		m.change(func() { m.gpus[1].ret = nvml.ERROR_GPU_IS_LOST }) // another watcher is needed
		pass(3 * interval)
		if made.Load() != 1 {
			t.Errorf("%d sets of events, want one that hangs", made.Load())
		}
		wantHealth(t, p, "GPU-a: healthy", "GPU-b: the driver has lost it")
		close(hang)
		pass(2 * maxReopen * interval)
		if made.Load() < 2 {
			t.Error("no watcher starts after the first has ended")
		}
	})
}
