// This process as a client of MPS.
#ifndef FAKENVML_MPS_H
#define FAKENVML_MPS_H

#include "memory.h"

enum { MAX_GPUS = 64 };

// The terms on which a process uses the GPUs.
struct terms {
	bool mps;       // it is a client of MPS
	double threads; // per cent of a GPU's multiprocessors
	unsigned long long limits[MAX_GPUS]; // bytes that the process may have, by the GPU's index on the machine
};

// Finds the daemon by CUDA_MPS_PIPE_DIRECTORY and asks for its terms. Returns a CUresult.
int mps_attach(const struct machine *m, struct terms *out);

// Applies what the client's own variables say: they can only make the terms tighter. visible
// has the indexes of the GPUs that the process sees, in its order.
void mps_tighten(const struct machine *m, const unsigned *visible, unsigned count, struct terms *t);

#endif
