// A CUDA program for the kit: it loads the driver's library itself, so that it
// needs no CUDA toolkit to be built. It prints one JSON object.
//
//	probe alloc MIB       allocate that much at once
//	probe fork MIB        the same in a child, after the parent has initialised nothing
//	probe both MIB        the same in a child and then in the parent, which both keep it
//	probe spin SECONDS    run a kernel again and again, and count
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int (*fn)();

static void *library;

static fn symbol(const char *name)
{
	fn f = (fn)dlsym(library, name);
	if (!f) {
		printf("{\"ok\": false, \"error\": \"libcuda has no %s\"}\n", name);
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

// check ends the program with CUDA's name for an error.
static void check(int result, const char *what)
{
	const char *name = "unknown error";
	if (result == 0)
		return;
	((int (*)(int, const char **))symbol("cuGetErrorName"))(result, &name);
	printf("{\"ok\": false, \"error\": \"%s: %s\"}\n", what, name);
	exit(0);
}

// A kernel that keeps one multiprocessor busy for some 10 ms.
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
	int device;
	void *context;
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!library) {
		printf("{\"ok\": false, \"error\": \"no libcuda.so.1\"}\n");
		exit(0);
	}
	check(((int (*)(unsigned))symbol("cuInit"))(0), "cuInit");
	check(((int (*)(int *, int))symbol("cuDeviceGet"))(&device, 0), "cuDeviceGet");
	check(((int (*)(void **, unsigned, int))symbol("cuCtxCreate_v2"))(&context, 0, device), "cuCtxCreate");
}

static unsigned long long allocate(size_t bytes)
{
	unsigned long long address;
	check(((int (*)(unsigned long long *, size_t))symbol("cuMemAlloc_v2"))(&address, bytes), "cuMemAlloc");
	check(((int (*)(unsigned long long, unsigned char, size_t))symbol("cuMemsetD8_v2"))(address, 1, bytes), "cuMemsetD8");
	check(((int (*)(void))symbol("cuCtxSynchronize"))(), "cuCtxSynchronize");
	return address;
}

static long spin(double seconds)
{
	void *module, *function;
	unsigned long long out = allocate(4096);
	void *parameters[] = {&out};
	long launches = 0;
	check(((int (*)(void **, const void *))symbol("cuModuleLoadData"))(&module, ptx), "cuModuleLoadData");
	check(((int (*)(void **, void *, const char *))symbol("cuModuleGetFunction"))(&function, module, "busy"), "cuModuleGetFunction");
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
		(void *)symbol("cuLaunchKernel");
	int (*synchronize)(void) = (void *)symbol("cuCtxSynchronize");
	for (double end = now() + seconds; now() < end; launches++) {
		check(launch(function, 8, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
		check(synchronize(), "cuCtxSynchronize");
	}
	return launches;
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
	if (argc != 3)
		return 2;
	if (!strcmp(argv[1], "fork")) {
		pid_t child = fork();
		if (child != 0) {
			int status;
			return waitpid(child, &status, 0) < 0 || status != 0;
		}
	}
	if (!strcmp(argv[1], "both"))
		both((size_t)atoll(argv[2]) << 20);
	start();
	double ready = now() - began;
	long launches = 0;
	if (!strcmp(argv[1], "spin"))
		launches = spin(atof(argv[2]));
	else
		allocate((size_t)atoll(argv[2]) << 20);
	printf("{\"ok\": true, \"start\": %.3f, \"launches\": %ld}\n", ready, launches);
	return 0;
}
