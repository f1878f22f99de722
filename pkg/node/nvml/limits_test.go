package nvml

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// given is the variable with the library's path in a child process of the test: go-nvml binds the functions of one
// library only.
const given = "GPUMEM_TEST_LIBRARY"

// inChild runs the test again in a child process with a library that is compiled from testdata/limits.c. It
// returns true in that process.
func inChild(t *testing.T, flags ...string) bool {
	t.Helper()
	if os.Getenv(given) != "" {
		return true
	}
	library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := append([]string{"-shared", "-fPIC", "-Wl,-z,nodelete", "-o", library, "testdata/limits.c"}, flags...)
	if text, err := exec.CommandContext(t.Context(), "cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, text)
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), given+"="+library)
	if text, err := child.CombinedOutput(); err != nil {
		t.Errorf("with %s: %v\n%s", library, err, text)
	}
	return false
}

func TestLimitsOfControlGroups(t *testing.T) {
	if !inChild(t) {
		return
	}
	l := NewLimits(Opener(os.Getenv(given), ""))
	if _, _, ok, err := l.Get(t.Context(), "GPU-a", "/g"); ok || err != nil {
		t.Errorf("before they are set: %t, %v", ok, err)
	}
	if err := l.Set(t.Context(), "GPU-a", "/g", 3<<30, 1<<64-1); err != nil {
		t.Fatal(err)
	}
	if soft, hard, ok, err := l.Get(t.Context(), "GPU-a", "/g"); soft != 3<<30 || hard != 1<<64-1 || !ok || err != nil {
		t.Errorf("they read back as %d and %d, %v", soft, hard, err)
	}
	if err := l.Set(t.Context(), "GPU-a", "/foreign", 1, 1); err == nil || !strings.Contains(err.Error(), "CAP_SYS_ADMIN") {
		t.Errorf("without the right to: %v", err)
	}
	if err := l.Set(t.Context(), "GPU-b", "/g", 1, 1); err == nil || !strings.Contains(err.Error(), "cannot find the GPU") {
		t.Errorf("a GPU that is not there has limits: %v", err)
	}
	// The caller waits neither for the hanging call nor for the next one.
	for _, dir := range []string{"/hangs", "/g"} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := l.Set(ctx, "GPU-a", dir, 1, 1); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%s: %v", dir, err)
		}
		cancel()
	}
}

// TestLimitsOfAnOlderDriver: its library lacks the functions for limits, and calling one would end the process.
func TestLimitsOfAnOlderDriver(t *testing.T) {
	if !inChild(t, "-DOLD") {
		return
	}
	l := NewLimits(Opener(os.Getenv(given), ""))
	const want = "the driver's NVML has no limits of memory"
	if err := l.Set(t.Context(), "GPU-a", "/g", 1, 1); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("set: %v", err)
	}
	if _, _, ok, err := l.Get(t.Context(), "GPU-a", "/g"); ok || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("get: %v", err)
	}
}

func TestLimitsWithoutADriver(t *testing.T) {
	if err := NewLimits(Opener("/nowhere.so", "")).Set(t.Context(), "GPU-a", "/g", 1, 1); err == nil || !strings.Contains(err.Error(), "cannot be loaded from /nowhere.so") {
		t.Error(err)
	}
}

