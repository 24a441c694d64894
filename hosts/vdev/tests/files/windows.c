/* Windows between processes by the ioctls of Intel's driver outside of Linux: the owner creates a window and hands its
 * descriptor over, the submitter attaches it and names its handle in descriptors. One case for each word below. */
#include "client.h"
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

struct win_create {
	uint64_t base, size;
	uint32_t type;
	uint16_t flags, handle;
} __attribute__((packed));
struct win_attach {
	uint32_t fd;
	uint16_t handle;
} __attribute__((packed));
struct win_fault {
	uint64_t offset, length;
	uint32_t write;
} __attribute__((packed));

#define WIN_CREATE 0xC0186465u
#define WIN_ATTACH 0x80066466u
#define WIN_FAULT 0x801464C9u
#define SINGLE 0
#define SEVERAL 1
#define READ 1
#define WRITE 2
#define CHECKED 4
#define BY_OFFSET 8

#define UPDATE_WINDOW 0x21
#define ID_COPY 0x23
#define ID_FILL 0x24
#define ID_COMPARE 0x25
#define ID_COMPARE_PATTERN 0x26
#define HANDLE_1 (1u << 16)
#define HANDLE_2 (1u << 17)

#define INVALID_HANDLE 0x29
#define NO_PERMISSION 0x2a
#define OUTSIDE 0x2b
#define NOT_THE_OWNER 0x2c

static record __attribute__((aligned(32))) rec;

static int create(int queue, void *base, uint64_t size, uint32_t type, uint16_t flags, unsigned *handle)
{
	struct win_create c = { (uintptr_t)base, size, type, flags, 0xffff };
	int fd = ioctl(queue, WIN_CREATE, &c);
	*handle = c.handle;
	return fd;
}

static int attach(int queue, int window, unsigned *handle)
{
	struct win_attach a = { window, 0xffff };
	int answer = ioctl(queue, WIN_ATTACH, &a);
	*handle = a.handle;
	return answer;
}

/* A descriptor with handles; -1 for an operand of the submitter's own. */
static desc crossing(int opcode, uint64_t first, int handle_1, uint64_t second, int handle_2, uint32_t size)
{
	desc d = asking(opcode, &rec);
	uint16_t h1 = handle_1, h2 = handle_2;
	d.src_addr = first;
	d.dst_addr = second;
	d.xfer_size = size;
	if (handle_1 >= 0) {
		d.flags |= HANDLE_1;
		memcpy((char *)&d + 60, &h1, 2);
	}
	if (handle_2 >= 0) {
		d.flags |= HANDLE_2;
		memcpy((char *)&d + 62, &h2, 2);
	}
	return d;
}

static unsigned status_of(const struct queue *q, desc d)
{
	memset(&rec, 0, sizeof rec);
	return run(q, &d) & 0x3f;
}

static unsigned copy_in(const struct queue *q, unsigned handle, uint64_t to, const void *from, uint32_t size)
{
	return status_of(q, crossing(ID_COPY, (uintptr_t)from, -1, to, handle, size));
}

static unsigned copy_out(const struct queue *q, unsigned handle, void *to, uint64_t from, uint32_t size)
{
	return status_of(q, crossing(ID_COPY, from, handle, (uintptr_t)to, -1, size));
}

static unsigned update(const struct queue *q, unsigned handle, void *base, uint64_t size, unsigned char flags)
{
	desc d = asking(UPDATE_WINDOW, &rec);
	uint16_t h = handle;
	d.src_addr = (uintptr_t)base;
	d.dst_addr = size;
	((unsigned char *)&d)[61] = flags;
	memcpy((char *)&d + 62, &h, 2);
	return status_of(q, d);
}

static void expect_ended(pid_t child)
{
	int status;
	EXPECT(waitpid(child, &status, 0) == child, "waitpid");
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with %#x", status);
}

/* A pipe on which one side waits for a byte of the other. */
struct signal_pipe {
	int ends[2];
};

static struct signal_pipe a_pipe(void)
{
	struct signal_pipe p;
	EXPECT(pipe(p.ends) == 0, "pipe");
	return p;
}

static void wake(struct signal_pipe p)
{
	EXPECT(write(p.ends[1], "x", 1) == 1, "wake");
}

static void wait_on(struct signal_pipe p)
{
	char byte;
	EXPECT(read(p.ends[0], &byte, 1) == 1, "wait");
}

static unsigned char *shared_pages(unsigned count)
{
	unsigned char *p = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	EXPECT(p != MAP_FAILED, "shared pages");
	memset(p, 0, count * PAGE);
	return p;
}

#define FAILS(call, error)                                                                                                  \
	do {                                                                                                                \
		errno = 0;                                                                                                  \
		EXPECT((call) < 0 && errno == (error), "errno %d, not %d", errno, (error));                                 \
	} while (0)

