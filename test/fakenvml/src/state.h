// What outlives one call: whether NVML is initialised, the current machine, the handles.
#ifndef FAKENVML_STATE_H
#define FAKENVML_STATE_H

#include <limits.h>
#include <stdbool.h>

#include "machine.h"

#define EXPORT __attribute__((visibility("default")))

// One call into the library: it works on the machine as it was when the call began.
struct call {
	struct machine *machine;
	const struct gpu *gpu;        // device calls only
	struct nvmlDevice_st *device; // device calls only
};

nvmlReturn_t state_init(void);
nvmlReturn_t state_shutdown(void);

// Begin a call. After NVML_SUCCESS, and only then, call_end must follow; it returns r.
nvmlReturn_t call_begin(struct call *c);
nvmlReturn_t call_end(struct call *c, nvmlReturn_t r);

// Begin a call on a device: resolves the handle and plays the state of the GPU, so it may
// block. output is the caller's result pointer: NULL is NVML_ERROR_INVALID_ARGUMENT. A call
// without a result passes the handle.
nvmlReturn_t call_begin_device(struct call *c, nvmlDevice_t device, const void *output);
// The same of a call that takes a MIG device too. The others refuse one.
nvmlReturn_t call_begin_any(struct call *c, nvmlDevice_t device, const void *output);

// The handle of a GPU is the same for as long as the process lives, over removal and return.
struct nvmlDevice_st *handle_of(const char *uuid);
const char *handle_uuid(const struct nvmlDevice_st *device);
bool handle_known(const struct nvmlDevice_st *device);

// Compute mode as set through a handle, until the file names another one.
unsigned handle_compute_mode(struct nvmlDevice_st *device, unsigned configured);
void handle_set_compute_mode(struct nvmlDevice_st *device, unsigned configured, unsigned mode);

// Appends one JSON line to the file <configuration>.calls, so that tests see what was set.
void record_call(const char *function, const char *uuid, unsigned value);

// The folder <configuration>.d, for what processes share.
void state_folder(char out[PATH_MAX]);

void sleep_briefly(void);
double monotonic_seconds(void);

#endif
