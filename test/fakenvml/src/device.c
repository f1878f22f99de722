// What one GPU says about itself.
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"
#include "state.h"

// A query with one result. The body sees the call as c, the GPU as g and the result as out,
// and ends with its return code. ANY is one that takes a MIG device too.
#define QUERY_BY(begin, name, type, body)                                         \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, type *out)                  \
	{                                                                         \
		struct call c;                                                    \
		nvmlReturn_t r = begin(&c, device, out);                          \
		if (r != NVML_SUCCESS)                                            \
			return r;                                                 \
		const struct gpu *g = c.gpu;                                      \
		(void)g;                                                          \
		return call_end(&c, (body));                                      \
	}

#define QUERY(name, type, body) QUERY_BY(call_begin_device, name, type, body)
#define ANY(name, type, body) QUERY_BY(call_begin_any, name, type, body)
#define VALUE(name, type, value) QUERY(name, type, (*out = (value), NVML_SUCCESS))

// A query for a string.
#define STRING(begin, name, field)                                                 \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, char *out, unsigned int length) \
	{                                                                          \
		struct call c;                                                     \
		nvmlReturn_t r = begin(&c, device, out);                           \
		if (r != NVML_SUCCESS)                                             \
			return r;                                                  \
		return call_end(&c, copy(c.gpu->field, out, length));              \
	}

static nvmlReturn_t copy(const char *value, char *out, unsigned int length)
{
	size_t size = strlen(value) + 1;
	if (size == 1)
		return NVML_ERROR_NOT_SUPPORTED; // consumer cards have no serial number, for one
	if (size > length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, value, size);
	return NVML_SUCCESS;
}

// -- identity ---------------------------------------------------------------------------

STRING(call_begin_any, nvmlDeviceGetName, name)
STRING(call_begin_any, nvmlDeviceGetUUID, uuid)
STRING(call_begin_device, nvmlDeviceGetSerial, serial)
STRING(call_begin_device, nvmlDeviceGetVbiosVersion, vbios)
VALUE(nvmlDeviceGetIndex, unsigned int, (unsigned int)(g - c.machine->gpus))
VALUE(nvmlDeviceGetMinorNumber, unsigned int, g->minor)
VALUE(nvmlDeviceGetBrand, nvmlBrandType_t, g->brand)

static unsigned int architecture(const struct gpu *g)
{
	switch (g->cc_major) {
	case 3: return 2; // Kepler
	case 5: return 3; // Maxwell
	case 6: return 4; // Pascal
	case 7: return g->cc_minor < 5 ? 5 : 6; // Volta, Turing
	case 8: return g->cc_minor == 9 ? 8 : 7; // Ada, Ampere
	case 9: return 9; // Hopper
	case 10:
	case 12: return 10; // Blackwell
	default: return 0xFFFFFFFF;
	}
}

VALUE(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture(g))

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, minor ? major : NULL);
	if (r != NVML_SUCCESS)
		return r;
	*major = c.gpu->cc_major;
	*minor = c.gpu->cc_minor;
	return call_end(&c, NVML_SUCCESS);
}

// Versions before 3 end where busId begins, so callers may have left no room for it.
static nvmlReturn_t pci_legacy(const struct gpu *g, nvmlPciInfo_t *out)
{
	nvmlPciInfo_t p;
	memset(&p, 0, sizeof(p));
	snprintf(p.busIdLegacy, sizeof(p.busIdLegacy), "%04X:%02X:%02X.0", g->pci.domain & 0xFFFF, g->pci.bus & 0xFF,
		 g->pci.device & 0xFF);
	p.domain = g->pci.domain;
	p.bus = g->pci.bus;
	p.device = g->pci.device;
	p.pciDeviceId = g->pci_device_id;
	p.pciSubSystemId = g->pci_subsystem_id;
	memcpy(out, &p, offsetof(nvmlPciInfo_t, busId));
	return NVML_SUCCESS;
}

