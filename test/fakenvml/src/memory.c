#define _GNU_SOURCE // statx
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SHARES = 1024, MAX_LIMITS = 1024 };

struct share {
	char gpu[96];             // UUID; empty: the slot is free
	struct cgroup cgroup;
	unsigned long long bytes; // what the process has of the GPU
	bool mps, terminated;
};

struct limit {
	char gpu[96]; // UUID; empty: the slot is free
	struct cgroup cgroup;
	unsigned long long soft, hard;
};

// The file that all processes map.
struct shared {
	size_t size; // of this struct, by which a file of another library is known
	struct share shares[MAX_SHARES];
	struct limit limits[MAX_LIMITS];
};

// Record locks on the file: one byte excludes processes from one another, and each share has a
// byte of its own that its process has locked for as long as it lives. The kernel drops locks
// with their process and tells who has one by the number that the asker knows it by.
enum { EVERYTHING, FIRST_SHARE };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // excludes the threads of this process
static struct shared *shared;
static int shared_fd = -1;
static char shared_path[PATH_MAX + 8];
static pid_t shared_by; // a child of fork has none of its parent's locks
static bool mine[MAX_SHARES]; // this process's shares: its own locks are no obstacle to it

static int record_lock(int command, short type, off_t byte)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	int r;
	while ((r = fcntl(shared_fd, command, &l)) != 0 && errno == EINTR && command == F_SETLKW)
		;
	if (command == F_GETLK)
		return r != 0 || l.l_type == F_UNLCK ? 0 : l.l_pid > 0 ? (int)l.l_pid : -1;
	return r;
}

static void unmap(void)
{
	if (shared)
		munmap(shared, sizeof(*shared));
	if (shared_fd >= 0)
		close(shared_fd);
	shared = NULL;
	shared_fd = -1;
}

// Maps the file of the current configuration, made where it is missing and wanted.
static bool map(bool make)
{
	char folder[PATH_MAX], path[PATH_MAX + 8];
	struct stat s;

	state_folder(folder);
	snprintf(path, sizeof(path), "%s/memory", folder);
	if (shared && strcmp(path, shared_path) == 0 && shared_by == getpid())
		return true;
	unmap();
	memset(mine, 0, sizeof(mine));
	if (make && mkdir(folder, 0777) == 0)
		chmod(folder, 0777); // past the umask
	shared_fd = open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT : 0), 0666);
	if (shared_fd < 0)
		return false;
	if (make)
		(void)!fchmod(shared_fd, 0666); // who did not make it may not, and need not
	record_lock(F_SETLKW, F_WRLCK, EVERYTHING);
	if (fstat(shared_fd, &s) == 0 && ((size_t)s.st_size == sizeof(*shared) || ftruncate(shared_fd, sizeof(*shared)) == 0)) {
		void *at = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
		shared = at == MAP_FAILED ? NULL : at;
	}
	if (shared && shared->size != sizeof(*shared)) {
		memset(shared, 0, sizeof(*shared));
		shared->size = sizeof(*shared);
	}
	record_lock(F_SETLK, F_UNLCK, EVERYTHING);
	if (!shared) {
		unmap();
		return false;
	}
	snprintf(shared_path, sizeof(shared_path), "%s", path);
	shared_by = getpid();
	return true;
}

// Begins work on what is shared; end must follow where it succeeds.
static bool begin(bool make)
{
	pthread_mutex_lock(&lock);
	if (!map(make)) {
		pthread_mutex_unlock(&lock);
		return false;
	}
	record_lock(F_SETLKW, F_WRLCK, EVERYTHING);
	return true;
}

static void end(void)
{
	record_lock(F_SETLK, F_UNLCK, EVERYTHING);
	pthread_mutex_unlock(&lock);
}

// The process that has a share: its number, or -1 where this process cannot see it. Frees the
// share of a process that is gone and returns 0.
static int owner(struct share *s)
{
	size_t i = (size_t)(s - shared->shares);
	if (!*s->gpu)
		return 0;
	if (mine[i])
		return getpid();
	int pid = record_lock(F_GETLK, F_WRLCK, FIRST_SHARE + (off_t)i);
	if (pid == 0)
		memset(s, 0, sizeof(*s));
	return pid;
}

