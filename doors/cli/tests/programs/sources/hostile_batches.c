/* Invalid batches and random descriptors next to a neighbour whose copies must stay correct.
 *
 *     hostile_batches SEED SECONDS [ATTACKER NEIGHBOUR]
 *
 * The attacker is a sequence of processes, each with its own random seed. It submits batches with lists and members
 * of random bytes, with records in bad places and sizes up to 4 GiB, and unmaps, closes, forks and ends while they
 * are in flight. It may only harm itself. Attackers and neighbour open the queues and then become the users ATTACKER
 * and NEIGHBOUR, if these are given. All the time the neighbour copies on the same shared queue, singly and in
 * batches, and compares every byte.
 *
 * Prints the rounds of attacker and neighbour. Ends with 1 if a byte of the neighbour's is wrong, if a process
 * hangs, or if a queue is unusable in the end. */
#include "client.h"
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { ARENA = 64, MANY = 128, COPY = 6000, HANGS_AFTER = 60 };

/* Memory that random descriptors hit on purpose. The kernel places no mapping at these addresses on its own, so a
 * page that is unmapped there stays free. Behind it are a read-only page, a page without access, and a hole. */
static unsigned char *const arena = (unsigned char *)0x100000000000;
static unsigned char *const loose = (unsigned char *)0x110000000000;

static struct queue shared, dedicated;
static uint64_t state;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t below(uint64_t n)
{
	return next() % n;
}

static void seed(uint64_t number)
{
	state = (number + 1) * 0x9e3779b97f4a7c15ul | 1;
	for (int i = 0; i < 8; i++)
		next();
}

static void put(unsigned char *at, size_t len, int protection)
{
	void *p = mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	EXPECT(p == at, "mmap at %p", (void *)at);
	memset(at, next(), len);
	EXPECT(mprotect(at, len, protection) == 0, "mprotect");
}

static uint64_t address(void)
{
	switch (below(16)) {
	case 0:
		return next() | 0x8000000000000000ul; /* not canonical */
	case 1:
		return below(0x10000); /* below all mappings */
	case 2:
		return (uintptr_t)arena + ARENA * PAGE - below(128); /* across the end of the writable pages */
	case 3:
		return (uintptr_t)arena + (ARENA + below(3)) * PAGE + below(PAGE); /* one of the pages behind it */
	case 4:
		return (uintptr_t)shared.portal + below(PAGE);
	case 5:
		return UINT64_MAX - below(64);
	case 6:
		return (uintptr_t)loose + below(ARENA * PAGE); /* may be unmapped already */
	default:
		return (uintptr_t)arena + below(ARENA * PAGE);
	}
}

static uint32_t size(void)
{
	switch (below(8)) {
	case 0:
		return next();
	case 1:
		return UINT32_MAX - below(4);
	case 2:
		return 1u << below(32);
	case 3:
		return 0;
	default:
		return below(20000);
	}
}

/* A descriptor that often gets past the checks. */
static void random_descriptor(uint64_t *d)
{
	static const unsigned char opcodes[] = { 0, 1, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x20 };
	uint64_t flags = below(2) ? 0x0c : next() & 0xffffff;
	if (below(3) == 0)
		flags |= IDXD_OP_FLAG_BOF;
	if (below(4) == 0)
		flags |= IDXD_OP_FLAG_FENCE;
	d[0] = (uint64_t)opcodes[below(sizeof opcodes)] << 56 | flags << 32;
	/* A record in the list itself, in another record, across a page boundary, or in memory that is not writable. */
	d[1] = below(4) ? address() & ~31ul : address();
	for (int i = 2; i < 8; i++)
		d[i] = address();
	if (below(2))
		d[2] &= ~63ul;
	d[4] = (d[4] & 0xffffffff00000000ul) | size();
	if (below(6) == 0)
		d[below(8)] ^= below(4) ? 1ul << below(64) : next();
	/* ENQCMD faults if the first dword is not zero: a program may not choose the address space. */
	d[0] &= ~0xfffffffful;
}

static void submit_once(void *d)
{
	if (below(2))
		enqcmd(shared.portal + below(64) * 64, d);
	else
		movdir64b(dedicated.portal + below(64) * 64, d);
}

static void random_batch(void)
{
	static const uint32_t counts[] = { 0, 1, 2, 3, 16, 31, 32, 33, 64, 65, 1000, UINT32_MAX };
	uint64_t __attribute__((aligned(64))) d[8], member[8];
	uint64_t at = (uintptr_t)arena + below(ARENA * PAGE - MANY * 64);
	if (below(8))
		at &= ~63ul;
	int members = below(MANY);
	for (int i = 0; i < members; i++) {
		random_descriptor(member);
		if (below(8) == 0)
			member[1] = at + below(MANY) * 64; /* its record overlaps a member of the list */
		memcpy((void *)(at + i * 64), member, 64);
	}
	random_descriptor(d);
	d[0] = 1ul << 56 | (below(4) ? 0x0cul : next() & 0xffffff) << 32;
	if (below(4) == 0)
		d[1] = at + below(MANY) * 64;
	d[2] = below(6) ? at : address();
	d[3] = 0;
	d[4] = below(2) ? (uint64_t)members : counts[below(sizeof counts / sizeof *counts)];
	d[5] = d[6] = d[7] = 0;
	submit_once(d);
	/* Members change while the device reads them. */
	for (int i = 0; i < 20 && members > 0; i++)
		((uint64_t *)(at & ~7ul))[below(members * 8)] ^= next();
}

