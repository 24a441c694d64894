/* Messages between two processes through shared memory, as libfabric's shm provider sends them with DSA.
 *
 * Segments of 32 KiB in a region that both map; up to 64 of them, then the other side's turn. Each side copies its half
 * with Memory Moves: one descriptor a segment, all shared queues in turn, no block on fault, records polled from a
 * progress call. A page fault ends a copy; the client touches the pages that are left and submits the rest.
 *
 *   segments [touch=all|first] [by=library|files] [messages=N] [exits=SIGNAL]
 *
 * touch: libfabric from 1.22 on touches all pages that are left, before only the one that faulted. by: how queues are
 * found; without one the CPU copies. exits: the receiver ends by this signal after the messages, and its handler
 * removes the region's file. */
#include "client.h"
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>

enum {
	SEGMENT = 32 << 10,
	SEGMENTS = 256,
	BATCH = 64,
	MOST_QUEUES = 4,
	LONGEST = 5 << 20,
	PROBE_PAUSES = 65536,
	SHARED_MODE = 0,
	ENABLED = 1,
	USER_TYPE = 2,
};

/* The state of a direction. */
enum { FREE, READY };

struct direction {
	_Alignas(64) uint32_t state;
	uint32_t count;
	uint32_t sizes[BATCH];
	_Alignas(4096) unsigned char segments[SEGMENTS / 2][SEGMENT];
};

struct region {
	struct direction directions[2];
	/* The first process has nothing left to do with the region's name. */
	uint32_t is_checked;
};

static struct region *region;
static char region_name[64];
static int touches_all = 1;
/* No page is there. */
static void *volatile nowhere;

/* --- The handlers, installed after all others: they remove the region's file and raise the signal again. --- */

static const int handled[] = { SIGSEGV, SIGBUS, SIGTERM, SIGINT };
static struct sigaction before[NSIG];

static void remove_region(int signal)
{
	shm_unlink(region_name);
	sigaction(signal, &before[signal], NULL);
	raise(signal);
}

static void install_handlers(void)
{
	struct sigaction ours = { .sa_handler = remove_region };
	for (unsigned i = 0; i < sizeof handled / sizeof *handled; i++)
		EXPECT(sigaction(handled[i], &ours, &before[handled[i]]) == 0, "sigaction %d", handled[i]);
}

/* --- Finding queues: shared, of users, enabled, long enough; the first of each device of this CPU's node. --- */

struct found {
	int count;
	unsigned major[MOST_QUEUES], minor[MOST_QUEUES];
};

static int own_node(void)
{
	unsigned cpu, node;
	EXPECT(getcpu(&cpu, &node) == 0, "getcpu");
	return node;
}

static int by_library(struct found *found)
{
	/* The unversioned name, as libfabric does. */
	void *library = dlopen("libaccel-config.so", RTLD_NOW);
	if (!library)
		return 0;
#define SYMBOL(result, name, ...) result (*name)(__VA_ARGS__) = (result(*)(__VA_ARGS__))dlsym(library, #name)
	SYMBOL(int, accfg_new, void **);
	SYMBOL(void *, accfg_unref, void *);
	SYMBOL(void *, accfg_device_get_first, void *);
	SYMBOL(void *, accfg_device_get_next, void *);
	SYMBOL(int, accfg_device_get_numa_node, void *);
	SYMBOL(uint64_t, accfg_device_get_gen_cap, void *);
	SYMBOL(unsigned, accfg_device_get_cdev_major, void *);
	SYMBOL(void *, accfg_wq_get_first, void *);
	SYMBOL(void *, accfg_wq_get_next, void *);
	SYMBOL(int, accfg_wq_get_mode, void *);
	SYMBOL(int, accfg_wq_get_type, void *);
	SYMBOL(int, accfg_wq_get_state, void *);
	SYMBOL(uint64_t, accfg_wq_get_max_transfer_size, void *);
	SYMBOL(int, accfg_wq_get_cdev_minor, void *);
#undef SYMBOL
	EXPECT(accfg_new && accfg_unref && accfg_device_get_first && accfg_device_get_next && accfg_device_get_numa_node &&
		       accfg_device_get_gen_cap && accfg_device_get_cdev_major && accfg_wq_get_first && accfg_wq_get_next &&
		       accfg_wq_get_mode && accfg_wq_get_type && accfg_wq_get_state && accfg_wq_get_max_transfer_size &&
		       accfg_wq_get_cdev_minor,
	       "a symbol of libaccel-config");
	void *context;
	EXPECT(accfg_new(&context) == 0, "accfg_new");
	for (void *device = accfg_device_get_first(context); device; device = accfg_device_get_next(device)) {
		if (found->count == MOST_QUEUES || !(accfg_device_get_gen_cap(device) & 4))
			continue;
		if (accfg_device_get_numa_node(device) != own_node())
			continue;
		for (void *wq = accfg_wq_get_first(device); wq; wq = accfg_wq_get_next(wq)) {
			if (accfg_wq_get_mode(wq) != SHARED_MODE || accfg_wq_get_type(wq) != USER_TYPE ||
			    accfg_wq_get_state(wq) != ENABLED || accfg_wq_get_max_transfer_size(wq) < SEGMENT)
				continue;
			found->major[found->count] = accfg_device_get_cdev_major(device);
			found->minor[found->count++] = accfg_wq_get_cdev_minor(wq);
			break;
		}
	}
	accfg_unref(context);
	return 1;
}

