package nvml

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

const (
	interval = 30 * time.Second
	retry    = 10 * time.Second
	timeout  = 5 * time.Second
)

// resetsFile is in a missing directory, so that no process writes it.
const resetsFile = "/nowhere/resets.json"

func config(open func() (nvml.Interface, string)) Config {
	return Config{
		Open: open, UnitMiB: 1024, Interval: interval, Retry: retry, Timeout: timeout, Recovery: 3, Resets: resetsFile,
		Offered: func(context.Context) gpu.Inventory { return gpu.Inventory{} },
	}
}

func t4(uuid string) *card { return &card{uuid: uuid, totalMiB: 15360, reserved: 450} }

// watched runs a prober on a machine in a synctest bubble, until the test ends.
func watched(t *testing.T, cfg Config) (*Prober, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	p := New(cfg, zap.New(core))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	pass(interval / 2) // tests change things between probes
	return p, logs
}

func pass(d time.Duration) {
	time.Sleep(d) // the bubble's time
	synctest.Wait()
}

// health returns the health of each GPU, by index, with the reason if it is unhealthy.
func health(p *Prober) []string {
	inv, _, _ := p.Inventory()
	var out []string
	for _, d := range inv.Devices {
		s := string(d.UUID) + ": " + d.Status.Reason
		if d.Status.TakesPods() {
			s = string(d.UUID) + ": healthy"
		}
		out = append(out, s)
	}
	return out
}

func wantHealth(t *testing.T, p *Prober, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, health(p)); diff != "" {
		t.Errorf("health (-want +got):\n%s", diff)
	}
	if inv, _, _ := p.Inventory(); len(want) > 0 {
		if err := api.ValidateInventory(inv); err != nil {
			t.Errorf("inventory: %v", err)
		}
	}
}

func TestProberReadsWhatAGPUIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(newMachine(t4("GPU-a")).open)
		cfg.ReserveMiB = 100
		p, _ := watched(t, cfg)
		got, reason, _ := p.Inventory()
		want := gpu.Inventory{
			UnitMiB: 1024, DriverVersion: "580.65.06", Enforcement: gpu.EnforcementAdvisory,
			Devices: []gpu.Device{{
				UUID: "GPU-a", Model: "Tesla T4", MemoryMiB: 15360, Allocatable: 14, // (15360 − 450 − 100) / 1024
				NUMANode: 65, PCI: "00000000:3b:00.0", ComputeCapability: "7.5",
			}},
		}
		if diff := cmp.Diff(want, got); diff != "" || reason != "" {
			t.Errorf("reason %q, inventory (-want +got):\n%s", reason, diff)
		}
	})
}

func TestProberTellsHowMuchIsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"), t4("GPU-b"))
		p, _ := watched(t, config(m.open))
		want := func(id gpu.UUID, want bool) {
			t.Helper()
			if used, busy, ok := p.Usage(id); ok != want || ok && (used != 3<<20 || busy != 0.25) {
				t.Errorf("%s: %d bytes, busy %g, %t", id, used, busy, ok)
			}
		}
		want("GPU-a", true)
		want("GPU-b", true)
		m.change(func() { m.gpus[1].ret = nvml.ERROR_GPU_IS_LOST })
		pass(interval)
		want("GPU-a", true)
		want("GPU-b", false)
	})
}

func TestProberWithoutTheNewerFunctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := dgxa100.New()
		server.LookupSymbolFunc = func(string) error { return os.ErrNotExist }
		server.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
		p, _ := watched(t, config(func() (nvml.Interface, string) { return server, "" }))
		inv, reason, _ := p.Inventory()
		if len(inv.Devices) != 8 || reason != "" || inv.Allocatable() != 8*40 {
			t.Errorf("%d GPUs with %d units, reason %q; want 8 with 320", len(inv.Devices), inv.Allocatable(), reason)
		}
		if d := inv.Devices[0]; d.NUMANode != -1 {
			t.Errorf("NUMA node %d, want -1", d.NUMANode)
		}
	})
}

func TestProberWaitsForTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"))
		m.init = nvml.ERROR_LIBRARY_NOT_FOUND
		p, logs := watched(t, config(m.open))
		select {
		case <-p.Looked():
		default:
			t.Fatal("the first probe has ended, and Looked is open")
		}
		inv, reason, changed := p.Inventory()
		if len(inv.Devices) != 0 || !strings.Contains(reason, "cannot be loaded from /driver/libnvidia-ml.so.1") {
			t.Errorf("%d devices, reason %q", len(inv.Devices), reason)
		}
		pass(3 * retry)
		m.change(func() { m.init = nvml.ERROR_DRIVER_NOT_LOADED })
		pass(3 * retry)
		if _, reason, _ := p.Inventory(); reason != "the NVIDIA driver is not loaded" {
			t.Errorf("reason %q", reason)
		}
		if n := logs.FilterMessage("the node has no GPU to offer").Len(); n != 2 {
			t.Errorf("%d lines about two reasons", n)
		}
		select {
		case <-changed:
		default:
			t.Error("the reason changed, and nobody was told")
		}
		m.change(func() { m.init = nvml.SUCCESS })
		pass(retry)
		wantHealth(t, p, "GPU-a: healthy")
	})
}

func TestProberWithNoGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		p, _ := watched(t, config(m.open))
		if _, reason, _ := p.Inventory(); reason != "NVML reports no GPU" {
			t.Errorf("reason %q", reason)
		}
		c := t4("GPU-a")
		m.change(func() { c.device = m.device(c); m.gpus = append(m.gpus, c) })
		pass(retry)
		wantHealth(t, p, "GPU-a: healthy")
	})
}

// TestProberGivesAReason covers the reasons why a node offers no GPU although NVML lists some.
func TestProberGivesAReason(t *testing.T) {
	lost, split := t4("GPU-lost"), t4("GPU-split")
	lost.ret, split.mig = nvml.ERROR_GPU_IS_LOST, nvml.DEVICE_MIG_ENABLE
	for name, tc := range map[string]struct {
		cards []*card
		mig   bool
		want  string
	}{
		"a lost GPU":                            {[]*card{lost}, false, "no GPU answers: the driver has lost it"},
		"a lost GPU, with instances":            {[]*card{lost}, true, "no GPU answers: the driver has lost it"},
		"a GPU without a UUID":                  {[]*card{t4("")}, false, "no GPU answers: it has no UUID"},
		"a GPU in MIG mode":                     {[]*card{lost, split}, false, "all GPUs are in MIG mode, or do not answer"},
		"a GPU in MIG mode without an instance": {[]*card{lost, split}, true, "all GPUs are in MIG mode without an instance, or do not answer"},
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg := config(newMachine(tc.cards...).open)
			cfg.MIG = tc.mig
			p, logs := watched(t, cfg)
			if inv, reason, _ := p.Inventory(); reason != tc.want || len(inv.Devices) > 0 {
				t.Errorf("%s: %d GPUs, reason %q; want %q", name, len(inv.Devices), reason, tc.want)
			}
			pass(3 * retry)
			if n := logs.FilterMessage("the node has no GPU to offer").Len(); n != 1 {
				t.Errorf("%s: %d lines for one reason", name, n)
			}
		})
	}
}

func TestProberLeavesMIGAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := t4("GPU-a"), t4("GPU-b")
		a.mig = nvml.DEVICE_MIG_ENABLE
		m := newMachine(a, b)
		p, logs := watched(t, config(m.open))
		wantHealth(t, p, "GPU-b: healthy")
		pass(5 * interval)
		if n := logs.FilterMessage("GPU is not offered").Len(); n != 1 {
			t.Errorf("%d lines about one GPU in MIG mode", n)
		}
		m.change(func() { a.mig, b.mig = 0, nvml.DEVICE_MIG_ENABLE })
		pass(interval)
		wantHealth(t, p, "GPU-a: healthy", "GPU-b: it is in MIG mode")
	})
}

func TestProberFollowsHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := t4("GPU-a"), t4("GPU-b")
		m := newMachine(a, b)
		p, logs := watched(t, config(m.open))
		m.change(func() { a.ret = nvml.ERROR_GPU_IS_LOST })
		pass(interval)
		wantHealth(t, p, "GPU-a: the driver has lost it", "GPU-b: healthy")
		pass(5 * interval)
		if n := logs.FilterMessage("GPU is not healthy").Len(); n != 1 {
			t.Errorf("%d lines about one loss", n)
		}
		m.change(func() { a.ret = nvml.SUCCESS })
		pass(2 * interval)
		wantHealth(t, p, "GPU-a: the driver has lost it", "GPU-b: healthy")
		pass(interval)
		wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy")
	})
}

func TestProberKeepsWhatVanished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := t4("GPU-a"), t4("GPU-b"), t4("GPU-c")
		m := newMachine(a, b, c)
		p, _ := watched(t, config(m.open))
		m.change(func() { m.gpus = []*card{b, c} })
		pass(interval)
		wantHealth(t, p, "GPU-b: healthy", "GPU-c: healthy", "GPU-a: the driver no longer lists it")
		m.change(func() { m.gpus = []*card{a, b, c} })
		pass(4 * interval)
		wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy", "GPU-c: healthy")
		m.change(func() { m.init = nvml.ERROR_DRIVER_NOT_LOADED; a.ret = nvml.ERROR_GPU_IS_LOST })
		pass(2 * interval)
		wantHealth(t, p, "GPU-a: the NVIDIA driver is not loaded", "GPU-b: the NVIDIA driver is not loaded", "GPU-c: the NVIDIA driver is not loaded")
	})
}

func TestProberDoesNotWaitForAGPUThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := t4("GPU-a"), t4("GPU-b")
		m := newMachine(a, b)
		p, _ := watched(t, config(m.open))
		hang := make(chan struct{})
		m.change(func() { a.hang, a.asked = hang, 0 })
		pass(interval)
		wantHealth(t, p, "GPU-a: does not answer", "GPU-b: healthy")
		pass(10 * interval)
		m.change(func() {
			if a.asked != 1 {
				t.Errorf("asked %d times while the first call hangs", a.asked)
			}
			if m.inits != 1 {
				t.Errorf("NVML was initialised %d times while a call hangs in it", m.inits)
			}
			a.hang = nil
		})
		close(hang)
		pass(6 * (interval + timeout))
		wantHealth(t, p, "GPU-a: healthy", "GPU-b: healthy")
	})
}

func TestProberHearsOfXIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := t4("GPU-a")
		m := newMachine(a)
		p, _ := watched(t, config(m.open))
		report := func(kind, xid uint64) {
			m.events <- nvml.EventData{Device: a.device, EventType: kind, EventData: xid}
			synctest.Wait()
		}
		report(nvml.EventTypeXidCriticalError, 31)
		wantHealth(t, p, "GPU-a: healthy")
		report(nvml.EventTypeSingleBitEccError, 0)
		wantHealth(t, p, "GPU-a: healthy")
		report(nvml.EventTypeXidCriticalError, 48)
		wantHealth(t, p, "GPU-a: XID 48: double-bit ECC error")
		pass(4 * interval)
		wantHealth(t, p, "GPU-a: healthy")
		report(nvml.EventTypeDoubleBitEccError, 0)
		wantHealth(t, p, "GPU-a: double-bit ECC error")
		pass(4 * interval)
		report(nvml.EventTypeXidCriticalError, 74)
		wantHealth(t, p, "GPU-a: XID 74: NVLink error")
	})
}

func TestProberKeepsItsWordOnCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := t4("GPU-a")
		m := newMachine(a)
		p, _ := watched(t, config(m.open))
		m.change(func() { a.reserved = 2000 })
		pass(2 * interval)
		if inv, _, _ := p.Inventory(); inv.Allocatable() != 14 {
			t.Errorf("%d units, want the 14 of the first reading", inv.Allocatable())
		}
	})
}

// A new plugin offers the same capacity as its predecessor, unless the driver's own memory differs by more than
// variation.
func TestProberKeepsTheWordOfTheOneBefore(t *testing.T) {
	offered := func(units gpu.Units, change func(*gpu.Inventory)) gpu.Inventory {
		inv := gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: "GPU-a", MemoryMiB: 15360, Allocatable: units}}}
		if change != nil {
			change(&inv)
		}
		return inv
	}
	for name, tc := range map[string]struct {
		offered           gpu.Inventory
		reserved, reserve int64
		want, foreign     gpu.Units // of 15360 MiB, which are 15 units
	}{
		"nothing was told":            {offered: gpu.Inventory{}, reserved: 1030, want: 13},
		"the driver keeps more":       {offered: offered(14, nil), reserved: 1024 + 32, want: 14},
		"it keeps less":               {offered: offered(13, nil), reserved: 1024 - 31, want: 13},
		"it keeps a unit more":        {offered: offered(14, nil), reserved: 1024 + 33, want: 14, foreign: 1},
		"it keeps two units more":     {offered: offered(14, nil), reserved: 2048 + 33, want: 12},
		"it keeps much less":          {offered: offered(13, nil), reserved: 1024 - 32, want: 14},
		"the reserve is larger":       {offered: offered(14, nil), reserved: 1000, reserve: 200, want: 14, foreign: 1},
		"the reserve counts too":      {offered: offered(14, nil), reserved: 830, reserve: 200, want: 14},
		"more than the GPU has":       {offered: offered(16, nil), reserved: 0, want: 15},
		"the unit was another":        {offered: offered(14, func(inv *gpu.Inventory) { inv.UnitMiB = 512 }), reserved: 1030, want: 13},
		"the GPU's memory was other":  {offered: offered(14, func(inv *gpu.Inventory) { inv.Devices[0].MemoryMiB = 16384 }), reserved: 1030, want: 13},
		"it was told of another GPU":  {offered: offered(14, func(inv *gpu.Inventory) { inv.Devices[0].UUID = "GPU-b" }), reserved: 1030, want: 13},
		"the driver does not tell it": {offered: offered(15, nil), reserved: 0, want: 15},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := t4("GPU-a")
				a.reserved = uint64(tc.reserved)
				cfg := config(newMachine(a).open)
				cfg.ReserveMiB = tc.reserve
				cfg.Offered = func(context.Context) gpu.Inventory { return tc.offered }
				p, _ := watched(t, cfg)
				inv, _, _ := p.Inventory()
				if d := inv.Devices[0]; d.Allocatable != tc.want || d.Foreign != tc.foreign {
					t.Errorf("%d units, %d of them in foreign use; want %d and %d", d.Allocatable, d.Foreign, tc.want, tc.foreign)
				}
				if err := api.ValidateInventory(inv); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestTheLastUnitOfAnH100: after an update, the driver reserves 150 MiB more. The GPU keeps its 79 slots, and
// offers 78 units.
func TestTheLastUnitOfAnH100(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h100 := &card{uuid: "GPU-a", totalMiB: 81559, reserved: 551}
		m := newMachine(h100)
		cfg := config(m.open)
		before, _ := watched(t, cfg)
		was, _, _ := before.Inventory()
		m.change(func() { h100.reserved = 701 })
		cfg.Offered = func(context.Context) gpu.Inventory { return was }
		for range 2 { // the second process follows the first
			p, _ := watched(t, cfg)
			inv, _, _ := p.Inventory()
			if d := inv.Devices[0]; was.Devices[0].Allocatable != 79 || d.Allocatable != 79 || d.Foreign != 1 {
				t.Errorf("%d units before; then %d, %d of them foreign; want 79, and 79 with one foreign", was.Devices[0].Allocatable, d.Allocatable, d.Foreign)
			}
			cfg.Offered = func(context.Context) gpu.Inventory { return inv }
		}
	})
}

