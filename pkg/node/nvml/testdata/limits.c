// A library with as much of NVML as limits take, for one GPU. OLD has no limits.
#include <string.h>
#include <unistd.h>

typedef struct {
	const char *nameSpace;
	unsigned long long soft, hard, used;
} limits;

enum { UNINITIALIZED = 1, NO_PERMISSION = 4, NOT_FOUND = 6 };

static int users;
static limits kept;
static char group[256];

int nvmlInit_v2(void) { users++; return 0; }
int nvmlShutdown(void) { users--; return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) { strncpy(version, "615.10", length); return 0; }
const char *nvmlErrorString(int r) { return r == NOT_FOUND ? "Not Found" : "error"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
	*device = &kept;
	return users < 1 ? UNINITIALIZED : strcmp(uuid, "GPU-a") ? NOT_FOUND : 0;
}

#ifndef OLD
int nvmlDeviceSetMemoryLimits_v1(void *device, limits *l)
{
	if (device != &kept || users != 1)
		return UNINITIALIZED;
	if (strcmp(l->nameSpace, "/foreign") == 0)
		return NO_PERMISSION;
	while (strcmp(l->nameSpace, "/hangs") == 0)
		pause();
	strncpy(group, l->nameSpace, sizeof(group) - 1);
	kept.soft = l->soft;
	kept.hard = l->hard;
	return 0;
}

int nvmlDeviceGetMemoryLimits_v1(void *device, limits *l)
{
	if (device != &kept || users != 1)
		return UNINITIALIZED;
	if (strcmp(l->nameSpace, group))
		return NOT_FOUND;
	l->soft = kept.soft;
	l->hard = kept.hard;
	l->used = 7;
	return 0;
}
#endif