// -- control groups ---------------------------------------------------------------------

static bool exists(const char *folder, const char *file)
{
	char path[2 * PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", folder, file);
	return access(path, F_OK) == 0;
}

static void tree(char out[PATH_MAX])
{
	char folder[PATH_MAX];
	state_folder(folder);
	if ((size_t)snprintf(out, PATH_MAX, "%s/cgroup", folder) >= PATH_MAX)
		out[0] = '\0';
}

static void folder_of(const char *name, char out[2 * PATH_MAX])
{
	char root[PATH_MAX];
	tree(root);
	snprintf(out, 2 * PATH_MAX, "%s%s", root, name);
}

// What tells a folder from another one by the same name, 0 where there is none. Many file
// systems give the number of a folder that was removed to the next.
static unsigned long long identity_of(const char *path)
{
	struct statx s;
	if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_TYPE | STATX_BTIME, &s) != 0 || !S_ISDIR(s.stx_mode))
		return 0;
	return s.stx_ino + ((unsigned long long)s.stx_btime.tv_sec << 30) + s.stx_btime.tv_nsec;
}

nvmlReturn_t cgroup_at(const char *path, struct cgroup *out)
{
	char real[PATH_MAX], prefix[PATH_MAX], folder[2 * PATH_MAX];

	if (!path || *path != '/')
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!realpath(path, real))
		return NVML_ERROR_NOT_FOUND;
	path = real;
	size_t length = strlen(path);
	// The root is the first folder on the way that is a control group.
	for (size_t i = 1; i <= length; i++) {
		if (i < length && path[i] != '/')
			continue;
		snprintf(prefix, sizeof(prefix), "%.*s", (int)i, path);
		if (!exists(prefix, "cgroup.controllers"))
			continue;
		if (length - i >= sizeof(out->name))
			return NVML_ERROR_INVALID_ARGUMENT;
		snprintf(out->name, sizeof(out->name), "%s", path + i);
		folder_of(out->name, folder);
		out->identity = identity_of(folder);
		// A folder that is not there, or of a tree that is not this driver's.
		return out->identity && out->identity == identity_of(path) ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
	}
	return NVML_ERROR_NOT_FOUND;
}

// A library has no kernel to ask in which control group its process is: it reads the file that
// a container has for this, or else a variable.
struct cgroup cgroup_self(void)
{
	struct cgroup c = {.name = ""};
	char folder[2 * PATH_MAX];
	FILE *f = fopen("/etc/fakenvml.cgroup", "re");

	if (f) {
		if (!fgets(c.name, sizeof(c.name), f))
			c.name[0] = '\0';
		fclose(f);
		c.name[strcspn(c.name, "\n")] = '\0';
	} else if (getenv("FAKENVML_CGROUP")) {
		snprintf(c.name, sizeof(c.name), "%s", getenv("FAKENVML_CGROUP"));
	}
	folder_of(c.name, folder);
	c.identity = identity_of(folder);
	return c;
}

// Cuts the last step off a name: the parent's, and false where that is the root.
static bool parent(struct cgroup *c)
{
	char folder[2 * PATH_MAX], *slash = strrchr(c->name, '/');
	if (!slash || slash == c->name)
		return false;
	*slash = '\0';
	folder_of(c->name, folder);
	c->identity = identity_of(folder);
	return true;
}

static bool below(const char *name, const char *above)
{
	size_t n = strlen(above);
	return strncmp(name, above, n) == 0 && (name[n] == '\0' || name[n] == '/');
}

// The driver leaves limits to the kernel's dmem controller where there is one, and else keeps
// them itself ("misc").
static bool backend_is_dmem(void)
{
	char root[PATH_MAX];
	tree(root);
	return exists(root, "dmem.capacity");
}

