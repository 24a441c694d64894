/* Random descriptors, wrong mappings, writes to invalid places, submissions after everything is closed. The client
 * and the queue must survive all of it. The seed is the first argument. */
#include "client.h"
#include <poll.h>
#include <signal.h>
#include <setjmp.h>
#include <sys/ioctl.h>

static sigjmp_buf back;

static void on_fault(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static uint64_t state;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* The only memory that random descriptors hit on purpose; all other addresses are unmapped. */
static unsigned char *arena;

/* 64 random bytes with plausible flags, sizes and addresses, so that more of them get past the first checks. */
static void random_descriptor(uint64_t *d)
{
	for (int i = 0; i < 8; i++)
		d[i] = next();
	if (next() % 2)
		d[0] = (next() % 64) << 56 | (next() & 0xffff) << 32;
	for (int i = 1; i < 4; i++) {
		if (next() % 4)
			d[i] = (uintptr_t)arena + next() % (16 * PAGE);
	}
	/* An address outside the arena must not be other memory of this program, so it is made non-canonical or low. */
	for (int i = 1; i < 8; i++) {
		int ours = d[i] >= (uintptr_t)arena && d[i] < (uintptr_t)arena + 16 * PAGE;
		if (!ours && i != 4)
			d[i] = next() % 2 ? d[i] | 0x8000000000000000ul : d[i] & 0xffff;
	}
	if (next() % 2)
		d[4] &= 0x7fff;
	/* Bytes 32 to 35 are the size: an operand that leaves the arena hits guard pages at worst. */
	d[4] = (d[4] & 0xffffffff00000000ul) | (d[4] & (next() % 2 ? 0xffffu : 0xfffffu));
}

static void alive_at_last(const struct queue *q)
{
	static record __attribute__((aligned(32))) r;
	desc d = asking(DSA_OPCODE_NOOP, &r);
	for (double until = now() + 30; r.status == 0; usleep(1000)) {
		EXPECT(now() < until, "the queue is dead");
		submit(q, &d);
	}
	EXPECT(r.status == DSA_COMP_SUCCESS, "a No-op ended with %#x", r.status);
}

static void random_bytes(void)
{
	struct queue dedicated = open_queue(DEDICATED), shared = open_queue(SHARED);
	uint64_t __attribute__((aligned(64))) d[8];
	for (int i = 0; i < 5000; i++) {
		random_descriptor(d);
		movdir64b(dedicated.portal + next() % 64 * 64, d);
		/* ENQCMD faults if the first dword is not zero. */
		random_descriptor(d);
		d[0] &= ~0xfffffffful;
		enqcmd(shared.portal + next() % 64 * 64, d);
		random_descriptor(d);
		if (write(next() % 2 ? dedicated.fd : shared.fd, d, next() % 130) == -1)
			EXPECT(errno == EINVAL || errno == EAGAIN, "write");
	}
	/* Every descriptor completes; then the queues work as before. Until then a full dedicated queue may drop a
	 * descriptor. */
	alive_at_last(&dedicated);
	expect_alive(&shared);
	/* By now the device has latched a SWERROR, and poll() reports it. */
	struct pollfd p = { .fd = dedicated.fd, .events = POLLIN };
	EXPECT(poll(&p, 1, 0) == 1 && (p.revents & POLLIN), "poll: %#x", p.revents);
	close_queue(&dedicated);
	close_queue(&shared);
}

static void mapping(int fd, size_t len, int protection, int flags, int error, const char *what)
{
	errno = 0;
	void *p = mmap(NULL, len, protection, flags, fd, 0);
	if (error) {
		EXPECT(p == MAP_FAILED && errno == error, "%s", what);
	} else {
		EXPECT(p != MAP_FAILED, "%s", what);
		EXPECT(munmap(p, len) == 0, "munmap: %s", what);
	}
}

static void mappings(void)
{
	int fd = open(SHARED, O_RDWR), reading = open(SHARED, O_RDONLY);
	EXPECT(fd >= 0 && reading >= 0, "open");
	mapping(fd, 2 * PAGE, PROT_WRITE, MAP_SHARED, EINVAL, "two pages");
	mapping(fd, 1 << 20, PROT_WRITE, MAP_SHARED, EINVAL, "a mebibyte");
	mapping(fd, 0, PROT_WRITE, MAP_SHARED, EINVAL, "nothing");
	mapping(fd, 1, PROT_WRITE, MAP_SHARED, 0, "a byte, which is a page");
	mapping(fd, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, 0, "a slot, which is a page");
	mapping(fd, PAGE, PROT_READ, MAP_SHARED, 0, "for reading");
	mapping(fd, PAGE, PROT_NONE, MAP_SHARED, 0, "for nothing");
	mapping(reading, PAGE, PROT_WRITE, MAP_SHARED, EACCES, "for writing, opened for reading");
	/* The offset is ignored, if it is aligned. */
	void *p = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 16 * PAGE);
	EXPECT(p != MAP_FAILED, "another offset");
	static record __attribute__((aligned(32))) r;
	desc d = asking(DSA_OPCODE_NOOP, &r);
	EXPECT(enqcmd(p, &d) == 0 && wait_for(&r) == DSA_COMP_SUCCESS, "a portal at another offset");
	EXPECT(munmap(p, PAGE) == 0, "munmap");
	EXPECT(mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 100) == MAP_FAILED && errno == EINVAL, "a crooked offset");

	char bytes[64] = { 0 };
	EXPECT(read(fd, bytes, 64) == -1 && errno == EINVAL, "read");
	EXPECT(ioctl(fd, 0x5401, bytes) == -1 && errno == ENOTTY, "ioctl");
	EXPECT(write(reading, bytes, 64) == -1 && errno == EBADF, "write, opened for reading");
	close(fd);
	close(reading);
}

