/* What the measured programs share: the connection to `telpher bench fabric`, clocks, and buffers with known bytes.
 *
 * A program is one of two ranks. It connects to the socket of the bench, and says `hello RANK ADDRESS NAME`. The bench
 * answers `peer ADDRESS`, and the program `ready`. Then each line of the bench is a task for both ranks. A rank answers
 * `done VALUE WALL THREAD PROCESS`: the result of rank 0, and the elapsed time, the CPU time of the calling thread and
 * that of the process, in nanoseconds. Between tasks it waits in read(), so that it takes no time from other programs.
 */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Seconds after which a task, the start or the end has hung: then SIGALRM ends the program. */
enum { LONGEST = 20 };
/* Bytes of each buffer: the longest message, and room for a window of shorter ones. */
static const size_t ROOM = 64 << 20;
enum { LINE = 64, WINDOW = 64 };

static FILE *bench;
static int rank;
static unsigned char *outgoing, *incoming;

/* Says why the program cannot go on, and ends it. */
__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
	char text[400];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (bench)
		dprintf(fileno(bench), "error rank %d: %s\n", rank, text);
	fprintf(stderr, "rank %d: %s\n", rank, text);
	_exit(1);
}

static void connect_to_bench(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || strlen(path) >= sizeof(address.sun_path))
		fail("no socket for %s: %s", path, strerror(errno));
	strcpy(address.sun_path, path);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("cannot connect to %s: %s", path, strerror(errno));
	bench = fdopen(fd, "r+");
	if (!bench)
		fail("no memory for a stream");
}

/* Reads the next line of the bench, without its end. Returns 0 if there are no more. */
static int next_line(char *line, int room)
{
	if (!fgets(line, room, bench))
		return 0;
	line[strcspn(line, "\n")] = 0;
	return 1;
}

/* Makes both buffers, one behind the other: one registration for remote access covers both. Shared ones are in a file in
 * memory, which stays open. */
static void allocate(int is_shared)
{
	int fd = is_shared ? memfd_create("buffers", MFD_CLOEXEC) : -1;
	if (is_shared && (fd < 0 || ftruncate(fd, 2 * (off_t)ROOM) != 0))
		fail("no file for buffers: %s", strerror(errno));
	int flags = is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *bytes = mmap(NULL, 2 * ROOM, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (bytes == MAP_FAILED)
		fail("no memory for buffers");
	outgoing = bytes;
	incoming = outgoing + ROOM;
}

/* Runs the calling thread on one CPU. Threads that exist by now may run on any CPU. */
static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		fail("cannot run on CPU %d: %s", cpu, strerror(errno));
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

/* Time since a moment: elapsed, of the calling thread, of all threads. */
struct times {
	uint64_t wall, thread, process;
};

static struct times times_now(void)
{
	return (struct times){now_ns(), clock_ns(CLOCK_THREAD_CPUTIME_ID), clock_ns(CLOCK_PROCESS_CPUTIME_ID)};
}

static struct times since(struct times begin)
{
	struct times now = times_now();
	return (struct times){now.wall - begin.wall, now.thread - begin.thread, now.process - begin.process};
}

/* The 8 bytes at a place of a buffer, which differ between places and tasks. */
static uint64_t word_at(size_t place, uint64_t seed)
{
	return (place + 1) * 0x9e3779b97f4a7c15u + seed * 0xc2b2ae3d27d4eb4fu;
}

static void fill(unsigned char *bytes, size_t len, uint64_t seed)
{
	uint64_t *words = (uint64_t *)bytes;
	for (size_t i = 0; i < len / 8; i++)
		words[i] = word_at(i, seed);
}

/* Adds 1 in each cache line, as a program does that computes what it sends. */
static void rewrite(unsigned char *bytes, size_t len)
{
	for (size_t at = 0; at < len; at += LINE)
		*(volatile uint64_t *)(bytes + at) += 1;
}

/* Checks bytes that were filled, and then rewritten a number of times. */
static void check(const unsigned char *bytes, size_t len, uint64_t seed, uint64_t rewritten)
{
	const uint64_t *words = (const uint64_t *)bytes;
	for (size_t i = 0; i < len / 8; i++)
		if (words[i] != word_at(i, seed) + (i % (LINE / 8) ? 0 : rewritten))
			fail("wrong bytes at %zu of %zu", 8 * i, len);
}
