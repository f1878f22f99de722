package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	node "github.com/gpumem/gpumem/pkg/node/nvml"
)

// errNone is of a control group that has no limits, or cannot have any: it has no files of the dmem
// controller, or the driver limits none. The driver's answer does not tell which.
var errNone = errors.New("the control group has no limits, and can have none where +dmem is missing from cgroup.subtree_control above it")

var errOld = errors.New("the driver's NVML has no limits of memory")

// Limits are what control groups may have of the GPUs' memory, as the driver enforces it.
type Limits struct {
	open func() (nvml.Interface, string)
	turn chan struct{} // one call at a time; a call that hangs in the driver keeps it
}

// New returns limits that look for the library at each call.
func New(path, driverRoot string) *Limits {
	return &Limits{open: node.Opener(path, driverRoot), turn: make(chan struct{}, 1)}
}

// Set gives a control group, by the full path of its directory, its soft and hard limits of one
// GPU in bytes. It takes the right to administrate the machine (CAP_SYS_ADMIN).
func (l *Limits) Set(ctx context.Context, id gpu.UUID, dir string, soft, hard uint64) error {
	_, err := l.call(ctx, "nvmlDeviceSetMemoryLimits_v1", id, dir, func(d nvml.Device) (nvml.MemoryLimits_v1, nvml.Return) {
		return nvml.MemoryLimits_v1{}, d.SetMemoryLimits_v1(dir, soft, hard)
	})
	return err
}

// Get reads them. It is not ok where there are none.
func (l *Limits) Get(ctx context.Context, id gpu.UUID, dir string) (soft, hard uint64, ok bool, err error) {
	limits, err := l.call(ctx, "nvmlDeviceGetMemoryLimits_v1", id, dir, func(d nvml.Device) (nvml.MemoryLimits_v1, nvml.Return) {
		return d.GetMemoryLimits_v1(dir)
	})
	if errors.Is(err, errNone) {
		return 0, 0, false, nil
	}
	return limits.SoftLimit, limits.HardLimit, err == nil, err
}

type ask func(nvml.Device) (nvml.MemoryLimits_v1, nvml.Return)

type answer struct {
	limits nvml.MemoryLimits_v1
	err    error
}

// call waits no longer for the driver than its context.
func (l *Limits) call(ctx context.Context, function string, id gpu.UUID, dir string, f ask) (nvml.MemoryLimits_v1, error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nvml.MemoryLimits_v1{}, fmt.Errorf("%s: NVML does not answer", function)
	}
	answered := make(chan answer, 1)
	go func() {
		limits, err := l.ask(function, id, f)
		answered <- answer{limits, err}
		<-l.turn
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			return a.limits, fmt.Errorf("%s, GPU %s, %s: %w", function, id, dir, a.err)
		}
		return a.limits, nil
	case <-ctx.Done():
		return nvml.MemoryLimits_v1{}, fmt.Errorf("%s: NVML does not answer", function)
	}
}

// ask calls a function of the library about one GPU.
func (l *Limits) ask(function string, id gpu.UUID, f ask) (limits nvml.MemoryLimits_v1, err error) {
	lib, path := l.open()
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return limits, fmt.Errorf("NVIDIA's library cannot be loaded from %s", path)
	default:
		return limits, fmt.Errorf("NVML does not start: %s", ret.Error())
	}
	defer func() {
		if ret := lib.Shutdown(); ret != nvml.SUCCESS {
			err = errors.Join(err, fmt.Errorf("shut NVML down: %s", ret.Error()))
		}
	}()
	if lib.Extensions().LookupSymbol(function) != nil {
		return limits, errOld
	}
	device, ret := lib.DeviceGetHandleByUUID(string(id))
	if ret != nvml.SUCCESS {
		return limits, fmt.Errorf("NVML does not find the GPU: %s", ret.Error())
	}
	limits, ret = f(device)
	switch ret {
	case nvml.SUCCESS:
		return limits, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_FOUND:
		return limits, errNone
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return limits, errOld
	case nvml.ERROR_NO_PERMISSION:
		return limits, errors.New("no permission: it takes CAP_SYS_ADMIN")
	default:
		return limits, fmt.Errorf("NVML: %s", ret.Error())
	}
}
