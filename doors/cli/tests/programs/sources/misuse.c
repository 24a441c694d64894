/* Commits one misuse that hardware would not report, or does the same work correctly: `misuse NAME commit`, `misuse
 * NAME avoid`. The names are those that --check prints. In both cases the program ends with 0, since the device
 * detects none of the misuses. */
#include "client.h"

enum { SIZE = 16384 };
static struct queue q;
static record __attribute__((aligned(64))) r[4];
static unsigned char *a, *b, *c;

static void record_misaligned(int commit)
{
	desc d = moving(b, a, SIZE, &r[0]);
	d.completion_addr += commit ? 8 : 0;
	submit(&q, &d);
	/* A record that is not aligned is never written, so only an aligned one is waited for. */
	if (!commit)
		wait_for(&r[0]);
}

static void record_in_use(int commit)
{
	desc first = moving(b, a, SIZE, &r[0]), second = moving(c, a, SIZE, commit ? &r[0] : &r[1]);
	submit(&q, &first);
	submit(&q, &second);
	wait_for(&r[0]);
	if (!commit)
		wait_for(&r[1]);
}

static void record_not_reset(int commit)
{
	desc d = moving(b, a, SIZE, &r[0]);
	run(&q, &d);
	if (!commit)
		r[0].status = 0;
	submit(&q, &d);
	wait_for(&r[0]);
}

static void source_changed(int commit)
{
	desc d = moving(b, a, SIZE, &r[0]);
	submit(&q, &d);
	if (commit)
		a[SIZE / 2] ^= 1;
	wait_for(&r[0]);
	a[SIZE / 2] ^= 1;
}

static void destination_changed(int commit)
{
	desc d = moving(b, a, SIZE, &r[0]);
	submit(&q, &d);
	if (commit)
		b[SIZE / 2] ^= 1;
	wait_for(&r[0]);
	b[SIZE / 2] ^= 1;
}

static void unmapped(int commit)
{
	unsigned char *mine = pages(SIZE / PAGE, 1);
	desc d = moving(b, mine, SIZE, &r[0]);
	submit(&q, &d);
	if (commit)
		munmap(mine, SIZE);
	wait_for(&r[0]);
	if (!commit)
		munmap(mine, SIZE);
}

static void list_changed(int commit)
{
	static desc __attribute__((aligned(64))) list[4];
	for (int i = 0; i < 4; i++)
		list[i] = moving(b + i * 1024, a + i * 1024, 1024, &r[1 + i % 3]);
	for (int i = 0; i < 4; i++)
		list[i].flags = 0, list[i].completion_addr = 0;
	desc batch = asking(DSA_OPCODE_BATCH, &r[0]);
	batch.desc_list_addr = (uintptr_t)list;
	batch.desc_count = 4;
	submit(&q, &batch);
	if (commit)
		list[3].xfer_size = 512;
	wait_for(&r[0]);
	list[3].xfer_size = 256;
}

/* Two dependent copies: unordered, or the second submitted after the first's record. */
static void pair(desc first, desc second, int commit)
{
	submit(&q, &first);
	if (!commit)
		wait_for(&r[0]);
	submit(&q, &second);
	wait_for(&r[0]);
	wait_for(&r[1]);
}

/* The same in a batch: without a fence, or with a fence between. */
static void batched(desc first, desc second, int commit)
{
	static desc __attribute__((aligned(64))) list[2];
	memset(r, 0, sizeof r);
	list[0] = first;
	list[1] = second;
	if (!commit)
		list[1].flags |= IDXD_OP_FLAG_FENCE;
	desc batch = asking(DSA_OPCODE_BATCH, &r[2]);
	batch.desc_list_addr = (uintptr_t)list;
	batch.desc_count = 2;
	run(&q, &batch);
}

static void read_after_write(int commit)
{
	pair(moving(b, a, SIZE, &r[0]), moving(c, b, SIZE, &r[1]), commit);
	batched(moving(b, a, SIZE, &r[0]), moving(c, b, SIZE, &r[1]), commit);
}

static void write_after_read(int commit)
{
	pair(moving(b, a, SIZE, &r[0]), moving(a + 64, c, SIZE / 2, &r[1]), commit);
	batched(moving(b, a, SIZE, &r[0]), moving(a + 64, c, SIZE / 2, &r[1]), commit);
}

static void write_after_write(int commit)
{
	pair(moving(b, a, SIZE, &r[0]), moving(b + 4096, c, SIZE / 2, &r[1]), commit);
	batched(moving(b, a, SIZE, &r[0]), moving(b + 4096, c, SIZE / 2, &r[1]), commit);
}

/* The queue is dedicated: it answers ENQCMD by Retry, however many entries are free. */
static void wrong_instruction(int commit)
{
	desc d = moving(b, a, SIZE, &r[0]);
	if (commit)
		EXPECT(enqcmd(q.portal, &d) == 1, "Retry");
	submit(&q, &d);
	wait_for(&r[0]);
}

static void no_record_requested(int commit)
{
	desc d = moving(b, a, SIZE, &r[0]);
	if (commit)
		d.flags &= ~IDXD_OP_FLAG_RCR;
	submit(&q, &d);
	/* The copy has no record, so its end is known only from the Drain that waits for it. */
	desc drain = asking(DSA_OPCODE_DRAIN, &r[1]);
	run(&q, &drain);
	EXPECT((r[0].status != 0) == !commit, "status %u", r[0].status);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*does)(int commit);
	} all[] = {
		{ "record-misaligned", record_misaligned },	{ "record-in-use", record_in_use },
		{ "record-not-reset", record_not_reset },	{ "source-changed", source_changed },
		{ "destination-changed", destination_changed }, { "unmapped", unmapped },
		{ "list-changed", list_changed },		{ "read-after-write", read_after_write },
		{ "write-after-read", write_after_read },	{ "write-after-write", write_after_write },
		{ "wrong-instruction", wrong_instruction },	{ "no-record-requested", no_record_requested },
	};
	EXPECT(argc == 3, "misuse NAME commit|avoid");
	q = open_queue(DEDICATED);
	a = pages(SIZE / PAGE, 1);
	b = pages(SIZE / PAGE, 2);
	c = pages(SIZE / PAGE, 3);
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
		if (strcmp(argv[1], all[i].name) == 0) {
			all[i].does(strcmp(argv[2], "commit") == 0);
			/* Later work is correct, and must not be reported. */
			expect_alive(&q);
			close_queue(&q);
			return 0;
		}
	}
	EXPECT(0, "no misuse %s", argv[1]);
}
