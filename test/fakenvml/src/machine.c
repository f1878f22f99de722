// From JSON to a machine. README.md beside this folder documents the schema.
// Unknown members are refused: in a test, a misspelt name must not turn into a default.
#include "machine.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

static const unsigned long long MIB = 1024ULL * 1024;

struct reader {
	char *error;
	size_t error_size;
	bool failed;
};

__attribute__((format(printf, 2, 3))) static void fail(struct reader *r, const char *format, ...)
{
	if (r->failed)
		return; // the first message is the useful one
	r->failed = true;
	va_list args;
	va_start(args, format);
	vsnprintf(r->error, r->error_size, format, args);
	va_end(args);
}

static void only(struct reader *r, const struct json *v, const char *what, const char *const *known)
{
	if (v->kind != JSON_OBJECT) {
		fail(r, "%s is not an object", what);
		return;
	}
	for (const struct json *m = v->child; m; m = m->next) {
		const char *const *k = known;
		while (*k && strcmp(*k, m->key) != 0)
			k++;
		if (!*k)
			fail(r, "%s has an unknown member \"%.40s\"", what, m->key);
	}
}

static double number(struct reader *r, const struct json *v, const char *key, double fallback, double min, double max)
{
	const struct json *m = json_get(v, key);
	if (!m || m->kind == JSON_NULL)
		return fallback;
	if (m->kind != JSON_NUMBER || !(m->number >= min && m->number <= max)) {
		fail(r, "\"%s\" is not a number from %g to %g", key, min, max);
		return fallback;
	}
	return m->number;
}

static unsigned count(struct reader *r, const struct json *v, const char *key, unsigned fallback)
{
	return (unsigned)number(r, v, key, fallback, 0, UINT32_MAX);
}

// MiB, up to a petabyte.
static unsigned long long mib(struct reader *r, const struct json *v, const char *key, unsigned long long fallback)
{
	return (unsigned long long)number(r, v, key, (double)fallback, 0, 1ULL << 30);
}

static bool boolean(struct reader *r, const struct json *v, const char *key, bool fallback)
{
	const struct json *m = json_get(v, key);
	if (!m || m->kind == JSON_NULL)
		return fallback;
	if (m->kind != JSON_BOOL)
		fail(r, "\"%s\" is not true or false", key);
	return m->boolean;
}

static void string(struct reader *r, const struct json *v, const char *key, const char *fallback, char *out, size_t size)
{
	const struct json *m = json_get(v, key);
	const char *s = fallback;
	if (m && m->kind != JSON_NULL) {
		if (m->kind == JSON_STRING)
			s = m->string;
		else
			fail(r, "\"%s\" is not a string", key);
	}
	if ((size_t)snprintf(out, size, "%s", s) >= size)
		fail(r, "\"%s\" is longer than %zu bytes", key, size - 1);
}

// Returns the first element of an array and allocates one zeroed item for each.
static const struct json *array(struct reader *r, const struct json *v, const char *key, size_t size, void **items, size_t *n)
{
	const struct json *m = json_get(v, key);
	*items = NULL;
	*n = 0;
	if (!m || m->kind == JSON_NULL)
		return NULL;
	if (m->kind != JSON_ARRAY) {
		fail(r, "\"%s\" is not an array", key);
		return NULL;
	}
	size_t length = 0;
	for (const struct json *e = m->child; e; e = e->next)
		length++;
	if (length == 0)
		return NULL;
	*items = calloc(length, size);
	if (!*items) {
		fail(r, "out of memory");
		return NULL;
	}
	*n = length;
	return m->child;
}

struct word {
	const char *name;
	int value;
};

static int one_of(struct reader *r, const struct json *v, const char *key, const char *fallback, const struct word *words)
{
	char text[40];
	string(r, v, key, fallback, text, sizeof(text));
	for (; words->name; words++)
		if (strcmp(words->name, text) == 0)
			return words->value;
	fail(r, "\"%s\" does not know \"%s\"", key, text);
	return 0;
}

bool pci_parse(const char *text, struct pci_address *out)
{
	struct pci_address a;
	unsigned function;
	char rest;
	if (!text || sscanf(text, "%8x:%2x:%2x.%1x%c", &a.domain, &a.bus, &a.device, &function, &rest) != 4)
		return false;
	if (function != 0)
		return false;
	*out = a;
	return true;
}

bool pci_equal(struct pci_address a, struct pci_address b)
{
	return a.domain == b.domain && a.bus == b.bus && a.device == b.device;
}

