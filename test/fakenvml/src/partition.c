// The limits of control groups, by NVML.
#define _GNU_SOURCE // syscall
#include "partition.h"

#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FIRST_DRIVER = 615 };

// Begins a call that names a control group. A driver that does not know the call is one
// whose library has not got it.
static nvmlReturn_t begin_limits(struct call *c, nvmlDevice_t device, const void *argument, const char *name, struct cgroup *group)
{
	nvmlReturn_t r = call_begin_device(c, device, argument);
	if (r != NVML_SUCCESS)
		return r;
	if (atoi(c->machine->driver_version) < FIRST_DRIVER)
		return call_end(c, NVML_ERROR_FUNCTION_NOT_FOUND);
	if (c->gpu->mig_mode)
		return call_end(c, NVML_ERROR_NOT_SUPPORTED);
	r = cgroup_at(name, group);
	return r == NVML_SUCCESS ? r : call_end(c, r);
}

// Root in a container is not enough.
static bool privileged(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	return syscall(SYS_capget, &header, data) == 0 && (data[0].effective & 1U << CAP_SYS_ADMIN) != 0;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *set)
{
	struct call c;
	struct cgroup group;
	nvmlReturn_t r = begin_limits(&c, device, set, set ? set->nameSpace : NULL, &group);
	if (r != NVML_SUCCESS)
		return r;
	if (!privileged())
		return call_end(&c, NVML_ERROR_NO_PERMISSION);
	if (set->softLimit > set->hardLimit)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	return call_end(&c, memory_set_limits(c.gpu, &group, set->softLimit, set->hardLimit));
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *get)
{
	struct call c;
	struct cgroup group;
	struct limits l;
	nvmlReturn_t r = begin_limits(&c, device, get, get ? get->nameSpace : NULL, &group);
	if (r != NVML_SUCCESS)
		return r;
	r = memory_get_limits(c.gpu, &group, &l);
	if (r == NVML_SUCCESS) {
		get->softLimit = l.soft;
		get->hardLimit = l.hard;
		get->currentUsed = l.used;
	}
	return call_end(&c, r);
}