static bool enables_dmem(const char *folder)
{
	char path[2 * PATH_MAX + 32], word[32];
	bool found = false;
	snprintf(path, sizeof(path), "%s/cgroup.subtree_control", folder);
	FILE *f = fopen(path, "re");
	while (f && !found && fscanf(f, "%31s", word) == 1)
		found = strcmp(word, "dmem") == 0;
	if (f)
		fclose(f);
	return found;
}

// A control group has dmem when all above it hand it down. The root has none of its files.
static bool has_dmem(struct cgroup c)
{
	char folder[2 * PATH_MAX];
	if (!*c.name)
		return false;
	while (parent(&c)) {
		folder_of(c.name, folder);
		if (!enables_dmem(folder))
			return false;
	}
	folder_of("", folder);
	return enables_dmem(folder);
}

// What somebody has written into a file of dmem past the driver, as the kernel reads it.
static unsigned long long written(const struct gpu *g, const char *name, const char *file, unsigned long long fallback)
{
	char folder[2 * PATH_MAX], path[2 * PATH_MAX + 32];
	unsigned long long bytes, value = fallback;
	struct pci_address at;

	folder_of(name, folder);
	snprintf(path, sizeof(path), "%s/%s", folder, file);
	FILE *f = fopen(path, "re");
	while (f && fscanf(f, " nvidia/%8x:%2x:%2x.0/vidmem %llu", &at.domain, &at.bus, &at.device, &bytes) == 4)
		if (pci_equal(at, g->pci))
			value = bytes;
	if (f)
		fclose(f);
	return value;
}

// -- limits -----------------------------------------------------------------------------

static struct limit *find_limit(const struct gpu *g, const struct cgroup *c)
{
	for (size_t i = 0; i < MAX_LIMITS; i++) {
		struct limit *l = &shared->limits[i];
		if (strcmp(l->gpu, g->uuid) == 0 && l->cgroup.identity == c->identity && strcmp(l->cgroup.name, c->name) == 0)
			return l;
	}
	return NULL;
}

// The slot of a control group's limit, with none set where it had none.
static struct limit *make_limit(const struct gpu *g, const struct cgroup *c)
{
	char folder[2 * PATH_MAX];
	struct limit *l = find_limit(g, c);
	for (size_t i = 0; !l && i < MAX_LIMITS; i++) {
		struct limit *slot = &shared->limits[i];
		folder_of(slot->cgroup.name, folder);
		if (*slot->gpu && identity_of(folder) == slot->cgroup.identity)
			continue;
		l = slot; // free, or of a control group that is gone
		memset(l, 0, sizeof(*l));
		snprintf(l->gpu, sizeof(l->gpu), "%s", g->uuid);
		l->cgroup = *c;
		l->hard = NO_LIMIT;
	}
	return l;
}

static struct limits own_limits(const struct gpu *g, const struct cgroup *c)
{
	struct limits out = {.hard = NO_LIMIT};
	const struct limit *l = find_limit(g, c);
	if (l) {
		out.soft = l->soft;
		out.hard = l->hard;
	}
	if (backend_is_dmem()) {
		unsigned long long max = written(g, c->name, "dmem.max", NO_LIMIT), min = written(g, c->name, "dmem.min", 0);
		out.hard = max < out.hard ? max : out.hard;
		out.soft = min > out.soft ? min : out.soft;
	}
	out.set = out.soft > 0 || out.hard != NO_LIMIT;
	return out;
}

// The control group by whose limit another one's memory is counted on misc: the nearest that
// has one. Returns false where none has.
static bool nearest(const struct gpu *g, struct cgroup *c)
{
	do
		if (own_limits(g, c).set)
			return true;
	while (parent(c));
	return false;
}

// What the processes of a control group have of a GPU: on dmem those of the groups below it
// too, on misc those that are counted by its limit.
static unsigned long long used_by(const struct gpu *g, const struct cgroup *c)
{
	unsigned long long sum = 0;
	bool dmem = backend_is_dmem();
	for (size_t i = 0; i < MAX_SHARES; i++) {
		struct share *s = &shared->shares[i];
		if (strcmp(s->gpu, g->uuid) != 0 || !below(s->cgroup.name, c->name) || owner(s) == 0)
			continue;
		struct cgroup counted = s->cgroup;
		if (dmem || strcmp(counted.name, c->name) == 0 || (nearest(g, &counted) && strcmp(counted.name, c->name) == 0))
			sum += s->bytes;
	}
	return sum;
}