static struct pci_address pci(struct reader *r, const struct json *v, const char *key, const char *fallback)
{
	struct pci_address a = {0, 0, 0};
	char text[32];
	string(r, v, key, fallback, text, sizeof(text));
	if (!pci_parse(text, &a))
		fail(r, "\"%s\" is not a PCI address like 00000000:3B:00.0", key);
	return a;
}

static unsigned process_types(struct reader *r, const char *text)
{
	unsigned types = 0;
	for (const char *from = text;; from++) {
		size_t n = strcspn(from, "+");
		if (n == 7 && strncmp(from, "compute", n) == 0)
			types |= PROCESS_COMPUTE;
		else if (n == 8 && strncmp(from, "graphics", n) == 0)
			types |= PROCESS_GRAPHICS;
		else if (n == 3 && strncmp(from, "mps", n) == 0)
			types |= PROCESS_MPS;
		else
			fail(r, "process type \"%s\" is not compute, graphics, mps or some joined by +", text);
		from += n;
		if (*from == '\0')
			return types;
	}
}

static void read_process(struct reader *r, const struct json *v, struct process *p)
{
	static const char *const known[] = {"pid", "usedMiB", "type", "smUtil", "memUtil", "name", NULL};
	char type[40];

	only(r, v, "a process", known);
	p->pid = count(r, v, "pid", 0);
	p->used = mib(r, v, "usedMiB", 0) * MIB;
	p->sm_util = (unsigned)number(r, v, "smUtil", 0, 0, 100);
	p->mem_util = (unsigned)number(r, v, "memUtil", 0, 0, 100);
	string(r, v, "name", "", p->name, sizeof(p->name));
	string(r, v, "type", "compute", type, sizeof(type));
	p->types = process_types(r, type);
	if (p->pid == 0)
		fail(r, "a process without \"pid\"");
}

static void read_nvlink(struct reader *r, const struct json *v, struct nvlink *l)
{
	static const char *const known[] = {"peerPci", "active", NULL};
	only(r, v, "an nvlink", known);
	l->peer = pci(r, v, "peerPci", "");
	l->active = boolean(r, v, "active", true);
}

static void read_topology(struct reader *r, const struct json *v, struct topology *t)
{
	static const char *const known[] = {"peer", "level", NULL};
	static const struct word levels[] = {
		{"internal", NVML_TOPOLOGY_INTERNAL}, {"single", NVML_TOPOLOGY_SINGLE},
		{"multiple", NVML_TOPOLOGY_MULTIPLE}, {"hostbridge", NVML_TOPOLOGY_HOSTBRIDGE},
		{"node", NVML_TOPOLOGY_NODE},         {"system", NVML_TOPOLOGY_SYSTEM},
		{NULL, 0},
	};
	only(r, v, "a topology entry", known);
	string(r, v, "peer", "", t->peer, sizeof(t->peer));
	t->level = (nvmlGpuTopologyLevel_t)one_of(r, v, "level", "system", levels);
}

static void read_compute_capability(struct reader *r, const struct json *v, struct gpu *g)
{
	char text[16], rest;
	string(r, v, "computeCapability", "8.0", text, sizeof(text));
	if (sscanf(text, "%2d.%2d%c", &g->cc_major, &g->cc_minor, &rest) != 2 || g->cc_major < 0 || g->cc_minor < 0)
		fail(r, "\"computeCapability\" is not like 7.5");
}

// The processes of a GPU or a MIG device, and what they use in all.
static unsigned long long read_processes(struct reader *r, const struct json *v, struct gpu *g)
{
	unsigned long long used = 0;
	void *items;
	size_t i = 0;
	const struct json *e = array(r, v, "processes", sizeof(*g->processes), &items, &g->process_count);
	g->processes = items;
	for (; e; e = e->next, i++) {
		read_process(r, e, &g->processes[i]);
		used += g->processes[i].used;
	}
	return used;
}

// A GPU cannot be more than full, whatever the processes claim.
static void read_memory(struct reader *r, const struct json *v, struct gpu *g)
{
	unsigned long long used = read_processes(r, v, g);
	g->total = mib(r, v, "memoryMiB", 0) * MIB;
	g->reserved = mib(r, v, "reservedMiB", 0) * MIB;
	g->used = mib(r, v, "usedMiB", used / MIB) * MIB;
	if (g->reserved > g->total)
		g->reserved = g->total;
	if (g->used > g->total - g->reserved)
		g->used = g->total - g->reserved;
}

