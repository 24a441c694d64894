/* Absent pages (MADV_DONTNEED): with block on fault clear, a partial completion with the exact bytes completed; with
 * it set, a successful one. `holes lenient`: residency is lenient, and everything completes. */
#include "client.h"

enum { PAGES = 5, HOLE = 3 };
#define SIZE (PAGES * (uint32_t)PAGE)

static struct queue q;
static int lenient;
static record __attribute__((aligned(32))) r;

/* Returns a copy that does not block on faults. */
static desc daring(void *to, const void *from, uint32_t size)
{
	desc d = moving(to, from, size, &r);
	d.flags &= ~IDXD_OP_FLAG_BOF;
	return d;
}

static void punch(unsigned char *buffer)
{
	EXPECT(madvise(buffer + HOLE * PAGE, PAGE, MADV_DONTNEED) == 0, "madvise");
}

/* Runs the descriptor with an absent page in `holed`, with block on fault clear and set. `done`: bytes completed
 * before the absent page. */
static void hole(const char *what, desc d, unsigned char *holed, unsigned status, uint32_t done)
{
	punch(holed);
	memset(&r, 0, sizeof r);
	unsigned seen = run(&q, &d);
	if (lenient) {
		EXPECT(seen == DSA_COMP_SUCCESS, "%s, lenient: %#x", what, seen);
	} else {
		EXPECT(seen == status, "%s: status %#x, not %#x", what, seen, status);
		EXPECT(r.bytes_completed == done, "%s: %u bytes completed, not %u", what, r.bytes_completed, done);
		uint64_t fault = r.fault_addr & ~(PAGE - 1);
		EXPECT(fault == (uintptr_t)holed + HOLE * PAGE, "%s: fault at %#lx", what, (long)r.fault_addr);
	}
	/* Still absent: the device has not touched it. */
	punch(holed);
	memset(&r, 0, sizeof r);
	d.flags |= IDXD_OP_FLAG_BOF;
	seen = run(&q, &d);
	EXPECT(seen == DSA_COMP_SUCCESS, "%s, blocking on the fault: %#x", what, seen);
}

