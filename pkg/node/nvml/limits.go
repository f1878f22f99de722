package nvml

import (
	"context"
	"errors"
	"fmt"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// errNone reports that a control group has no limits, or cannot have any: it has no files of the dmem
// controller, or the driver limits no memory. The driver does not distinguish these cases.
var errNone = errors.New("the control group has no limits, and can have none where +dmem is missing from cgroup.subtree_control above it")

var errOld = errors.New("the driver's NVML has no limits of memory")

// Limits sets and reads GPU memory limits of control groups. The driver enforces them (NVIDIA, "MPS v3 Memory
// Partitioning"; driver 615). Limits abandons a call that hangs in the driver, and makes no other call until that
// call returns. An abandoned call may still take effect; package enforcement reverts that.
type Limits struct {
	open func() (nvml.Interface, string)
	lock chan struct{} // held during a call; only one runs at a time
}

// NewLimits returns a Limits that opens the library for each call.
func NewLimits(open func() (nvml.Interface, string)) *Limits {
	return &Limits{open: open, lock: make(chan struct{}, 1)}
}

// Set sets a control group's soft and hard limits on one GPU, in bytes. Parameter dir is the full path of the
// group's directory. The driver requires CAP_SYS_ADMIN.
func (l *Limits) Set(ctx context.Context, id gpu.UUID, dir string, soft, hard uint64) error {
	_, err := l.call(ctx, "nvmlDeviceSetMemoryLimits_v1", id, dir, func(d nvml.Device) (nvml.MemoryLimits_v1, nvml.Return) {
		return nvml.MemoryLimits_v1{}, d.SetMemoryLimits_v1(dir, soft, hard)
	})
	return err
}

// Get returns a control group's limits on one GPU, in bytes. It returns ok == false if the group has no limits.
func (l *Limits) Get(ctx context.Context, id gpu.UUID, dir string) (soft, hard uint64, ok bool, err error) {
	limits, err := l.call(ctx, "nvmlDeviceGetMemoryLimits_v1", id, dir, func(d nvml.Device) (nvml.MemoryLimits_v1, nvml.Return) {
		return d.GetMemoryLimits_v1(dir)
	})
	if errors.Is(err, errNone) {
		return 0, 0, false, nil
	}
	return limits.SoftLimit, limits.HardLimit, err == nil, err
}

// call runs f in a separate session, one call at a time. It stops waiting when the context is done.
func (l *Limits) call(ctx context.Context, symbol string, id gpu.UUID, dir string, f func(nvml.Device) (nvml.MemoryLimits_v1, nvml.Return)) (nvml.MemoryLimits_v1, error) {
	type answer struct {
		limits nvml.MemoryLimits_v1
		err    error
	}
	answered := make(chan answer, 1)
	select {
	case l.lock <- struct{}{}:
		go func() {
			var a answer
			a.err = inSession(l.open, func(s *session) (err error) {
				a.limits, err = s.limits(symbol, id, f)
				return err
			})
			answered <- a
			<-l.lock
		}()
	case <-ctx.Done():
	}
	select {
	case a := <-answered:
		if a.err != nil {
			return a.limits, fmt.Errorf("%s, GPU %s, %s: %w", symbol, id, dir, a.err)
		}
		return a.limits, nil
	case <-ctx.Done():
		return nvml.MemoryLimits_v1{}, fmt.Errorf("%s: NVML does not answer", symbol)
	}
}

// limits calls a library function for one GPU, and returns errOld if the library lacks the function.
func (s *session) limits(symbol string, id gpu.UUID, f func(nvml.Device) (nvml.MemoryLimits_v1, nvml.Return)) (limits nvml.MemoryLimits_v1, err error) {
	if !s.hasFunctions(symbol) {
		return limits, errOld
	}
	device, ret := s.lib.DeviceGetHandleByUUID(string(id))
	if ret != nvml.SUCCESS {
		return limits, fmt.Errorf("NVML cannot find the GPU: %s", ret.Error())
	}
	switch limits, ret = f(device); ret {
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
