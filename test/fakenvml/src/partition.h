// NVML's limits of memory.
#ifndef FAKENVML_PARTITION_H
#define FAKENVML_PARTITION_H

#include "memory.h"

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *set);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *get);

#endif