int main(int argc, char **argv)
{
	lenient = argc > 1 && strcmp(argv[1], "lenient") == 0;
	q = open_queue(DEDICATED);
	unsigned char *a = pages(PAGES, 1), *b = pages(PAGES, 1), *c = pages(PAGES, 1);
	const uint32_t there = HOLE * PAGE;

	hole("move, source", daring(b, a, SIZE), a, 0x03, there);
	hole("move, destination", daring(b, a, SIZE), b, 0x83, there);
	/* Neither end is on a page's boundary: the bytes up to the start of the faulting page are completed. */
	hole("move from the middle of a page, source", daring(b + 7, a + 100, SIZE - 200), a, 0x03, there - 100);
	hole("move from the middle of a page, destination", daring(b + 7, a + 100, SIZE - 200), b, 0x83, there - 7);

	desc d = asking(DSA_OPCODE_MEMFILL, &r);
	d.pattern = 0x0101010101010101ul;
	d.dst_addr = (uintptr_t)b;
	d.xfer_size = SIZE;
	hole("fill", d, b, 0x83, there);

	/* Both sides are zero after the absent page, so they are equal whichever page comes back empty. */
	memset(a, 0, SIZE);
	memset(b, 0, SIZE);
	d = asking(DSA_OPCODE_COMPARE, &r);
	d.src_addr = (uintptr_t)a;
	d.src2_addr = (uintptr_t)b;
	d.xfer_size = SIZE;
	hole("compare, first source", d, a, 0x03, there);
	hole("compare, second source", d, b, 0x03, there);

	d = asking(DSA_OPCODE_COMPVAL, &r);
	d.src_addr = (uintptr_t)a;
	d.xfer_size = SIZE;
	hole("compare pattern", d, a, 0x03, there);

	d = asking(DSA_OPCODE_DUALCAST, &r);
	d.src_addr = (uintptr_t)a;
	d.dst_addr = (uintptr_t)b;
	d.dest2 = (uintptr_t)c;
	d.xfer_size = SIZE;
	hole("dualcast, source", d, a, 0x03, there);
	hole("dualcast, first destination", d, b, 0x83, there);
	hole("dualcast, second destination", d, c, 0x83, there);

	d = asking(DSA_OPCODE_CRCGEN, &r);
	d.src_addr = (uintptr_t)a;
	d.xfer_size = SIZE;
	hole("CRC", d, a, 0x03, there);
	d = asking(DSA_OPCODE_COPY_CRC, &r);
	d.src_addr = (uintptr_t)a;
	d.dst_addr = (uintptr_t)b;
	d.xfer_size = SIZE;
	hole("copy with CRC, source", d, a, 0x03, there);
	hole("copy with CRC, destination", d, b, 0x83, there);

	/* Every eighth byte differs: ten bytes of delta for eight of source, so the delta reaches its absent page
	 * first. */
	memset(a, 1, SIZE);
	memset(b, 2, SIZE);
	unsigned char *delta = pages(2 * PAGES, 0);
	d = asking(DSA_OPCODE_CR_DELTA, &r);
	d.src_addr = (uintptr_t)a;
	d.src2_addr = (uintptr_t)b;
	d.xfer_size = SIZE;
	d.delta_addr = (uintptr_t)delta;
	d.max_delta_size = 2 * PAGES * PAGE;
	hole("create delta, source", d, a, 0x03, there);
	memset(a, 1, SIZE);
	/* The entries that fit before the absent page, as a whole. */
	uint32_t entries = there / 10;
	punch(delta);
	memset(&r, 0, sizeof r);
	unsigned seen = run(&q, &d);
	if (lenient) {
		EXPECT(seen == DSA_COMP_SUCCESS, "create delta, lenient: %#x", seen);
	} else {
		EXPECT(seen == 0x83 && r.bytes_completed == 8 * entries, "create delta, record: %#x, %u bytes", seen,
		       r.bytes_completed);
		EXPECT(r.delta_rec_size == 10 * entries, "create delta, record: %u bytes", r.delta_rec_size);
	}
	memset(&r, 0, sizeof r);
	d.flags |= IDXD_OP_FLAG_BOF;
	seen = run(&q, &d);
	EXPECT(seen == DSA_COMP_SUCCESS && r.delta_rec_size == SIZE / 8 * 10, "create delta: %#x, %u", seen, r.delta_rec_size);
	desc apply = asking(DSA_OPCODE_AP_DELTA, &r);
	apply.src_addr = (uintptr_t)delta;
	apply.dst_addr = (uintptr_t)a;
	apply.xfer_size = SIZE;
	apply.delta_rec_size = SIZE / 8 * 10;
	punch(a);
	memset(&r, 0, sizeof r);
	seen = run(&q, &apply);
	if (!lenient) {
		/* Counts the delta consumed, without the entry that could not be applied. */
		EXPECT(seen == 0x83 && r.bytes_completed == there / 8 * 10, "apply delta: %#x, %u bytes", seen, r.bytes_completed);
		memset(&r, 0, sizeof r);
		apply.flags |= IDXD_OP_FLAG_BOF;
		seen = run(&q, &apply);
	}
	EXPECT(seen == DSA_COMP_SUCCESS, "apply delta: %#x", seen);
	EXPECT(memcmp(a, b, SIZE) == 0, "the delta makes the two equal");

	/* Unmapped memory: a fault, not a crash, with block on fault set as well. */
	unsigned char *gone = pages(1, 1);
	EXPECT(munmap(gone, PAGE) == 0, "munmap");
	desc wild = daring(b, gone, 64);
	seen = run(&q, &wild);
	EXPECT(seen == 0x03 && r.bytes_completed == 0, "an unmapped source: %#x, %u", seen, r.bytes_completed);
	memset(&r, 0, sizeof r);
	wild.flags |= IDXD_OP_FLAG_BOF;
	seen = run(&q, &wild);
	EXPECT(seen == 0x04, "an unmapped source, blocking: %#x", seen);
	/* A read-only destination. */
	EXPECT(mprotect(c, PAGE, PROT_READ) == 0, "mprotect");
	wild = daring(c, a, 64);
	wild.flags |= IDXD_OP_FLAG_BOF;
	seen = run(&q, &wild);
	EXPECT(seen == 0x84, "a read-only destination, blocking: %#x", seen);

	expect_alive(&q);
	close_queue(&q);
	return 0;
}
