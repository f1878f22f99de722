// A process's devices, contexts and memory.
#include "cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mps.h"

static const unsigned long long PAGE = 2ULL << 20; // the driver hands out memory by these

// What a context takes: local memory for each multiprocessor that it may use, which is the
// most of it. The sum for each is what NVIDIA's measurements of limits leave room for.
static unsigned long long context_bytes(unsigned sms)
{
	return sms * (33ULL << 20) / 10;
}

struct allocation {
	CUdeviceptr address;
	unsigned long long bytes; // 0 for managed memory, which is the host's
	struct allocation *next;
};

struct context {
	CUdevice device;
	unsigned long long bytes; // of the context itself
	struct allocation *allocations;
	struct context *next;
};

// One lock guards everything below.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialised; // a child of fork is not
static char visible[MAX_GPUS][96]; // UUIDs, in the process's order
static unsigned visible_count;
static unsigned on_machine[MAX_GPUS]; // their indexes
static struct share *shares[MAX_GPUS]; // what the process has of each; NULL before its first context
static struct cgroup cgroup;
static struct terms terms;
static struct context *contexts;
static CUdeviceptr next_address = 0x7f0000000000;
static __thread struct context *current;

// -- which GPUs --------------------------------------------------------------------------

static bool lists(const char *list, unsigned index, const char *uuid)
{
	char number[16];
	size_t n;
	snprintf(number, sizeof(number), "%u", index);
	for (; *list; list += n + (list[n] == ',')) {
		n = strcspn(list, ",");
		if ((n == strlen(uuid) && strncmp(list, uuid, n) == 0) || (n == strlen(number) && strncmp(list, number, n) == 0))
			return true;
	}
	return false;
}

// A container has the device files of its GPUs. On a machine without any, the variable by
// which NVIDIA's runtime is told decides; for a MIG device, whose files are not simulated, always.
static bool in_container(const struct gpu *g, unsigned index)
{
	const char *list = getenv("NVIDIA_VISIBLE_DEVICES");
	char path[32];
	if (!g->is_mig && access("/dev/nvidiactl", F_OK) == 0) {
		snprintf(path, sizeof(path), "/dev/nvidia%u", g->minor);
		return access(path, F_OK) == 0;
	}
	return !list || strcmp(list, "all") == 0 || lists(list, index, g->uuid);
}

// The GPUs of a container that are not in MIG mode, then its MIG devices.
static unsigned candidates(const struct machine *m, unsigned *from, unsigned *migs)
{
	unsigned count = 0;
	*migs = 0;
	for (unsigned i = 0; i < m->gpu_count + m->mig_count && i < MAX_GPUS; i++) {
		const struct gpu *g = &m->gpus[i];
		if (g->mig_mode || !in_container(g, i))
			continue;
		from[count++] = i;
		*migs += g->is_mig;
	}
	return count;
}

static void see(const struct machine *m, unsigned index)
{
	snprintf(visible[visible_count], sizeof(visible[0]), "%s", m->gpus[index].uuid);
	on_machine[visible_count++] = index;
}

// The entry of CUDA_VISIBLE_DEVICES: an index among what the process would see without it, from first
// on, or the beginning of a UUID. Returns count for one that names none.
static unsigned chosen(const struct machine *m, const unsigned *from, unsigned first, unsigned count, const char *entry, size_t length)
{
	char text[100], *rest;
	snprintf(text, sizeof(text), "%.*s", (int)length, entry);
	unsigned long index = strtoul(text, &rest, 10);
	if (rest != text && !*rest)
		return index < count - first ? first + (unsigned)index : count;
	for (unsigned i = 0; i < count && length > 4; i++)
		if (strncmp(m->gpus[from[i]].uuid, text, length) == 0)
			return i;
	return count;
}

