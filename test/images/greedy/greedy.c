// Program greedy takes memory of its GPUs by CUDA's driver API until it is refused, and says
// how far it came: one JSON line for each process and GPU.
//
//	greedy [OPTION]...
//
//	-who NAME       the name on its lines; "one" by default
//	-step MIB       how much it takes at once; 256 by default
//	-device N       that GPU alone, of those that the process sees; all by default
//	-fraction NAME  take what a framework takes instead: the fraction that its variable says
//	                of the total that CUDA reports. jax, pytorch, paddle or vllm
//	-managed        take managed memory, twice the total at most
//	-hold           keep what it took, end when told to and say whether the GPUs can still be used
//
// And before it does, so that several processes share a container's grant:
//
//	-fork           a child of it (who: "child") does the same while this one keeps what it took
//	-narrow N       be the worker for one GPU: CUDA_VISIBLE_DEVICES=N
//	-bare           be a program that was given none of the variables that limit it
//
// It loads libcuda.so.1 as any program does, or from DRIVER_LIBRARIES, the folder that it is
// compiled with: NVIDIA's runtime would put that on the loader's way. The functions are
// declared by hand, because the machine that compiles it need not have CUDA.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef DRIVER_LIBRARIES
#define DRIVER_LIBRARIES "/run/nvidia/driver/usr/lib64"
#endif

enum { MIB = 1 << 20, MULTIPROCESSORS = 16 };

static struct {
	const char *who, *fraction, *narrow;
	size_t step;
	int device;
	bool managed, hold, fork, bare;
} options = {.who = "one", .step = 256, .device = -1};

static struct {
	int (*init)(unsigned);
	int (*error_name)(int, const char **);
	int (*count)(int *);
	int (*get)(int *, int);
	int (*uuid)(unsigned char *, int);
	int (*attribute)(int *, int, int);
	int (*create)(void **, unsigned, int);
	int (*info)(size_t *, size_t *);
	int (*alloc)(unsigned long long *, size_t);
	int (*alloc_managed)(unsigned long long *, size_t, unsigned);
	int (*synchronize)(void);
} cu;

static void *symbol(void *library, const char *name)
{
	void *f = dlsym(library, name);
	if (!f) {
		fprintf(stderr, "greedy: %s\n", dlerror());
		exit(1);
	}
	return f;
}

static void load(void)
{
	void *l = dlopen("libcuda.so.1", RTLD_NOW);
	if (!l)
		l = dlopen(DRIVER_LIBRARIES "/libcuda.so.1", RTLD_NOW);
	if (!l) {
		fprintf(stderr, "greedy: %s\n", dlerror());
		exit(1);
	}
	cu.init = symbol(l, "cuInit");
	cu.error_name = symbol(l, "cuGetErrorName");
	cu.count = symbol(l, "cuDeviceGetCount");
	cu.get = symbol(l, "cuDeviceGet");
	cu.uuid = symbol(l, "cuDeviceGetUuid_v2");
	cu.attribute = symbol(l, "cuDeviceGetAttribute");
	cu.create = symbol(l, "cuCtxCreate_v2");
	cu.info = symbol(l, "cuMemGetInfo_v2");
	cu.alloc = symbol(l, "cuMemAlloc_v2");
	cu.alloc_managed = symbol(l, "cuMemAllocManaged");
	cu.synchronize = symbol(l, "cuCtxSynchronize");
}

// What came of a GPU. Amounts are in MiB; what the context takes is not in them.
struct result {
	char uuid[48];
	int sms, error;
	size_t total, free, allocated;
};

static const char *name_of(int error)
{
	const char *name = NULL;
	cu.error_name(error, &name);
	return name ? name : "";
}

static void print(int device, const struct result *r)
{
	printf("{\"who\":\"%s\",\"device\":%d,\"uuid\":\"%s\",\"sms\":%d,\"totalMiB\":%zu,\"freeMiB\":%zu,\"allocatedMiB\":%zu,\"error\":\"%s\"}\n",
	       options.who, device, r->uuid, r->sms, r->total, r->free, r->allocated, name_of(r->error));
	fflush(stdout);
}

static void name_uuid(char out[48], int device)
{
	unsigned char b[16] = {0};
	char *at = out + sprintf(out, "GPU-");
	if (cu.uuid(b, device) != 0)
		return;
	for (int i = 0; i < 16; i++)
		at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
}

static int take(size_t mib, struct result *r)
{
	unsigned long long address;
	int error = mib == 0 ? 0 : options.managed ? cu.alloc_managed(&address, mib * MIB, 1) : cu.alloc(&address, mib * MIB);
	if (error == 0)
		r->allocated += mib;
	return error;
}

static double variable(const char *name, const char *prefix)
{
	const char *text = getenv(name);
	size_t n = strlen(prefix);
	if (!text || strncmp(text, prefix, n) != 0 || atof(text + n) <= 0) {
		fprintf(stderr, "greedy: %s says no fraction\n", name);
		exit(1);
	}
	return atof(text + n);
}