// TestEachAnswerOfLimits verifies that Limits distinguishes missing limits, failures and slow answers of NVML, and
// shuts down each session.
func TestEachAnswerOfLimits(t *testing.T) {
	for _, tc := range []struct {
		call string
		ret  nvml.Return
		slow time.Duration
		want string
	}{
		{"set", nvml.SUCCESS, 0, ""},
		{"set", nvml.ERROR_NOT_SUPPORTED, 0, errNone.Error()},
		{"set", nvml.ERROR_FUNCTION_NOT_FOUND, 0, errOld.Error()},
		{"set", nvml.ERROR_UNKNOWN, 0, "NVML: ERROR_UNKNOWN"},
		{"set", nvml.ERROR_GPU_IS_LOST, 0, "NVML: ERROR_GPU_IS_LOST"},
		{"set", nvml.SUCCESS, time.Minute, "does not answer"},
		{"get", nvml.SUCCESS, 0, ""},
		{"get", nvml.ERROR_NOT_SUPPORTED, 0, "none"},
		{"get", nvml.ERROR_UNKNOWN, 0, "NVML: ERROR_UNKNOWN"},
		{"get", nvml.ERROR_GPU_IS_LOST, 0, "NVML: ERROR_GPU_IS_LOST"},
		{"get", nvml.SUCCESS, time.Minute, "does not answer"},
		{"find", nvml.ERROR_NOT_FOUND, 0, "cannot find the GPU: ERROR_NOT_FOUND"},
		{"find", nvml.ERROR_GPU_IS_LOST, 0, "cannot find the GPU: ERROR_GPU_IS_LOST"},
		{"init", nvml.ERROR_DRIVER_NOT_LOADED, 0, "the NVIDIA driver is not loaded"},
		{"init", nvml.SUCCESS, time.Minute, "does not answer"},
	} {
		t.Run(fmt.Sprint(tc.call, " ", tc.ret, " ", tc.slow), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sessions atomic.Int32
				of := func(call string) nvml.Return {
					if call != tc.call {
						return nvml.SUCCESS
					}
					time.Sleep(tc.slow)
					return tc.ret
				}
				device := &mock.Device{
					SetMemoryLimits_v1Func: func(string, uint64, uint64) nvml.Return { return of("set") },
					GetMemoryLimits_v1Func: func(string) (nvml.MemoryLimits_v1, nvml.Return) {
						return nvml.MemoryLimits_v1{SoftLimit: 1, HardLimit: 2}, of("get")
					},
				}
				lib := &mock.Interface{
					InitFunc: func() nvml.Return {
						ret := of("init")
						if ret == nvml.SUCCESS {
							sessions.Add(1)
						}
						return ret
					},
					ShutdownFunc:               func() nvml.Return { sessions.Add(-1); return nvml.SUCCESS },
					SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "615.10", nvml.SUCCESS },
					DeviceGetHandleByUUIDFunc:  func(string) (nvml.Device, nvml.Return) { return device, of("find") },
					ExtensionsFunc: func() nvml.ExtendedInterface {
						return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }}
					},
				}
				l := NewLimits(func() (nvml.Interface, string) { return lib, "" })
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				err := l.Set(ctx, "GPU-a", "/g", 1, 2)
				if tc.call == "get" {
					var ok bool
					if _, _, ok, err = l.Get(ctx, "GPU-a", "/g"); !ok && err == nil {
						err = fmt.Errorf("none")
					}
				}
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				time.Sleep(2 * time.Minute)
				if left := sessions.Load(); left != 0 {
					t.Errorf("%d sessions are left", left)
				}
				if err := l.Set(t.Context(), "GPU-a", "/g", 1, 2); tc.slow > 0 && err != nil {
					t.Errorf("after the slow call: %v", err)
				}
			})
		})
	}
}

// TestAModeIsSetOnOneGPU verifies that SetMode changes one GPU only, also next to a GPU that does not report its
// UUID.
func TestAModeIsSetOnOneGPU(t *testing.T) {
	var set []string
	refuses := nvml.SUCCESS
	device := func(uuid string, ret nvml.Return) *mock.Device {
		return &mock.Device{
			GetUUIDFunc:        func() (string, nvml.Return) { return uuid, ret },
			SetComputeModeFunc: func(nvml.ComputeMode) nvml.Return { set = append(set, uuid); return refuses },
		}
	}
	devices := []*mock.Device{device("GPU-a", nvml.ERROR_GPU_IS_LOST), device("GPU-b", nvml.SUCCESS), device("GPU-c", nvml.SUCCESS)}
	lib := &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "615.10", nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) { return devices[i], nvml.SUCCESS },
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }}
		},
	}
	m := NewMachine(func() (nvml.Interface, string) { return lib, "" }, time.Minute)
	if err := m.SetMode("GPU-b", 3); err != nil || fmt.Sprint(set) != "[GPU-b]" {
		t.Errorf("set on %v, %v", set, err)
	}
	if err := m.SetMode("GPU-a", 3); err == nil || fmt.Sprint(set) != "[GPU-b]" {
		t.Errorf("a lost GPU: set on %v, %v", set, err)
	}
	refuses = nvml.ERROR_NO_PERMISSION
	if err := m.SetMode("GPU-c", 3); err == nil || fmt.Sprint(set) != "[GPU-b GPU-c]" {
		t.Errorf("a refused mode: set on %v, %v", set, err)
	}
}
