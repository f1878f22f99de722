// A library with as much of CUDA as the probe takes. LIMIT is how many MiB a program may have, and
// BEYOND what it is answered then.
#include <stddef.h>

#ifndef NO_GPU
#define NO_GPU 0
#endif

int cuInit(unsigned flags) { return NO_GPU ? 100 : (int)flags; }
int cuDeviceGet(int *device, int index) { return *device = index; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { *context = NULL; return (int)flags + device; }
int cuMemFree_v2(unsigned long long memory) { return memory == 7 ? 0 : 1; }

#ifndef NO_ALLOCATION
int cuMemAlloc_v2(unsigned long long *memory, size_t bytes)
{
	*memory = 7;
	return bytes <= (size_t)LIMIT << 20 ? 0 : BEYOND;
}
#endif