// Takes what a framework takes of the total that it sees.
static int take_fraction(struct result *r)
{
	const char *f = options.fraction;
	int error;

	if (strcmp(f, "jax") == 0) {
		// All at once, and a tenth less as long as that fails.
		size_t want = (size_t)((double)r->total * variable("XLA_PYTHON_CLIENT_MEM_FRACTION", ""));
		while ((error = take(want, r)) == 2 && want > 64)
			want = want * 9 / 10;
		return error;
	}
	if (strcmp(f, "vllm") == 0) {
		// All at once, and not at all where that much is not free.
		size_t want = (size_t)((double)r->total * variable("GPUMEM_FRACTION", ""));
		return want > r->free ? 2 : take(want, r);
	}
	// As it needs it, up to a bound.
	double fraction = strcmp(f, "pytorch") == 0 ? variable("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:")
		: variable("FLAGS_fraction_of_gpu_memory_to_use", "");
	size_t bound = (size_t)((double)r->total * fraction);
	while (r->allocated + 2 <= bound && (error = take(2, r)) == 0)
		;
	return error == 2 ? 0 : error;
}

static int measure(int ordinal, struct result *r)
{
	void *context;
	int device, error = cu.get(&device, ordinal);
	memset(r, 0, sizeof(*r));
	if (error == 0) {
		name_uuid(r->uuid, device);
		cu.attribute(&r->sms, MULTIPROCESSORS, device);
		error = cu.create(&context, 0, device);
	}
	if (error == 0)
		error = cu.info(&r->free, &r->total);
	r->free /= MIB;
	r->total /= MIB;
	if (error == 0 && options.fraction)
		return take_fraction(r);
	while (error == 0 && (!options.managed || r->allocated < 2 * r->total))
		error = take(options.step, r);
	return error;
}

// Measures each GPU and prints. What was taken is kept.
static void measure_all(void)
{
	struct result r = {.uuid = ""};
	int count = 0;

	r.error = cu.init(0);
	if (r.error == 0)
		r.error = cu.count(&count);
	if (r.error != 0) {
		print(-1, &r);
		return;
	}
	for (int i = 0; i < count; i++) {
		if (options.device >= 0 && i != options.device)
			continue;
		r.error = measure(i, &r);
		print(i, &r);
	}
}

// The signals that end it in order. They are kept back from the beginning: who sees output may
// send one.
static sigset_t ends(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	return set;
}

// Runs this program once more with other variables: libcuda reads them when it begins.
static void again(char **argv, const char *drop)
{
	int n = 0;
	for (char **at = argv; *at; at++) {
		if (strcmp(*at, drop) == 0) {
			at += strcmp(drop, "-narrow") == 0;
			continue;
		}
		argv[n++] = *at;
	}
	argv[n] = NULL;
	execv("/proc/self/exe", argv);
	perror("greedy");
	exit(1);
}

static void strip(void)
{
	static const char *const prefixes[] = {"CUDA_", "NVIDIA_", "GPUMEM_", NULL};
	extern char **environ;
	for (char **e = environ; *e;) {
		const char *const *p = prefixes;
		while (*p && strncmp(*e, *p, strlen(*p)) != 0)
			p++;
		if (!*p) {
			e++;
			continue;
		}
		char *name = strndup(*e, strcspn(*e, "="));
		unsetenv(name);
		free(name);
		e = environ;
	}
}

static void parse(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
		if (strcmp(a, "-hold") == 0)
			options.hold = true;
		else if (strcmp(a, "-managed") == 0)
			options.managed = true;
		else if (strcmp(a, "-fork") == 0)
			options.fork = true;
		else if (strcmp(a, "-bare") == 0)
			options.bare = true;
		else if (strcmp(a, "-who") == 0 && ++i)
			options.who = value;
		else if (strcmp(a, "-fraction") == 0 && ++i)
			options.fraction = value;
		else if (strcmp(a, "-narrow") == 0 && ++i)
			options.narrow = value;
		else if (strcmp(a, "-step") == 0 && ++i)
			options.step = (size_t)atol(value);
		else if (strcmp(a, "-device") == 0 && ++i)
			options.device = atoi(value);
		else {
			fprintf(stderr, "greedy: what is %s?\n", a);
			exit(2);
		}
	}
	if (options.step == 0) {
		fprintf(stderr, "greedy: -step wants MiB\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	sigset_t end = ends();
	char byte;
	int signal, ready[2] = {-1, -1};
	pid_t child = 0;

	parse(argc, argv);
	if (options.bare) {
		strip();
		again(argv, "-bare");
	}
	if (options.narrow) {
		setenv("CUDA_VISIBLE_DEVICES", options.narrow, 1);
		again(argv, "-narrow");
	}
	if (options.fork) {
		// Before CUDA is in use: a child of a process that uses it cannot use it.
		if (pipe(ready) != 0 || (child = fork()) < 0) {
			perror("greedy");
			return 1;
		}
		if (child == 0) {
			close(ready[1]);
			(void)!read(ready[0], &byte, 1); // until the parent has taken all that it can
			options.who = "child";
		}
	}
	if (options.hold)
		sigprocmask(SIG_BLOCK, &end, NULL);
	load();
	measure_all();
	if (child > 0) {
		close(ready[0]);
		close(ready[1]);
		if (!options.hold)
			waitpid(child, NULL, 0);
	}
	if (options.hold) {
		sigwait(&end, &signal);
		printf("{\"who\":\"%s\",\"end\":\"%s\"}\n", options.who, name_of(cu.synchronize()));
	}
	return 0;
}