// A replaced driver, or ECC, can reduce a GPU's memory.
func TestProberReadsAGPUThatComesBack(t *testing.T) {
	for name, tc := range map[string]struct {
		fails           bool // in between
		total, reserved uint64
		memory          int64
		want, foreign   gpu.Units
	}{
		"smaller":                          {true, 13000, 700, 13000, 12, 0},
		"smaller, and it was never missed": {false, 13000, 700, 13000, 12, 0},
		"larger":                           {true, 16384, 450, 16384, 15, 0},
		"the driver keeps more of it":      {true, 15360, 1100, 15360, 14, 1},
		"the driver keeps a little more":   {true, 15360, 460, 15360, 14, 0},
		"while it works nothing changes":   {false, 15360, 1100, 15360, 14, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := t4("GPU-a")
				m := newMachine(a)
				p, logs := watched(t, config(m.open))
				if tc.fails {
					m.change(func() { a.ret = nvml.ERROR_RESET_REQUIRED })
					pass(interval)
				}
				m.change(func() { a.ret, a.totalMiB, a.reserved = nvml.SUCCESS, tc.total, tc.reserved })
				pass(5 * interval)
				wantHealth(t, p, "GPU-a: healthy")
				inv, _, _ := p.Inventory()
				if d := inv.Devices[0]; d.Allocatable != tc.want || d.MemoryMiB != tc.memory || d.Foreign != tc.foreign {
					t.Errorf("%d units in %d MiB, %d of them in foreign use; want %d in %d MiB, %d foreign", d.Allocatable, d.MemoryMiB, d.Foreign, tc.want, tc.memory, tc.foreign)
				}
				if got, want := logs.FilterMessage("GPU offers another amount").Len(), min(1, max(tc.want-14, 14-tc.want)); got != int(want) {
					t.Errorf("%d logs of another amount, want %d", got, want)
				}
			})
		})
	}
}

func TestStoppingSaysNothingOfTheGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := t4("GPU-a")
		m := newMachine(a)
		p := New(config(m.open), zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		synctest.Wait()
		hang := make(chan struct{})
		m.change(func() { a.hang = hang })
		pass(interval + timeout/2)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		wantHealth(t, p, "GPU-a: healthy")
		close(hang)
	})
}

func TestFindLibrary(t *testing.T) {
	find := func(path, root string) string {
		_, from := Opener(path, root)()
		from, _, _ = strings.Cut(from, " ")
		return from
	}
	root := t.TempDir()
	if got := find("", root); got != "libnvidia-ml.so.1" {
		t.Errorf("nothing there: %q", got)
	}
	for _, dir := range []string{"lib", "usr/lib/aarch64-linux-gnu"} { // the second precedes the first
		dir = filepath.Join(root, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		want := filepath.Join(dir, "libnvidia-ml.so.1")
		if err := os.WriteFile(want, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if got := find("", root); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := find("/x.so", root); got != "/x.so" {
		t.Errorf("set: %q", got)
	}
}

func TestProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := t4("GPU-a")
		a.processes = [3][]nvml.ProcessInfo{
			{{Pid: 7, UsedGpuMemory: 100 << 20}, {Pid: 3, UsedGpuMemory: 5 << 20}, {Pid: 9, UsedGpuMemory: notAvailable}},
			{{Pid: 8, UsedGpuMemory: 1 << 20}},
			{{Pid: 7, UsedGpuMemory: 120 << 20}}, // PID 7 again, as a client of MPS
		}
		m := newMachine(a, t4("GPU-b"))
		p, _ := watched(t, config(m.open))
		got, probed := p.Processes()
		want := map[gpu.UUID][]inventory.Process{"GPU-a": {{PID: 3, Bytes: 5 << 20, SM: new(0)}, {PID: 7, Bytes: 120 << 20}, {PID: 8, Bytes: 1 << 20, SM: new(0)}}, "GPU-b": nil}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("processes (-want +got):\n%s", diff)
		}
		m.change(func() { a.processes = [3][]nvml.ProcessInfo{} })
		<-probed
		if got, _ := p.Processes(); len(got["GPU-a"]) != 0 {
			t.Errorf("processes that have ended: %v", got)
		}
	})
}

