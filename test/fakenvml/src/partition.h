// What CUDA 13.4 added to NVML for limits of memory. go-nvml's header does not have it.
#ifndef FAKENVML_PARTITION_H
#define FAKENVML_PARTITION_H

#include "memory.h"

#define NVML_DEVICE_MEMORY_LIMIT_MAX NO_LIMIT

typedef struct {
	const char *nameSpace; // full path of the control group's folder
	unsigned long long softLimit, hardLimit; // bytes
} nvmlDeviceSetMemoryLimits_t;

typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit, currentUsed;
} nvmlDeviceGetMemoryLimits_t;

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const nvmlDeviceSetMemoryLimits_t *set);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlDeviceGetMemoryLimits_t *get);

#endif