/* Reads an attribute without its newline. */
static void attribute(char *text, size_t len, const char *object, const char *name)
{
	char path[512];
	snprintf(path, sizeof path, "/sys/bus/dsa/devices/%s/%s", object, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	EXPECT(fd >= 0, "open %s", path);
	ssize_t got = read(fd, text, len - 1);
	EXPECT(got >= 0 && close(fd) == 0, "read %s", path);
	text[got] = 0;
	text[strcspn(text, "\n")] = 0;
}

static unsigned long long number(const char *object, const char *name)
{
	char text[64];
	attribute(text, sizeof text, object, name);
	return strtoull(text, NULL, 0);
}

static int is(const char *object, const char *name, const char *expected)
{
	char text[64];
	attribute(text, sizeof text, object, name);
	return strcmp(text, expected) == 0;
}

static int is_device(const struct dirent *entry)
{
	/* The bus also has dsa!wq0.0, the node of a queue. */
	return strncmp(entry->d_name, "dsa", 3) == 0 && !strchr(entry->d_name, '.');
}

static void by_files(struct found *found)
{
	struct dirent **devices;
	int count = scandir("/sys/bus/dsa/devices", &devices, is_device, alphasort);
	EXPECT(count >= 0, "scandir");
	for (int i = 0; i < count && found->count < MOST_QUEUES; i++) {
		const char *device = devices[i]->d_name;
		if (!(number(device, "gen_cap") & 4) || (int)number(device, "numa_node") != own_node())
			continue;
		for (int n = 0; n < (int)number(device, "max_work_queues"); n++) {
			char wq[64];
			snprintf(wq, sizeof wq, "wq%s.%d", device + 3, n);
			if (!is(wq, "mode", "shared") || !is(wq, "type", "user") || !is(wq, "state", "enabled") ||
			    number(wq, "max_transfer_size") < SEGMENT)
				continue;
			found->major[found->count] = number(device, "cdev_major");
			found->minor[found->count++] = number(wq, "cdev_minor");
			break;
		}
	}
}

/* --- Queues. --- */

static struct {
	void *portal;
	int fd;
} queues[MOST_QUEUES];
static int queue_count;
static unsigned next_queue;
static unsigned long faults, refused, others;

static void submit_to(int q, const desc *d)
{
	__builtin_ia32_sfence();
	for (double until = now() + 30;; __builtin_ia32_pause()) {
		if (queues[q].portal ? !enqcmd(queues[q].portal, d) : write(queues[q].fd, d, sizeof *d) == sizeof *d)
			return;
		EXPECT(queues[q].portal || errno == EAGAIN, "write() of a descriptor");
		refused++;
		/* libfabric has no limit here. */
		EXPECT(now() < until, "Retry for ever");
	}
}

static void open_queues(const struct found *found)
{
	for (int i = 0; i < found->count; i++) {
		char path[64];
		snprintf(path, sizeof path, "/dev/char/%u:%u", found->major[i], found->minor[i]);
		int fd = open(path, O_RDWR);
		EXPECT(fd >= 0, "open %s", path);
		void *portal = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
		if (portal != MAP_FAILED) {
			EXPECT(close(fd) == 0, "close");
			queues[i].portal = portal;
			queues[i].fd = -1;
			continue;
		}
		EXPECT(errno == EPERM, "mmap %s", path);
		queues[i].portal = NULL;
		queues[i].fd = fd;
		/* One No-op decides whether write() works. */
		static record __attribute__((aligned(32))) r;
		desc d = asking(DSA_OPCODE_NOOP, &r);
		submit_to(i, &d);
		for (int spins = 0; *(volatile uint8_t *)&r.status == 0 && spins < PROBE_PAUSES; spins++)
			__builtin_ia32_pause();
		EXPECT(r.status == DSA_COMP_SUCCESS, "the probe ended with %#x", r.status);
	}
	queue_count = found->count;
}

/* --- Copies. --- */

static desc descriptors[BATCH];
static record __attribute__((aligned(32))) records[BATCH];
static int pending;

static void submit_copy(int i, void *dst, const void *src, uint32_t size)
{
	if (queue_count == 0) {
		memcpy(dst, src, size);
		pending--;
		return;
	}
	descriptors[i] = asking(DSA_OPCODE_MEMMOVE, &records[i]);
	descriptors[i].flags |= IDXD_OP_FLAG_CC;
	descriptors[i].src_addr = (uintptr_t)src;
	descriptors[i].dst_addr = (uintptr_t)dst;
	descriptors[i].xfer_size = size;
	submit_to(next_queue++ % queue_count, &descriptors[i]);
}

static void touch(uintptr_t from, uintptr_t end, int writes)
{
	for (uintptr_t at = from; at < end; at = (at & -PAGE) + PAGE) {
		volatile char *byte = (volatile char *)at;
		char value = *byte;
		if (writes)
			*byte = value;
	}
}

/* Continues a copy that a page fault has ended. */
static void go_on(int i)
{
	desc d = descriptors[i];
	record r = records[i];
	/* Bit 7 of the status: a write faulted. */
	int is_write = r.status >> 7;
	EXPECT((r.status & 0x3f) == DSA_COMP_PAGE_FAULT_NOBOF && r.bytes_completed < d.xfer_size, "%u of %u bytes",
	       r.bytes_completed, d.xfer_size);
	faults++;
	uint32_t left = d.xfer_size - r.bytes_completed;
	uintptr_t src = d.src_addr, dst = d.dst_addr;
	/* A result of 0: the copy went forwards. */
	if (r.result == 0) {
		src += r.bytes_completed;
		dst += r.bytes_completed;
	}
	if (touches_all) {
		touch(src, src + left, 0);
		touch(dst, dst + left, 1);
	} else {
		touch(r.fault_addr, r.fault_addr + 1, is_write);
	}
	submit_copy(i, (void *)dst, (void *)src, left);
}

/* The progress call: looks at every record once. */
static void progress(int count)
{
	for (int i = 0; i < count; i++) {
		uint8_t status = __atomic_load_n((uint8_t *)&records[i].status, __ATOMIC_ACQUIRE);
		if (!descriptors[i].opcode || !status)
			continue;
		if ((status & 0x3f) == DSA_COMP_PAGE_FAULT_NOBOF) {
			go_on(i);
			continue;
		}
		if (status != DSA_COMP_SUCCESS) {
			/* libfabric counts such a segment as copied; here the CPU copies it. */
			others++;
			memmove((void *)(uintptr_t)descriptors[i].dst_addr, (void *)(uintptr_t)descriptors[i].src_addr,
				descriptors[i].xfer_size);
		}
		descriptors[i].opcode = 0;
		pending--;
	}
}

static void finish(int count)
{
	double until = now() + 60;
	for (unsigned turn = 0; pending > 0; turn++) {
		progress(count);
		if (turn > 1000)
			sched_yield();
		EXPECT(now() < until, "%d copies do not end", pending);
	}
}

static void wait_until(struct direction *way, uint32_t state)
{
	double until = now() + 60;
	for (unsigned turn = 0; __atomic_load_n(&way->state, __ATOMIC_ACQUIRE) != state; turn++) {
		progress(0);
		if (turn > 1000)
			sched_yield();
		EXPECT(now() < until, "the other side does not come");
	}
}

static void send_message(struct direction *way, const unsigned char *from, size_t len)
{
	for (size_t at = 0; at < len;) {
		wait_until(way, FREE);
		int count = 0;
		for (; count < BATCH && at < len; count++) {
			uint32_t part = len - at < SEGMENT ? len - at : SEGMENT;
			way->sizes[count] = part;
			pending++;
			submit_copy(count, way->segments[count], from + at, part);
			at += part;
		}
		way->count = count;
		finish(count);
		__atomic_store_n(&way->state, READY, __ATOMIC_RELEASE);
	}
}

static void receive_message(struct direction *way, unsigned char *into, size_t len)
{
	for (size_t at = 0; at < len;) {
		wait_until(way, READY);
		int count = way->count;
		EXPECT(count > 0 && count <= BATCH, "%d segments", count);
		for (int i = 0; i < count; i++) {
			uint32_t part = way->sizes[i];
			EXPECT(part <= SEGMENT && at + part <= len, "a segment of %u bytes", part);
			pending++;
			submit_copy(i, into + at, way->segments[i], part);
			at += part;
		}
		finish(count);
		__atomic_store_n(&way->state, FREE, __ATOMIC_RELEASE);
	}
}

/* --- Messages. --- */

/* Returns the bytes of a message in a file that is mapped anew, so that no page is present yet. */
static unsigned char *message(size_t len, unsigned seed)
{
	int fd = memfd_create("message", MFD_CLOEXEC);
	EXPECT(fd >= 0 && ftruncate(fd, len) == 0, "memfd");
	unsigned char *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	EXPECT(bytes != MAP_FAILED, "mmap");
	fill_known(bytes, len, seed);
	EXPECT(munmap(bytes, len) == 0, "munmap");
	bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	EXPECT(bytes != MAP_FAILED && close(fd) == 0, "mmap");
	return bytes;
}

static void talk(int is_first, unsigned messages)
{
	static const size_t lengths[] = { 4097, SEGMENT, SEGMENT + 1, 100000, BATCH * SEGMENT, LONGEST + 4321 };
	struct direction *out = &region->directions[!is_first], *in = &region->directions[is_first];
	unsigned char *expected = malloc(LONGEST + PAGE * 2);
	EXPECT(expected, "malloc");
	for (unsigned n = 0; n < messages; n++) {
		size_t len = lengths[n % (sizeof lengths / sizeof *lengths)];
		for (int turn = 0; turn < 2; turn++) {
			unsigned seed = 2 * n + turn;
			if ((turn == 0) == is_first) {
				unsigned char *bytes = message(len, seed);
				send_message(out, bytes, len);
				EXPECT(munmap(bytes, len) == 0, "munmap");
				continue;
			}
			/* Fresh memory: every page of it faults. */
			unsigned char *into = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			EXPECT(into != MAP_FAILED, "mmap");
			receive_message(in, into, len);
			fill_known(expected, len, seed);
			EXPECT(memcmp(into, expected, len) == 0, "the bytes of message %u, %zu long", n, len);
			EXPECT(munmap(into, len) == 0, "munmap");
		}
	}
	free(expected);
}

static int region_exists(void)
{
	int fd = shm_open(region_name, O_RDWR, 0);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* One process: handlers, queues, messages. */
static void take_part(int is_first, int uses_files, unsigned messages)
{
	install_handlers();
	struct found found = { 0 };
	if (uses_files || !by_library(&found))
		by_files(&found);
	open_queues(&found);
	talk(is_first, messages);
	EXPECT(region_exists(), "a handler of this program has removed the region");
	for (unsigned i = 0; i < sizeof handled / sizeof *handled; i++) {
		struct sigaction own;
		EXPECT(sigaction(handled[i], NULL, &own) == 0 && own.sa_handler == remove_region, "signal %d", handled[i]);
	}
	printf("%s queues %d write %d faults %lu refused %lu others %lu\n", is_first ? "sender" : "receiver", queue_count,
	       queue_count > 0 && !queues[0].portal, faults, refused, others);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	unsigned messages = 12;
	int uses_files = 0, exits = 0;
	for (int i = 1; i < argc; i++) {
		if (strncmp(argv[i], "messages=", 9) == 0)
			messages = atoi(argv[i] + 9);
		else if (strncmp(argv[i], "exits=", 6) == 0)
			exits = atoi(argv[i] + 6);
		else if (strcmp(argv[i], "touch=first") == 0)
			touches_all = 0;
		else if (strcmp(argv[i], "by=files") == 0)
			uses_files = 1;
		else
			EXPECT(strcmp(argv[i], "touch=all") == 0 || strcmp(argv[i], "by=library") == 0, "%s", argv[i]);
	}
	snprintf(region_name, sizeof region_name, "/telpher-segments-%d", getpid());
	int fd = shm_open(region_name, O_RDWR | O_CREAT | O_EXCL, 0600);
	EXPECT(fd >= 0 && ftruncate(fd, sizeof *region) == 0, "a region");
	region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	EXPECT(region != MAP_FAILED && close(fd) == 0, "the region");

	pid_t receiver = fork();
	EXPECT(receiver >= 0, "fork");
	if (receiver == 0) {
		take_part(0, uses_files, messages);
		double until = now() + 60;
		while (!__atomic_load_n(&region->is_checked, __ATOMIC_ACQUIRE) && now() < until)
			sched_yield();
		if (exits == SIGSEGV)
			*(volatile char *)nowhere = 1;
		if (exits)
			kill(getpid(), exits);
		return exits ? 1 : 0;
	}
	take_part(1, uses_files, messages);
	__atomic_store_n(&region->is_checked, 1, __ATOMIC_RELEASE);
	int status;
	EXPECT(waitpid(receiver, &status, 0) == receiver, "waitpid");
	if (exits) {
		EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == exits, "the receiver ended with %#x", status);
		EXPECT(!region_exists(), "the handler has not removed the region");
		return 0;
	}
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the receiver ended with %#x", status);
	EXPECT(shm_unlink(region_name) == 0, "the region's file has gone");
	return 0;
}