func TestHowMuchProcessesUseAGPU(t *testing.T) {
	list := func(pids ...uint32) (infos []nvml.ProcessInfo) {
		for _, pid := range pids {
			infos = append(infos, nvml.ProcessInfo{Pid: pid, UsedGpuMemory: 1 << 20})
		}
		return infos
	}
	sample := func(pid uint32, at uint64, sm uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: at, SmUtil: sm}
	}
	for name, tc := range map[string]struct {
		card card
		want map[int]*int
	}{
		"one works, one does not":             {card{samples: []nvml.ProcessUtilizationSample{sample(1, 5, 40), sample(9, 5, 7)}}, map[int]*int{1: new(40), 2: new(0)}},
		"none works":                          {card{}, map[int]*int{1: new(0), 2: new(0)}},
		"the newest counts":                   {card{samples: []nvml.ProcessUtilizationSample{sample(1, 5, 40), sample(1, 7, 60), sample(1, 6, 50)}}, map[int]*int{1: new(60), 2: new(0)}},
		"it cannot tell":                      {card{sampling: nvml.ERROR_NOT_SUPPORTED}, map[int]*int{1: nil, 2: nil}},
		"it does not tell now":                {card{sampling: nvml.ERROR_UNKNOWN}, map[int]*int{1: nil, 2: nil}},
		"what makes no sense":                 {card{samples: []nvml.ProcessUtilizationSample{sample(1, 5, 4000)}}, map[int]*int{1: nil, 2: new(0)}},
		"samples come while they are counted": {card{samples: []nvml.ProcessUtilizationSample{sample(1, 5, 40)}, more: true}, map[int]*int{1: nil, 2: nil}},
		"a client of MPS that has no sample":  {card{processes: [3][]nvml.ProcessInfo{2: list(2)}}, map[int]*int{1: new(0), 2: nil}},
		"a client of MPS that has one": {
			card{processes: [3][]nvml.ProcessInfo{2: list(2)}, samples: []nvml.ProcessUtilizationSample{sample(2, 5, 30)}}, map[int]*int{1: new(0), 2: new(30)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := tc.card
				c.uuid, c.totalMiB, c.processes[0] = "GPU-a", 15360, list(1, 2)
				p, _ := watched(t, config(newMachine(&c).open))
				of, _ := p.Processes()
				got := make(map[int]*int)
				for _, process := range of["GPU-a"] {
					got[process.PID] = process.SM
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("per cent by process (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Each probe reads only the samples that no earlier probe has read, also after a failed probe.
func TestUseIsAskedForSinceTheLastProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := t4("GPU-a")
		m := newMachine(a)
		a.processes[0] = []nvml.ProcessInfo{{Pid: 1, UsedGpuMemory: 1 << 20}}
		a.samples = []nvml.ProcessUtilizationSample{{Pid: 1, TimeStamp: 5, SmUtil: 40}}
		p, _ := watched(t, config(m.open))
		for _, step := range []struct {
			then func() // called before the probe
			want *int   // expected after it; nil if the GPU does not answer
		}{
			{func() {}, new(0)},
			{func() { a.samples = append(a.samples, nvml.ProcessUtilizationSample{Pid: 1, TimeStamp: 9, SmUtil: 70}) }, new(70)},
			{func() { a.ret = nvml.ERROR_UNKNOWN }, nil},
			{func() { a.ret = nvml.SUCCESS }, new(0)},
		} {
			m.change(step.then)
			pass(interval)
			var got *int
			of, _ := p.Processes()
			for _, process := range of["GPU-a"] {
				got = process.SM
			}
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Errorf("per cent (-want +got):\n%s", diff)
			}
		}
		m.change(func() {
			if diff := cmp.Diff([]uint64{0, 5, 5, 9}, a.since); diff != "" {
				t.Errorf("asked for what came after (-want +got):\n%s", diff)
			}
		})
	})
}

// After a sample from the future, no sample is newer until that time: a busy process would look idle.
func TestUseAfterTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := t4("GPU-a")
		m := newMachine(a)
		now := uint64(time.Now().UnixMicro())
		a.processes[0] = []nvml.ProcessInfo{{Pid: 1, UsedGpuMemory: 1 << 20}}
		a.samples = []nvml.ProcessUtilizationSample{{Pid: 1, TimeStamp: now + 3600_000_000, SmUtil: 40}}
		p, _ := watched(t, config(m.open))
		m.change(func() { a.samples = []nvml.ProcessUtilizationSample{{Pid: 1, TimeStamp: now, SmUtil: 70}} })
		pass(interval)
		of, _ := p.Processes()
		if diff := cmp.Diff(new(70), of["GPU-a"][0].SM); diff != "" {
			t.Errorf("per cent (-want +got):\n%s", diff)
		}
	})
}

