#define _GNU_SOURCE // dladdr
#include "state.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FILE_BYTES = 16 * 1024 * 1024 };

struct nvmlDevice_st {
	char uuid[96];
	bool mode_set;
	unsigned mode, mode_configured;
	struct nvmlDevice_st *next;
};

// One lock guards everything below; it is never held while a call blocks or works.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned init_count;
static char config_path[PATH_MAX];
static struct machine *current;
static struct nvmlDevice_st *handles;

// The file as last read. It stays open: so its inode cannot be given to a newer file,
// and (device, inode, size, times) tell the two apart even within one tick of the clock.
static int config_fd = -1;
static struct stat config_stat;
static bool complained;

static void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Says once what is wrong, until the file is good again.
static void complain(const char *format, ...)
{
	if (complained)
		return;
	complained = true;
	va_list args;
	va_start(args, format);
	fprintf(stderr, "fakenvml: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
}

// FAKENVML_CONFIG, else etc/fakenvml.json of the driver root that the library lies in:
// ROOT/usr/lib64 has it two levels up, ROOT/usr/lib/<triplet> three.
static void find_config(void)
{
	const char *env = getenv("FAKENVML_CONFIG");
	Dl_info self;
	char directory[PATH_MAX] = ".";

	if (env && *env) {
		snprintf(config_path, sizeof(config_path), "%s", env);
		return;
	}
	if (dladdr((void *)&lock, &self) && self.dli_fname) {
		const char *slash = strrchr(self.dli_fname, '/');
		if (slash)
			snprintf(directory, sizeof(directory), "%.*s", (int)(slash - self.dli_fname), self.dli_fname);
	}
	int n = snprintf(config_path, sizeof(config_path), "%s/../../../etc/fakenvml.json", directory);
	if (n > 0 && (size_t)n < sizeof(config_path) && access(config_path, R_OK) == 0)
		return;
	n = snprintf(config_path, sizeof(config_path), "%s/../../etc/fakenvml.json", directory);
	if (n < 0 || (size_t)n >= sizeof(config_path))
		config_path[0] = '\0';
}

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
	       a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static void close_config(void)
{
	if (config_fd >= 0)
		close(config_fd);
	config_fd = -1;
}

static void release(struct machine *m)
{
	if (m && --m->references == 0)
		machine_free(m);
}

static char *read_all(int fd, size_t *length)
{
	size_t size = 0, room = 64 * 1024;
	char *text = malloc(room + 1);
	while (text) {
		ssize_t n = read(fd, text + size, room - size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 || size > MAX_FILE_BYTES)
			break;
		if (n == 0) {
			text[size] = '\0';
			*length = size;
			return text;
		}
		size += (size_t)n;
		if (size == room) {
			room *= 2;
			char *larger = realloc(text, room + 1);
			if (!larger)
				break;
			text = larger;
		}
	}
	free(text);
	return NULL;
}

// Brings current up to date. A missing or broken file leaves the last good machine in place.
static void reload(void)
{
	struct stat now;
	char error[200] = "";

	if (stat(config_path, &now) != 0) {
		complain("%s: %s", config_path, strerror(errno));
		return;
	}
	if (config_fd >= 0 && same_file(&now, &config_stat))
		return;
	int fd = open(config_path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &now) != 0) {
		complain("%s: %s", config_path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return;
	}
	close_config();
	config_fd = fd;
	config_stat = now;

	size_t length = 0;
	char *text = read_all(fd, &length);
	struct machine *m = text ? machine_parse(text, length, error, sizeof(error)) : NULL;
	free(text);
	if (!m) {
		complain("%s: %s", config_path, *error ? error : "cannot be read");
		return;
	}
	m->references = 1;
	release(current);
	current = m;
	complained = false;
}

static void forget(void)
{
	close_config();
	release(current);
	current = NULL;
	complained = false;
}

nvmlReturn_t state_init(void)
{
	nvmlReturn_t r = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	if (init_count == 0)
		find_config();
	reload();
	if (!current || !current->driver_loaded)
		r = NVML_ERROR_DRIVER_NOT_LOADED;
	else
		r = (nvmlReturn_t)current->init_return;
	if (r == NVML_SUCCESS)
		init_count++;
	else if (init_count == 0)
		forget(); // the next nvmlInit looks again
	pthread_mutex_unlock(&lock);
	return r;
}

nvmlReturn_t state_shutdown(void)
{
	nvmlReturn_t r = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	if (init_count == 0)
		r = NVML_ERROR_UNINITIALIZED;
	else if (--init_count == 0)
		forget();
	pthread_mutex_unlock(&lock);
	return r;
}

nvmlReturn_t call_begin(struct call *c)
{
	nvmlReturn_t r = NVML_SUCCESS;

	memset(c, 0, sizeof(*c));
	pthread_mutex_lock(&lock);
	if (init_count == 0) {
		r = NVML_ERROR_UNINITIALIZED;
	} else {
		reload();
		if (current->driver_loaded) {
			c->machine = current;
			current->references++;
		} else {
			r = NVML_ERROR_DRIVER_NOT_LOADED;
		}
	}
	pthread_mutex_unlock(&lock);
	return r;
}

nvmlReturn_t call_end(struct call *c, nvmlReturn_t r)
{
	pthread_mutex_lock(&lock);
	release(c->machine);
	pthread_mutex_unlock(&lock);
	c->machine = NULL;
	return r;
}

nvmlReturn_t call_begin_device(struct call *c, nvmlDevice_t device, const void *output)
{
	nvmlReturn_t r = call_begin_any(c, device, output);
	return r == NVML_SUCCESS && c->gpu->is_mig ? call_end(c, NVML_ERROR_INVALID_ARGUMENT) : r;
}

nvmlReturn_t call_begin_any(struct call *c, nvmlDevice_t device, const void *output)
{
	double began = monotonic_seconds();

	for (;;) {
		nvmlReturn_t r = call_begin(c);
		if (r != NVML_SUCCESS)
			return r;
		if (!output || !handle_known(device.handle))
			return call_end(c, NVML_ERROR_INVALID_ARGUMENT);
		c->device = device.handle;
		c->gpu = machine_gpu(c->machine, handle_uuid(device.handle));
		if (!c->gpu || c->gpu->state == GPU_LOST)
			return call_end(c, NVML_ERROR_GPU_IS_LOST);
		if (c->gpu->state == GPU_UNKNOWN_ERROR)
			return call_end(c, NVML_ERROR_UNKNOWN);
		if (c->gpu->state == GPU_NOT_SUPPORTED)
			return call_end(c, NVML_ERROR_NOT_SUPPORTED);
		if (c->gpu->state == GPU_OK)
			return NVML_SUCCESS;
		if (c->gpu->hang_seconds > 0 && monotonic_seconds() - began >= c->gpu->hang_seconds)
			return NVML_SUCCESS; // slow, but it answers
		call_end(c, NVML_SUCCESS);
		sleep_briefly();
	}
}

struct nvmlDevice_st *handle_of(const char *uuid)
{
	struct nvmlDevice_st *h;

	pthread_mutex_lock(&lock);
	for (h = handles; h; h = h->next)
		if (strcmp(h->uuid, uuid) == 0)
			break;
	if (!h && (h = calloc(1, sizeof(*h)))) {
		snprintf(h->uuid, sizeof(h->uuid), "%s", uuid);
		h->next = handles;
		handles = h;
	}
	pthread_mutex_unlock(&lock);
	return h;
}

bool handle_known(const struct nvmlDevice_st *device)
{
	const struct nvmlDevice_st *h;

	pthread_mutex_lock(&lock);
	for (h = handles; h && h != device; h = h->next)
		;
	pthread_mutex_unlock(&lock);
	return h != NULL;
}

// A handle's UUID never changes, so it may be read without the lock.
const char *handle_uuid(const struct nvmlDevice_st *device)
{
	return device->uuid;
}

unsigned handle_compute_mode(struct nvmlDevice_st *device, unsigned configured)
{
	unsigned mode = configured;

	pthread_mutex_lock(&lock);
	if (device->mode_set && device->mode_configured == configured)
		mode = device->mode;
	else
		device->mode_set = false;
	pthread_mutex_unlock(&lock);
	return mode;
}

void handle_set_compute_mode(struct nvmlDevice_st *device, unsigned configured, unsigned mode)
{
	pthread_mutex_lock(&lock);
	device->mode_set = true;
	device->mode = mode;
	device->mode_configured = configured;
	pthread_mutex_unlock(&lock);
}

void record_call(const char *function, const char *uuid, unsigned value)
{
	char path[PATH_MAX + 8], line[256];

	pthread_mutex_lock(&lock);
	snprintf(path, sizeof(path), "%s.calls", config_path);
	pthread_mutex_unlock(&lock);
	int n = snprintf(line, sizeof(line), "{\"call\":\"%s\",\"gpu\":\"%s\",\"value\":%u}\n", function, uuid, value);
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, line, (size_t)n) != n) // one write: lines of several threads do not mix
		fprintf(stderr, "fakenvml: %s: %s\n", path, strerror(errno));
	if (fd >= 0)
		close(fd);
}

void state_folder(char out[PATH_MAX])
{
	pthread_mutex_lock(&lock);
	if ((size_t)snprintf(out, PATH_MAX, "%s.d", config_path) >= PATH_MAX)
		out[0] = '\0';
	pthread_mutex_unlock(&lock);
}

void sleep_briefly(void)
{
	struct timespec twenty_ms = {.tv_nsec = 20 * 1000 * 1000};
	nanosleep(&twenty_ms, NULL);
}

double monotonic_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
