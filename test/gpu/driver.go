package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// driver is what the kit asks of NVML.
type driver interface {
	facts() (facts, error)
	// settings is what the kit must leave as it is, in words.
	settings() (string, error)
	// use is the per cent of the GPU's time of each process that has a sample newer than since.
	use(uuid string, since time.Time) (map[int]int, error)
}

// facts are of a machine.
type facts struct {
	version string // of the driver
	gpus    []card
}

type card struct {
	model, uuid string
	memoryMiB   int64
}

// protocol is that of the driver's MPS daemon.
func (f facts) protocol() int {
	major, _, _ := strings.Cut(f.version, ".")
	if n, err := strconv.Atoi(major); err == nil && n >= 615 {
		return 3
	}
	return 2
}

// library is a driver, by the path of NVML's library; empty: where the driver has it.
type library struct{ path string }

// with calls a function with the library, and with each GPU's handle.
func (l library) with(f func(lib nvml.Interface, gpus []nvml.Device) error) error {
	var opts []nvml.LibraryOption
	if l.path != "" {
		opts = append(opts, nvml.WithLibraryPath(l.path))
	}
	lib := nvml.New(opts...)
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return fmt.Errorf("no NVIDIA driver answers here: nvmlInit: %s", lib.ErrorString(ret))
	}
	defer func() { _ = lib.Shutdown() }() // the process ends
	n, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS || n == 0 {
		return fmt.Errorf("NVML reports %d GPUs: %s", n, lib.ErrorString(ret))
	}
	gpus := make([]nvml.Device, n)
	for i := range gpus {
		if gpus[i], ret = lib.DeviceGetHandleByIndex(i); ret != nvml.SUCCESS {
			return fmt.Errorf("GPU %d: %s", i, lib.ErrorString(ret))
		}
	}
	return f(lib, gpus)
}

func (l library) facts() (out facts, err error) {
	err = l.with(func(lib nvml.Interface, gpus []nvml.Device) error {
		var ret nvml.Return
		if out.version, ret = lib.SystemGetDriverVersion(); ret != nvml.SUCCESS {
			return fmt.Errorf("ask for the driver's version: %s", lib.ErrorString(ret))
		}
		for i, gpu := range gpus {
			name, named := gpu.GetName()
			uuid, identified := gpu.GetUUID()
			memory, measured := gpu.GetMemoryInfo()
			for _, ret := range []nvml.Return{named, identified, measured} {
				if ret != nvml.SUCCESS {
					return fmt.Errorf("describe GPU %d: %s", i, lib.ErrorString(ret))
				}
			}
			out.gpus = append(out.gpus, card{model: name, uuid: uuid, memoryMiB: int64(memory.Total >> 20)})
		}
		return nil
	})
	return out, err
}

func (l library) settings() (string, error) {
	var words []string
	err := l.with(func(_ nvml.Interface, gpus []nvml.Device) error {
		for i, gpu := range gpus {
			mode := told(gpu.GetComputeMode())
			current, pending, ret := gpu.GetMigMode()
			sm := told(gpu.GetApplicationsClock(nvml.CLOCK_SM))
			memory := told(gpu.GetApplicationsClock(nvml.CLOCK_MEM))
			words = append(words, fmt.Sprintf("GPU %d: compute mode %s, MIG mode %s (next: %s), clocks %s and %s MHz", i, mode, told(current, ret), told(pending, ret), sm, memory))
		}
		return nil
	})
	return strings.Join(words, "; "), err
}

// told is what NVML says, or that it does not say.
func told[T any](value T, ret nvml.Return) string {
	if ret != nvml.SUCCESS {
		return "not told"
	}
	return fmt.Sprint(value)
}

func (l library) use(uuid string, since time.Time) (map[int]int, error) {
	out := make(map[int]int)
	err := l.with(func(lib nvml.Interface, gpus []nvml.Device) error {
		for _, gpu := range gpus {
			if own, ret := gpu.GetUUID(); ret != nvml.SUCCESS || own != uuid {
				continue
			}
			samples, ret := samplesOf(gpu, since)
			if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_FOUND {
				return fmt.Errorf("nvmlDeviceGetProcessUtilization: %s", lib.ErrorString(ret))
			}
			for _, s := range samples {
				out[int(s.Pid)] = int(s.SmUtil)
			}
			return nil
		}
		return fmt.Errorf("NVML lists no GPU %s", uuid)
	})
	return out, err
}

// samplesOf asks a GPU. go-nvml panics when there are more samples than it has just made a buffer for.
func samplesOf(gpu nvml.Device, since time.Time) (samples []nvml.ProcessUtilizationSample, ret nvml.Return) {
	defer func() {
		if recover() != nil {
			samples, ret = nil, nvml.ERROR_INSUFFICIENT_SIZE
		}
	}()
	return gpu.GetProcessUtilization(uint64(since.UnixMicro()))
}