// TestForeignMemoryIsRoundedUp verifies that a part of a MiB counts as a whole MiB, and that an amount beyond the
// GPU's memory counts as all of it.
func TestForeignMemoryIsRoundedUp(t *testing.T) {
	d := tracked{Device: gpu.Device{MemoryMiB: 15360, Allocatable: 14}, reservedMiB: 450}
	for bytes, want := range map[uint64]gpu.Units{0: 0, 1: 0, 574 * mib: 0, 574*mib + 1: 1, 575 * mib: 1, 15360 * mib: 14, 1<<64 - 1: 14} {
		if got := d.foreignUnits(Config{UnitMiB: 1024}, bytes); got != want {
			t.Errorf("%d bytes: %d units, want %d", bytes, got, want)
		}
	}
	d.Allocatable = 10 // fewer than would fit
	if got := d.foreignUnits(Config{UnitMiB: 1024}, mib); got != 0 {
		t.Errorf("%d units of a GPU that offers fewer than it has", got)
	}
}

func TestWhatForeignProgramsUseIsNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(newMachine(t4("GPU-a"), t4("GPU-b")).open)
		cfg.ReserveMiB = 200
		p, _ := watched(t, cfg)
		for _, tc := range []struct {
			mib     uint64
			foreign gpu.Units
		}{
			{0, 0},
			{200, 0}, // the reserve
			{574, 0}, // the reserve and the remainder below a unit: 15360 − 450 − 14 × 1024
			{575, 1},
			{1598, 1},
			{1599, 2},
			{1 << 30, 14}, // more than exists
			{0, 0},
		} {
			p.SetForeign(map[gpu.UUID]uint64{"GPU-a": tc.mib << 20, "GPU-gone": 1})
			pass(interval)
			inv, _, _ := p.Inventory()
			if a, b := inv.Devices[0], inv.Devices[1]; a.Foreign != tc.foreign || a.Allocatable != 14 || b.Foreign != 0 {
				t.Errorf("of %d MiB: %d units of %d, and %d of the other GPU; want %d of 14, and 0", tc.mib, a.Foreign, a.Allocatable, b.Foreign, tc.foreign)
			}
			if err := api.ValidateInventory(inv); err != nil {
				t.Error(err)
			}
		}
	})
}
