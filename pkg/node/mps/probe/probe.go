// Package probe uses a GPU as an MPS client would, and verifies that the daemon enforces the memory limit.
//
// Run it in a separate process: CUDA stays loaded until the process ends, and may hang.
package probe

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>

// What failed: 0 for nothing. The CUresult is in *result.
enum { PASSED, NO_LIBRARY, NO_FUNCTION, NO_GPU, NO_CONTEXT, NO_MEMORY, NO_LIMIT, NO_ORDER };

static int probe(const char *library, size_t small, size_t limit, int *result)
{
	void *lib = dlopen(library, RTLD_NOW), *context = NULL;
	int device = 0;
	unsigned long long memory = 0;
	if (!lib)
		return NO_LIBRARY;
	int (*init)(unsigned) = dlsym(lib, "cuInit");
	int (*get)(int *, int) = dlsym(lib, "cuDeviceGet");
	int (*create)(void **, unsigned, int) = dlsym(lib, "cuCtxCreate_v2");
	int (*allocate)(unsigned long long *, size_t) = dlsym(lib, "cuMemAlloc_v2");
	int (*release)(unsigned long long) = dlsym(lib, "cuMemFree_v2");
	if (!init || !get || !create || !allocate || !release)
		return NO_FUNCTION;
	if ((*result = init(0)) != 0 || (*result = get(&device, 0)) != 0)
		return NO_GPU;
	if ((*result = create(&context, 0, device)) != 0)
		return NO_CONTEXT;
	if ((*result = allocate(&memory, small)) != 0)
		return NO_MEMORY;
	release(memory);
	if ((*result = allocate(&memory, limit)) == 0)
		return NO_LIMIT;
	return *result == 2 ? PASSED : NO_ORDER; // CUDA_ERROR_OUT_OF_MEMORY
}
*/
import "C"

import (
	"errors"
	"fmt"
)

// LimitMiB is the limit of the probing process, and smallMiB an amount that must fit within it. CUDA's context
// counts toward the limit.
const (
	LimitMiB = 1024
	smallMiB = 16
)

// Run allocates memory on the first visible GPU, through the CUDA library at the given path. A small allocation
// must succeed, and one as large as the limit must fail.
func Run(library string) error {
	const mib = 1 << 20
	var result C.int
	switch C.probe(C.CString(library), smallMiB*mib, LimitMiB*mib, &result) {
	case C.PASSED:
		return nil
	case C.NO_LIBRARY:
		return fmt.Errorf("%s cannot be loaded", library)
	case C.NO_FUNCTION:
		return fmt.Errorf("%s lacks what a program needs", library)
	case C.NO_GPU:
		return fmt.Errorf("CUDA sees no GPU: error %d", int(result))
	case C.NO_CONTEXT:
		return fmt.Errorf("a client gets no context: error %d", int(result))
	case C.NO_MEMORY:
		return fmt.Errorf("a client gets no %d MiB within its limit of %d MiB: error %d", smallMiB, LimitMiB, int(result))
	case C.NO_LIMIT:
		return errors.New("a client gets more memory than its limit")
	default:
		return fmt.Errorf("a client that asks for more than its limit gets error %d", int(result))
	}
}
