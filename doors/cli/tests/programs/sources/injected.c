/* Counts the results of work on a device with injected faults: `injected copies|shared|late|pairs|lost|halts`. If
 * the device behaves the same, the output is the same. */
#include "client.h"
#include <fcntl.h>

enum { MANY = 1000 };

static struct queue q;
static unsigned char *from, *to;

/* Copies of a page that do not block on faults, each followed by a No-op. */
static void copies(void)
{
	static record __attribute__((aligned(32))) r;
	int ends[256] = { 0 }, noops = 0;
	unsigned order = 0;
	for (int i = 0; i < MANY; i++) {
		desc d = moving(to, from, PAGE, &r);
		d.flags &= ~IDXD_OP_FLAG_BOF;
		unsigned status = run(&q, &d);
		ends[status]++;
		/* One number for which copies faulted, and where. */
		order = order * 31 + status + r.bytes_completed + i;
		d = asking(DSA_OPCODE_NOOP, &r);
		noops += run(&q, &d) == DSA_COMP_SUCCESS;
	}
	printf("succeeded %d\nfaulted %d\nno-ops %d\norder %u\n", ends[1], ends[0x03] + ends[0x83], noops, order);
	for (int i = 2; i < 256; i++)
		if (ends[i])
			printf("status %#x %d\n", i, ends[i]);
}

static void shared(void)
{
	static record __attribute__((aligned(32))) r;
	struct queue s = open_queue(SHARED);
	int retries = 0, good = 0;
	for (int i = 0; i < MANY; i++) {
		desc d = asking(DSA_OPCODE_NOOP, &r);
		for (double until = now() + 30; enqcmd(s.portal, &d); retries++)
			EXPECT(now() < until, "Retry for ever");
		good += wait_for(&r) == DSA_COMP_SUCCESS;
	}
	printf("retries %d\nsucceeded %d\n", retries, good);
}

static void late(void)
{
	static record __attribute__((aligned(32))) r;
	desc d = moving(to, from, PAGE, &r);
	double begin = now();
	EXPECT(run(&q, &d) == DSA_COMP_SUCCESS, "status %#x", r.status);
	printf("microseconds %d\n", (int)((now() - begin) * 1e6));
}

/* Two at a time: if the first record appears only after the second descriptor was submitted, the device held it
 * back. */
static void pairs(void)
{
	static record __attribute__((aligned(64))) r[2][2];
	int held = 0, good = 0;
	for (int i = 0; i < MANY / 2; i++) {
		desc first = asking(DSA_OPCODE_NOOP, &r[0][0]), second = asking(DSA_OPCODE_NOOP, &r[1][0]);
		submit(&q, &first);
		held += r[0][0].status == 0;
		submit(&q, &second);
		good += wait_for(&r[1][0]) == DSA_COMP_SUCCESS;
		good += wait_for(&r[0][0]) == DSA_COMP_SUCCESS;
	}
	printf("held %d\nsucceeded %d\n", held, good);
}

static void lost(void)
{
	static record __attribute__((aligned(32))) r;
	fill_known(from, PAGE, 1);
	desc d = moving(to, from, PAGE, &r);
	submit(&q, &d);
	double until = now() + 30;
	while (memcmp(from, to, PAGE) != 0)
		EXPECT(now() < until, "the bytes did not come");
	usleep(50000);
	printf("the bytes came, the record did %s\n", r.status ? "as well" : "not");
}

static int is_halted(void)
{
	char state[32] = "";
	int fd = open("/sys/bus/dsa/devices/dsa0/state", O_RDONLY);
	EXPECT(fd >= 0 && read(fd, state, sizeof state - 1) > 0, "state");
	close(fd);
	return strcmp(state, "halted\n") == 0;
}

static void halts(void)
{
	static record __attribute__((aligned(32))) r;
	int good = 0;
	for (int i = 0; i < 200; i++) {
		desc d = asking(DSA_OPCODE_NOOP, &r);
		submit(&q, &d);
		/* The driver is queried before the record is read: work that completed before the halt has its
		 * record by then. */
		for (double until = now() + 30; r.status == 0 && !is_halted();)
			EXPECT(now() < until, "neither a record nor a halt");
		if (r.status == 0)
			break;
		good++;
	}
	printf("succeeded %d\nhalted %d\n", good, is_halted());
}

int main(int argc, char **argv)
{
	q = open_queue(DEDICATED);
	from = pages(1, 1);
	to = pages(1, 2);
	const char *what = argc > 1 ? argv[1] : "";
	if (strcmp(what, "copies") == 0)
		copies();
	else if (strcmp(what, "shared") == 0)
		shared();
	else if (strcmp(what, "late") == 0)
		late();
	else if (strcmp(what, "pairs") == 0)
		pairs();
	else if (strcmp(what, "lost") == 0)
		lost();
	else if (strcmp(what, "halts") == 0)
		halts();
	else
		EXPECT(0, "injected copies|shared|late|pairs|lost|halts");
	return 0;
}
