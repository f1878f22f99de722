// The part of the CUDA driver API that libcuda.so.1 here has: devices, contexts and memory.
#ifndef FAKENVML_CUDA_H
#define FAKENVML_CUDA_H

#include <stddef.h>

#include "state.h"

typedef enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_NOT_PERMITTED = 800,
	CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
	CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808,
	CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
	CUDA_ERROR_UNKNOWN = 999,
} CUresult;

enum { CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16 };

typedef int CUdevice;
typedef struct context *CUcontext;
typedef unsigned long long CUdeviceptr;
typedef struct {
	unsigned char bytes[16];
} CUuuid;

EXPORT CUresult cuInit(unsigned int flags);
EXPORT CUresult cuDriverGetVersion(int *version);
EXPORT CUresult cuGetErrorName(CUresult error, const char **name);
EXPORT CUresult cuDeviceGetCount(int *count);
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal);
EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device);
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device);
EXPORT CUresult cuCtxDestroy_v2(CUcontext context);
EXPORT CUresult cuCtxSetCurrent(CUcontext context);
EXPORT CUresult cuCtxSynchronize(void);
EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes);
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags);
EXPORT CUresult cuMemFree_v2(CUdeviceptr address);
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count);

#endif