static void read_gpu(struct reader *r, const struct json *v, size_t index, struct gpu *g)
{
	static const char *const known[] = {
		"uuid", "model", "name", "memoryMiB", "reservedMiB", "usedMiB", "bar1MiB", "minor", "numaNode",
		"gpuMemoryNumaNode", "cpuAffinity", "pci", "pciDeviceId", "pciSubsystemId", "computeCapability",
		"brand", "migMode", "persistenceMode", "eccMode", "utilizationGpu", "utilizationMemory",
		"eccCorrected", "eccUncorrected", "nvlinks", "topology", "processes", "state", "hangSeconds",
		"computeMode", "temperature", "powerW", "powerLimitW", "serial", "vbios", "smCount", "migDevices", NULL,
	};
	static const struct word states[] = {
		{"ok", GPU_OK}, {"lost", GPU_LOST}, {"hang", GPU_HANG}, {"unknown-error", GPU_UNKNOWN_ERROR},
		{"not-supported", GPU_NOT_SUPPORTED}, {NULL, 0},
	};
	static const struct word brands[] = {
		{"unknown", NVML_BRAND_UNKNOWN}, {"quadro", NVML_BRAND_QUADRO},         {"tesla", NVML_BRAND_TESLA},
		{"nvs", NVML_BRAND_NVS},         {"grid", NVML_BRAND_GRID},             {"geforce", NVML_BRAND_GEFORCE},
		{"titan", NVML_BRAND_TITAN},     {"quadro-rtx", NVML_BRAND_QUADRO_RTX}, {"nvidia-rtx", NVML_BRAND_NVIDIA_RTX},
		{"nvidia", NVML_BRAND_NVIDIA},   {NULL, 0},
	};
	char model[sizeof(g->name)], address[32];

	only(r, v, "a GPU", known);
	string(r, v, "uuid", "", g->uuid, sizeof(g->uuid));
	string(r, v, "model", "", model, sizeof(model));
	string(r, v, "name", model, g->name, sizeof(g->name));
	read_memory(r, v, g);
	if (!*g->uuid || !*g->name || g->total == 0)
		fail(r, "GPU %zu needs \"uuid\", \"model\" and \"memoryMiB\"", index);

	snprintf(address, sizeof(address), "%08X:%02X:00.0", (unsigned)(index / 0xE0), (unsigned)(index % 0xE0 + 0x10));
	g->pci = pci(r, v, "pci", address);
	g->pci_device_id = count(r, v, "pciDeviceId", 0x20B210DE);
	g->pci_subsystem_id = count(r, v, "pciSubsystemId", 0x000010DE);
	g->minor = count(r, v, "minor", (unsigned)index);
	g->numa_node = (int)number(r, v, "numaNode", 0, -1, 1023);
	g->gpu_numa_node = (int)number(r, v, "gpuMemoryNumaNode", -1, -1, 1023);
	string(r, v, "cpuAffinity", "", g->cpu_affinity, sizeof(g->cpu_affinity));
	string(r, v, "serial", "", g->serial, sizeof(g->serial));
	string(r, v, "vbios", "90.00.00.00.00", g->vbios, sizeof(g->vbios));
	read_compute_capability(r, v, g);
	g->brand = (nvmlBrandType_t)one_of(r, v, "brand", strstr(g->name, "GeForce") ? "geforce" : "nvidia", brands);
	g->mig_mode = boolean(r, v, "migMode", false);
	g->persistence_mode = boolean(r, v, "persistenceMode", true);
	g->ecc_mode = boolean(r, v, "eccMode", g->brand != NVML_BRAND_GEFORCE);
	g->sms = (unsigned)number(r, v, "smCount", 80, 1, 1024);
	g->util_gpu = (unsigned)number(r, v, "utilizationGpu", 0, 0, 100);
	g->util_memory = (unsigned)number(r, v, "utilizationMemory", 0, 0, 100);
	g->ecc_corrected = (unsigned long long)number(r, v, "eccCorrected", 0, 0, 1e15);
	g->ecc_uncorrected = (unsigned long long)number(r, v, "eccUncorrected", 0, 0, 1e15);
	g->compute_mode = (unsigned)number(r, v, "computeMode", 0, 0, NVML_COMPUTEMODE_COUNT - 1);
	g->temperature = (unsigned)number(r, v, "temperature", 40, 0, 200);
	g->power_mw = (unsigned)(number(r, v, "powerW", 60, 0, 1e5) * 1000);
	g->power_limit_mw = (unsigned)(number(r, v, "powerLimitW", 300, 0, 1e5) * 1000);
	g->state = (enum gpu_state)one_of(r, v, "state", "ok", states);
	g->hang_seconds = number(r, v, "hangSeconds", 0, 0, 1e6);

	const struct json *e;
	void *items;
	size_t i = 0;
	e = array(r, v, "nvlinks", sizeof(*g->nvlinks), &items, &g->nvlink_count);
	g->nvlinks = items;
	for (i = 0; e; e = e->next, i++)
		read_nvlink(r, e, &g->nvlinks[i]);
	e = array(r, v, "topology", sizeof(*g->topology), &items, &g->topology_count);
	g->topology = items;
	for (i = 0; e; e = e->next, i++)
		read_topology(r, e, &g->topology[i]);
	if (g->nvlink_count > NVML_NVLINK_MAX_LINKS)
		fail(r, "more than %d nvlinks", NVML_NVLINK_MAX_LINKS);

	g->bar1 = mib(r, v, "bar1MiB", 256) * MIB;
	const struct json *migs = json_get(v, "migDevices");
	if (migs && migs->kind != JSON_NULL && migs->kind != JSON_ARRAY)
		fail(r, "\"migDevices\" is not an array");
}

