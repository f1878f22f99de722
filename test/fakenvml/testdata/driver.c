// Drives the library without Go, for what go-nvml cannot or will not do: call functions with
// nothing but NULL, feed the parser broken files, and run under the sanitizers.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef WITH_SOURCES
#include "machine.h"
#endif

// Eight integer arguments are as many as any function of NVML takes.
typedef int (*any)(void *, void *, void *, void *, void *, void *, void *, void *);

static void *library; // NULL: the library is linked into this program

static any symbol(const char *name)
{
	any f = (any)dlsym(library ? library : RTLD_DEFAULT, name);
	if (!f) {
		fprintf(stderr, "%s is not there\n", name);
		exit(1);
	}
	return f;
}

static int call(const char *name, void *a, void *b, void *c)
{
	return symbol(name)(a, b, c, NULL, NULL, NULL, NULL, NULL);
}

#define INDEX(i) ((void *)(long)(i))

// Reads lines "function takes-a-device". Prints for each function what it answers
// uninitialised, to NULL, to a handle that is none, and to a handle with NULL for the rest.
static int calls(void)
{
	char name[128];
	void *device = NULL;
	int bogus = 0, takes_device;

	if (call("nvmlInit_v2", NULL, NULL, NULL) || call("nvmlDeviceGetHandleByIndex_v2", INDEX(0), &device, NULL))
		return 1;
	while (scanf("%127s %d", name, &takes_device) == 2) {
		int before, zero, unknown, known;
		call("nvmlShutdown", NULL, NULL, NULL);
		before = call(name, NULL, NULL, NULL);
		call("nvmlInit_v2", NULL, NULL, NULL);
		zero = call(name, NULL, NULL, NULL);
		unknown = takes_device ? call(name, &bogus, NULL, NULL) : -1;
		known = takes_device ? call(name, device, NULL, NULL) : -1;
		printf("%s %d %d %d %d\n", name, before, zero, unknown, known);
	}
	return call("nvmlShutdown", NULL, NULL, NULL);
}

struct limits {
	const char *path;
	unsigned long long soft, hard, used;
};

// Carries out lines of a script: "set GPU PATH SOFT HARD", "get GPU PATH" and "used GPU", with
// amounts in MiB or "max", and "drop", after which the process has no privileges. Prints the
// code of each and what it tells.
static int limits(void)
{
	char what[8], path[4096], soft[32], hard[32];
	long gpu;
	void *device;

	if (call("nvmlInit_v2", NULL, NULL, NULL))
		return 1;
	while (scanf("%7s", what) == 1) {
		if (strcmp(what, "drop") == 0) {
			struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
			struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3];
			memset(none, 0, sizeof(none));
			printf("drop %ld\n", syscall(SYS_capset, &header, none));
			continue;
		}
		if (scanf("%ld", &gpu) != 1 || call("nvmlDeviceGetHandleByIndex_v2", INDEX(gpu), &device, NULL))
			return 1;
		if (strcmp(what, "used") == 0) {
			unsigned long long memory[5] = {40 | 2 << 24}; // total, reserved, free, used
			int r = call("nvmlDeviceGetMemoryInfo_v2", device, memory, NULL);
			printf("used %d %llu of %llu\n", r, memory[4] >> 20, memory[1] >> 20);
			continue;
		}
		if (scanf("%4095s", path) != 1)
			return 1;
		struct limits l = {.path = path};
		if (strcmp(what, "get") == 0) {
			int r = call("nvmlDeviceGetMemoryLimits_v1", device, &l, NULL);
			printf("get %d %lld %lld %lld\n", r, r ? 0 : (long long)l.soft >> 20, r ? 0 : (long long)l.hard >> 20, r ? 0 : (long long)l.used >> 20);
			continue;
		}
		if (scanf("%31s %31s", soft, hard) != 2)
			return 1;
		l.soft = strcmp(soft, "max") == 0 ? ~0ULL : strtoull(soft, NULL, 10) << 20;
		l.hard = strcmp(hard, "max") == 0 ? ~0ULL : strtoull(hard, NULL, 10) << 20;
		printf("set %d\n", call("nvmlDeviceSetMemoryLimits_v1", device, &l, NULL));
	}
	return call("nvmlShutdown", NULL, NULL, NULL);
}

// Reads lines "GPU SAMPLES SINCE": how many samples there is a buffer for, -1 for none at all, and
// the time in microseconds after which they are wanted. Prints the code and how many it tells.
static int utilization(void)
{
	long gpu, samples;
	unsigned long long since, buffer[4 * 16]; // a sample has 32 bytes

	if (call("nvmlInit_v2", NULL, NULL, NULL))
		return 1;
	while (scanf("%ld %ld %llu", &gpu, &samples, &since) == 3) {
		void *device;
		unsigned count = samples < 0 ? 0 : (unsigned)samples;
		if (samples > 16 || call("nvmlDeviceGetHandleByIndex_v2", INDEX(gpu), &device, NULL))
			return 1;
		int r = symbol("nvmlDeviceGetProcessUtilization")(device, samples < 0 ? NULL : buffer, &count, (void *)since, NULL, NULL, NULL, NULL);
		printf("%d %u\n", r, count);
	}
	return call("nvmlShutdown", NULL, NULL, NULL);
}

