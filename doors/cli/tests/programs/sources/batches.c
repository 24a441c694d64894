/* Batches as DPDK's driver and others build them: children whose completion record is their own descriptor's slot,
 * faults in some children, fences, and a CRC seed that is read from an earlier child's record. */
#include "client.h"

enum { MANY = 16, SIZE = 512 };

static struct queue q;
static record __attribute__((aligned(32))) parent;
static desc __attribute__((aligned(64))) list[MANY];
static unsigned char from[MANY][SIZE], to[MANY][SIZE];

static unsigned run_batch(unsigned count)
{
	desc batch = asking(DSA_OPCODE_BATCH, &parent);
	batch.desc_list_addr = (uintptr_t)list;
	batch.desc_count = count;
	return run(&q, &batch);
}

/* Children that request a record only on an error, and name their own slot for it. */
static void prepare(void)
{
	for (int i = 0; i < MANY; i++) {
		fill_known(from[i], SIZE, i + 1);
		memset(to[i], 0, SIZE);
		record unused;
		list[i] = moving(to[i], from[i], SIZE, &unused);
		list[i].flags = IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_CC;
		list[i].completion_addr = (uintptr_t)&list[i];
	}
}

/* The status byte of a slot; it is 0 in an unchanged descriptor. */
static unsigned slot(int i)
{
	return ((record *)&list[i])->status;
}

static void own_slots(void)
{
	desc before[MANY];
	prepare();
	memcpy(before, list, sizeof list);
	unsigned status = run_batch(MANY);
	EXPECT(status == DSA_COMP_SUCCESS && parent.bytes_completed == MANY, "%#x, %u", status, parent.bytes_completed);
	EXPECT(memcmp(before, list, sizeof list) == 0, "a child that succeeded has written into its slot");
	EXPECT(memcmp(from, to, sizeof to) == 0, "bytes");
}

static void faults_in_children(void)
{
	/* Null sources in children 3 and 11: these fail, the others complete. */
	prepare();
	list[3].src_addr = list[11].src_addr = 0;
	unsigned status = run_batch(MANY);
	EXPECT(status == DSA_COMP_BATCH_FAIL && parent.bytes_completed == MANY, "%#x, %u", status, parent.bytes_completed);
	for (int i = 0; i < MANY; i++) {
		int failing = i == 3 || i == 11;
		EXPECT(slot(i) == (failing ? 0x03u : 0u), "slot %d: %#x", i, slot(i));
		if (!failing)
			EXPECT(memcmp(from[i], to[i], SIZE) == 0, "bytes of child %d", i);
	}
	/* A fence at child 8 after a failure: the device abandons the rest, and the count is 8. */
	prepare();
	list[3].src_addr = 0;
	list[8].flags |= IDXD_OP_FLAG_FENCE;
	status = run_batch(MANY);
	EXPECT(status == DSA_COMP_BATCH_FAIL && parent.bytes_completed == 8, "%#x, %u", status, parent.bytes_completed);
	for (int i = 8; i < MANY; i++) {
		EXPECT(slot(i) == 0, "slot %d of the abandoned: %#x", i, slot(i));
		EXPECT(to[i][0] == 0 && memcmp(to[i], to[i] + 1, SIZE - 1) == 0, "an abandoned child ran: %d", i);
	}
}

/* CRC-32C, bit by bit. */
static uint32_t crc32c(const unsigned char *p, size_t len)
{
	uint32_t crc = ~0u;
	while (len--) {
		crc ^= *p++;
		for (int k = 0; k < 8; k++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	return ~crc;
}

static void seed_from_an_earlier_record(void)
{
	static record __attribute__((aligned(32))) r[2];
	static unsigned char text[5000];
	fill_known(text, sizeof text, 7);
	list[0] = asking(DSA_OPCODE_CRCGEN, &r[0]);
	list[0].src_addr = (uintptr_t)text;
	list[0].xfer_size = 2000;
	list[1] = asking(DSA_OPCODE_CRCGEN, &r[1]);
	list[1].src_addr = (uintptr_t)text + 2000;
	list[1].xfer_size = sizeof text - 2000;
	/* Flag 16: the device reads the seed from memory, here from the record of the previous child, which the
	 * fence waits for. */
	list[1].flags |= IDXD_OP_FLAG_FENCE | 1 << 16;
	list[1].seed_addr = (uintptr_t)&r[0].crc_val;
	unsigned status = run_batch(2);
	EXPECT(status == DSA_COMP_SUCCESS, "%#x: %#x, %#x", status, r[0].status, r[1].status);
	EXPECT((uint32_t)r[0].crc_val == crc32c(text, 2000), "the first part: %#x", (uint32_t)r[0].crc_val);
	EXPECT((uint32_t)r[1].crc_val == crc32c(text, sizeof text), "both parts: %#x", (uint32_t)r[1].crc_val);
}

static void bounds(void)
{
	prepare();
	EXPECT(run_batch(1) == DSA_COMP_DESC_CNT_ERANGE, "a batch of one: %#x", parent.status);
	desc batch = asking(DSA_OPCODE_BATCH, &parent);
	batch.desc_list_addr = (uintptr_t)list + 32;
	batch.desc_count = 2;
	EXPECT(run(&q, &batch) == DSA_COMP_DESCLIST_ALIGN, "a crooked list: %#x", parent.status);
	batch = asking(DSA_OPCODE_BATCH, &parent);
	batch.flags |= IDXD_OP_FLAG_BOF;
	batch.desc_list_addr = (uintptr_t)list;
	batch.desc_count = 2;
	EXPECT(run(&q, &batch) == DSA_COMP_INVALID_FLAGS, "block on fault on a batch: %#x", parent.status);
	batch = asking(DSA_OPCODE_BATCH, &parent);
	batch.desc_list_addr = (uintptr_t)list;
	batch.desc_count = 65;
	EXPECT(run(&q, &batch) == DSA_COMP_DESC_CNT_ERANGE, "one more than the queue's limit: %#x", parent.status);
}

int main(void)
{
	const char *paths[] = { DEDICATED, SHARED };
	for (int i = 0; i < 2; i++) {
		q = open_queue(paths[i]);
		own_slots();
		faults_in_children();
		seed_from_an_earlier_record();
		bounds();
		own_slots();
		close_queue(&q);
	}
	return 0;
}
