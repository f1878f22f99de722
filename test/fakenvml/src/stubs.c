// Every other function that a program may look up: go-nvml binds lazily, so one that is
// missing would end the process at its first call. A stub is weak: an implementation in
// another file takes its place. It takes no parameters, and so ignores those passed to it.
#include "state.h"

__attribute__((noinline)) static nvmlReturn_t unsupported(void)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	return r == NVML_SUCCESS ? call_end(&c, NVML_ERROR_NOT_SUPPORTED) : r;
}

// A device that is lost or hangs does so in every call.
__attribute__((noinline)) static nvmlReturn_t unsupported_device(nvmlDevice_t device)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, device.handle);
	return r == NVML_SUCCESS ? call_end(&c, NVML_ERROR_NOT_SUPPORTED) : r;
}

#define STUB(name)                                               \
	EXPORT __attribute__((weak)) nvmlReturn_t name(void)     \
	{                                                        \
		return unsupported();                            \
	}

#define DEVICE_STUB(name)                                                   \
	EXPORT __attribute__((weak)) nvmlReturn_t name(nvmlDevice_t device) \
	{                                                                   \
		return unsupported_device(device);                          \
	}

#include "stubs.inc"
