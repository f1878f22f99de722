// Who uses a GPU.
#include <stdlib.h>
#include <time.h>

#include "memory.h"

static const unsigned NO_INSTANCE = 0xFFFFFFFF; // the process runs on the whole GPU

static void fill_v1(const struct process *p, nvmlProcessInfo_v1_t *out)
{
	out->pid = p->pid;
	out->usedGpuMemory = p->used;
}

static void fill_v2(const struct process *p, nvmlProcessInfo_v2_t *out)
{
	out->pid = p->pid;
	out->usedGpuMemory = p->used;
	out->gpuInstanceId = NO_INSTANCE;
	out->computeInstanceId = NO_INSTANCE;
}

// The processes of these types, allocated.
static struct process *list(const struct gpu *g, unsigned types, unsigned *count)
{
	size_t room = 0, n = memory_processes(g, NULL, 0), kept = 0;
	struct process *all = NULL;

	do { // more may come meanwhile
		free(all);
		room = n + 1;
		all = calloc(room, sizeof(*all));
		n = all ? memory_processes(g, all, room) : 0;
	} while (n > room);
	for (size_t i = 0; i < n; i++)
		if (all[i].types & types)
			all[kept++] = all[i];
	*count = (unsigned)kept;
	return all;
}

// A list call: *count is the room on entry and the number on return. With too little room
// it says how much is needed.
#define LIST(name, info, fill, wanted)                                                            \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, info *infos)           \
	{                                                                                         \
		struct call c;                                                                    \
		nvmlReturn_t r = call_begin_any(&c, device, count);                               \
		if (r != NVML_SUCCESS)                                                            \
			return r;                                                                 \
		unsigned room = *count, n = 0;                                                    \
		if (room > 0 && !infos)                                                           \
			return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);                         \
		struct process *found = list(c.gpu, wanted, count);                               \
		for (; *count <= room && n < *count; n++)                                         \
			fill(&found[n], &infos[n]);                                               \
		free(found);                                                                      \
		return call_end(&c, *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS); \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, fill_v1, PROCESS_COMPUTE)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, fill_v2, PROCESS_COMPUTE)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, fill_v2, PROCESS_COMPUTE)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, fill_v1, PROCESS_GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, fill_v2, PROCESS_GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, fill_v2, PROCESS_GRAPHICS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, fill_v1, PROCESS_MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, fill_v2, PROCESS_MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, fill_v2, PROCESS_MPS)

static bool busy(const struct process *p)
{
	return p->sm_util > 0 || p->mem_util > 0;
}

static const unsigned long long SAMPLE_PERIOD = 1000000 / 6; // microseconds

// One sample for each process that is busy, taken when the last period ended. A GPU in MIG
// mode has none.
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
						    unsigned int *count, unsigned long long last_seen)
{
	struct call c;
	struct timespec t;
	nvmlReturn_t r = call_begin_device(&c, device, count);
	if (r != NVML_SUCCESS)
		return r;
	if (c.gpu->mig_mode)
		return call_end(&c, NVML_ERROR_NOT_SUPPORTED);

	clock_gettime(CLOCK_REALTIME, &t);
	unsigned long long taken = (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_nsec / 1000;
	taken -= taken % SAMPLE_PERIOD;
	unsigned room = samples ? *count : 0, n = 0;
	for (size_t i = 0; i < c.gpu->process_count && taken > last_seen; i++)
		n += busy(&c.gpu->processes[i]);
	*count = n;
	if (n == 0)
		return call_end(&c, NVML_ERROR_NOT_FOUND);
	if (n > room)
		return call_end(&c, NVML_ERROR_INSUFFICIENT_SIZE);
	n = 0;
	for (size_t i = 0; i < c.gpu->process_count; i++) {
		const struct process *p = &c.gpu->processes[i];
		if (busy(p))
			samples[n++] = (nvmlProcessUtilizationSample_t){
				.pid = p->pid, .timeStamp = taken, .smUtil = p->sm_util, .memUtil = p->mem_util};
	}
	return call_end(&c, NVML_SUCCESS);
}