#ifdef WITH_SOURCES

static char *slurp(const char *path, size_t *length)
{
	FILE *f = fopen(path, "rb");
	char *text = malloc(1 << 20);
	if (!f || !text)
		exit(1);
	*length = fread(text, 1, (1 << 20) - 1, f);
	text[*length] = '\0';
	fclose(f);
	return text;
}

static void parse(const char *text, size_t length, unsigned *good)
{
	char error[200];
	char *exact = malloc(length + 1); // so that the sanitizer sees a read past the end
	memcpy(exact, text, length);
	exact[length] = '\0';
	struct machine *m = machine_parse(exact, length, error, sizeof(error));
	*good += m != NULL;
	machine_free(m);
	free(exact);
}

// Parses every beginning of a good file, and the file with each byte replaced.
static int mutate(const char *path)
{
	static const char others[] = "\"\\{}[],:0-.eu\n \xff";
	size_t length;
	unsigned good = 0, tried = 0;
	char *text = slurp(path, &length);

	parse(text, length, &good);
	if (good != 1)
		return 1;
	for (size_t i = 0; i < length; i++, tried++)
		parse(text, i, &good);
	for (size_t i = 0; i < length; i++) {
		char was = text[i];
		for (size_t j = 0; j < sizeof(others); j++, tried++) { // with the final NUL
			text[i] = others[j];
			parse(text, length, &good);
		}
		text[i] = was;
	}
	printf("%u of %u parsed\n", good, tried);
	free(text);
	return 0;
}

static void *hammer(void *rounds)
{
	for (long i = 0; i < *(long *)rounds; i++) {
		unsigned count = 0, n;
		void *device = NULL, *set = NULL;
		unsigned long long memory[5] = {40 | 2 << 24};
		char text[96], infos[8 * 24], event[32];

		call("nvmlInit_v2", NULL, NULL, NULL);
		call("nvmlDeviceGetCount_v2", &count, NULL, NULL);
		call("nvmlEventSetCreate", &set, NULL, NULL);
		for (long g = 0; g < (long)count; g++) {
			if (call("nvmlDeviceGetHandleByIndex_v2", INDEX(g), &device, NULL))
				continue;
			n = 8;
			call("nvmlDeviceGetUUID", device, text, INDEX(sizeof(text)));
			call("nvmlDeviceGetMemoryInfo_v2", device, memory, NULL);
			call("nvmlDeviceGetComputeRunningProcesses_v3", device, &n, infos);
			call("nvmlDeviceGetComputeMode", device, &n, NULL);
			call("nvmlDeviceRegisterEvents", device, INDEX(8), set);
		}
		call("nvmlEventSetWait_v2", set, event, NULL);
		call("nvmlEventSetFree", set, NULL, NULL);
		call("nvmlShutdown", NULL, NULL, NULL);
	}
	return NULL;
}

// Eight threads call while the main thread swaps the file at config between two others.
static int threads(const char *config, const char *a, const char *b)
{
	pthread_t t[8];
	long rounds = 200;
	size_t lengths[2];
	char *texts[2] = {slurp(a, &lengths[0]), slurp(b, &lengths[1])}, temporary[4096];

	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, hammer, &rounds);
	snprintf(temporary, sizeof(temporary), "%s.next", config);
	for (int i = 0; i < 1000; i++) {
		FILE *f = fopen(temporary, "wb");
		if (!f || fwrite(texts[i % 2], 1, lengths[i % 2], f) != lengths[i % 2] || fclose(f) || rename(temporary, config))
			return 1;
	}
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	free(texts[0]);
	free(texts[1]);
	return 0;
}

#endif

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "calls") == 0) {
		library = strcmp(argv[2], "-") == 0 ? NULL : dlopen(argv[2], RTLD_NOW);
		return calls();
	}
	if (argc == 3 && strcmp(argv[1], "limits") == 0) {
		library = strcmp(argv[2], "-") == 0 ? NULL : dlopen(argv[2], RTLD_NOW);
		return limits();
	}
	if (argc == 3 && strcmp(argv[1], "utilization") == 0) {
		library = strcmp(argv[2], "-") == 0 ? NULL : dlopen(argv[2], RTLD_NOW);
		return utilization();
	}
#ifdef WITH_SOURCES
	if (argc == 3 && strcmp(argv[1], "mutate") == 0)
		return mutate(argv[2]);
	if (argc == 5 && strcmp(argv[1], "threads") == 0)
		return threads(argv[2], argv[3], argv[4]);
#endif
	return 2;
}
