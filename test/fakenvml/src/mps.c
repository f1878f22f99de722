// The daemon listens on the socket "control" of its directory. The exchange there is this
// project's own: the client sends the line "attach" and keeps the connection while it lives.
// The answer is lines up to an empty one:
//
//	none                 no server can be had: the client goes without MPS
//	refused CURESULT     the client is not served
//	threads PERCENT
//	limit GPU AMOUNT     GPU: a UUID, an index on the machine, or "all"
#define _GNU_SOURCE
#include "mps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { CONNECTION_FAILED = 805 };

// An amount like 2G, 2048M, 2048K or bytes; 0 for what is none.
static unsigned long long amount(const char *text)
{
	char *rest;
	unsigned long long n = strtoull(text, &rest, 10);
	if (rest == text)
		return 0;
	switch (*rest) {
	case 'G': return rest[1] ? 0 : n << 30;
	case 'M': return rest[1] ? 0 : n << 20;
	case 'K': return rest[1] ? 0 : n << 10;
	default: return *rest ? 0 : n;
	}
}

static void tighten(struct terms *t, size_t gpu, unsigned long long limit)
{
	if (gpu < MAX_GPUS && limit < t->limits[gpu])
		t->limits[gpu] = limit;
}

static void server_limit(const struct machine *m, struct terms *t, const char *gpu, const char *text)
{
	char index[16];
	for (unsigned i = 0; i < m->gpu_count + m->mig_count; i++) {
		snprintf(index, sizeof(index), "%u", i);
		if (strcmp(gpu, "all") == 0 || strcmp(gpu, m->gpus[i].uuid) == 0 || strcmp(gpu, index) == 0)
			tighten(t, i, amount(text));
	}
}

int mps_attach(const struct machine *m, struct terms *out)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = 10};
	char line[256], first[128], second[128];
	bool complete = false;
	int result = 0;

	*out = (struct terms){.threads = 100};
	for (size_t i = 0; i < MAX_GPUS; i++)
		out->limits[i] = NO_LIMIT;
	if (snprintf(at.sun_path, sizeof(at.sun_path), "%s/control", dir && *dir ? dir : "/tmp/nvidia-mps") >= (int)sizeof(at.sun_path))
		return CONNECTION_FAILED;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return CONNECTION_FAILED;
	if (connect(fd, (struct sockaddr *)&at, sizeof(at)) != 0) {
		int why = errno;
		close(fd);
		return why == ENOENT || why == ENOTDIR ? 0 : CONNECTION_FAILED; // without a daemon there is no MPS
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	FILE *f = fdopen(fd, "r+");
	if (!f || write(fd, "attach\n", 7) != 7) {
		close(fd);
		return CONNECTION_FAILED;
	}
	out->mps = true;
	while (!complete && fgets(line, sizeof(line), f)) {
		int n = sscanf(line, "%127s %127s", first, second);
		complete = n <= 0;
		if (n >= 1 && strcmp(first, "none") == 0)
			out->mps = false;
		else if (n == 2 && strcmp(first, "refused") == 0)
			result = atoi(second);
		else if (n == 2 && strcmp(first, "threads") == 0)
			out->threads = atof(second);
		else if (n == 2 && strcmp(first, "limit") == 0 && sscanf(line, "limit %127s %127s", first, second) == 2)
			server_limit(m, out, first, second);
	}
	if (complete && result == 0 && out->mps)
		return 0; // the connection is kept: the daemon counts its clients by theirs
	fclose(f);
	return complete ? result : CONNECTION_FAILED;
}

// The GPU that an entry of a list of limits names: MAX_GPUS for one that the process does not see.
static unsigned named(const struct machine *m, const unsigned *visible, unsigned count, const char *name)
{
	char *rest;
	unsigned long index = strtoul(name, &rest, 10);
	if (rest != name && !*rest)
		return index < count ? visible[index] : MAX_GPUS;
	for (unsigned i = 0; i < count; i++)
		if (strcmp(m->gpus[visible[i]].uuid, name) == 0)
			return visible[i];
	return MAX_GPUS;
}

void mps_tighten(const struct machine *m, const unsigned *visible, unsigned count, struct terms *t)
{
	const char *threads = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *list = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	bool by_uuid = atoi(m->driver_version) >= 615; // an older one knows indexes only

	if (!t->mps)
		return;
	if (threads && atof(threads) > 0 && atof(threads) < t->threads)
		t->threads = atof(threads);
	char *copy = list ? strdup(list) : NULL, *rest = NULL;
	for (char *entry = copy ? strtok_r(copy, ",", &rest) : NULL; entry; entry = strtok_r(NULL, ",", &rest)) {
		char *value = strchr(entry, '=');
		if (value)
			*value++ = '\0';
		if (!by_uuid && strncmp(entry, "GPU-", 4) == 0)
			continue;
		unsigned gpu = named(m, visible, count, entry);
		unsigned long long limit = value ? amount(value) : 0;
		if (gpu == MAX_GPUS || limit == 0) {
			// One entry that does not fit, and no limit holds, the daemon's neither.
			for (size_t i = 0; i < MAX_GPUS; i++)
				t->limits[i] = NO_LIMIT;
			break;
		}
		tighten(t, gpu, limit);
	}
	free(copy);
}
