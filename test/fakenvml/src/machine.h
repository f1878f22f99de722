// The machine that the configuration file describes: one immutable snapshot.
#ifndef FAKENVML_MACHINE_H
#define FAKENVML_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

#include "nvml_abi.h"

enum gpu_state { GPU_OK, GPU_LOST, GPU_HANG, GPU_UNKNOWN_ERROR, GPU_NOT_SUPPORTED };

enum process_type { PROCESS_COMPUTE = 1, PROCESS_GRAPHICS = 2, PROCESS_MPS = 4 };

struct pci_address {
	unsigned domain, bus, device;
};

struct process {
	unsigned pid;
	unsigned long long used; // bytes
	unsigned types;          // process_type, or-ed
	unsigned sm_util, mem_util;
	char name[128];
};

struct nvlink {
	struct pci_address peer;
	bool active;
};

struct topology {
	char peer[96]; // UUID
	nvmlGpuTopologyLevel_t level;
};

struct gpu {
	char uuid[96];
	char name[96];
	char serial[30];
	char vbios[32];
	unsigned minor;
	struct pci_address pci;
	unsigned pci_device_id, pci_subsystem_id;
	int numa_node;        // of the host memory next to the GPU; -1: the machine has none
	int gpu_numa_node;    // of the GPU's own memory on coherent machines; -1: not one
	char cpu_affinity[256]; // "0-15,32-47"; empty: all
	int cc_major, cc_minor;
	nvmlBrandType_t brand;
	unsigned long long total, reserved, used, bar1; // bytes
	bool mig_mode, persistence_mode, ecc_mode;
	unsigned sms; // streaming multiprocessors
	unsigned util_gpu, util_memory;
	unsigned long long ecc_corrected, ecc_uncorrected;
	unsigned compute_mode;
	unsigned temperature, power_mw, power_limit_mw;
	enum gpu_state state;
	double hang_seconds; // 0: until the state changes

	struct process *processes;
	size_t process_count;
	struct nvlink *nvlinks;
	size_t nvlink_count;
	struct topology *topology;
	size_t topology_count;

	// Of a MIG device: the GPU that it is a part of, as its index, and which part.
	bool is_mig;
	size_t parent;
	unsigned instance_id, slices;
};

struct event {
	unsigned long long seq;
	unsigned long long type; // nvmlEventType… bit
	unsigned long long data; // the XID
	char gpu[96];            // UUID
};

struct machine {
	char driver_version[80];
	char nvml_version[80];
	int cuda_version;
	bool driver_loaded;
	unsigned init_return; // what nvmlInit answers instead of success

	struct gpu *gpus; // those of the machine, then the MIG devices in them
	size_t gpu_count;
	size_t mig_count;
	struct event *events; // ascending by seq
	size_t event_count;

	int references; // guarded by the lock of state.c
};

// Returns NULL and writes a message into error when text does not describe a machine.
struct machine *machine_parse(const char *text, size_t length, char *error, size_t error_size);
void machine_free(struct machine *m);
const struct gpu *machine_gpu(const struct machine *m, const char *uuid);
// The MIG device of a GPU by its place in the GPU's list; NULL where there is none.
const struct gpu *machine_mig(const struct machine *m, const struct gpu *parent, unsigned place);

bool pci_parse(const char *text, struct pci_address *out);
bool pci_equal(struct pci_address a, struct pci_address b);

#endif