/* Without the ioctls, or without windows on the device. */
static void refused(int error)
{
	struct queue q = open_queue(SHARED);
	unsigned handle;
	FAILS(create(q.fd, NULL, 0, SINGLE, READ, &handle), error);
	FAILS(attach(q.fd, q.fd, &handle), error == EOPNOTSUPP ? EINVAL : error);
}

static int in_child(int (*body)(struct queue *, int), struct queue *q, int fd)
{
	pid_t child = fork();
	EXPECT(child >= 0, "fork");
	if (child == 0)
		_exit(body(q, fd));
	int status;
	EXPECT(waitpid(child, &status, 0) == child, "waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A child may not use its parent's file, and is EBUSY where its parent is the single submitter. */
static int uses_the_parents(struct queue *q, int window)
{
	unsigned handle;
	FAILS(create(q->fd, NULL, 0, SINGLE, READ, &handle), EPERM);
	FAILS(attach(q->fd, window, &handle), EPERM);
	struct queue own = open_queue(SHARED);
	FAILS(attach(own.fd, window, &handle), EBUSY);
	return 0;
}

static void errors(void)
{
	struct queue q = open_queue(SHARED);
	unsigned handle, again;
	unsigned char *p = pages(2, 1);
	FAILS(create(q.fd, p, PAGE, 2, READ | CHECKED, &handle), EOPNOTSUPP);
	FAILS(create(q.fd, p, PAGE, SINGLE, 0x10 | READ | CHECKED, &handle), EINVAL);
	FAILS(create(q.fd, p, PAGE, SINGLE, 0x8000 | READ | CHECKED, &handle), EINVAL);
	FAILS(create(q.fd, NULL, 0, SINGLE, READ | BY_OFFSET, &handle), EINVAL);
	FAILS(create(q.fd, p, 0, SINGLE, READ, &handle), EINVAL);
	FAILS(create(q.fd, NULL, 1, SINGLE, READ, &handle), EINVAL);
	FAILS(create(q.fd, (void *)-PAGE, PAGE, SINGLE, READ | CHECKED, &handle), EINVAL);
	FAILS(ioctl(q.fd, WIN_CREATE, NULL), EFAULT);
	FAILS(ioctl(q.fd, WIN_ATTACH, NULL), EFAULT);
	FAILS(ioctl(q.fd, 0x6467, &handle), ENOTTY);

	/* The descriptor is the lowest free one, the handle that of the lowest free entry. */
	int free_fd = dup(0);
	close(free_fd);
	int window = create(q.fd, p, PAGE, SINGLE, READ | WRITE | CHECKED, &handle);
	EXPECT(window == free_fd && handle == 0, "window %d, not %d, handle %u", window, free_fd, handle);
	FAILS(attach(q.fd, 1000, &again), EBADF);
	FAILS(attach(q.fd, -1, &again), EBADF);
	FAILS(attach(q.fd, q.fd, &again), EINVAL);
	FAILS(attach(q.fd, 2, &again), EINVAL);
	int pair[2];
	EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
	EXPECT(write(pair[0], "0123456789abcdef", 16) == 16, "write");
	FAILS(attach(q.fd, pair[1], &again), EINVAL);
	char byte;
	FAILS(read(window, &byte, 1), EINVAL);
	FAILS(write(window, &byte, 1), EINVAL);

	/* The same submitter may attach again. */
	EXPECT(attach(q.fd, window, &again) == 0 && again == handle, "attach");
	EXPECT(attach(q.fd, window, &again) == 0 && again == handle, "attach again");
	EXPECT(in_child(uses_the_parents, &q, window) == 0, "the child");

	struct win_fault f = { 0, PAGE, 1 };
	EXPECT(ioctl(window, WIN_FAULT, &f) == 0, "fault");
	f.length = PAGE + 1;
	FAILS(ioctl(window, WIN_FAULT, &f), EACCES);
	f = (struct win_fault){ UINT64_MAX, 2, 0 };
	FAILS(ioctl(window, WIN_FAULT, &f), EACCES);
	f = (struct win_fault){ 0, PAGE, 2 };
	FAILS(ioctl(window, WIN_FAULT, &f), EINVAL);
	FAILS(ioctl(window, WIN_FAULT, NULL), EFAULT);
	FAILS(ioctl(q.fd, WIN_FAULT, &f), ENOTTY);

	/* The table is finite, and a closed window's entry is free again. */
	int windows[256];
	for (unsigned i = 1; i < 256; i++) {
		windows[i] = create(q.fd, p, PAGE, SEVERAL, READ | CHECKED, &handle);
		EXPECT(windows[i] >= 0 && handle == i, "window %u has handle %u", i, handle);
	}
	FAILS(create(q.fd, p, PAGE, SINGLE, READ | CHECKED, &handle), ENOSPC);
	EXPECT(close(windows[77]) == 0, "close");
	EXPECT(create(q.fd, p, PAGE, SINGLE, READ | CHECKED, &handle) == windows[77] && handle == 77, "handle %u", handle);
}

/* Every operation in a child, in one kind of window. */
static void operations(const struct queue *q, unsigned handle, uint64_t at, unsigned char byte)
{
	static unsigned char own[3 * PAGE], back[3 * PAGE];
	unsigned len = 2 * PAGE + 100;
	fill_known(own, sizeof own, byte);
	memset(back, 0, sizeof back);
	EXPECT(copy_in(q, handle, at, own, len) == DSA_COMP_SUCCESS, "copy in: %#x", rec.status);
	EXPECT(copy_out(q, handle, back, at, len) == DSA_COMP_SUCCESS, "copy out: %#x", rec.status);
	EXPECT(memcmp(own, back, len) == 0, "bytes");
	desc d = crossing(ID_COMPARE, (uintptr_t)own, -1, at, handle, len);
	EXPECT(status_of(q, d) == DSA_COMP_SUCCESS && rec.result == 0, "compare: %#x", rec.status);
	own[len - 1] ^= 1;
	EXPECT(status_of(q, d) == DSA_COMP_SUCCESS && rec.result == 1, "compare: %#x, %u", rec.status, rec.result);
	d = crossing(ID_FILL, 0x0101010101010101ull * byte, -1, at, handle, len);
	EXPECT(status_of(q, d) == DSA_COMP_SUCCESS, "fill: %#x", rec.status);
	d = crossing(ID_COMPARE_PATTERN, at, handle, 0x0101010101010101ull * byte, -1, len);
	EXPECT(status_of(q, d) == DSA_COMP_SUCCESS && rec.result == 0, "compare pattern: %#x", rec.status);
	/* Between two places of the same window. */
	d = crossing(ID_COPY, at, handle, at + 3 * PAGE, handle, PAGE);
	EXPECT(status_of(q, d) == DSA_COMP_SUCCESS, "copy inside: %#x", rec.status);
	/* In a batch. */
	static desc members[2] __attribute__((aligned(64)));
	static record of_members[2] __attribute__((aligned(32)));
	for (int i = 0; i < 2; i++) {
		members[i] = crossing(ID_FILL, 0x0202020202020202ull, -1, at + 100 * i, handle, 100);
		members[i].completion_addr = (uintptr_t)&of_members[i];
	}
	desc batch = asking(DSA_OPCODE_BATCH, &rec);
	batch.desc_list_addr = (uintptr_t)members;
	batch.desc_count = 2;
	EXPECT(status_of(q, batch) == DSA_COMP_SUCCESS, "batch: %#x", rec.status);
	EXPECT(copy_out(q, handle, back, at, 200) == DSA_COMP_SUCCESS, "%#x", rec.status);
	for (int i = 0; i < 200; i++)
		EXPECT(back[i] == 2, "byte %d", i);
}

static void copies(void)
{
	for (int mode = 0; mode < 4; mode++) {
		struct queue q = open_queue(SHARED);
		unsigned char *p = pages(8, 0x55);
		uint32_t type = mode & 1 ? SEVERAL : SINGLE;
		uint16_t flags = READ | WRITE | CHECKED | (mode & 2 ? BY_OFFSET : 0);
		unsigned handle;
		int window = create(q.fd, p + PAGE, 6 * PAGE, type, flags, &handle);
		EXPECT(window >= 0, "create");
		for (int turn = 0; turn < (mode & 1 ? 3 : 1); turn++) {
			pid_t child = fork();
			if (child == 0) {
				struct queue own = open_queue(SHARED);
				unsigned attached;
				EXPECT(attach(own.fd, window, &attached) == 0 && attached == handle, "attach");
				uint64_t at = mode & 2 ? 0 : (uintptr_t)(p + PAGE);
				operations(&own, attached, at, turn + 1);
				/* The first and the last byte, and one more on either side. */
				unsigned char b = 9;
				EXPECT(copy_in(&own, attached, at, &b, 1) == DSA_COMP_SUCCESS, "%#x", rec.status);
				EXPECT(copy_in(&own, attached, at + 6 * PAGE - 1, &b, 1) == DSA_COMP_SUCCESS, "%#x", rec.status);
				EXPECT(copy_in(&own, attached, at - 1, &b, 1) == OUTSIDE, "%#x", rec.status);
				EXPECT(copy_in(&own, attached, at + 6 * PAGE, &b, 1) == OUTSIDE, "%#x", rec.status);
				EXPECT(copy_out(&own, attached, &b, at + 6 * PAGE - 1, 2) == OUTSIDE, "%#x", rec.status);
				/* Only the owner moves its window. */
				EXPECT(update(&own, attached, p, PAGE, 7) == NOT_THE_OWNER, "%#x", rec.status);
				_exit(0);
			}
			expect_ended(child);
			EXPECT(p[PAGE] == 9 && p[7 * PAGE - 1] == 9, "the child's bytes");
			EXPECT(p[2 * PAGE] == turn + 1, "the child's pattern: %u", p[2 * PAGE]);
			for (unsigned i = 0; i < PAGE; i++)
				EXPECT(p[i] == 0x55 && p[7 * PAGE + i] == 0x55, "byte %u beside the window", i);
		}
		/* An owner may use its own window, too. */
		/* A file system learns of a close after the process has ended. */
		double until = now() + 60;
		while (attach(q.fd, window, &handle) != 0)
			EXPECT(errno == EBUSY && now() < until, "attach");
		operations(&q, handle, mode & 2 ? 0 : (uintptr_t)(p + PAGE), 7);
		/* Without the permission to write. */
		EXPECT(update(&q, handle, p + PAGE, PAGE, READ | CHECKED) == DSA_COMP_SUCCESS, "%#x", rec.status);
		EXPECT(copy_in(&q, handle, (uintptr_t)(p + PAGE), p, 1) == NO_PERMISSION, "%#x", rec.status);
		close(window);
		EXPECT(copy_out(&q, handle, p, (uintptr_t)(p + PAGE), 1) == INVALID_HANDLE, "%#x", rec.status);
		close_queue(&q);
	}
}

/* The descriptor of a window is fetched by number, as dsa-perf-micros does. */
static void fetched(void)
{
	struct queue q = open_queue(SHARED);
	unsigned char *p = pages(1, 3);
	unsigned handle;
	int window = create(q.fd, p, PAGE, SINGLE, READ | CHECKED, &handle);
	/* Where the system's settings keep children from it, they may fetch descriptors of this process. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	pid_t child = fork();
	if (child == 0) {
		close(window);
		int owner = syscall(SYS_pidfd_open, getppid(), 0);
		int here = syscall(SYS_pidfd_getfd, owner, window, 0);
		EXPECT(here >= 0, "pidfd_getfd");
		struct queue own = open_queue(SHARED);
		EXPECT(attach(own.fd, here, &handle) == 0, "attach");
		unsigned char b = 0;
		EXPECT(copy_out(&own, handle, &b, (uintptr_t)p, 1) == DSA_COMP_SUCCESS && b == 3, "%#x", rec.status);
		_exit(0);
	}
	expect_ended(child);
}

/* DPDK's patches open a queue, make or attach a window, and submit to another queue: the first one is closed at once. */
static void outliving(void)
{
	unsigned char *p = pages(2, 5);
	unsigned handle, again;
	struct signal_pipe attached = a_pipe(), closed = a_pipe();
	struct queue first = open_queue(SHARED);
	int window = create(first.fd, p, PAGE, SINGLE, READ | CHECKED, &handle);
	EXPECT(window >= 0, "create");
	close_queue(&first);
	pid_t child = fork();
	if (child == 0) {
		struct queue for_attaching = open_queue(SHARED);
		EXPECT(attach(for_attaching.fd, window, &again) == 0 && again == handle, "attach");
		close_queue(&for_attaching);
		struct queue own = open_queue(SHARED);
		unsigned char b = 0;
		EXPECT(copy_out(&own, handle, &b, (uintptr_t)p, 1) == DSA_COMP_SUCCESS && b == 5, "%#x", rec.status);
		/* Any of the process's descriptors of the window ends its right. */
		int copy = dup(window);
		EXPECT(close(copy) == 0, "close");
		EXPECT(copy_out(&own, handle, &b, (uintptr_t)p, 1) == INVALID_HANDLE, "%#x", rec.status);
		EXPECT(attach(own.fd, window, &again) == 0 && again == handle, "attach again");
		EXPECT(copy_out(&own, handle, &b, (uintptr_t)p, 1) == DSA_COMP_SUCCESS, "%#x", rec.status);
		wake(attached);
		wait_on(closed);
		EXPECT(copy_out(&own, handle, &b, (uintptr_t)p, 1) == INVALID_HANDLE, "%#x", rec.status);
		FAILS(attach(own.fd, window, &again), EINVAL);
		_exit(0);
	}
	/* So that this process does not wait for a child that has failed. */
	close(attached.ends[1]);
	wait_on(attached);
	/* The owner may change it by any of its queues. */
	struct queue q = open_queue(SHARED);
	EXPECT(update(&q, handle, p + PAGE, PAGE, READ | CHECKED) == DSA_COMP_SUCCESS, "%#x", rec.status);
	/* The first descriptor that the owner closes ends the window, though there are others. */
	int copy = dup(window);
	EXPECT(copy >= 0 && close(window) == 0, "close");
	wake(closed);
	expect_ended(child);
	close_queue(&q);
}

/* A stranger reaches nothing, whatever handle it guesses. */
static void guessed(void)
{
	struct queue q = open_queue(SHARED);
	unsigned char *p = pages(4, 0x77);
	unsigned handle;
	pid_t stranger;
	struct signal_pipe ready = a_pipe(), done = a_pipe();
	stranger = fork();
	if (stranger == 0) {
		struct queue own = open_queue(SHARED);
		wait_on(ready);
		unsigned char b[64];
		memset(b, 1, sizeof b);
		for (unsigned h = 0; h < 300; h++) {
			for (int by_offset = 0; by_offset < 2; by_offset++) {
				uint64_t at = by_offset ? 0 : (uintptr_t)p;
				EXPECT(copy_in(&own, h, at, b, 64) == INVALID_HANDLE, "handle %u: %#x", h, rec.status);
				EXPECT(copy_out(&own, h, b, at, 64) == INVALID_HANDLE, "handle %u: %#x", h, rec.status);
			}
			EXPECT(update(&own, h, p, PAGE, 7) == NOT_THE_OWNER, "handle %u: %#x", h, rec.status);
		}
		EXPECT(b[0] == 1, "bytes of another process");
		wake(done);
		_exit(0);
	}
	for (int i = 0; i < 8; i++) {
		int window = create(q.fd, p, PAGE, i % 2, READ | WRITE | CHECKED | (i & 4 ? BY_OFFSET : 0), &handle);
		EXPECT(window >= 0 && attach(q.fd, window, &handle) == 0, "window %d", i);
	}
	wake(ready);
	wait_on(done);
	expect_ended(stranger);
	for (unsigned i = 0; i < 4 * PAGE; i++)
		EXPECT(p[i] == 0x77, "byte %u", i);
}

/* The submitter writes through the window as fast as it can, and counts its successes. */
static void writes_for_ever(int window, uint64_t first, uint64_t second, unsigned long *successes)
{
	static unsigned char own[PAGE];
	struct queue q = open_queue(SHARED);
	unsigned handle;
	memset(own, 0xee, sizeof own);
	EXPECT(attach(q.fd, window, &handle) == 0, "attach");
	for (;;) {
		if (copy_in(&q, handle, first, own, PAGE) == DSA_COMP_SUCCESS)
			__atomic_fetch_add(&successes[0], 1, __ATOMIC_SEQ_CST);
		if (copy_in(&q, handle, second, own, PAGE) == DSA_COMP_SUCCESS)
			__atomic_fetch_add(&successes[1], 1, __ATOMIC_SEQ_CST);
		__atomic_fetch_add(&successes[2], 1, __ATOMIC_SEQ_CST);
	}
}

static void until_more(const unsigned long *count, unsigned long by)
{
	unsigned long from = __atomic_load_n(count, __ATOMIC_SEQ_CST);
	double until = now() + 60;
	while (__atomic_load_n(count, __ATOMIC_SEQ_CST) < from + by) {
		sched_yield();
		EXPECT(now() < until, "no progress within 60 s");
	}
}

/* Once Update Window has ended, nothing is written where the window was, and so after a close. */
static void moved(void)
{
	unsigned long *successes = (unsigned long *)shared_pages(1);
	struct queue q = open_queue(SHARED);
	unsigned char *p = pages(2, 0);
	unsigned handle;
	int window = create(q.fd, p, PAGE, SEVERAL, READ | WRITE | CHECKED, &handle);
	EXPECT(window >= 0, "create");
	pid_t children[2];
	for (int i = 0; i < 2; i++) {
		children[i] = fork();
		if (children[i] == 0)
			writes_for_ever(window, (uintptr_t)p, (uintptr_t)(p + PAGE), successes);
	}
	for (int turn = 0; turn < 20; turn++) {
		int at = turn & 1;
		unsigned char *inside = p + at * PAGE, *outside = p + !at * PAGE;
		EXPECT(update(&q, handle, inside, PAGE, READ | WRITE | CHECKED) == DSA_COMP_SUCCESS, "%#x", rec.status);
		memset(outside, turn + 1, PAGE);
		until_more(&successes[at], 5);
		for (unsigned i = 0; i < PAGE; i++)
			EXPECT(outside[i] == turn + 1, "byte %u outside changed in turn %d", i, turn);
	}
	/* The children hold the window's descriptor, and it ends all the same. */
	EXPECT(close(window) == 0, "close");
	memset(p, 0x33, 2 * PAGE);
	until_more(&successes[2], 20);
	for (int i = 0; i < 2; i++) {
		kill(children[i], SIGKILL);
		EXPECT(waitpid(children[i], NULL, 0) == children[i], "waitpid");
	}
	for (unsigned i = 0; i < 2 * PAGE; i++)
		EXPECT(p[i] == 0x33, "byte %u changed after the close", i);
	successes[2] = 0;
	int second = create(q.fd, p, PAGE, SINGLE, READ | WRITE | CHECKED, &handle);
	EXPECT(second >= 0, "create");
	pid_t child = fork();
	if (child == 0) {
		struct queue own = open_queue(SHARED);
		EXPECT(attach(own.fd, second, &handle) == 0, "a dead submitter keeps others out");
		unsigned char b = 1;
		while (copy_in(&own, handle, (uintptr_t)p, &b, 1) == DSA_COMP_SUCCESS)
			__atomic_fetch_add(&successes[2], 1, __ATOMIC_SEQ_CST);
		EXPECT((rec.status & 0x3f) == INVALID_HANDLE || (rec.status & 0x3f) == DSA_COMP_PAGE_FAULT_NOBOF, "%#x", rec.status);
		EXPECT(copy_in(&own, handle, (uintptr_t)p, &b, 1) == INVALID_HANDLE, "%#x", rec.status);
		_exit(0);
	}
	until_more(&successes[2], 50);
	EXPECT(close(second) == 0, "close");
	memset(p, 0x44, PAGE);
	expect_ended(child);
	for (unsigned i = 0; i < PAGE; i++)
		EXPECT(p[i] == 0x44, "byte %u changed after the close", i);
}

/* A hostile process names every handle, for reading, writing and moving, and makes windows of its own. */
static void attacks_for_ever(unsigned char *p, unsigned long *attempts)
{
	struct queue q = open_queue(SHARED);
	unsigned char *own = pages(1, 0xbb), b[64];
	for (;;) {
		unsigned mine, again;
		int window = create(q.fd, own, PAGE, SINGLE, READ | WRITE | CHECKED, &mine);
		EXPECT(window >= 0 && attach(q.fd, window, &again) == 0 && again == mine, "its own window");
		for (unsigned h = 0; h < 8; h++) {
			memset(b, 0xbb, sizeof b);
			if (h == mine)
				continue;
			for (unsigned page = 0; page < 4; page++) {
				EXPECT(copy_in(&q, h, (uintptr_t)(p + page * PAGE), b, 64) == INVALID_HANDLE, "%#x", rec.status);
				EXPECT(copy_out(&q, h, b, (uintptr_t)(p + page * PAGE), 64) == INVALID_HANDLE, "%#x", rec.status);
			}
			EXPECT(copy_in(&q, h, 0, b, 64) == INVALID_HANDLE, "%#x", rec.status);
			EXPECT(update(&q, h, p, 4 * PAGE, READ | WRITE | CHECKED) == NOT_THE_OWNER, "%#x", rec.status);
			EXPECT(b[0] == 0xbb && b[63] == 0xbb, "bytes of another process");
		}
		close(window);
		__atomic_fetch_add(attempts, 1, __ATOMIC_SEQ_CST);
	}
}

/* A good owner and its submitter work beside hostile processes. */
static void beside(void)
{
	unsigned long *attempts = (unsigned long *)shared_pages(1);
	struct queue q = open_queue(SHARED);
	unsigned char *p = pages(4, 0x10);
	struct signal_pipe turn = a_pipe(), done = a_pipe();
	unsigned handle;
	pid_t hostile[2];
	for (int i = 0; i < 2; i++) {
		hostile[i] = fork();
		if (hostile[i] == 0)
			attacks_for_ever(p, attempts);
	}
	int window = create(q.fd, p + PAGE, PAGE, SINGLE, READ | WRITE | CHECKED | BY_OFFSET, &handle);
	EXPECT(window >= 0, "create");
	pid_t good = fork();
	if (good == 0) {
		struct queue own = open_queue(SHARED);
		static unsigned char bytes[PAGE], back[PAGE];
		EXPECT(attach(own.fd, window, &handle) == 0, "attach");
		for (int i = 1; i <= 20; i++) {
			wait_on(turn);
			memset(bytes, i, PAGE);
			EXPECT(copy_in(&own, handle, 0, bytes, PAGE) == DSA_COMP_SUCCESS, "turn %d: %#x", i, rec.status);
			EXPECT(copy_out(&own, handle, back, 0, PAGE) == DSA_COMP_SUCCESS, "turn %d: %#x", i, rec.status);
			EXPECT(memcmp(bytes, back, PAGE) == 0, "turn %d", i);
			wake(done);
		}
		_exit(0);
	}
	until_more(attempts, 2);
	for (int i = 1; i <= 20; i++) {
		unsigned at = 1 + i % 2;
		memset(p, 0x10, 4 * PAGE);
		EXPECT(update(&q, handle, p + at * PAGE, PAGE, READ | WRITE | CHECKED | BY_OFFSET) == DSA_COMP_SUCCESS, "%#x", rec.status);
		wake(turn);
		wait_on(done);
		for (unsigned j = 0; j < 4 * PAGE; j++)
			EXPECT(p[j] == (j / PAGE == at ? i : 0x10), "turn %d, byte %u: %#x", i, j, p[j]);
	}
	until_more(attempts, 2);
	expect_ended(good);
	for (int i = 0; i < 2; i++) {
		EXPECT(waitpid(hostile[i], NULL, WNOHANG) == 0, "a hostile process has reached something");
		kill(hostile[i], SIGKILL);
		EXPECT(waitpid(hostile[i], NULL, 0) == hostile[i], "waitpid");
	}
}

/* The kilobytes of private memory in the mapping that begins at an address; pages of zeros that were only read are none. */
static unsigned anonymous_kb(const void *at)
{
	char line[512], begin[32];
	unsigned kb;
	int found = 0;
	snprintf(begin, sizeof begin, "%lx-", (unsigned long)(uintptr_t)at);
	FILE *f = fopen("/proc/self/smaps", "r");
	EXPECT(f != NULL, "smaps");
	while (fgets(line, sizeof line, f)) {
		if (strncmp(line, begin, strlen(begin)) == 0)
			found = 1;
		if (found && sscanf(line, "Anonymous: %u kB", &kb) == 1) {
			fclose(f);
			return kb;
		}
	}
	EXPECT(0, "no mapping at %p", at);
	return 0;
}

/* IDXD_WIN_FAULT for writing gives pages that were never touched memory of their own; for reading it does not. */
static void faulted(void)
{
	struct queue q = open_queue(SHARED);
	unsigned handle;
	/* Pages without access around them, so that the mapping stays one of its own. */
	unsigned char *whole = mmap(NULL, 18 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(whole != MAP_FAILED, "mmap");
	unsigned char *p = whole + PAGE;
	EXPECT(mprotect(p, 16 * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
	int window = create(q.fd, p, 16 * PAGE, SINGLE, READ | WRITE | CHECKED, &handle);
	EXPECT(window >= 0, "create");
	struct win_fault f = { 0, 16 * PAGE, 0 };
	EXPECT(ioctl(window, WIN_FAULT, &f) == 0, "fault");
	EXPECT(anonymous_kb(p) == 0, "%u kB", anonymous_kb(p));
	f.write = 1;
	EXPECT(ioctl(window, WIN_FAULT, &f) == 0, "fault for writing: errno %d", errno);
	EXPECT(anonymous_kb(p) == 16 * PAGE / 1024, "%u kB", anonymous_kb(p));
	for (unsigned i = 0; i < 16 * PAGE; i++)
		EXPECT(p[i] == 0, "byte %u", i);
}

static int receive_fd(int from)
{
	char byte, space[CMSG_SPACE(sizeof(int))];
	struct iovec part = { &byte, 1 };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
	EXPECT(recvmsg(from, &m, 0) == 1, "recvmsg");
	int fd;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

static void send_fd(int to, int fd)
{
	char byte = 0, space[CMSG_SPACE(sizeof(int))];
	struct iovec part = { &byte, 1 };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	EXPECT(sendmsg(to, &m, 0) == 1, "sendmsg");
}

/* The owner is killed while its window is in use; its entry serves another owner afterwards. */
static void died(void)
{
	struct queue q = open_queue(SHARED);
	unsigned handle;
	int pair[2];
	EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
	unsigned char *p = pages(1, 0x21);
	for (int turn = 0; turn < 5; turn++) {
		pid_t owner = fork();
		if (owner == 0) {
			struct queue own = open_queue(SHARED);
			int window = create(own.fd, p, PAGE, SINGLE, READ | WRITE | CHECKED, &handle);
			EXPECT(window >= 0 && handle == 0, "create: handle %u", handle);
			memset(p, 0x22 + turn, PAGE);
			send_fd(pair[1], window);
			for (;;)
				pause();
		}
		int window = receive_fd(pair[0]);
		EXPECT(attach(q.fd, window, &handle) == 0, "attach");
		unsigned char b = 0;
		EXPECT(copy_out(&q, handle, &b, (uintptr_t)p, 1) == DSA_COMP_SUCCESS && b == 0x22 + turn, "%#x", rec.status);
		EXPECT(kill(owner, SIGKILL) == 0, "kill");
		unsigned status;
		double until = now() + 60;
		while ((status = copy_out(&q, handle, &b, (uintptr_t)p, 1)) == DSA_COMP_SUCCESS)
			EXPECT(b == 0x22 + turn && now() < until, "byte %#x", b);
		/* Its memory is gone before its files are closed. */
		while (status == DSA_COMP_PAGE_FAULT_NOBOF && now() < until)
			status = copy_out(&q, handle, &b, (uintptr_t)p, 1);
		EXPECT(status == INVALID_HANDLE, "status %#x", status);
		EXPECT(waitpid(owner, NULL, 0) == owner, "waitpid");
		EXPECT(p[0] == 0x21, "this process' own memory at that address");
		FAILS(attach(q.fd, window, &handle), EINVAL);
		close(window);
	}
}

/* The owner ends, and a child of it keeps all of its descriptors open: its window ends all the same. */
static void orphaned(void)
{
	struct queue q = open_queue(SHARED);
	unsigned handle;
	struct signal_pipe to_test = a_pipe();
	unsigned char *p = pages(1, 0x21);
	pid_t owner = fork();
	if (owner == 0) {
		struct queue own = open_queue(SHARED);
		EXPECT(create(own.fd, p, PAGE, SINGLE, READ | CHECKED, &handle) >= 0 && handle == 0, "handle %u", handle);
		pid_t child = fork();
		EXPECT(child >= 0, "fork");
		if (child == 0) {
			/* Until the test has ended, in whatever way. */
			char byte;
			close(to_test.ends[1]);
			_exit(read(to_test.ends[0], &byte, 1) != 0);
		}
		_exit(0);
	}
	expect_ended(owner);
	EXPECT(create(q.fd, p, PAGE, SINGLE, READ | CHECKED, &handle) >= 0 && handle == 0, "handle %u", handle);
}

/* A program that the owner executes is not reached, though it inherits all descriptors. */
static void executed(const char *self)
{
	struct queue q = open_queue(SHARED);
	unsigned handle;
	int pair[2];
	EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
	unsigned char *p = pages(1, 0x21);
	pid_t owner = fork();
	if (owner == 0) {
		struct queue own = open_queue(SHARED);
		/* All of its memory. */
		int window = create(own.fd, NULL, 0, SINGLE, READ | WRITE, &handle);
		EXPECT(window >= 0, "create");
		EXPECT(fcntl(own.fd, F_SETFD, 0) == 0 && fcntl(window, F_SETFD, 0) == 0, "fcntl");
		send_fd(pair[1], window);
		/* The window ends when the next program starts. */
		char byte;
		EXPECT(read(pair[1], &byte, 1) == 1, "read");
		char end[12];
		snprintf(end, sizeof end, "%d", pair[1]);
		execl(self, self, "announces", end, NULL);
		_exit(1);
	}
	int window = receive_fd(pair[0]);
	EXPECT(attach(q.fd, window, &handle) == 0, "attach");
	EXPECT(write(pair[0], "x", 1) == 1, "write");
	/* The address of a buffer of the new program, which waits. */
	uint64_t at;
	EXPECT(read(pair[0], &at, sizeof at) == sizeof at, "read");
	unsigned char b = 0x99;
	unsigned status = copy_in(&q, handle, at, &b, 1);
	EXPECT(status == DSA_COMP_PAGE_FAULT_NOBOF || status == INVALID_HANDLE, "the new program was written: %#x", status);
	status = copy_out(&q, handle, &b, at, 1);
	EXPECT((status == DSA_COMP_PAGE_FAULT_NOBOF || status == INVALID_HANDLE) && b == 0x99, "and read: %#x", status);
	EXPECT(write(pair[0], "x", 1) == 1, "write");
	expect_ended(owner);
	EXPECT(p[0] == 0x21, "own memory");
}

static void announces(int end)
{
	static volatile unsigned char buffer = 0x31;
	uint64_t at = (uintptr_t)&buffer;
	char byte;
	EXPECT(write(end, &at, sizeof at) == sizeof at, "write");
	EXPECT(read(end, &byte, 1) == 1, "read");
	EXPECT(buffer == 0x31, "a byte of this program was written");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (strcmp(what, "unknown") == 0)
		refused(ENOTTY);
	else if (strcmp(what, "unsupported") == 0)
		refused(EOPNOTSUPP);
	else if (strcmp(what, "errors") == 0)
		errors();
	else if (strcmp(what, "copies") == 0)
		copies();
	else if (strcmp(what, "fetched") == 0)
		fetched();
	else if (strcmp(what, "outliving") == 0)
		outliving();
	else if (strcmp(what, "guessed") == 0)
		guessed();
	else if (strcmp(what, "moved") == 0)
		moved();
	else if (strcmp(what, "beside") == 0)
		beside();
	else if (strcmp(what, "faulted") == 0)
		faulted();
	else if (strcmp(what, "died") == 0)
		died();
	else if (strcmp(what, "orphaned") == 0)
		orphaned();
	else if (strcmp(what, "executed") == 0)
		executed(argv[0]);
	else if (strcmp(what, "announces") == 0)
		announces(atoi(argv[2]));
	else
		EXPECT(0, "no such case: %s", what);
	return 0;
}