static void bus_id(struct pci_address a, char out[32])
{
	snprintf(out, 32, "%08X:%02X:%02X.0", a.domain, a.bus, a.device);
}

static nvmlReturn_t pci_full(const struct gpu *g, nvmlPciInfo_t *out)
{
	memset(out->busId, 0, sizeof(out->busId));
	bus_id(g->pci, out->busId);
	return pci_legacy(g, out);
}

static nvmlReturn_t pci_ext(const struct gpu *g, nvmlPciInfoExt_t *out)
{
	if (out->version != NVML_STRUCT_VERSION(PciInfoExt, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	out->domain = g->pci.domain;
	out->bus = g->pci.bus;
	out->device = g->pci.device;
	out->pciDeviceId = g->pci_device_id;
	out->pciSubSystemId = g->pci_subsystem_id;
	out->baseClass = 0x03; // display controller
	out->subClass = 0x02;  // 3D
	memset(out->busId, 0, sizeof(out->busId));
	bus_id(g->pci, out->busId);
	return NVML_SUCCESS;
}

QUERY(nvmlDeviceGetPciInfo, nvmlPciInfo_t, pci_legacy(g, out))
QUERY(nvmlDeviceGetPciInfo_v2, nvmlPciInfo_t, pci_legacy(g, out))
QUERY(nvmlDeviceGetPciInfo_v3, nvmlPciInfo_t, pci_full(g, out))
QUERY(nvmlDeviceGetPciInfoExt, nvmlPciInfoExt_t, pci_ext(g, out))

// -- memory -----------------------------------------------------------------------------

// What there is for the caller: where its control group has a hard limit, that is all.
static void memory(const struct gpu *g, nvmlMemory_v2_t *out)
{
	struct cgroup self = cgroup_self();
	struct limits own = memory_own_limits(g, &self);
	bool limited = own.hard < g->total - g->reserved;

	out->total = limited ? own.hard : g->total;
	out->reserved = limited ? 0 : g->reserved;
	out->used = limited ? own.used : g->used + memory_used(g);
	if (out->used > out->total - out->reserved)
		out->used = out->total - out->reserved;
	out->free = out->total - out->reserved - out->used;
}

// Version 1 has no word for the driver's own memory and counts it as used.
static nvmlReturn_t memory_v1(const struct gpu *g, nvmlMemory_t *out)
{
	nvmlMemory_v2_t m;
	memory(g, &m);
	out->total = m.total;
	out->used = m.used + m.reserved;
	out->free = m.free;
	return NVML_SUCCESS;
}

static nvmlReturn_t memory_v2(const struct gpu *g, nvmlMemory_v2_t *out)
{
	if (out->version != NVML_STRUCT_VERSION(Memory, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory(g, out);
	return NVML_SUCCESS;
}

static nvmlReturn_t bar1(const struct gpu *g, nvmlBAR1Memory_t *out)
{
	unsigned long long used = 2ULL << 20;
	out->bar1Total = g->bar1;
	out->bar1Used = used < g->bar1 ? used : g->bar1;
	out->bar1Free = out->bar1Total - out->bar1Used;
	return NVML_SUCCESS;
}

ANY(nvmlDeviceGetMemoryInfo, nvmlMemory_t, memory_v1(g, out))
ANY(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t, memory_v2(g, out))
ANY(nvmlDeviceGetBAR1MemoryInfo, nvmlBAR1Memory_t, bar1(g, out))

// -- health and load --------------------------------------------------------------------

QUERY(nvmlDeviceGetUtilizationRates, nvmlUtilization_t,
      g->mig_mode ? NVML_ERROR_NOT_SUPPORTED : (out->gpu = g->util_gpu, out->memory = g->util_memory, NVML_SUCCESS))
VALUE(nvmlDeviceGetPowerUsage, unsigned int, g->power_mw)
VALUE(nvmlDeviceGetPowerManagementLimit, unsigned int, g->power_limit_mw)
VALUE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, g->power_limit_mw)
VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned int, g->power_limit_mw)
VALUE(nvmlDeviceGetPerformanceState, nvmlPstates_t, g->util_gpu > 0 ? NVML_PSTATE_0 : NVML_PSTATE_8)
VALUE(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, g->persistence_mode ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED)
VALUE(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *out)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, out);
	if (r != NVML_SUCCESS)
		return r;
	if (sensor != NVML_TEMPERATURE_GPU)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	*out = c.gpu->temperature;
	return call_end(&c, NVML_SUCCESS);
}

