// Event sets. An event of the file is delivered once to each set that was created before the
// event appeared and that had its GPU and type registered when it was looked at.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

static const unsigned long long SUPPORTED =
	nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypeXidCriticalError;

struct registration {
	struct nvmlDevice_st *device;
	unsigned long long types;
	struct registration *next;
};

struct nvmlEventSet_st {
	unsigned long long seen; // highest sequence number looked at
	struct registration *registrations;
	struct nvmlEventSet_st *next;
};

// Guards all sets. A waiting thread holds it only while it looks, so a set may be freed
// under it; the wait then ends with NVML_ERROR_INVALID_ARGUMENT.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvmlEventSet_st *sets;

static struct nvmlEventSet_st **find(const struct nvmlEventSet_st *set)
{
	struct nvmlEventSet_st **s = &sets;
	while (*s && *s != set)
		s = &(*s)->next;
	return s;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	if (!set)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	struct nvmlEventSet_st *s = calloc(1, sizeof(*s));
	if (!s)
		return call_end(&c, NVML_ERROR_MEMORY);
	if (c.machine->event_count > 0)
		s->seen = c.machine->events[c.machine->event_count - 1].seq;
	pthread_mutex_lock(&lock);
	s->next = sets;
	sets = s;
	pthread_mutex_unlock(&lock);
	set->handle = s;
	return call_end(&c, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	struct call c;
	nvmlReturn_t r = call_begin(&c);
	if (r != NVML_SUCCESS)
		return r;
	pthread_mutex_lock(&lock);
	struct nvmlEventSet_st **at = find(set.handle), *s = *at;
	if (s)
		*at = s->next;
	pthread_mutex_unlock(&lock);
	if (!s)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	while (s->registrations) {
		struct registration *next = s->registrations->next;
		free(s->registrations);
		s->registrations = next;
	}
	free(s);
	return call_end(&c, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, types);
	if (r != NVML_SUCCESS)
		return r;
	*types = SUPPORTED;
	return call_end(&c, NVML_SUCCESS);
}

// Registering a device again adds to its types.
static nvmlReturn_t add(struct nvmlEventSet_st *s, struct nvmlDevice_st *device, unsigned long long types)
{
	struct registration *g = s->registrations;
	while (g && g->device != device)
		g = g->next;
	if (!g) {
		g = calloc(1, sizeof(*g));
		if (!g)
			return NVML_ERROR_MEMORY;
		g->device = device;
		g->next = s->registrations;
		s->registrations = g;
	}
	g->types |= types;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	struct call c;
	nvmlReturn_t r = call_begin_device(&c, device, set.handle);
	if (r != NVML_SUCCESS)
		return r;
	if (types & ~SUPPORTED)
		return call_end(&c, NVML_ERROR_NOT_SUPPORTED);
	pthread_mutex_lock(&lock);
	struct nvmlEventSet_st *s = *find(set.handle);
	r = s ? add(s, device.handle, types) : NVML_ERROR_INVALID_ARGUMENT;
	pthread_mutex_unlock(&lock);
	return call_end(&c, r);
}

// The next event for this set, then the loss of one of its GPUs, else NVML_ERROR_TIMEOUT.
static nvmlReturn_t next_event(struct nvmlEventSet_st *s, const struct machine *m, nvmlEventData_t *data)
{
	const struct registration *g;

	for (size_t i = 0; i < m->event_count; i++) {
		const struct event *e = &m->events[i];
		if (e->seq <= s->seen)
			continue;
		s->seen = e->seq;
		const struct gpu *mig = machine_gpu(m, e->gpu);
		if (mig && !mig->is_mig)
			mig = NULL;
		const char *of = mig ? m->gpus[mig->parent].uuid : e->gpu; // MIG devices have no events of their own
		for (g = s->registrations; g; g = g->next) {
			if (!(g->types & e->type) || strcmp(handle_uuid(g->device), of) != 0)
				continue;
			memset(data, 0, sizeof(*data));
			data->device.handle = g->device;
			data->eventType = e->type;
			data->eventData = e->data;
			data->gpuInstanceId = mig ? mig->instance_id : 0xFFFFFFFF;
			data->computeInstanceId = mig ? 0 : 0xFFFFFFFF;
			return NVML_SUCCESS;
		}
	}
	for (g = s->registrations; g; g = g->next) {
		const struct gpu *gpu = machine_gpu(m, handle_uuid(g->device));
		if (!gpu || gpu->state == GPU_LOST)
			return NVML_ERROR_GPU_IS_LOST;
	}
	return NVML_ERROR_TIMEOUT;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	double deadline = monotonic_seconds() + timeout_ms / 1000.0;

	for (;;) {
		struct call c;
		nvmlReturn_t r = call_begin(&c);
		if (r != NVML_SUCCESS)
			return r;
		pthread_mutex_lock(&lock);
		struct nvmlEventSet_st *s = data ? *find(set.handle) : NULL;
		r = s ? next_event(s, c.machine, data) : NVML_ERROR_INVALID_ARGUMENT;
		pthread_mutex_unlock(&lock);
		call_end(&c, r);
		if (r != NVML_ERROR_TIMEOUT || monotonic_seconds() >= deadline)
			return r;
		sleep_briefly();
	}
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	return nvmlEventSetWait_v2(set, data, timeout_ms);
}
