/* perf_event_open() of the device's PMU, as the kernel's driver answers it: arguments, groups, read formats, requests,
 * descriptors. */
#include "client.h"
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int pmu;

static int opened(struct perf_event_attr *attr, pid_t pid, int cpu, int group, unsigned long flags)
{
	return (int)syscall(SYS_perf_event_open, attr, pid, cpu, group, flags);
}

/* The attributes of events of a category, as its format says. */
static struct perf_event_attr counting(uint64_t category, uint64_t events)
{
	struct perf_event_attr attr = { .type = (uint32_t)pmu, .size = sizeof attr, .config = category | events << 4 };
	return attr;
}

static int event(struct perf_event_attr attr, int group)
{
	int fd = opened(&attr, -1, 0, group, PERF_FLAG_FD_CLOEXEC);
	EXPECT(fd >= 0, "config %#llx", (unsigned long long)attr.config);
	return fd;
}

static uint64_t value(int fd)
{
	uint64_t words[8];
	ssize_t len = read(fd, words, sizeof words);
	EXPECT(len == 8, "%zd bytes", len);
	return words[0];
}

#define REFUSED(error, expression) EXPECT((expression) == -1 && errno == (error), "not " #error)

static record __attribute__((aligned(32))) r;

static void noops(struct queue *q, int count)
{
	for (int i = 0; i < count; i++) {
		desc d = asking(DSA_OPCODE_NOOP, &r);
		for (double until = now() + 30; enqcmd(q->portal, &d);)
			EXPECT(now() < until, "Retry for ever");
		EXPECT(wait_for(&r) == DSA_COMP_SUCCESS, "status %#x", r.status);
	}
}

/* Source: Linux 6.12, drivers/dma/idxd/perfmon.c and kernel/events/core.c. */
static void arguments(void)
{
	struct perf_event_attr attr = counting(3, 1);
	REFUSED(EINVAL, opened(&attr, 0, -1, -1, 0));
	REFUSED(EINVAL, opened(&attr, getpid(), 0, -1, 0));
	REFUSED(EINVAL, opened(&attr, -1, -1, -1, 0));
	REFUSED(EINVAL, opened(&attr, -1, 0, -1, 1 << 10));
	REFUSED(EBADF, opened(&attr, -1, 0, 999, 0));
	REFUSED(EINVAL, opened(&attr, -1, 0, 0, 0));
	attr.sample_period = 1000;
	REFUSED(EINVAL, opened(&attr, -1, 0, -1, 0));
	attr = counting(3, 1);
	attr.exclude_kernel = 1;
	REFUSED(EINVAL, opened(&attr, -1, 0, -1, 0));
	attr = counting(3, 1);
	attr.read_format = 1 << 9;
	REFUSED(EINVAL, opened(&attr, -1, 0, -1, 0));
	attr = counting(3, 1);
	attr.size = 8;
	REFUSED(E2BIG, opened(&attr, -1, 0, -1, 0));
	attr = counting(3, 1);
	attr.type++;
	REFUSED(ENOENT, opened(&attr, -1, 0, -1, 0));
	/* Records are not counted by the model; a filter of sizes neither. */
	attr = counting(4, 0x20);
	REFUSED(EOPNOTSUPP, opened(&attr, -1, 0, -1, 0));
	attr = counting(3, 1);
	attr.config1 = 1ull << 44;
	REFUSED(EOPNOTSUPP, opened(&attr, -1, 0, -1, 0));
	attr.config1 = 0;
	attr.size = PERF_ATTR_SIZE_VER0;
	EXPECT(close(event(attr, -1)) == 0, "the oldest size");
	/* The kernel still answers for its own types, whether it permits them or not. */
	attr = (struct perf_event_attr){ .type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = 99 };
	REFUSED(ENOENT, opened(&attr, 0, -1, -1, 0));
}

