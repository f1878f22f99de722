package cdi

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// install installs the libraries of a driver version, without the previous ones.
func install(t *testing.T, root, version string) {
	t.Helper()
	libs := filepath.Join(root, "usr", "lib64")
	if err := os.RemoveAll(libs); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(libs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, lib := range []string{"libcuda.so.", "libnvidia-ml.so."} {
		if err := os.WriteFile(filepath.Join(libs, lib+version), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// File names of the driver contain its version.
func TestAnotherDriverIsDescribed(t *testing.T) { synctest.Test(t, testAnotherDriverIsDescribed) }

func testAnotherDriverIsDescribed(t *testing.T) {
	root := t.TempDir()
	version := make(chan string, 1)
	source := inventory.NewLatest(gpu.Inventory{}, "")
	drive := func(v string) {
		install(t, root, v)
		select {
		case <-version:
		default:
		}
		version <- v
		source.Set(gpu.Inventory{DriverVersion: v, Devices: []gpu.Device{{UUID: "GPU-a"}}}, "")
	}
	w := Writer{Domain: "gpumem.dev", Dir: t.TempDir(), Hook: "/usr/bin/nvidia-cdi-hook", DriverRoot: root, NodeRoot: root, Source: source, Log: zap.NewNop()}
	loads := make(chan string, 1)
	loads <- "first"
	w.Load = func() string {
		load := <-loads
		loads <- load
		return load
	}
	w.Open = func() (nvml.Interface, string) {
		server := dgxa100.New()
		server.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS } // the mock GPUs lack methods
		server.SystemGetDriverVersionFunc = func() (string, nvml.Return) {
			v := <-version
			version <- v
			return v, nvml.SUCCESS
		}
		return server, ""
	}
	drive("550.54.15")
	writer := NewWriter(w)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- writer.Run(ctx) }()
	for _, v := range []string{"550.54.15", "580.65.06"} {
		synctest.Wait()
		drive(v)
		has := func() bool {
			text, err := os.ReadFile(w.path())
			return err == nil && strings.Contains(string(text), "libcuda.so."+v)
		}
		if synctest.Wait(); !has() {
			text, err := os.ReadFile(w.path())
			t.Fatalf("driver %s is not described: %s, %v", v, text, err)
		}
	}
	// After a reload of the same driver, device nodes can have other numbers.
	before, err := os.Stat(w.path())
	if err != nil {
		t.Fatal(err)
	}
	<-loads
	loads <- "second"
	time.Sleep(retry)
	synctest.Wait()
	if after, err := os.Stat(w.path()); err != nil || os.SameFile(before, after) {
		t.Errorf("the file is not written again after the driver was loaded again: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAGPUIsOfferedOnceItIsDescribed verifies that a GPU is unhealthy until the CDI file describes it, because a
// container with an undescribed device does not start.
func TestAGPUIsOfferedOnceItIsDescribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root, dir := t.TempDir(), filepath.Join(t.TempDir(), "cdi")
		install(t, root, "580.65.06")
		if err := os.WriteFile(dir, nil, 0o644); err != nil { // blocks the directory
			t.Fatal(err)
		}
		source := inventory.NewLatest(gpu.Inventory{}, "not yet")
		server := dgxa100.New()
		server.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS }
		server.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "580.65.06", nvml.SUCCESS }
		w := NewWriter(Writer{
			Domain: "gpumem.dev", Dir: dir, Hook: "/usr/bin/nvidia-cdi-hook", DriverRoot: root, NodeRoot: root, Source: source, Log: zap.NewNop(),
			Load: func() string { return "" },
			Open: func() (nvml.Interface, string) { return server, "" },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		want := func(reasons ...string) {
			t.Helper()
			synctest.Wait()
			inv, _, _ := w.Inventory()
			if len(inv.Devices) != len(reasons) {
				t.Fatalf("%d GPUs", len(inv.Devices))
			}
			for i, d := range inv.Devices {
				if d.Status.Unhealthy != (reasons[i] != "") || !strings.Contains(d.Status.Reason, reasons[i]) {
					t.Errorf("GPU %s: %+v, want %q", d.UUID, d.Status, reasons[i])
				}
			}
		}
		set := func(uuids ...gpu.UUID) {
			inv := gpu.Inventory{DriverVersion: "580.65.06"}
			for _, id := range uuids {
				inv.Devices = append(inv.Devices, gpu.Device{UUID: id})
			}
			source.Set(inv, "")
		}
		want()
		select {
		case <-w.Looked(): // otherwise the node would briefly publish an inventory without GPUs
			t.Error("it has looked before its source")
		default:
		}
		set("GPU-a")
		want("the container runtime does not know it: ")
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		time.Sleep(retry)
		want("")
		if err := os.Remove(w.path()); err != nil { // a user cleans up
			t.Fatal(err)
		}
		time.Sleep(retry)
		want("")
		if _, err := os.Stat(w.path()); err != nil {
			t.Errorf("the file is not written again: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		set("GPU-a", "GPU-b")
		want("does not know it", "does not know it")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestNewsOfGPUsDoesNotWaitForNVML covers a driver that hangs when the GPUs are described again.
func TestNewsOfGPUsDoesNotWaitForNVML(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		install(t, root, "580.65.06")
		hang := make(chan struct{})
		close(hang)
		var asked int
		server := dgxa100.New()
		server.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS }
		server.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "580.65.06", nvml.SUCCESS }
		source := inventory.NewLatest(gpu.Inventory{}, "")
		w := NewWriter(Writer{
			Domain: "gpumem.dev", Dir: t.TempDir(), Hook: "/usr/bin/nvidia-cdi-hook", DriverRoot: root, NodeRoot: root, Source: source, Log: zap.NewNop(),
			Load: func() string { return "" },
			Open: func() (nvml.Interface, string) {
				asked++
				<-hang
				return server, ""
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		sets := func(reasons ...string) { // the health of GPU-a, and of GPU-b
			inv := gpu.Inventory{DriverVersion: "580.65.06"}
			for i, reason := range reasons {
				d := gpu.Device{UUID: gpu.UUID([]string{"GPU-a", "GPU-b"}[i])}
				if reason != "" {
					d.Status = gpu.Unhealthy(reason)
				}
				inv.Devices = append(inv.Devices, d)
			}
			source.Set(inv, "")
		}
		want := func(when string, reasons ...string) {
			t.Helper()
			synctest.Wait()
			inv, _, _ := w.Inventory()
			var got []string
			for _, d := range inv.Devices {
				got = append(got, d.Status.Reason)
			}
			if !slices.Equal(got, reasons) {
				t.Errorf("%s: the GPUs are unhealthy because %q, want %q", when, got, reasons)
			}
		}
		sets("")
		want("at first", "")
		before := asked
		hang = make(chan struct{})
		sets("XID 79", "")
		time.Sleep(2 * timeout)
		want("while NVML hangs", "XID 79", "the container runtime does not know it: NVML does not answer")
		time.Sleep(time.Hour)
		sets("", "")
		time.Sleep(2 * timeout)
		want("an hour later", "", "the container runtime does not know it: NVML does not answer")
		if asked != before+1 {
			t.Errorf("%d hanging calls, want one", asked-before)
		}
		close(hang)
		time.Sleep(retry)
		want("when NVML answers again", "", "")
		hang = make(chan struct{})
		sets("")
		synctest.Wait()
		begin := time.Now()
		cancel()
		if err := <-done; err != nil || time.Since(begin) > 0 {
			t.Errorf("Run ends after %s, %v", time.Since(begin), err)
		}
		close(hang)
	})
}

// TestAFileOfAnEarlierProcessDescribesItsGPUs covers a file that cannot be rewritten. A file of another driver
// describes no GPUs.
func TestAFileOfAnEarlierProcessDescribesItsGPUs(t *testing.T) {
	const file = `{"cdiVersion":"0.5.0","kind":"gpumem.dev/gpu",
		"devices":[{"name":"GPU-a","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"}]}},{"name":"GPU-b","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia1"}]}}],
		"containerEdits":{"mounts":[{"hostPath":"/usr/lib64/libcuda.so.580.65.06","containerPath":"/usr/lib64/libcuda.so.580.65.06"}]}}`
	for name, tc := range map[string]struct {
		file   string
		driver string
		minors []int  // of GPU-a, GPU-b and GPU-c
		want   string // GPUs that accept pods
	}{
		"no file":              {"", "580.65.06", []int{0, 1, 2}, ""},
		"the same GPUs":        {file, "580.65.06", []int{0, 1, 2}, "GPU-a GPU-b"},
		"exchanged nodes":      {file, "580.65.06", []int{1, 0, 2}, ""},
		"one node has moved":   {file, "580.65.06", []int{0, 3, 1}, "GPU-a"},
		"one GPU is lost":      {file, "580.65.06", []int{0}, "GPU-a"},
		"NVML does not answer": {file, "580.65.06", nil, ""},
		"another driver":       {file, "580.95.05", []int{0, 1, 2}, ""},
		"no longer JSON":       {file[1:], "580.65.06", []int{0, 1, 2}, ""},
		"another domain":       {strings.Replace(file, "gpumem.dev", "other.dev", 1), "580.65.06", []int{0, 1, 2}, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			server := dgxa100.New()
			if tc.minors == nil {
				server.InitFunc = func() nvml.Return { return nvml.ERROR_UNKNOWN }
			}
			inv := gpu.Inventory{DriverVersion: tc.driver, Devices: []gpu.Device{{UUID: "GPU-a"}, {UUID: "GPU-b"}, {UUID: "GPU-c"}}}
			server.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN } // prevents the write of the file
			server.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
				at := slices.IndexFunc(inv.Devices, func(d gpu.Device) bool { return string(d.UUID) == uuid })
				if at < 0 || at >= len(tc.minors) {
					return nil, nvml.ERROR_NOT_FOUND
				}
				return &mock.Device{GetMinorNumberFunc: func() (int, nvml.Return) { return tc.minors[at], nvml.SUCCESS }}, nvml.SUCCESS
			}
			source := inventory.NewLatest(gpu.Inventory{}, "")
			source.Set(inv, "")
			writer := Writer{
				Domain: "gpumem.dev", Dir: dir, Hook: "/usr/bin/nvidia-cdi-hook", DriverRoot: t.TempDir(), Source: source, Log: zap.NewNop(),
				Load: func() string { return "" },
				Open: func() (nvml.Interface, string) { return server, "" },
			}
			if tc.file != "" {
				if err := os.WriteFile(writer.path(), []byte(tc.file), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			w := NewWriter(writer)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			works := func(want string) {
				t.Helper()
				synctest.Wait()
				var got []string
				now, _, _ := w.Inventory()
				for _, d := range now.Devices {
					if d.Status.Works() {
						got = append(got, string(d.UUID))
					}
				}
				if strings.Join(got, " ") != want {
					t.Errorf("%s: GPUs %v take pods, want %q", name, got, want)
				}
			}
			works(tc.want)
			inv.DriverVersion = "590.1" // loaded while the process runs
			source.Set(inv, "")
			works("")
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAnOutcomeIsLoggedOnce verifies that a failure is logged again only after another outcome.
func TestAnOutcomeIsLoggedOnce(t *testing.T) {
	const version = "580.65.06"
	root, dir, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "file")
	install(t, root, version)
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	server := dgxa100.New()
	server.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS }
	server.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return version, nvml.SUCCESS }
	core, logs := observer.New(zap.InfoLevel)
	w := NewWriter(Writer{
		Domain: "gpumem.dev", Hook: "/usr/bin/nvidia-cdi-hook", DriverRoot: root, NodeRoot: root, Source: inventory.NewLatest(gpu.Inventory{}, ""), Log: zap.New(core),
		Load: func() string { return "" },
		Open: func() (nvml.Interface, string) { return server, "" },
	})
	for i, tc := range []struct {
		dir   string
		lines int
	}{{file, 1}, {file, 1}, {filepath.Join(file, "below"), 2}, {dir, 3}, {file, 4}, {file, 4}} {
		w.Dir = tc.dir
		if w.describe(t.Context(), []string{"load"}, version); logs.Len() != tc.lines {
			t.Errorf("attempt %d: %d lines, want %d: %v", i+1, logs.Len(), tc.lines, logs.All())
		}
	}
}