static nvmlReturn_t temperature(const struct gpu *g, nvmlTemperature_t *out)
{
	if (out->version != NVML_STRUCT_VERSION(Temperature, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (out->sensorType != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	out->temperature = (int)g->temperature;
	return NVML_SUCCESS;
}

QUERY(nvmlDeviceGetTemperatureV, nvmlTemperature_t, temperature(g, out))

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *now, nvmlEnableState_t *pending)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, pending ? now : NULL);
	if (r != NVML_SUCCESS)
		return r;
	*now = *pending = c.gpu->ecc_mode ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return call_end(&c, NVML_SUCCESS);
}

static nvmlReturn_t ecc_count(const struct gpu *g, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
			      unsigned long long *out)
{
	if ((unsigned)error >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!g->ecc_mode)
		return NVML_ERROR_NOT_SUPPORTED;
	*out = error == NVML_MEMORY_ERROR_TYPE_CORRECTED ? g->ecc_corrected : g->ecc_uncorrected;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
						nvmlEccCounterType_t counter, unsigned long long *out)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, out);
	if (r != NVML_SUCCESS)
		return r;
	return call_end(&c, ecc_count(c.gpu, error, counter, out));
}

// All errors are those of the device memory.
EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t error,
						    nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
						    unsigned long long *out)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, out);
	if (r != NVML_SUCCESS)
		return r;
	if ((unsigned)location >= NVML_MEMORY_LOCATION_COUNT)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	r = ecc_count(c.gpu, error, counter, out);
	if (r == NVML_SUCCESS && location != NVML_MEMORY_LOCATION_DEVICE_MEMORY)
		*out = 0;
	return call_end(&c, r);
}

// -- modes ------------------------------------------------------------------------------

// A GPU in MIG mode has none, and refuses the question.
QUERY(nvmlDeviceGetComputeMode, nvmlComputeMode_t,
      g->mig_mode ? NVML_ERROR_INVALID_ARGUMENT
		  : (*out = (nvmlComputeMode_t)handle_compute_mode(c.device, g->compute_mode), NVML_SUCCESS))

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, device.handle);
	if (r != NVML_SUCCESS)
		return r;
	if ((unsigned)mode >= NVML_COMPUTEMODE_COUNT)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD) // gone since CUDA 8
		return call_end(&c, NVML_ERROR_NOT_SUPPORTED);
	handle_set_compute_mode(c.device, c.gpu->compute_mode, mode);
	record_call("nvmlDeviceSetComputeMode", c.gpu->uuid, mode);
	return call_end(&c, NVML_SUCCESS);
}

// -- MIG --------------------------------------------------------------------------------

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, pending ? now : NULL);
	if (r != NVML_SUCCESS)
		return r;
	if (c.gpu->cc_major < 8 || c.gpu->cc_minor != 0) // A100, A30, H100 and later data-centre GPUs
		return call_end(&c, NVML_ERROR_NOT_SUPPORTED);
	*now = *pending = c.gpu->mig_mode;
	return call_end(&c, NVML_SUCCESS);
}

VALUE(nvmlDeviceGetMaxMigDeviceCount, unsigned int, g->cc_major >= 8 && g->cc_minor == 0 ? 7 : 0)
ANY(nvmlDeviceIsMigDeviceHandle, unsigned int, (*out = g->is_mig, NVML_SUCCESS))
ANY(nvmlDeviceGetGpuInstanceId, unsigned int, g->is_mig ? (*out = g->instance_id, NVML_SUCCESS) : NVML_ERROR_NOT_SUPPORTED)
ANY(nvmlDeviceGetComputeInstanceId, unsigned int, g->is_mig ? (*out = 0, NVML_SUCCESS) : NVML_ERROR_NOT_SUPPORTED)