// A MIG device is what its GPU is, but for what it has of it.
static void read_mig(struct reader *r, const struct json *v, const struct gpu *parent, size_t index, size_t place, struct gpu *g)
{
	static const char *const known[] = {
		"uuid", "profile", "memoryMiB", "reservedMiB", "usedMiB", "smCount", "slices", "processes", NULL,
	};
	char profile[32], name[sizeof(g->name)];

	only(r, v, "a MIG device", known);
	*g = *parent;
	g->nvlinks = NULL;
	g->topology = NULL;
	g->nvlink_count = g->topology_count = 0;
	g->mig_mode = false;
	g->is_mig = true;
	g->parent = index;
	g->instance_id = (unsigned)place + 1; // 0 is one of the whole GPU
	string(r, v, "uuid", "", g->uuid, sizeof(g->uuid));
	string(r, v, "profile", "", profile, sizeof(profile));
	if ((size_t)snprintf(name, sizeof(name), "%.55s MIG %s", parent->name, profile) >= sizeof(name) || !*profile)
		fail(r, "a MIG device needs a \"profile\" like 1g.5gb");
	memcpy(g->name, name, sizeof(g->name));
	g->sms = (unsigned)number(r, v, "smCount", 14, 1, 1024);
	g->slices = (unsigned)number(r, v, "slices", 1, 1, 7);
	read_memory(r, v, g);
	if (strncmp(g->uuid, "MIG-", 4) != 0 || g->total == 0)
		fail(r, "a MIG device needs \"uuid\", which begins with MIG-, and \"memoryMiB\"");
}

// The MIG devices of all GPUs, behind the GPUs. A GPU has them while it is in MIG mode.
static void read_migs(struct reader *r, const struct json *first, struct machine *m)
{
	size_t n = 0, index = 0;
	for (const struct json *e = first; e; e = e->next) {
		const struct json *list = json_get(e, "migDevices");
		for (const struct json *d = list && list->kind == JSON_ARRAY ? list->child : NULL; d; d = d->next)
			n++;
	}
	struct gpu *all = n > 0 ? realloc(m->gpus, (m->gpu_count + n) * sizeof(*all)) : NULL;
	if (!all) {
		if (n > 0)
			fail(r, "out of memory");
		return;
	}
	m->gpus = all;
	for (const struct json *e = first; e; e = e->next, index++) {
		const struct json *list = json_get(e, "migDevices");
		size_t place = 0;
		if (!m->gpus[index].mig_mode)
			continue;
		for (const struct json *d = list && list->kind == JSON_ARRAY ? list->child : NULL; d; d = d->next, place++)
			read_mig(r, d, &m->gpus[index], index, place, &m->gpus[m->gpu_count + m->mig_count++]);
	}
}