static void random_writes(void)
{
	uint64_t __attribute__((aligned(64))) d[MANY * 8];
	int count = 1 + below(MANY);
	for (int i = 0; i < count; i++)
		random_descriptor(d + i * 8);
	/* The write may fail with any of these errors. */
	if (write(below(2) ? shared.fd : dedicated.fd, d, below(4) ? (size_t)count * 64 : below(count * 64)) == -1)
		EXPECT(errno == EINVAL || errno == EAGAIN || errno == EPERM || errno == EIO || errno == EFAULT, "write");
}

/* Sources and destinations are unmapped, moved or protected while copies are in flight. */
static void unmap_in_flight(void)
{
	put(loose, ARENA * PAGE, PROT_READ | PROT_WRITE);
	static record __attribute__((aligned(32))) r[8];
	for (int i = 0; i < 8; i++) {
		desc d = moving(loose + below(ARENA / 2) * PAGE, loose + (ARENA / 2 + below(ARENA / 2)) * PAGE,
				ARENA / 2 * PAGE, &r[i]);
		if (below(3) == 0)
			d.completion_addr = (uintptr_t)loose + below(ARENA * PAGE / 32) * 32;
		submit_once(&d);
	}
	switch (below(5)) {
	case 0:
		EXPECT(munmap(loose, ARENA * PAGE) == 0, "munmap");
		break;
	case 1:
		EXPECT(mprotect(loose + below(ARENA) * PAGE, PAGE, PROT_NONE) == 0, "mprotect");
		break;
	case 2:
		EXPECT(madvise(loose, ARENA * PAGE, MADV_DONTNEED) == 0, "madvise");
		break;
	case 3:
		EXPECT(mremap(loose, ARENA * PAGE, ARENA * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, loose + (1 << 30)) != MAP_FAILED,
		       "mremap");
		break;
	default:
		put(loose, ARENA * PAGE, PROT_READ);
	}
}

static void on_fault(int signal)
{
	(void)signal;
	_exit(0);
}

/* A forked child inherits no permission to submit. It tries, and may end in any way. */
static void fork_in_flight(void)
{
	random_batch();
	pid_t child = fork();
	EXPECT(child >= 0, "fork");
	if (child == 0) {
		signal(SIGSEGV, on_fault);
		signal(SIGBUS, on_fault);
		if (below(2))
			random_batch();
		memset(arena, 0, ARENA * PAGE);
		if (below(2))
			random_writes();
		if (below(4) == 0)
			execle("/bin/true", "true", NULL, (char *[]){ NULL });
		_exit(0);
	}
	random_batch();
	int status;
	EXPECT(waitpid(child, &status, 0) == child && status == 0, "a forked child: %#x", status);
}

/* A duplicate keeps the file open, so the queue can be used again. */
static void close_in_flight(void)
{
	struct queue *q = below(2) ? &shared : &dedicated;
	struct queue again = { .shared = q->shared, .fd = dup(q->fd) };
	EXPECT(again.fd >= 0, "dup");
	again.portal = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, again.fd, 0);
	EXPECT(again.portal != MAP_FAILED, "mmap");
	random_batch();
	close_queue(q);
	*q = again;
}

static void become(long user, const char *who)
{
	if (user >= 0)
		EXPECT(setgroups(0, NULL) == 0 && setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0, "%s", who);
	/* The child is killed when its parent ends, also if the test has failed. A change of the user clears this
	 * setting, so it comes last. */
	EXPECT(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl");
}

/* One process of the attacker, until it ends in one of many ways. */
static void attack(uint64_t number, long user)
{
	/* A child of the previous process may hold the dedicated queue a moment longer. */
	int fd;
	for (double late = now() + 30; (fd = open(DEDICATED, O_RDWR | O_CLOEXEC)) < 0; usleep(1000))
		EXPECT(errno == EBUSY && now() < late, "open %s", DEDICATED);
	dedicated = (struct queue){ .fd = fd, .portal = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0) };
	EXPECT(dedicated.portal != MAP_FAILED, "mmap %s", DEDICATED);
	shared = open_queue(SHARED);
	become(user, "the attacker");
	seed(number);
	put(arena, ARENA * PAGE, PROT_READ | PROT_WRITE);
	put(arena + ARENA * PAGE, PAGE, PROT_READ);
	put(arena + (ARENA + 1) * PAGE, PAGE, PROT_NONE);
	void (*const acts[])(void) = { random_batch,	random_batch,	 random_batch,	 random_writes,
				       unmap_in_flight, fork_in_flight, close_in_flight };
	for (int i = 0; i < 40; i++)
		acts[below(sizeof acts / sizeof *acts)]();
	switch (below(3)) {
	case 0:
		raise(SIGKILL);
		break;
	case 1:
		execle("/bin/true", "true", NULL, (char *[]){ NULL });
		break;
	}
	_exit(0);
}

