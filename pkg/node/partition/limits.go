package partition

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// As in nvml.h of CUDA 13.4: what is set has no last field.
typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit, currentUsed;
} memory_limits;

typedef int (*call_none)(void);
typedef int (*call_uuid)(const char *, void **);
typedef int (*call_limits)(void *, memory_limits *);

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	LIBRARY_NOT_FOUND = 12,
	FUNCTION_NOT_FOUND = 13,
};

// Sets or reads the limits of a control group by a library that may be in use already: NVML
// counts who has initialised it, and the linker who has loaded it.
static int memory_limits_call(const char *library, const char *function, const char *uuid, memory_limits *limits)
{
	void *lib = dlopen(library, RTLD_LAZY), *device = NULL;
	if (!lib)
		return LIBRARY_NOT_FOUND;
	call_none init = (call_none)dlsym(lib, "nvmlInit_v2"), shutdown = (call_none)dlsym(lib, "nvmlShutdown");
	call_uuid find = (call_uuid)dlsym(lib, "nvmlDeviceGetHandleByUUID");
	call_limits call = (call_limits)dlsym(lib, function);
	int r = init && shutdown && find && call ? init() : FUNCTION_NOT_FOUND;
	if (r == 0) {
		r = find(uuid, &device);
		if (r == 0)
			r = call(device, limits);
		shutdown();
	}
	dlclose(lib);
	return r;
}
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/nvml"
)

// errNone is of a control group that has no limits, or cannot have any: it has no files of the dmem
// controller, or the driver limits none. The driver's answer does not tell which.
var errNone = errors.New("the control group has no limits, and can have none where +dmem is missing from cgroup.subtree_control above it")

// Limits are what control groups may have of the GPUs' memory, as the driver enforces it
// (nvmlDeviceSetMemoryLimits_v1 of CUDA 13.4, which go-nvml 0.13.3-1 does not have).
type Limits struct {
	library func() string
	turn    chan struct{} // one call at a time; taken for good by one that hangs in the driver
}

// New returns limits that look for the library at each call.
func New(path, driverRoot string) *Limits {
	return &Limits{library: func() string { return nvml.FindLibrary(path, driverRoot) }, turn: make(chan struct{}, 1)}
}

// Set gives a control group, by the full path of its directory, its soft and hard limits of one
// GPU in bytes. It takes the right to administrate the machine (CAP_SYS_ADMIN).
func (l *Limits) Set(ctx context.Context, id gpu.UUID, dir string, soft, hard uint64) error {
	_, _, err := l.call(ctx, "nvmlDeviceSetMemoryLimits_v1", id, dir, soft, hard)
	return err
}

// Get reads them. It is not ok where there are none.
func (l *Limits) Get(ctx context.Context, id gpu.UUID, dir string) (soft, hard uint64, ok bool, err error) {
	soft, hard, err = l.call(ctx, "nvmlDeviceGetMemoryLimits_v1", id, dir, 0, 0)
	if errors.Is(err, errNone) {
		return 0, 0, false, nil
	}
	return soft, hard, err == nil, err
}

// call waits no longer for the driver than its context.
func (l *Limits) call(ctx context.Context, function string, id gpu.UUID, dir string, soft, hard uint64) (uint64, uint64, error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("%s: NVML does not answer", function)
	}
	type answer struct {
		ret        int
		soft, hard uint64
	}
	answered := make(chan answer, 1)
	library := l.library()
	go func() {
		words := []*C.char{C.CString(library), C.CString(function), C.CString(string(id)), C.CString(dir)}
		limits := C.memory_limits{nameSpace: words[3], softLimit: C.ulonglong(soft), hardLimit: C.ulonglong(hard)}
		ret := C.memory_limits_call(words[0], words[1], words[2], &limits) //nolint:gocritic // it is of what cgo writes
		for _, word := range words {
			C.free(unsafe.Pointer(word))
		}
		answered <- answer{int(ret), uint64(limits.softLimit), uint64(limits.hardLimit)}
		<-l.turn
	}()
	select {
	case a := <-answered:
		if err := limitsError(a.ret); err != nil {
			return 0, 0, fmt.Errorf("%s, GPU %s, %s: %w", function, id, dir, err)
		}
		return a.soft, a.hard, nil
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("%s: NVML does not answer", function)
	}
}

// limitsError says what NVML's answer means of limits.
func limitsError(ret int) error {
	switch ret {
	case C.NVML_SUCCESS:
		return nil
	case C.NVML_ERROR_NOT_SUPPORTED, C.NVML_ERROR_NOT_FOUND:
		return errNone
	case C.NVML_ERROR_NO_PERMISSION:
		return errors.New("no permission: it takes CAP_SYS_ADMIN")
	case C.LIBRARY_NOT_FOUND:
		return errors.New("NVIDIA's library cannot be loaded")
	case C.FUNCTION_NOT_FOUND:
		return errors.New("the driver's NVML has no limits of memory")
	default:
		return fmt.Errorf("NVML error %d", ret)
	}
}
