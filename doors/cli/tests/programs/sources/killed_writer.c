/* A child submits work by one write() that takes the device long, and is killed while it waits. Its submissions must
 * end with it: a shell or a supervisor that has killed a process expects it to be gone. */
#include "client.h"
#include <signal.h>
#include <sys/wait.h>

enum { MANY = 64 };
static const size_t SIZE = 1ul << 30;

static void writer(record *r)
{
	static desc d[MANY];
	/* The zero page, mapped many times: it costs no memory, and reading it costs the device time. */
	volatile char *zeros = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	EXPECT(zeros != MAP_FAILED, "mmap");
	for (size_t at = 0; at < SIZE; at += PAGE)
		(void)zeros[at];
	int fd = open(SHARED, O_RDWR);
	EXPECT(fd >= 0, "open");
	for (int i = 0; i < MANY; i++) {
		d[i] = asking(DSA_OPCODE_COMPVAL, &r[i]);
		d[i].src_addr = (uintptr_t)zeros;
		d[i].xfer_size = SIZE;
	}
	ssize_t taken = write(fd, d, sizeof d);
	EXPECT(0, "write() of all descriptors came back, with %zd", taken);
}

int main(void)
{
	record *r = mmap(NULL, MANY * sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	EXPECT(r != MAP_FAILED, "mmap");
	/* Shared memory, touched, so that its pages are present and this process sees the device's writes. */
	memset(r, 0, MANY * sizeof *r);
	pid_t child = fork();
	EXPECT(child >= 0, "fork");
	if (child == 0) {
		writer(r);
		_exit(1);
	}
	/* Now the device works on the second descriptor. */
	while (__atomic_load_n(&r[0].status, __ATOMIC_ACQUIRE) == 0) {
		EXPECT(waitpid(child, NULL, WNOHANG) == 0, "the writer ended by itself");
		sched_yield();
	}
	EXPECT(r[0].status == DSA_COMP_SUCCESS, "the first: %#x", r[0].status);
	EXPECT(kill(child, SIGKILL) == 0, "kill");
	int status;
	EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "it ends by the signal: %#x", status);
	int ended = 0;
	for (int i = 0; i < MANY; i++)
		ended += r[i].status != 0;
	EXPECT(ended < MANY, "all %d descriptors were executed for a process that had been killed", ended);
	/* The queue can be used by others, and the device has no error to report. */
	int fd = open(SHARED, O_RDWR);
	EXPECT(fd >= 0, "open");
	static record __attribute__((aligned(32))) mine;
	desc noop = asking(DSA_OPCODE_NOOP, &mine);
	EXPECT(write(fd, &noop, sizeof noop) == sizeof noop && mine.status == DSA_COMP_SUCCESS, "a No-op: %#x", mine.status);
	static char errors[128];
	int attribute = open("/sys/bus/dsa/devices/dsa0/errors", O_RDONLY);
	EXPECT(attribute >= 0 && read(attribute, errors, sizeof errors - 1) > 0, "read errors");
	EXPECT(strspn(errors, "0x, \n") == strlen(errors), "the device reports %s", errors);
	return 0;
}