static void attack_until(double until, uint64_t first, long user, int report)
{
	uint64_t rounds = 0;
	while (now() < until) {
		uint64_t number = first * 1000003 + rounds++;
		seed(~number);
		useconds_t killed_after = below(4) ? 0 : below(20000);
		pid_t child = fork();
		EXPECT(child >= 0, "fork");
		if (child == 0)
			attack(number, user);
		if (killed_after) {
			usleep(killed_after);
			kill(child, SIGKILL);
		}
		int status;
		double hangs = now() + HANGS_AFTER;
		while (waitpid(child, &status, WNOHANG) == 0) {
			if (now() > hangs)
				kill(child, SIGKILL);
			EXPECT(now() < hangs + HANGS_AFTER, "attack %lu cannot be killed", number);
			usleep(200);
		}
		EXPECT(now() < hangs, "attack %lu hangs", number);
		int well = (WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		EXPECT(well, "attack %lu ended with %#x", number, status);
	}
	EXPECT(write(report, &rounds, sizeof rounds) == sizeof rounds, "report");
	_exit(0);
}

/* Submits, and retries as long as necessary. */
static void submit_patiently(const desc *d)
{
	double until = now() + HANGS_AFTER;
	__builtin_ia32_sfence();
	while (enqcmd(shared.portal, d)) {
		EXPECT(now() < until, "the neighbour hears Retry for %d s", HANGS_AFTER);
		sched_yield();
	}
}

static void work_until(const volatile int *stop, int report)
{
	static unsigned char from[8][COPY], to[8][COPY];
	static record __attribute__((aligned(32))) parent, r[8];
	static desc __attribute__((aligned(64))) list[8];
	uint64_t rounds = 0;
	do {
		for (int i = 0; i < 8; i++) {
			fill_known(from[i], COPY, rounds * 8 + i);
			memset(to[i], 0, COPY);
			list[i] = moving(to[i], from[i], COPY, &r[i]);
		}
		if (rounds % 2) {
			for (int i = 0; i < 8; i++)
				submit_patiently(&list[i]);
		} else {
			desc batch = asking(DSA_OPCODE_BATCH, &parent);
			batch.desc_list_addr = (uintptr_t)list;
			batch.desc_count = 8;
			submit_patiently(&batch);
			EXPECT(wait_for(&parent) == DSA_COMP_SUCCESS, "the neighbour's batch: %#x", parent.status);
		}
		for (int i = 0; i < 8; i++) {
			EXPECT(wait_for(&r[i]) == DSA_COMP_SUCCESS, "the neighbour's copy: %#x", r[i].status);
			EXPECT(memcmp(from[i], to[i], COPY) == 0, "a byte of the neighbour's copy is wrong in round %lu", rounds);
		}
		rounds++;
	} while (!*stop);
	EXPECT(write(report, &rounds, sizeof rounds) == sizeof rounds, "report");
	_exit(0);
}

int main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	double until = now() + (argc > 2 ? atof(argv[2]) : 1);
	long attacker = argc > 4 ? atol(argv[3]) : -1, neighbour = argc > 4 ? atol(argv[4]) : -1;
	volatile int *stop = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int attacks[2], works[2];
	EXPECT(stop != MAP_FAILED && pipe(attacks) == 0 && pipe(works) == 0, "pipes");
	pid_t worker = fork();
	if (worker == 0) {
		shared = open_queue(SHARED);
		become(neighbour, "the neighbour");
		work_until(stop, works[1]);
	}
	pid_t hostile = fork();
	if (hostile == 0) {
		attack_until(until, first, attacker, attacks[1]);
	}
	int status;
	uint64_t rounds[2];
	/* The first to fail prints the reason. */
	EXPECT(waitpid(hostile, &status, 0) == hostile && status == 0, "the attacker: %#x", status);
	*stop = 1;
	EXPECT(waitpid(worker, &status, 0) == worker && status == 0, "the neighbour: %#x", status);
	EXPECT(read(attacks[0], &rounds[0], 8) == 8 && read(works[0], &rounds[1], 8) == 8, "reports");
	shared = open_queue(SHARED);
	expect_alive(&shared);
	close_queue(&shared);
	dedicated = open_queue(DEDICATED);
	expect_alive(&dedicated);
	close_queue(&dedicated);
	printf("%lu attacks, %lu rounds of the neighbour's\n", rounds[0], rounds[1]);
	return 0;
}
