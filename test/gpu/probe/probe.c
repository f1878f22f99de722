// A CUDA program for the kit: it loads the driver's library itself, so that it
// needs no CUDA toolkit to be built. It prints one JSON object.
//
//	probe alloc MIB [GPU]         allocate that much at once, of that GPU of those that it sees
//	probe fork MIB                the same in a child, after the parent has initialised nothing
//	probe both MIB                the same in a child and then in the parent, which both keep it
//	probe managed MIB             the same of managed memory
//	probe most MIB                allocate in steps of so much until it is refused, and say how far it came
//	probe spin SECONDS [BLOCKS]   run a kernel of so many blocks again and again, and count; 8 by itself
//	probe hold SECONDS            have a context, and do nothing
//	probe limit MIB UUID FOLDER NVML   give the control group of a folder that limit of a GPU, by
//	                              NVML's library; 0 takes it away. It needs CAP_SYS_ADMIN
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MULTIPROCESSORS = 16, GLOBAL = 1, MOST_LAUNCHES = 1 << 20 };

static const size_t MIB = 1 << 20;

typedef int (*fn)();

static void *library;
static int device;

static fn symbol(const char *name)
{
	fn f = (fn)dlsym(library, name);
	if (!f) {
		printf("{\"ok\": false, \"error\": \"the library has no %s\"}\n", name);
		exit(0);
	}
	return f;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static const char *name_of(int result)
{
	const char *name = "unknown error";
	((int (*)(int, const char **))symbol("cuGetErrorName"))(result, &name);
	return name;
}

// check ends the program with CUDA's name for an error.
static void check(int result, const char *what)
{
	if (result == 0)
		return;
	printf("{\"ok\": false, \"error\": \"%s: %s\"}\n", what, name_of(result));
	exit(0);
}

// A kernel that keeps the multiprocessors that it is on busy for some 10 ms.
static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry busy(.param .u64 out)\n{\n"
	".reg .pred %p<2>;\n.reg .b32 %r<4>;\n.reg .b64 %d<3>;\n"
	"ld.param.u64 %d1, [out];\ncvta.to.global.u64 %d2, %d1;\n"
	"mov.u32 %r1, 0;\nmov.u32 %r2, 1;\n"
	"loop:\nmad.lo.s32 %r2, %r2, 1664525, 1013904223;\nadd.s32 %r1, %r1, 1;\n"
	"setp.lt.s32 %p1, %r1, 1000000;\n@%p1 bra loop;\n"
	"st.global.u32 [%d2], %r2;\nret;\n}\n";

static void start(void)
{
	void *context;
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!library) {
		printf("{\"ok\": false, \"error\": \"no libcuda.so.1\"}\n");
		exit(0);
	}
	check(((int (*)(unsigned))symbol("cuInit"))(0), "cuInit");
	check(((int (*)(int *, int))symbol("cuDeviceGet"))(&device, device), "cuDeviceGet");
	check(((int (*)(void **, unsigned, int))symbol("cuCtxCreate_v2"))(&context, 0, device), "cuCtxCreate");
}

static int sms(void)
{
	int n;
	check(((int (*)(int *, int, int))symbol("cuDeviceGetAttribute"))(&n, MULTIPROCESSORS, device), "cuDeviceGetAttribute");
	return n;
}

static void fill(unsigned long long address, size_t bytes)
{
	check(((int (*)(unsigned long long, unsigned char, size_t))symbol("cuMemsetD8_v2"))(address, 1, bytes), "cuMemsetD8");
	check(((int (*)(void))symbol("cuCtxSynchronize"))(), "cuCtxSynchronize");
}

static unsigned long long allocate(size_t bytes)
{
	unsigned long long address;
	check(((int (*)(unsigned long long *, size_t))symbol("cuMemAlloc_v2"))(&address, bytes), "cuMemAlloc");
	fill(address, bytes);
	return address;
}

static void managed(size_t bytes)
{
	unsigned long long address;
	check(((int (*)(unsigned long long *, size_t, unsigned))symbol("cuMemAllocManaged"))(&address, bytes, GLOBAL), "cuMemAllocManaged");
	fill(address, bytes);
}

// most allocates until it is refused, and prints what it has seen.
static void most(size_t step)
{
	size_t free_bytes, total, has = 0;
	unsigned long long address;
	int (*take)(unsigned long long *, size_t) = (void *)symbol("cuMemAlloc_v2");
	int result, gpus;
	check(((int (*)(int *))symbol("cuDeviceGetCount"))(&gpus), "cuDeviceGetCount");
	check(((int (*)(size_t *, size_t *))symbol("cuMemGetInfo_v2"))(&free_bytes, &total), "cuMemGetInfo");
	while ((result = take(&address, step)) == 0)
		has += step;
	printf("{\"ok\": true, \"gpus\": %d, \"sms\": %d, \"totalMiB\": %zu, \"hasMiB\": %zu, \"refused\": \"%s\"}\n", gpus, sms(), total / MIB, has / MIB, name_of(result));
}

// limit sets the limit of a control group, as in nvml.h of CUDA 13.4.
static void limit(size_t bytes, const char *uuid, const char *folder, const char *nvml)
{
	struct {
		const char *folder;
		unsigned long long soft, hard;
	} limits = {folder, 0, bytes ? bytes : ~0ULL};
	void *gpu;
	const char *(*words)(int);
	int result;

	library = dlopen(nvml, RTLD_NOW);
	if (!library) {
		printf("{\"ok\": false, \"error\": \"no %s\"}\n", nvml);
		exit(0);
	}
	result = ((int (*)(void))symbol("nvmlInit_v2"))();
	if (result == 0)
		result = ((int (*)(const char *, void **))symbol("nvmlDeviceGetHandleByUUID"))(uuid, &gpu);
	if (result == 0)
		result = ((int (*)(void *, void *))symbol("nvmlDeviceSetMemoryLimits_v1"))(gpu, &limits);
	words = (const char *(*)(int))(void *)symbol("nvmlErrorString");
	printf("{\"ok\": %s, \"error\": \"%s\"}\n", result ? "false" : "true", result ? words(result) : "");
}

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

// spin runs the kernel, and prints how often, and how long each launch took until it was done.
static void spin(double seconds, unsigned blocks, double ready)
{
	void *module, *function;
	unsigned long long out = allocate(4096);
	void *parameters[] = {&out};
	long launches = 0;
	float *took = malloc(MOST_LAUNCHES * sizeof(*took)); // milliseconds
	check(((int (*)(void **, const void *))symbol("cuModuleLoadData"))(&module, ptx), "cuModuleLoadData");
	check(((int (*)(void **, void *, const char *))symbol("cuModuleGetFunction"))(&function, module, "busy"), "cuModuleGetFunction");
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
		(void *)symbol("cuLaunchKernel");
	int (*synchronize)(void) = (void *)symbol("cuCtxSynchronize");
	if (!took)
		exit(1);
	for (double end = now() + seconds; now() < end && launches < MOST_LAUNCHES; launches++) {
		double began = now();
		check(launch(function, blocks, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
		check(synchronize(), "cuCtxSynchronize");
		took[launches] = (float)((now() - began) * 1e3);
	}
	qsort(took, (size_t)launches, sizeof(*took), compare);
	printf("{\"ok\": true, \"start\": %.3f, \"launches\": %ld, \"p50\": %.3f, \"p99\": %.3f}\n", ready, launches,
	       launches ? took[launches / 2] : 0, launches ? took[launches * 99 / 100] : 0);
}

// both makes a child that allocates and keeps what it has until its parent ends. It
// returns in the parent once the child is done, and ends the parent with it if the
// child, which has said why, could not.
static void both(size_t bytes)
{
	int done[2], end[2];
	char c = 0;
	if (pipe(done) || pipe(end))
		exit(1);
	pid_t child = fork();
	if (child < 0)
		exit(1);
	if (child == 0) {
		close(done[0]);
		close(end[1]);
		start();
		allocate(bytes);
		if (write(done[1], &c, 1) != 1)
			exit(1);
		exit(read(end[0], &c, 1) < 0);
	}
	close(done[1]);
	close(end[0]);
	if (read(done[0], &c, 1) != 1)
		exit(0);
}

int main(int argc, char **argv)
{
	double began = now();
	if (argc < 3)
		return 2;
	const char *what = argv[1];
	size_t bytes = (size_t)atoll(argv[2]) * MIB;
	if (!strcmp(what, "limit")) {
		if (argc < 6)
			return 2;
		limit(bytes, argv[3], argv[4], argv[5]);
		return 0;
	}
	if (!strcmp(what, "fork")) {
		pid_t child = fork();
		if (child != 0) {
			int status;
			return waitpid(child, &status, 0) < 0 || status != 0;
		}
	}
	if (!strcmp(what, "both"))
		both(bytes);
	if (!strcmp(what, "alloc") && argc > 3)
		device = atoi(argv[3]);
	start();
	double ready = now() - began;
	if (!strcmp(what, "spin")) {
		spin(atof(argv[2]), argc > 3 ? (unsigned)atoi(argv[3]) : 8, ready);
		return 0;
	}
	if (!strcmp(what, "most")) {
		most(bytes);
		return 0;
	}
	if (!strcmp(what, "hold"))
		nanosleep(&(struct timespec){.tv_sec = (time_t)atof(argv[2]), .tv_nsec = (long)((atof(argv[2]) - (time_t)atof(argv[2])) * 1e9)}, NULL);
	else if (!strcmp(what, "managed"))
		managed(bytes);
	else
		allocate(bytes);
	printf("{\"ok\": true, \"start\": %.3f}\n", ready);
	return 0;
}
