// Initialisation, versions, and the ways to a device handle.
#include <stdio.h>
#include <string.h>

#include "state.h"

EXPORT nvmlReturn_t nvmlInit(void)
{
	return state_init();
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	return state_init();
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags; // they change what NVML does without GPUs, and here that is no error anyway
	return state_init();
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
	return state_shutdown();
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_ERROR_ALREADY_INITIALIZED: return "Already Initialized";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_INSUFFICIENT_POWER: return "Insufficient External Power";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_IRQ_ISSUE: return "Interrupt Request Issue";
	case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
	case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
	case NVML_ERROR_CORRUPTED_INFOROM: return "Corrupted infoROM";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
	case NVML_ERROR_OPERATING_SYSTEM: return "GPU access blocked by the operating system";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	case NVML_ERROR_IN_USE: return "In use by another client";
	case NVML_ERROR_MEMORY: return "Insufficient Memory";
	case NVML_ERROR_NO_DATA: return "No data";
	case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	case NVML_ERROR_DEPRECATED: return "Deprecated";
	case NVML_ERROR_NOT_READY: return "Not Ready";
	case NVML_ERROR_GPU_NOT_FOUND: return "GPU not found";
	case NVML_ERROR_INVALID_STATE: return "Invalid state";
	default: return "Unknown Error";
	}
}

static nvmlReturn_t copy(const char *value, char *out, unsigned int length)
{
	size_t size = strlen(value) + 1;
	if (size > length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, value, size);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	return call_end(&c, version ? copy(c.machine->driver_version, version, length) : NVML_ERROR_INVALID_ARGUMENT);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	return call_end(&c, version ? copy(c.machine->nvml_version, version, length) : NVML_ERROR_INVALID_ARGUMENT);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	if (!version)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	*version = c.machine->cuda_version;
	return call_end(&c, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	if (!name || length == 0)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	for (size_t i = 0; i < c.machine->gpu_count; i++) {
		const struct gpu *g = &c.machine->gpus[i];
		for (size_t j = 0; j < g->process_count; j++) {
			if (g->processes[j].pid == pid && *g->processes[j].name) {
				snprintf(name, length, "%s", g->processes[j].name);
				return call_end(&c, NVML_SUCCESS);
			}
		}
	}
	return call_end(&c, NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	if (!count)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	*count = (unsigned)c.machine->gpu_count;
	return call_end(&c, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

// A GPU that hangs still has a handle: NVML looks it up without asking the GPU, and a test
// wants the enumeration of its neighbours to go on. A lost GPU has none.
static nvmlReturn_t give_handle(const struct gpu *g, nvmlDevice_t *device)
{
	if (g->state == GPU_LOST)
		return NVML_ERROR_GPU_IS_LOST;
	if (g->state == GPU_UNKNOWN_ERROR)
		return NVML_ERROR_UNKNOWN;
	if (g->state == GPU_NOT_SUPPORTED)
		return NVML_ERROR_NOT_SUPPORTED;
	device->handle = handle_of(g->uuid);
	return device->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	if (!device || index >= c.machine->gpu_count)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	return call_end(&c, give_handle(&c.machine->gpus[index], device));
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	if (!uuid || !device)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	const struct gpu *g = machine_gpu(c.machine, uuid);
	return call_end(&c, g ? give_handle(g, device) : NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	if (!serial || !device)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	for (size_t i = 0; i < c.machine->gpu_count; i++) {
		const struct gpu *g = &c.machine->gpus[i];
		if (*g->serial && strcmp(g->serial, serial) == 0)
			return call_end(&c, give_handle(g, device));
	}
	return call_end(&c, NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	struct call c;
	struct pci_address address;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	if (!device || !pci_parse(bus_id, &address))
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	for (size_t i = 0; i < c.machine->gpu_count; i++)
		if (pci_equal(c.machine->gpus[i].pci, address))
			return call_end(&c, give_handle(&c.machine->gpus[i], device));
	return call_end(&c, NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