nvmlReturn_t memory_set_limits(const struct gpu *g, const struct cgroup *c, unsigned long long soft, unsigned long long hard)
{
	bool dmem = backend_is_dmem();
	struct cgroup above = *c;

	if (!*c->name)
		return NVML_ERROR_INVALID_ARGUMENT; // the root is everything
	if (dmem && !has_dmem(*c))
		return NVML_ERROR_NOT_FOUND;
	if (!begin(true))
		return NVML_ERROR_UNKNOWN;
	struct limit *l = make_limit(g, c);
	if (!l) {
		end();
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	}
	unsigned long long was = l->soft;
	l->soft = soft;
	l->hard = hard;
	if (soft == 0 && hard == NO_LIMIT)
		memset(l, 0, sizeof(*l));
	// Linux keeps for a group what all above it keep too, so what is kept for one is added to
	// each of those. Nobody takes it away again when the group is removed.
	while (dmem && parent(&above)) {
		struct limit *a = make_limit(g, &above);
		if (!a)
			break;
		a->soft += soft - was;
		if (a->soft == 0 && a->hard == NO_LIMIT)
			memset(a, 0, sizeof(*a));
	}
	end();
	return NVML_SUCCESS;
}

nvmlReturn_t memory_get_limits(const struct gpu *g, const struct cgroup *c, struct limits *out)
{
	bool dmem = backend_is_dmem();
	struct cgroup at = *c;

	if (dmem && !has_dmem(*c))
		return NVML_ERROR_NOT_FOUND;
	if (!begin(true))
		return NVML_ERROR_UNKNOWN;
	if (!dmem)
		nearest(g, &at);
	*out = own_limits(g, &at);
	out->used = used_by(g, &at);
	end();
	if (!out->set)
		return dmem ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

struct limits memory_own_limits(const struct gpu *g, const struct cgroup *c)
{
	struct limits out = {.hard = NO_LIMIT};
	if (*c->name && begin(true)) {
		out = own_limits(g, c);
		out.used = used_by(g, c);
		end();
	}
	return out;
}

// -- what processes have ----------------------------------------------------------------

static unsigned long long used_of(const struct gpu *g)
{
	unsigned long long sum = 0;
	for (size_t i = 0; i < MAX_SHARES; i++)
		if (strcmp(shared->shares[i].gpu, g->uuid) == 0 && owner(&shared->shares[i]) != 0)
			sum += shared->shares[i].bytes;
	return sum;
}

unsigned long long memory_used(const struct gpu *g)
{
	unsigned long long sum = 0;
	if (begin(false)) {
		sum = used_of(g);
		end();
	}
	return sum;
}

size_t memory_processes(const struct gpu *g, struct process *out, size_t room)
{
	size_t n = 0;
	for (size_t i = 0; i < g->process_count; i++, n++)
		if (n < room)
			out[n] = g->processes[i];
	if (!begin(false))
		return n;
	for (size_t i = 0; i < MAX_SHARES; i++) {
		struct share *s = &shared->shares[i];
		int pid = strcmp(s->gpu, g->uuid) == 0 ? owner(s) : 0;
		if (pid <= 0)
			continue; // free, or of a process that the caller cannot see
		if (n < room)
			out[n] = (struct process){.pid = (unsigned)pid, .used = s->bytes,
				.types = PROCESS_COMPUTE | (s->mps ? PROCESS_MPS : 0)};
		n++;
	}
	end();
	return n;
}

struct share *memory_attach(const struct gpu *g, const struct cgroup *c, bool mps)
{
	struct share *s = NULL;
	if (!begin(true))
		return NULL;
	for (size_t i = 0; i < MAX_SHARES && !s; i++) {
		if (owner(&shared->shares[i]) != 0 || record_lock(F_SETLK, F_WRLCK, FIRST_SHARE + (off_t)i) != 0)
			continue;
		mine[i] = true;
		s = &shared->shares[i];
		memset(s, 0, sizeof(*s));
		snprintf(s->gpu, sizeof(s->gpu), "%s", g->uuid);
		s->cgroup = *c;
		s->mps = mps;
	}
	end();
	return s;
}

void memory_detach(struct share *s)
{
	if (!begin(false))
		return;
	size_t i = (size_t)(s - shared->shares);
	memset(s, 0, sizeof(*s));
	mine[i] = false;
	record_lock(F_SETLK, F_UNLCK, FIRST_SHARE + (off_t)i);
	end();
}

static unsigned long long room_in(unsigned long long limit, unsigned long long used)
{
	return used < limit ? limit - used : 0;
}

static unsigned long long room_on_gpu(const struct gpu *g)
{
	return room_in(g->total - g->reserved, g->used + used_of(g));
}

// How much more the control groups of a share may have.
static unsigned long long room_in_cgroups(const struct gpu *g, struct cgroup c)
{
	unsigned long long room = NO_LIMIT;
	bool dmem = backend_is_dmem();

	if (!dmem && !nearest(g, &c))
		return room;
	do {
		unsigned long long hard = own_limits(g, &c).hard;
		unsigned long long here = hard == NO_LIMIT ? NO_LIMIT : room_in(hard, used_by(g, &c));
		room = here < room ? here : room;
	} while (dmem && parent(&c));
	return room;
}

// What is kept for a control group: its soft limit, on dmem only where all above keep as much.
static unsigned long long kept_for(const struct gpu *g, struct cgroup c)
{
	unsigned long long soft = own_limits(g, &c).soft;
	while (backend_is_dmem() && parent(&c))
		if (own_limits(g, &c).soft < soft)
			return 0;
	return soft;
}

// Terminates a client of MPS whose control group is above its soft limit.
static bool evict(const struct gpu *g, const struct share *but)
{
	for (size_t i = 0; i < MAX_SHARES; i++) {
		struct share *s = &shared->shares[i];
		if (s == but || strcmp(s->gpu, g->uuid) != 0 || owner(s) == 0 || !s->mps || s->bytes == 0)
			continue;
		if (used_by(g, &s->cgroup) > kept_for(g, s->cgroup)) {
			s->terminated = true;
			s->bytes = 0;
			return true;
		}
	}
	return false;
}

enum grant memory_take(struct share *s, const struct gpu *g, unsigned long long bytes, unsigned long long own_limit)
{
	enum grant r = OUT_OF_MEMORY;
	if (!begin(false))
		return r;
	if (s->terminated) {
		r = TERMINATED;
	} else if (bytes <= room_in(own_limit, s->bytes) && bytes <= room_in_cgroups(g, s->cgroup)) {
		bool keeps = s->mps && used_by(g, &s->cgroup) + bytes <= kept_for(g, s->cgroup);
		while (bytes > room_on_gpu(g) && keeps && evict(g, s))
			;
		if (bytes <= room_on_gpu(g)) {
			s->bytes += bytes;
			r = GRANTED;
		}
	}
	end();
	return r;
}

void memory_give(struct share *s, unsigned long long bytes)
{
	if (!begin(false))
		return;
	s->bytes -= bytes < s->bytes ? bytes : s->bytes;
	end();
}

bool memory_terminated(const struct share *s)
{
	bool terminated = true;
	if (begin(false)) {
		terminated = s->terminated;
		end();
	}
	return terminated;
}

static unsigned long long least(unsigned long long a, unsigned long long b)
{
	return a < b ? a : b;
}

unsigned long long memory_free(const struct share *s, const struct gpu *g, unsigned long long own_limit)
{
	unsigned long long room = 0;
	if (begin(false)) {
		room = least(room_in(own_limit, s->bytes), least(room_in_cgroups(g, s->cgroup), room_on_gpu(g)));
		end();
	}
	return room;
}