// A process sees GPUs, or one MIG device and nothing else (NVIDIA, "Multi-Instance GPU", CUDA device
// enumeration).
static void find_visible(const struct machine *m)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	unsigned from[MAX_GPUS], migs, count = candidates(m, from, &migs), first = migs > 0 ? count - migs : 0;

	visible_count = 0;
	for (unsigned i = first; !list && i < count; i++)
		see(m, from[i]);
	while (list && *list && visible_count < MAX_GPUS) {
		size_t n = strcspn(list, ",");
		unsigned i = chosen(m, from, first, count, list, n);
		if (i == count)
			break; // what follows an entry that names none does not count
		see(m, from[i]);
		list += n + (list[n] == ',');
	}
	for (unsigned i = 0; i < visible_count; i++)
		if (m->gpus[on_machine[i]].is_mig) {
			unsigned mig = on_machine[i];
			visible_count = 0;
			see(m, mig);
			break;
		}
}

// -- the library and its devices ---------------------------------------------------------

CUresult cuInit(unsigned int flags)
{
	struct call c;
	CUresult r = CUDA_SUCCESS;

	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (initialised) {
		r = initialised == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
	} else if (state_init() != NVML_SUCCESS || call_begin(&c) != NVML_SUCCESS) {
		r = CUDA_ERROR_NO_DEVICE;
	} else {
		find_visible(c.machine);
		cgroup = cgroup_self();
		r = visible_count == 0 ? CUDA_ERROR_NO_DEVICE : (CUresult)mps_attach(c.machine, &terms);
		if (r == CUDA_SUCCESS) {
			mps_tighten(c.machine, on_machine, visible_count, &terms);
			initialised = getpid();
		}
		call_end(&c, NVML_SUCCESS);
	}
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult cuDriverGetVersion(int *version)
{
	struct call c;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	if (state_init() != NVML_SUCCESS) // this one works before cuInit
		return CUDA_ERROR_NO_DEVICE;
	if (call_begin(&c) == NVML_SUCCESS) {
		*version = c.machine->cuda_version;
		call_end(&c, NVML_SUCCESS);
	}
	state_shutdown();
	return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	switch (error) {
#define NAME(e) case e: *name = #e; return CUDA_SUCCESS;
	NAME(CUDA_SUCCESS)
	NAME(CUDA_ERROR_INVALID_VALUE)
	NAME(CUDA_ERROR_OUT_OF_MEMORY)
	NAME(CUDA_ERROR_NOT_INITIALIZED)
	NAME(CUDA_ERROR_DEVICE_UNAVAILABLE)
	NAME(CUDA_ERROR_NO_DEVICE)
	NAME(CUDA_ERROR_INVALID_DEVICE)
	NAME(CUDA_ERROR_INVALID_CONTEXT)
	NAME(CUDA_ERROR_NOT_PERMITTED)
	NAME(CUDA_ERROR_MPS_CONNECTION_FAILED)
	NAME(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED)
	NAME(CUDA_ERROR_MPS_CLIENT_TERMINATED)
	NAME(CUDA_ERROR_UNKNOWN)
	}
	*name = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

// Begins a call. After CUDA_SUCCESS, and only then, end_cuda must follow.
static CUresult begin_cuda(const void *result)
{
	pthread_mutex_lock(&lock);
	CUresult r = initialised != getpid() || !initialised ? CUDA_ERROR_NOT_INITIALIZED
		: !result ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (r != CUDA_SUCCESS)
		pthread_mutex_unlock(&lock);
	return r;
}

static CUresult end_cuda(CUresult r)
{
	pthread_mutex_unlock(&lock);
	return r;
}

// Begins a call on a device, as the machine is now.
static CUresult begin_device(struct call *c, CUdevice device, const void *result)
{
	CUresult r = begin_cuda(result);
	if (r != CUDA_SUCCESS)
		return r;
	if (device < 0 || (unsigned)device >= visible_count)
		return end_cuda(CUDA_ERROR_INVALID_DEVICE);
	if (call_begin(c) != NVML_SUCCESS)
		return end_cuda(CUDA_ERROR_UNKNOWN);
	c->gpu = machine_gpu(c->machine, visible[device]);
	if (c->gpu && c->gpu->state == GPU_OK)
		return CUDA_SUCCESS;
	call_end(c, NVML_SUCCESS);
	return end_cuda(CUDA_ERROR_DEVICE_UNAVAILABLE);
}

static CUresult end_device(struct call *c, CUresult r)
{
	call_end(c, NVML_SUCCESS);
	return end_cuda(r);
}

CUresult cuDeviceGetCount(int *count)
{
	CUresult r = begin_cuda(count);
	if (r != CUDA_SUCCESS)
		return r;
	*count = (int)visible_count;
	return end_cuda(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	struct call c;
	CUresult r = begin_device(&c, ordinal, device);
	if (r != CUDA_SUCCESS)
		return r;
	*device = ordinal;
	return end_device(&c, CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	struct call c;
	CUresult r = begin_device(&c, device, length > 0 ? name : NULL);
	if (r != CUDA_SUCCESS)
		return r;
	snprintf(name, (size_t)length, "%s", c.gpu->name);
	return end_device(&c, CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	struct call c;
	CUresult r = begin_device(&c, device, uuid);
	if (r != CUDA_SUCCESS)
		return r;
	memset(uuid, 0, sizeof(*uuid));
	unsigned digits = 0, byte;
	for (const char *at = c.gpu->uuid + 4; *at && digits < sizeof(uuid->bytes);) {
		if (*at == '-')
			at++;
		else if (sscanf(at, "%2x", &byte) == 1 && at[1]) {
			uuid->bytes[digits++] = (unsigned char)byte;
			at += 2;
		} else
			break;
	}
	return end_device(&c, CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	return cuDeviceGetUuid(uuid, device);
}

// All that a process can see: where its control group has a hard limit of its own, that.
static size_t total(const struct gpu *g)
{
	unsigned long long whole = g->total - g->reserved, own = memory_own_limits(g, &cgroup).hard;
	return own < whole ? own : whole;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	struct call c;
	CUresult r = begin_device(&c, device, bytes);
	if (r != CUDA_SUCCESS)
		return r;
	*bytes = total(c.gpu);
	return end_device(&c, CUDA_SUCCESS);
}

// MPS gives whole pairs of multiprocessors.
static unsigned sms(const struct gpu *g)
{
	unsigned pairs = (unsigned)(g->sms / 2 * terms.threads / 100);
	return terms.threads >= 100 ? g->sms : pairs > 0 ? 2 * pairs : 2;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	struct call c;
	CUresult r = begin_device(&c, device, value);
	if (r != CUDA_SUCCESS)
		return r;
	if (attribute != CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
		return end_device(&c, CUDA_ERROR_INVALID_VALUE);
	*value = (int)sms(c.gpu);
	return end_device(&c, CUDA_SUCCESS);
}

// -- contexts ----------------------------------------------------------------------------

static bool has_context(CUdevice device)
{
	for (const struct context *x = contexts; x; x = x->next)
		if (x->device == device)
			return true;
	return false;
}

static bool known(const struct context *context)
{
	for (const struct context *x = contexts; x; x = x->next)
		if (x == context)
			return true;
	return false;
}

static CUresult take(const struct gpu *g, CUdevice device, unsigned long long bytes)
{
	switch (memory_take(shares[device], g, bytes, terms.limits[on_machine[device]])) {
	case GRANTED: return CUDA_SUCCESS;
	case TERMINATED: return CUDA_ERROR_MPS_CLIENT_TERMINATED;
	default: return CUDA_ERROR_OUT_OF_MEMORY;
	}
}

static void release(CUdevice device)
{
	if (has_context(device))
		return;
	memory_detach(shares[device]);
	shares[device] = NULL;
}

CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
	struct call c;
	CUresult r = begin_device(&c, device, out);
	(void)flags; // how the host waits
	if (r != CUDA_SUCCESS)
		return r;
	if (!shares[device])
		shares[device] = memory_attach(c.gpu, &cgroup, terms.mps);
	struct context *x = shares[device] ? calloc(1, sizeof(*x)) : NULL;
	if (!x)
		return end_device(&c, CUDA_ERROR_UNKNOWN);
	x->device = device;
	x->bytes = context_bytes(sms(c.gpu));
	r = take(c.gpu, device, x->bytes);
	if (r == CUDA_SUCCESS) {
		x->next = contexts;
		contexts = x;
		current = *out = x;
	} else {
		free(x);
		release(device);
	}
	return end_device(&c, r);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	CUresult r = begin_cuda(context);
	struct context **at = &contexts;
	if (r != CUDA_SUCCESS)
		return r;
	while (*at && *at != context)
		at = &(*at)->next;
	if (!*at)
		return end_cuda(CUDA_ERROR_INVALID_CONTEXT);
	*at = context->next;
	unsigned long long bytes = context->bytes;
	while (context->allocations) {
		struct allocation *a = context->allocations;
		bytes += a->bytes;
		context->allocations = a->next;
		free(a);
	}
	memory_give(shares[context->device], bytes);
	release(context->device);
	free(context);
	current = current == context ? NULL : current;
	return end_cuda(CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	CUresult r = begin_cuda(&lock);
	if (r != CUDA_SUCCESS)
		return r;
	if (context && !known(context))
		return end_cuda(CUDA_ERROR_INVALID_CONTEXT);
	current = context;
	return end_cuda(CUDA_SUCCESS);
}

// -- memory ------------------------------------------------------------------------------

// Begins a call on the device of the thread's context.
static CUresult begin_current(struct call *c, const void *result)
{
	CUresult r = begin_cuda(result);
	if (r != CUDA_SUCCESS)
		return r;
	bool there = known(current);
	CUdevice device = there ? current->device : 0;
	end_cuda(r);
	return there ? begin_device(c, device, result) : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult alive(void)
{
	return memory_terminated(shares[current->device]) ? CUDA_ERROR_MPS_CLIENT_TERMINATED : CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	struct call c;
	CUresult r = begin_current(&c, &lock);
	return r == CUDA_SUCCESS ? end_device(&c, alive()) : r;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	struct call c;
	CUresult r = begin_current(&c, total_bytes ? free_bytes : NULL);
	if (r != CUDA_SUCCESS)
		return r;
	*free_bytes = memory_free(shares[current->device], c.gpu, terms.limits[on_machine[current->device]]);
	*total_bytes = total(c.gpu);
	return end_device(&c, alive());
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, bool on_gpu)
{
	struct call c;
	CUresult r = begin_current(&c, bytes > 0 ? out : NULL);
	if (r != CUDA_SUCCESS)
		return r;
	struct allocation *a = calloc(1, sizeof(*a));
	unsigned long long pages = (bytes + PAGE - 1) / PAGE * PAGE;
	r = !a || pages < bytes ? CUDA_ERROR_OUT_OF_MEMORY : on_gpu ? take(c.gpu, current->device, pages) : alive();
	if (r != CUDA_SUCCESS) {
		free(a);
		return end_device(&c, r);
	}
	a->address = *out = next_address;
	next_address += pages;
	a->bytes = on_gpu ? pages : 0;
	a->next = current->allocations;
	current->allocations = a;
	return end_device(&c, CUDA_SUCCESS);
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	return allocate(out, bytes, true);
}

// Managed memory is counted on the host.
CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags)
{
	return flags == 0 ? CUDA_ERROR_INVALID_VALUE : allocate(out, bytes, false);
}

// The link that leads to an allocation of the current context.
static struct allocation **find(CUdeviceptr address)
{
	struct allocation **at = &current->allocations;
	while (*at && (*at)->address != address)
		at = &(*at)->next;
	return at;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	struct call c;
	CUresult r = begin_current(&c, &lock);
	if (r != CUDA_SUCCESS)
		return r;
	struct allocation **at = find(address), *a = *at;
	if (!a)
		return end_device(&c, CUDA_ERROR_INVALID_VALUE);
	*at = a->next;
	memory_give(shares[current->device], a->bytes);
	free(a);
	return end_device(&c, alive());
}

// There is no memory to write to: what is checked is that it has been allocated.
CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count)
{
	struct call c;
	CUresult r = begin_current(&c, &lock);
	(void)value;
	if (r != CUDA_SUCCESS)
		return r;
	const struct allocation *a = *find(address);
	r = alive();
	if (r == CUDA_SUCCESS && (!a || (a->bytes && count > a->bytes)))
		r = CUDA_ERROR_INVALID_VALUE;
	return end_device(&c, r);
}