/* A store of another size than 64 bytes is no submission, and no crash; a load returns something. */
static void plain_accesses(void)
{
	int fd = open(DEDICATED, O_RDWR);
	volatile char *portal = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	EXPECT(portal != MAP_FAILED, "mmap");
	for (int i = 0; i < 100; i++) {
		portal[i] = i;
		*(volatile uint64_t *)(portal + 64 * (i % 64)) = next();
		(void)portal[i];
	}
	memset((void *)portal, 0, PAGE);
	struct queue q = { .fd = fd, .portal = (char *)portal };
	expect_alive(&q);
	close_queue(&q);
}

static void after_everything(void)
{
	static record __attribute__((aligned(32))) r;
	desc d = asking(DSA_OPCODE_NOOP, &r);
	struct queue q = open_queue(DEDICATED);
	expect_alive(&q);
	close_queue(&q);
	signal(SIGSEGV, on_fault);
	for (volatile int i = 0; i < 3; i++) {
		if (sigsetjmp(back, 1) == 0) {
			movdir64b(q.portal, &d);
			EXPECT(0, "a portal that is unmapped took a descriptor");
		}
		/* ENQCMD to memory that is no enqueue register returns Retry, or faults if nothing is mapped. */
		if (sigsetjmp(back, 1) == 0)
			EXPECT(enqcmd(q.portal, &d) == 1, "an unmapped portal accepted");
	}
	EXPECT(write(q.fd, &d, 64) == -1 && errno == EBADF, "write to a closed file");
	EXPECT(r.status == 0, "it ran");
	/* A later mapping at this address is ordinary memory. */
	char *p = mmap(q.portal, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	EXPECT(p == q.portal, "mmap");
	movdir64b(p, &d);
	EXPECT(memcmp(p, &d, 64) == 0 && r.status == 0, "a copy into memory");
	signal(SIGSEGV, SIG_DFL);
	/* A portal that is replaced by another mapping is a portal no longer. */
	q = open_queue(DEDICATED);
	p = mmap(q.portal, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	EXPECT(p == q.portal, "mmap over the portal");
	movdir64b(p, &d);
	EXPECT(memcmp(p, &d, 64) == 0 && r.status == 0, "a copy into memory where a portal was");
	EXPECT(close(q.fd) == 0, "close");
	int fd = open(DEDICATED, O_RDWR);
	EXPECT(fd >= 0, "the mapping over the portal has released the file");
	close(fd);
}

int main(int argc, char **argv)
{
	state = (argc > 1 ? strtoull(argv[1], NULL, 0) : 1) * 0x9e3779b97f4a7c15ul | 1;
	unsigned char *around = mmap(NULL, 1 << 24, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(around != MAP_FAILED, "guards");
	arena = around + (1 << 23);
	EXPECT(mprotect(arena, 16 * PAGE, PROT_READ | PROT_WRITE) == 0, "arena");
	random_bytes();
	mappings();
	plain_accesses();
	after_everything();
	return 0;
}