static nvmlReturn_t attributes(const struct gpu *g, nvmlDeviceAttributes_t *out)
{
	if (!g->is_mig)
		return NVML_ERROR_NOT_SUPPORTED;
	*out = (nvmlDeviceAttributes_t){
		.multiprocessorCount = g->sms, .sharedCopyEngineCount = g->slices,
		.gpuInstanceSliceCount = g->slices, .computeInstanceSliceCount = g->slices, .memorySizeMB = g->total >> 20};
	return NVML_SUCCESS;
}

ANY(nvmlDeviceGetAttributes_v2, nvmlDeviceAttributes_t, attributes(g, out))

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	struct call c;
	nvmlReturn_t r = call_begin_any(&c, mig, device);
	if (r != NVML_SUCCESS)
		return r;
	if (!c.gpu->is_mig)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	device->handle = handle_of(c.machine->gpus[c.gpu->parent].uuid);
	return call_end(&c, device->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, mig);
	if (r != NVML_SUCCESS)
		return r;
	if (index >= 7)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	const struct gpu *g = machine_mig(c.machine, c.gpu, index);
	if (!g)
		return call_end(&c, NVML_ERROR_NOT_FOUND);
	mig->handle = handle_of(g->uuid);
	return call_end(&c, mig->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY);
}

// -- affinity ---------------------------------------------------------------------------

enum { WORD_BITS = (int)(sizeof(unsigned long) * CHAR_BIT) };

static void set_bit(unsigned long *set, unsigned int words, unsigned int bit)
{
	if (bit / WORD_BITS < words)
		set[bit / WORD_BITS] |= 1UL << bit % WORD_BITS;
}

// This is only for machines whose GPU memory is a NUMA node itself. The node that a GPU of
// an ordinary machine sits on is in nvmlDeviceGetMemoryAffinity.
QUERY(nvmlDeviceGetNumaNodeId, unsigned int,
      g->gpu_numa_node < 0 ? NVML_ERROR_NOT_SUPPORTED : (*out = (unsigned)g->gpu_numa_node, NVML_SUCCESS))

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
						nvmlAffinityScope_t scope)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, set);
	if (r != NVML_SUCCESS)
		return r;
	if (words == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	if (c.gpu->numa_node < 0)
		return call_end(&c, NVML_ERROR_NOT_SUPPORTED);
	memset(set, 0, words * sizeof(*set));
	set_bit(set, words, (unsigned)c.gpu->numa_node);
	return call_end(&c, NVML_SUCCESS);
}

static void cpu_list(const char *list, unsigned long *set, unsigned int words)
{
	const char *p = list;
	while (*p) {
		char *end;
		unsigned long from = strtoul(p, &end, 10), to = from;
		if (end == p)
			return;
		if (*end == '-')
			to = strtoul(end + 1, &end, 10);
		for (unsigned long cpu = from; cpu <= to && cpu < (unsigned long)words * WORD_BITS; cpu++)
			set_bit(set, words, (unsigned)cpu);
		p = *end == ',' ? end + 1 : end + strlen(end);
	}
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
							nvmlAffinityScope_t scope)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, set);
	if (r != NVML_SUCCESS)
		return r;
	if (words == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	memset(set, 0, words * sizeof(*set));
	if (*c.gpu->cpu_affinity) {
		cpu_list(c.gpu->cpu_affinity, set, words);
	} else {
		long cpus = sysconf(_SC_NPROCESSORS_CONF);
		for (long cpu = 0; cpu < cpus; cpu++)
			set_bit(set, words, (unsigned)cpu);
	}
	return call_end(&c, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
	return nvmlDeviceGetCpuAffinityWithinScope(device, words, set, NVML_AFFINITY_SCOPE_NODE);
}
