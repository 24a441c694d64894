/* Submission by write(), as clients do if mmap is refused: the No-op probe with its bounded wait, several
 * descriptors in one call, a tail that is no descriptor, and every errno. `by_write batch-allowed` says that Batch
 * is allowed. */
#include "client.h"
#include <sys/wait.h>

/* The probe: one No-op. The queue works if its record becomes 1 within 10 000 PAUSEs. */
static void the_probe_finds_the_queue(int fd)
{
	static record __attribute__((aligned(32))) r;
	desc d = asking(DSA_OPCODE_NOOP, &r);
	EXPECT(write(fd, &d, sizeof d) == (ssize_t)sizeof d, "the probe's write");
	int spins = 0;
	while (r.status == 0 && spins < 10000) {
		__builtin_ia32_pause();
		spins++;
	}
	EXPECT(r.status == DSA_COMP_SUCCESS, "the probe saw %#x after %d PAUSEs", r.status, spins);
}

static void many_in_one_call(int fd)
{
	enum { MANY = 8, SIZE = 3000 };
	static unsigned char from[MANY][SIZE], to[MANY][SIZE];
	static record __attribute__((aligned(32))) r[MANY];
	/* Unaligned, which is allowed, and 40 bytes that are no descriptor. */
	static char buffer[8 + MANY * 64 + 40];
	for (int i = 0; i < MANY; i++) {
		fill_known(from[i], SIZE, i);
		desc d = moving(to[i], from[i], SIZE, &r[i]);
		memcpy(buffer + 8 + 64 * i, &d, 64);
	}
	memset(buffer + 8 + MANY * 64, 0xff, 40);
	ssize_t taken = write(fd, buffer + 8, sizeof buffer - 8);
	EXPECT(taken == MANY * 64, "%zd bytes taken", taken);
	for (int i = 0; i < MANY; i++) {
		EXPECT(wait_for(&r[i]) == DSA_COMP_SUCCESS, "copy %d: %#x", i, r[i].status);
		EXPECT(memcmp(from[i], to[i], SIZE) == 0, "bytes of copy %d", i);
	}
}

/* The write fails with an errno, and nothing of it reaches the device. */
static void refused(int fd, const void *from, size_t len, int error, const char *what)
{
	errno = 0;
	ssize_t taken = write(fd, from, len);
	EXPECT(taken == -1 && errno == error, "%s: %zd", what, taken);
}

static void misuse(int fd, int batch_allowed)
{
	static record __attribute__((aligned(32))) r[3];
	static desc __attribute__((aligned(64))) list[2];
	desc noop = asking(DSA_OPCODE_NOOP, &r[0]);
	char *gone = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(munmap(gone, PAGE) == 0, "munmap");
	refused(fd, gone, 64, EFAULT, "a wild buffer");

	desc crooked = noop;
	crooked.completion_addr += 8;
	refused(fd, &crooked, 64, EINVAL, "a record that is not aligned");
	/* The record's address is checked even if the descriptor says that there is none. */
	crooked.flags = 0;
	refused(fd, &crooked, 64, EINVAL, "a record address that is not valid either");

	list[0] = asking(DSA_OPCODE_NOOP, &r[1]);
	list[1] = asking(DSA_OPCODE_NOOP, &r[2]);
	desc batch = asking(DSA_OPCODE_BATCH, &r[0]);
	batch.desc_list_addr = (uintptr_t)list;
	batch.desc_count = 2;
	if (batch_allowed) {
		EXPECT(write(fd, &batch, 64) == 64, "a batch");
		EXPECT(wait_for(&r[0]) == DSA_COMP_SUCCESS, "the batch: %#x", r[0].status);
	} else {
		refused(fd, &batch, 64, EINVAL, "a batch");
		EXPECT(r[0].status == 0 && r[1].status == 0, "a refused batch ran");
	}

	/* The first of two is submitted before the second is refused. */
	desc pair[2] = { asking(DSA_OPCODE_NOOP, &r[0]), crooked };
	ssize_t taken = write(fd, pair, sizeof pair);
	EXPECT(taken == 64 && wait_for(&r[0]) == DSA_COMP_SUCCESS, "a good one and a bad one: %zd", taken);

	/* Less than a descriptor is none. */
	EXPECT(write(fd, &noop, 0) == 0, "no bytes");
}

/* Memory belongs to the process that opened the queue: a forked child may not submit. */
static void a_child_may_not(int fd)
{
	pid_t child = fork();
	if (child == 0) {
		static record __attribute__((aligned(32))) r;
		desc d = asking(DSA_OPCODE_NOOP, &r);
		_exit(write(fd, &d, sizeof d) == -1 && errno == EPERM ? 0 : 1);
	}
	int status;
	EXPECT(waitpid(child, &status, 0) == child && status == 0, "the child's write was taken: %#x", status);
}

int main(int argc, char **argv)
{
	const char *paths[] = { SHARED, DEDICATED };
	int batch_allowed = argc > 1 && strcmp(argv[1], "batch-allowed") == 0;
	for (int i = 0; i < 2; i++) {
		int fd = open(paths[i], O_RDWR);
		EXPECT(fd >= 0, "open");
		the_probe_finds_the_queue(fd);
		many_in_one_call(fd);
		misuse(fd, batch_allowed);
		a_child_may_not(fd);
		the_probe_finds_the_queue(fd);
		EXPECT(close(fd) == 0, "close");
	}
	return 0;
}