static void read_event(struct reader *r, const struct json *v, struct event *out)
{
	static const char *const known[] = {"seq", "xid", "gpu", "type", NULL};
	enum { XID, SINGLE_BIT, DOUBLE_BIT, NVLINK };
	static const struct word types[] = {
		{"xid", XID}, {"single-bit-ecc", SINGLE_BIT}, {"double-bit-ecc", DOUBLE_BIT}, {"nvlink", NVLINK}, {NULL, 0},
	};

	only(r, v, "an event", known);
	out->seq = (unsigned long long)number(r, v, "seq", 0, 0, 1e15);
	string(r, v, "gpu", "", out->gpu, sizeof(out->gpu));
	if (out->seq == 0 || !*out->gpu)
		fail(r, "an event needs \"seq\" from 1 and \"gpu\"");
	switch (one_of(r, v, "type", "xid", types)) {
	case SINGLE_BIT:
		out->type = (unsigned long long)nvmlEventTypeSingleBitEccError;
		return;
	case DOUBLE_BIT:
		out->type = (unsigned long long)nvmlEventTypeDoubleBitEccError;
		return;
	case NVLINK: // NVML has no event type of its own for a link error: it arrives as XID 74
		out->type = (unsigned long long)nvmlEventTypeXidCriticalError;
		out->data = count(r, v, "xid", 74);
		return;
	default:
		out->type = (unsigned long long)nvmlEventTypeXidCriticalError;
		out->data = count(r, v, "xid", 999); // 999: NVML's word for an unknown XID
	}
}

static int by_seq(const void *a, const void *b)
{
	unsigned long long x = ((const struct event *)a)->seq, y = ((const struct event *)b)->seq;
	return (x > y) - (x < y);
}

static void read_machine(struct reader *r, const struct json *v, struct machine *m)
{
	static const char *const known[] = {
		"driverVersion", "nvmlVersion", "cudaDriverVersion", "driverLoaded", "initReturn", "gpus", "events", NULL,
	};
	char nvml_version[sizeof(m->driver_version) + 3];
	const struct json *e;
	void *items;
	size_t i;

	only(r, v, "the machine", known);
	string(r, v, "driverVersion", "580.65.06", m->driver_version, sizeof(m->driver_version));
	snprintf(nvml_version, sizeof(nvml_version), "13.%.76s", m->driver_version);
	string(r, v, "nvmlVersion", nvml_version, m->nvml_version, sizeof(m->nvml_version));
	m->cuda_version = (int)number(r, v, "cudaDriverVersion", 13000, 0, 1e6);
	m->driver_loaded = boolean(r, v, "driverLoaded", true);
	m->init_return = (unsigned)number(r, v, "initReturn", 0, 0, NVML_ERROR_UNKNOWN);

	e = array(r, v, "gpus", sizeof(*m->gpus), &items, &m->gpu_count);
	m->gpus = items;
	const struct json *first = e;
	for (i = 0; e; e = e->next, i++) {
		read_gpu(r, e, i, &m->gpus[i]);
		for (size_t j = 0; j < i; j++) {
			if (strcmp(m->gpus[i].uuid, m->gpus[j].uuid) == 0)
				fail(r, "two GPUs have the uuid %s", m->gpus[i].uuid);
			if (pci_equal(m->gpus[i].pci, m->gpus[j].pci))
				fail(r, "GPUs %zu and %zu have the same PCI address", j, i);
		}
	}
	read_migs(r, first, m);
	e = array(r, v, "events", sizeof(*m->events), &items, &m->event_count);
	m->events = items;
	for (i = 0; e; e = e->next, i++)
		read_event(r, e, &m->events[i]);
	if (m->event_count > 0)
		qsort(m->events, m->event_count, sizeof(*m->events), by_seq);
}

struct machine *machine_parse(const char *text, size_t length, char *error, size_t error_size)
{
	struct reader r = {.error = error, .error_size = error_size};
	struct json *root = json_parse(text, length, error, error_size);
	if (!root)
		return NULL;
	struct machine *m = calloc(1, sizeof(*m));
	if (m)
		read_machine(&r, root, m);
	else
		fail(&r, "out of memory");
	json_free(root);
	if (r.failed) {
		machine_free(m);
		return NULL;
	}
	return m;
}

void machine_free(struct machine *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->gpu_count + m->mig_count; i++) {
		free(m->gpus[i].processes);
		free(m->gpus[i].nvlinks);
		free(m->gpus[i].topology);
	}
	free(m->gpus);
	free(m->events);
	free(m);
}

const struct gpu *machine_gpu(const struct machine *m, const char *uuid)
{
	for (size_t i = 0; i < m->gpu_count + m->mig_count; i++)
		if (strcmp(m->gpus[i].uuid, uuid) == 0)
			return &m->gpus[i];
	return NULL;
}

const struct gpu *machine_mig(const struct machine *m, const struct gpu *parent, unsigned place)
{
	for (size_t i = m->gpu_count; i < m->gpu_count + m->mig_count; i++)
		if (&m->gpus[m->gpus[i].parent] == parent && place-- == 0)
			return &m->gpus[i];
	return NULL;
}
