// Who has what of the GPUs' memory, and what control groups may have of it. All processes
// that have the driver's folder share this, also from within containers.
#ifndef FAKENVML_MEMORY_H
#define FAKENVML_MEMORY_H

#include "state.h"

enum { CGROUP_NAME = 256 };

#define NO_LIMIT (~0ULL) // NVML_DEVICE_MEMORY_LIMIT_MAX

// A control group: its name is its path below the root of the tree, "" for the root.
struct cgroup {
	char name[CGROUP_NAME];
	unsigned long long identity; // of its folder: one made later by the same name is another
};

// What a control group may have of a GPU, and has.
struct limits {
	bool set; // it has a limit of its own
	unsigned long long soft, hard, used;
};

// Finds the control group whose folder is at a path, as the caller sees it.
nvmlReturn_t cgroup_at(const char *path, struct cgroup *out);
// The control group of this process.
struct cgroup cgroup_self(void);

// The limits that NVML sets and reads, with its error codes.
nvmlReturn_t memory_set_limits(const struct gpu *g, const struct cgroup *c, unsigned long long soft, unsigned long long hard);
nvmlReturn_t memory_get_limits(const struct gpu *g, const struct cgroup *c, struct limits *out);
// The hard limit of a control group's own, NO_LIMIT where it has none, and what it uses.
struct limits memory_own_limits(const struct gpu *g, const struct cgroup *c);

// What all processes together have of a GPU, without those of the configuration file.
unsigned long long memory_used(const struct gpu *g);
// The processes that have memory of a GPU, those of the configuration file first. Returns
// how many there are; no more than room are written.
size_t memory_processes(const struct gpu *g, struct process *out, size_t room);

// This process's share of a GPU, from the first context on it to the last.
struct share;

enum grant { GRANTED, OUT_OF_MEMORY, TERMINATED };

struct share *memory_attach(const struct gpu *g, const struct cgroup *c, bool mps);
void memory_detach(struct share *s);
// Takes memory within the process's own limit, those of its control groups and what the GPU
// has. A client of MPS within its soft limit takes it from clients that are above theirs.
enum grant memory_take(struct share *s, const struct gpu *g, unsigned long long bytes, unsigned long long own_limit);
void memory_give(struct share *s, unsigned long long bytes);
// Whether MPS has terminated this client.
bool memory_terminated(const struct share *s);
// How much more could be taken.
unsigned long long memory_free(const struct share *s, const struct gpu *g, unsigned long long own_limit);

#endif