static void requests(struct queue *q)
{
	struct perf_event_attr attr = counting(3, 1);
	attr.disabled = 1;
	int fd = event(attr, -1);
	noops(q, 3);
	EXPECT(value(fd) == 0, "%lu while disabled", (unsigned long)value(fd));
	EXPECT(ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) == 0, "enable");
	noops(q, 4);
	EXPECT(value(fd) == 4, "%lu", (unsigned long)value(fd));
	EXPECT(ioctl(fd, PERF_EVENT_IOC_DISABLE, 0) == 0, "disable");
	noops(q, 5);
	EXPECT(value(fd) == 4, "%lu", (unsigned long)value(fd));
	EXPECT(ioctl(fd, PERF_EVENT_IOC_RESET, 0) == 0 && ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) == 0, "reset");
	noops(q, 6);
	EXPECT(value(fd) == 6, "%lu", (unsigned long)value(fd));
	REFUSED(ENOTTY, ioctl(fd, 0x2499, 0));
	REFUSED(EINVAL, ioctl(fd, PERF_EVENT_IOC_REFRESH, 1));
	uint64_t word;
	REFUSED(ENOSPC, read(fd, &word, 7));
	/* Where nothing is mapped; the compiler must not know it. */
	void *volatile nowhere = (void *)16;
	REFUSED(EFAULT, read(fd, nowhere, 8));
	REFUSED(EFAULT, ioctl(fd, PERF_EVENT_IOC_ID, nowhere));
	REFUSED(EINVAL, write(fd, &word, 8));
	REFUSED(ESPIPE, pread(fd, &word, 8, 0));
	/* A duplicate and a child have the same event. */
	int copy = dup(fd);
	EXPECT(close(fd) == 0, "close");
	pid_t child = fork();
	if (child == 0) {
		EXPECT(value(copy) == 6, "%lu in the child", (unsigned long)value(copy));
		_exit(0);
	}
	int status;
	EXPECT(waitpid(child, &status, 0) == child && status == 0, "status %d", status);
	noops(q, 1);
	EXPECT(value(copy) == 7, "%lu", (unsigned long)value(copy));
	EXPECT(close(copy) == 0, "close");
	REFUSED(EBADF, read(copy, &word, 8));
}

static void groups(struct queue *q)
{
	struct perf_event_attr attr = counting(3, 1);
	attr.disabled = 1;
	attr.read_format =
	    PERF_FORMAT_GROUP | PERF_FORMAT_ID | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
	int leader = event(attr, -1);
	attr.disabled = 0;
	attr.config = 4 | 0x10 << 4;
	int sibling = event(attr, leader);
	REFUSED(EINVAL, opened(&attr, -1, 0, sibling, 0));
	noops(q, 2);
	EXPECT(ioctl(leader, PERF_EVENT_IOC_ENABLE, PERF_IOC_FLAG_GROUP) == 0, "enable");
	noops(q, 3);
	EXPECT(ioctl(sibling, PERF_EVENT_IOC_DISABLE, 0) == 0, "disable");
	noops(q, 4);
	uint64_t ids[2], words[16];
	EXPECT(ioctl(leader, PERF_EVENT_IOC_ID, &ids[0]) == 0 && ioctl(sibling, PERF_EVENT_IOC_ID, &ids[1]) == 0, "ids");
	ssize_t len = read(leader, words, sizeof words);
	EXPECT(len == 7 * 8, "%zd bytes", len);
	EXPECT(words[0] == 2 && words[1] > 0 && words[1] == words[2], "events and times");
	EXPECT(words[3] == 7 && words[4] == ids[0], "leader %lu", (unsigned long)words[3]);
	EXPECT(words[5] == 3 && words[6] == ids[1] && ids[0] != ids[1], "sibling %lu", (unsigned long)words[5]);
	/* A group has at most as many events as the device has counters: eight. */
	int more[6];
	for (int i = 0; i < 6; i++)
		more[i] = event(attr, leader);
	REFUSED(EINVAL, opened(&attr, -1, 0, leader, 0));
	for (int i = 0; i < 6; i++)
		EXPECT(close(more[i]) == 0, "close");
	/* Without its leader, a sibling goes on for itself. */
	EXPECT(ioctl(sibling, PERF_EVENT_IOC_ENABLE, 0) == 0 && close(leader) == 0, "close");
	noops(q, 1);
	len = read(sibling, words, sizeof words);
	EXPECT(len == 5 * 8 && words[0] == 1 && words[3] == 4, "%zd bytes, %lu", len, (unsigned long)words[3]);
	EXPECT(close(sibling) == 0, "close");
}

/* The events of this process's queue, of the other one, and of closed files. */
static void filters(struct queue *q)
{
	struct perf_event_attr attr = counting(0, 0x1);
	int all = event(attr, -1);
	attr.config1 = 1 << 0;
	int first = event(attr, -1);
	attr.config1 = 1 << 1;
	int second = event(attr, -1);
	noops(q, 2);
	struct queue other = open_queue(SHARED);
	noops(&other, 3);
	close_queue(&other);
	EXPECT(value(all) == 5 && value(first) == 5 && value(second) == 0, "%lu %lu %lu", (unsigned long)value(all),
	       (unsigned long)value(first), (unsigned long)value(second));
	close(all), close(first), close(second);
}

int main(int count, char **words)
{
	EXPECT(count == 2, "perf_events TYPE");
	pmu = atoi(words[1]);
	struct queue q = open_queue(SHARED);
	arguments();
	requests(&q);
	groups(&q);
	filters(&q);
	return 0;
}
