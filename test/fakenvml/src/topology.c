// How GPUs are connected.
#include <stdio.h>
#include <string.h>

#include "state.h"

// Begins a call on two devices; the state of the second one is looked at, never waited for.
static nvmlReturn_t begin_pair(struct call *c, nvmlDevice_t a, nvmlDevice_t b, const void *out, const struct gpu **other)
{
	nvmlReturn_t r = call_begin_device(c, a, out);
	if (r != NVML_SUCCESS)
		return r;
	if (!handle_known(b.handle))
		return call_end(c, NVML_ERROR_INVALID_ARGUMENT);
	*other = machine_gpu(c->machine, handle_uuid(b.handle));
	if (!*other || (*other)->state == GPU_LOST)
		return call_end(c, NVML_ERROR_GPU_IS_LOST);
	return NVML_SUCCESS;
}

static const struct topology *link_to(const struct gpu *from, const struct gpu *to)
{
	for (size_t i = 0; i < from->topology_count; i++)
		if (strcmp(from->topology[i].peer, to->uuid) == 0)
			return &from->topology[i];
	return NULL;
}

// What the file says, on either end; else GPUs of one NUMA node are one node apart.
static nvmlGpuTopologyLevel_t level(const struct gpu *a, const struct gpu *b)
{
	const struct topology *t = link_to(a, b);
	if (a == b)
		return NVML_TOPOLOGY_INTERNAL;
	if (!t)
		t = link_to(b, a);
	if (t)
		return t->level;
	return a->numa_node == b->numa_node ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
}

static bool nvlinked(const struct gpu *a, const struct gpu *b)
{
	for (size_t i = 0; i < a->nvlink_count; i++)
		if (a->nvlinks[i].active && pci_equal(a->nvlinks[i].peer, b->pci))
			return true;
	return false;
}

// What is no GPU of the machine is an NVSwitch.
static bool leads_to_switch(const struct machine *m, const struct nvlink *link)
{
	for (size_t i = 0; i < m->gpu_count; i++)
		if (pci_equal(m->gpus[i].pci, link->peer))
			return false;
	return true;
}

static bool switched(const struct machine *m, const struct gpu *g)
{
	for (size_t i = 0; i < g->nvlink_count; i++)
		if (g->nvlinks[i].active && leads_to_switch(m, &g->nvlinks[i]))
			return true;
	return false;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *out)
{
	struct call c;
	const struct gpu *other;
	nvmlReturn_t r = begin_pair(&c, a, b, out, &other);
	if (r != NVML_SUCCESS)
		return r;
	*out = level(c.gpu, other);
	return call_end(&c, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t index,
					   nvmlGpuP2PStatus_t *out)
{
	struct call c;
	const struct gpu *other;
	nvmlReturn_t r = begin_pair(&c, a, b, out, &other);
	if (r != NVML_SUCCESS)
		return r;
	bool linked = nvlinked(c.gpu, other) || nvlinked(other, c.gpu) ||
		      (switched(c.machine, c.gpu) && switched(c.machine, other));
	bool near = level(c.gpu, other) <= NVML_TOPOLOGY_HOSTBRIDGE;
	switch (index) {
	case NVML_P2P_CAPS_INDEX_NVLINK:
	case NVML_P2P_CAPS_INDEX_ATOMICS:
		*out = linked ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
		break;
	case NVML_P2P_CAPS_INDEX_PCI:
		*out = near ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
		break;
	case NVML_P2P_CAPS_INDEX_READ:
	case NVML_P2P_CAPS_INDEX_WRITE:
		*out = linked || near ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
		break;
	default:
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	}
	return call_end(&c, NVML_SUCCESS);
}

static nvmlReturn_t begin_link(struct call *c, nvmlDevice_t device, unsigned int link, const void *out)
{
	nvmlReturn_t r = call_begin_device(c, device, out);
	if (r != NVML_SUCCESS)
		return r;
	if (link >= NVML_NVLINK_MAX_LINKS)
		return call_end(c, NVML_ERROR_INVALID_ARGUMENT);
	if (link >= c->gpu->nvlink_count)
		return call_end(c, NVML_ERROR_NOT_SUPPORTED);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *out)
{
	struct call c;
	nvmlReturn_t r = begin_link(&c, device, link, out);
	if (r != NVML_SUCCESS)
		return r;
	*out = c.gpu->nvlinks[link].active ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return call_end(&c, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
						  nvmlNvLinkCapability_t capability, unsigned int *out)
{
	struct call c;
	nvmlReturn_t r = begin_link(&c, device, link, out);
	if (r != NVML_SUCCESS)
		return r;
	if ((unsigned)capability >= NVML_NVLINK_CAP_COUNT)
		return call_end(&c, NVML_ERROR_INVALID_ARGUMENT);
	*out = capability != NVML_NVLINK_CAP_SLI_BRIDGE;
	return call_end(&c, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
							nvmlIntNvLinkDeviceType_t *out)
{
	struct call c;
	nvmlReturn_t r = begin_link(&c, device, link, out);
	if (r != NVML_SUCCESS)
		return r;
	*out = leads_to_switch(c.machine, &c.gpu->nvlinks[link]) ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
	return call_end(&c, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *out)
{
	struct call c;
	nvmlReturn_t r = begin_link(&c, device, link, out);
	if (r != NVML_SUCCESS)
		return r;
	struct pci_address a = c.gpu->nvlinks[link].peer;
	memset(out, 0, sizeof(*out));
	out->domain = a.domain;
	out->bus = a.bus;
	out->device = a.device;
	snprintf(out->busIdLegacy, sizeof(out->busIdLegacy), "%04X:%02X:%02X.0", a.domain & 0xFFFF, a.bus & 0xFF, a.device & 0xFF);
	snprintf(out->busId, sizeof(out->busId), "%08X:%02X:%02X.0", a.domain, a.bus, a.device);
	return call_end(&c, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *out)
{
	return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, out);
}
