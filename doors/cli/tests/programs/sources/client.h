/* The common part of all clients: a queue's node, its portal, the two submission instructions, a bounded wait. The
 * layouts are the kernel's own, from <linux/idxd.h>.
 *
 * A client ends with 0 if everything is as expected, otherwise with 1 and one line on standard error. */
#ifndef CLIENT_H
#define CLIENT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/idxd.h>
#include <sched.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The two queues of sources/two-queues.json. */
#define SHARED "/dev/dsa/wq0.0"
#define DEDICATED "/dev/dsa/wq0.1"
#define PAGE 4096ul

typedef struct dsa_hw_desc desc;
typedef struct dsa_completion_record record;

/* Ends the client unless the condition holds. */
#define EXPECT(condition, ...)                                                                                              \
	do {                                                                                                                \
		if (!(condition))                                                                                           \
			fail(__FILE__, __LINE__, #condition, __VA_ARGS__);                                                  \
	} while (0)

static inline void fail(const char *file, int line, const char *condition, const char *format, ...)
{
	char text[512];
	va_list list;
	va_start(list, format);
	vsnprintf(text, sizeof text, format, list);
	va_end(list);
	dprintf(2, "%s:%d: %s does not hold: %s (errno %d)\n", file, line, condition, text, errno);
	_exit(1);
}

/* An open queue. */
struct queue {
	int fd;
	int shared;
	char *portal;
};

static inline struct queue open_queue(const char *path)
{
	struct queue q = { .shared = strcmp(path, SHARED) == 0 };
	q.fd = open(path, O_RDWR | O_CLOEXEC);
	EXPECT(q.fd >= 0, "open %s", path);
	q.portal = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED | MAP_POPULATE, q.fd, 0);
	EXPECT(q.portal != MAP_FAILED, "mmap %s", path);
	return q;
}

static inline void close_queue(struct queue *q)
{
	EXPECT(munmap(q->portal, PAGE) == 0, "munmap");
	EXPECT(close(q->fd) == 0, "close");
}

/* MOVDIR64B as clients write it: fixed bytes, destination in RAX, source at RDX. */
static inline void movdir64b(void *portal, const void *from)
{
	__asm__ volatile(".byte 0x66, 0x0f, 0x38, 0xf8, 0x02" ::"a"(portal), "d"(from) : "memory");
}

/* ENQCMD in the same form; 1 means Retry. */
static inline int enqcmd(void *portal, const void *from)
{
	unsigned char retry;
	__asm__ volatile(".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02\n\tsetz %0"
			 : "=r"(retry)
			 : "a"(portal), "d"(from)
			 : "memory", "cc");
	return retry;
}

static inline void submit_at(const struct queue *q, unsigned offset, const desc *d)
{
	__builtin_ia32_sfence();
	if (!q->shared) {
		movdir64b(q->portal + offset, d);
		return;
	}
	for (int tries = 0; enqcmd(q->portal + offset, d); tries++) {
		EXPECT(tries < 100000000, "Retry for ever");
		__builtin_ia32_pause();
	}
}

static inline void submit(const struct queue *q, const desc *d)
{
	submit_at(q, 0, d);
}

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Waits for the record, for at most half a minute, and returns its status. */
static inline unsigned wait_for(const record *r)
{
	double until = now() + 30;
	for (unsigned turn = 0; r->status == 0; turn++) {
		/* After a while, yields the processor: one of the other threads may be the engine. */
		if (turn < 1000)
			__builtin_ia32_pause();
		else
			sched_yield();
		EXPECT(now() < until, "no record within 30 s");
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return r->status;
}

/* Returns a descriptor that requests a record. */
static inline desc asking(int opcode, record *r)
{
	desc d;
	memset(&d, 0, sizeof d);
	memset(r, 0, sizeof *r);
	d.opcode = opcode;
	d.flags = IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_RCR;
	d.completion_addr = (uintptr_t)r;
	return d;
}

/* Returns a copy that blocks on page faults, for pages that are not present yet, such as those of an unwritten
 * static array. */
static inline desc moving(void *to, const void *from, uint32_t size, record *r)
{
	desc d = asking(DSA_OPCODE_MEMMOVE, r);
	d.flags |= IDXD_OP_FLAG_BOF;
	d.src_addr = (uintptr_t)from;
	d.dst_addr = (uintptr_t)to;
	d.xfer_size = size;
	return d;
}

static inline unsigned run(const struct queue *q, const desc *d)
{
	submit(q, d);
	return wait_for((const record *)(uintptr_t)d->completion_addr);
}

/* Returns pages that are present. */
static inline unsigned char *pages(unsigned count, unsigned char byte)
{
	unsigned char *p = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(p != MAP_FAILED, "%u pages", count);
	memset(p, byte, count * PAGE);
	return p;
}

/* Fills memory with bytes that depend on position and seed. */
static inline void fill_known(unsigned char *p, size_t len, unsigned seed)
{
	uint32_t x = seed * 2654435761u + 1;
	for (size_t i = 0; i < len; i++) {
		x = x * 1664525u + 1013904223u;
		p[i] = x >> 24;
	}
}

/* Executes one No-op, to prove that the queue works. */
static inline void expect_alive(const struct queue *q)
{
	static record __attribute__((aligned(32))) r;
	desc d = asking(DSA_OPCODE_NOOP, &r);
	unsigned status = run(q, &d);
	EXPECT(status == DSA_COMP_SUCCESS, "a No-op ended with %#x", status);
}

#endif
