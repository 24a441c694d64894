/* Calls the provider through libfabric: two endpoints of this process access memory of each other. Each case prints its
 * name.
 *
 * The first argument is the kind of memory registration, "virtual" (FI_MR_VIRT_ADDR and FI_MR_PROV_KEY) or "scalable".
 */
#include "sides.h"

static int is_virtual;

/* Memory that the peer of side `b`, which is `a`, may access. */
struct memory {
	unsigned char *bytes;
	struct fid_mr *mr;
	uint64_t key, address;
};

static struct memory registered(size_t len, uint64_t access)
{
	static uint64_t next_key = 100;
	struct memory memory = {.bytes = calloc(1, len + 1)};
	CALL(fi_mr_reg(domain, memory.bytes, len, access, 0, next_key, 0, &memory.mr, NULL));
	memory.key = fi_mr_key(memory.mr);
	memory.address = is_virtual ? (uint64_t)memory.bytes : 0;
	CHECK(is_virtual || memory.key == next_key);
	next_key++;
	return memory;
}

static void closed(struct memory *memory)
{
	CALL(fi_close(&memory->mr->fid));
	free(memory->bytes);
}

static const uint64_t both = FI_REMOTE_READ | FI_REMOTE_WRITE;

static void all_sizes_are_written_and_read(void)
{
	open_both(0);
	struct memory memory = registered(3000000, both);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		size_t len = sizes[i];
		void *sent = filled(len, (unsigned)i);
		unsigned char *got = calloc(1, len + 1);
		memset(memory.bytes, 0, 3000000);
		CALL(fi_write(a.ep, sent, len, NULL, PEER, memory.address, memory.key, &contexts[0]));
		CHECK(succeed(&a, &contexts[0]).flags == (FI_RMA | FI_WRITE));
		check_filled(memory.bytes, len, (unsigned)i);
		CHECK(memory.bytes[len] == 0);
		CALL(fi_read(a.ep, got, len, NULL, PEER, memory.address, memory.key, &contexts[1]));
		CHECK(succeed(&a, &contexts[1]).flags == (FI_RMA | FI_READ));
		check_filled(got, len, (unsigned)i);

		/* The same in two segments. */
		struct iovec out[2] = {{sent, len / 3}, {(char *)sent + len / 3, len - len / 3}};
		struct iovec in[2] = {{got, len / 2}, {got + len / 2, len - len / 2}};
		memset(memory.bytes, 0, len);
		memset(got, 0, len);
		CALL(fi_writev(a.ep, out, NULL, 2, PEER, memory.address, memory.key, &contexts[2]));
		succeed(&a, &contexts[2]);
		check_filled(memory.bytes, len, (unsigned)i);
		CALL(fi_readv(a.ep, in, NULL, 2, PEER, memory.address, memory.key, &contexts[3]));
		succeed(&a, &contexts[3]);
		check_filled(got, len, (unsigned)i);

		/* And as messages. */
		struct fi_rma_iov remote = {memory.address, len, memory.key};
		struct fi_msg_rma msg = {.msg_iov = out, .iov_count = 2, .addr = PEER, .rma_iov = &remote, .rma_iov_count = 1,
			.context = &contexts[4]};
		memset(memory.bytes, 0, len);
		memset(got, 0, len);
		CALL(fi_writemsg(a.ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		succeed(&a, &contexts[4]);
		check_filled(memory.bytes, len, (unsigned)i);
		msg.msg_iov = in;
		CALL(fi_readmsg(a.ep, &msg, FI_COMPLETION));
		succeed(&a, &contexts[4]);
		check_filled(got, len, (unsigned)i);
		free(sent);
		free(got);
	}
	closed(&memory);
	close_both();
}

static void a_word_comes_after_the_bytes(void)
{
	open_both(0);
	struct memory memory = registered(3000000, both);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		size_t len = sizes[i];
		void *sent = filled(len, (unsigned)i);
		memset(memory.bytes, 0, len);
		CALL(fi_writedata(a.ep, sent, len, NULL, 77 + i, PEER, memory.address, memory.key, &contexts[0]));
		struct fi_cq_tagged_entry entry = succeed(&b, NULL);
		CHECK(entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && entry.data == 77 + i);
		check_filled(memory.bytes, len, (unsigned)i);
		succeed(&a, &contexts[0]);
		if (len <= info->tx_attr->inject_size) {
			CALL(fi_inject_writedata(a.ep, sent, len, 5, PEER, memory.address, memory.key));
			memset(sent, 0, len);
			CHECK(succeed(&b, NULL).data == 5);
			check_filled(memory.bytes, len, (unsigned)i);
		}
		free(sent);
	}
	closed(&memory);
	close_both();
}

static void injected_bytes_may_change_at_once(void)
{
	open_both(WITH_COUNTERS);
	struct memory memory = registered(100000, both);
	uint64_t count = 0;
	for (size_t i = 0; i < COUNT(sizes); i++) {
		size_t len = sizes[i];
		void *sent = filled(len, (unsigned)i);
		if (len > info->tx_attr->inject_size) {
			CHECK(fi_inject_write(a.ep, sent, len, PEER, memory.address, memory.key) == -FI_EMSGSIZE);
		} else {
			CALL(fi_inject_write(a.ep, sent, len, PEER, memory.address, memory.key));
			memset(sent, 0, len);
			count++;
			/* The counter tells when it is done; there is no completion. */
			while (fi_cntr_read(a.accesses) < count)
				fi_cq_read(b.cq, NULL, 0);
			check_filled(memory.bytes, len, (unsigned)i);
		}
		free(sent);
	}
	CHECK(fi_cq_read(a.cq, &(struct fi_cq_tagged_entry){0}, 1) == -FI_EAGAIN);
	char bytes[8];
	CALL(fi_read(a.ep, bytes, 8, NULL, PEER, memory.address, memory.key, &contexts[0]));
	succeed(&a, &contexts[0]);
	CHECK(fi_cntr_read(a.accesses) == count + 1);
	CALL(fi_read(a.ep, bytes, 8, NULL, PEER, memory.address, memory.key + 1, &contexts[0]));
	fail(&a, &contexts[0], FI_ENOKEY);
	CHECK(fi_cntr_read(a.accesses) == count + 1 && fi_cntr_readerr(a.accesses) == 1);
	closed(&memory);
	close_both();
}

static void what_is_not_permitted_fails(void)
{
	open_both(SELECTIVE);
	static const size_t lengths[] = {1, 24, 8192, 100000};
	for (size_t i = 0; i < COUNT(lengths); i++) {
		size_t len = lengths[i];
		struct memory memory = registered(len, both), readable = registered(len, FI_REMOTE_READ);
		struct memory writable = registered(len, FI_REMOTE_WRITE), local = registered(len, FI_READ | FI_WRITE);
		char *bytes = filled(len, 1);
		CALL(fi_write(a.ep, bytes, len, NULL, PEER, memory.address, memory.key + 50, &contexts[0]));
		fail(&a, &contexts[0], FI_ENOKEY);
		CALL(fi_write(a.ep, bytes, len, NULL, PEER, memory.address + 1, memory.key, &contexts[0]));
		fail(&a, &contexts[0], FI_EACCES);
		CALL(fi_write(a.ep, bytes, len, NULL, PEER, memory.address - 1, memory.key, &contexts[0]));
		fail(&a, &contexts[0], FI_EACCES);
		CALL(fi_write(a.ep, bytes, len, NULL, PEER, readable.address, readable.key, &contexts[0]));
		fail(&a, &contexts[0], FI_EACCES);
		CALL(fi_read(a.ep, bytes, len, NULL, PEER, writable.address, writable.key, &contexts[0]));
		fail(&a, &contexts[0], FI_EACCES);
		CALL(fi_read(a.ep, bytes, len, NULL, PEER, local.address, local.key, &contexts[0]));
		fail(&a, &contexts[0], FI_EACCES);
		check_filled((unsigned char *)bytes, len, 1);
		for (size_t place = 0; place < len; place++)
			CHECK(memory.bytes[place] == 0 && readable.bytes[place] == 0 && local.bytes[place] == 0);
		/* What is permitted goes on, and has no completion that was not asked for. */
		CALL(fi_write(a.ep, bytes, len, NULL, PEER, memory.address, memory.key, &contexts[1]));
		settle();
		check_filled(memory.bytes, len, 1);
		CHECK(fi_cq_read(a.cq, &(struct fi_cq_tagged_entry){0}, 1) == -FI_EAGAIN);
		closed(&local);
		closed(&writable);
		closed(&readable);
		/* A closed region is no region. */
		CALL(fi_close(&memory.mr->fid));
		CALL(fi_write(a.ep, bytes, len, NULL, PEER, memory.address, memory.key, &contexts[0]));
		fail(&a, &contexts[0], FI_ENOKEY);
		free(memory.bytes);
		free(bytes);
	}
	close_both();
}

static void regions_are_registered_in_each_way(void)
{
	open_both(0);
	char *bytes = calloc(1, 300), got[200];
	struct iovec parts[2] = {{bytes, 100}, {bytes + 200, 100}};
	struct fi_mr_attr attr = {.mr_iov = parts, .iov_count = 2, .access = both, .requested_key = 7};
	struct fid_mr *mr, *other;
	for (int how = 0; how < 2; how++) {
		if (how)
			CALL(fi_mr_regv(domain, parts, 2, both, 0, 7, 0, &mr, &contexts[0]));
		else
			CALL(fi_mr_regattr(domain, &attr, 0, &mr));
		CHECK(how == 0 || mr->fid.context == &contexts[0]);
		CALL(fi_mr_bind(mr, &a.ep->fid, 0));
		CALL(fi_mr_enable(mr));
		uint64_t address = is_virtual ? (uint64_t)bytes : 0;
		for (int i = 0; i < 200; i++)
			got[i] = (char)i;
		CALL(fi_write(a.ep, got, 200, NULL, PEER, address, fi_mr_key(mr), &contexts[0]));
		succeed(&a, &contexts[0]);
		CHECK(memcmp(bytes, got, 100) == 0 && memcmp(bytes + 200, got + 100, 100) == 0 && bytes[100] == 0);
		if (!is_virtual)
			CHECK(fi_mr_regv(domain, parts, 2, both, 0, 7, 0, &other, NULL) == -FI_ENOKEY);
		CHECK(fi_close(&domain->fid) == -FI_EBUSY);
		CALL(fi_close(&mr->fid));
	}
	CHECK(fi_mr_regv(domain, parts, 0, both, 0, 7, 0, &mr, NULL) == -FI_EINVAL);
	CHECK(fi_mr_regv(domain, parts, 5, both, 0, 7, 0, &mr, NULL) == -FI_EINVAL);
	/* The whole address space, as MPICH registers it for windows that get their memory later. */
	CALL(fi_mr_reg(domain, NULL, UINTPTR_MAX, both, 0, 8, 0, &mr, NULL));
	CALL(fi_read(a.ep, got, 100, NULL, PEER, (uint64_t)bytes, fi_mr_key(mr), &contexts[0]));
	succeed(&a, &contexts[0]);
	CHECK(memcmp(bytes, got, 100) == 0);
	CALL(fi_read(a.ep, got, 100, NULL, PEER, 4096, fi_mr_key(mr), &contexts[0]));
	fail(&a, &contexts[0], FI_EFAULT);
	CALL(fi_close(&mr->fid));
	free(bytes);
	close_both();
}

static void bad_arguments_are_refused(void)
{
	open_both(0);
	struct memory memory = registered(100, both);
	char bytes[8] = {0};
	struct iovec iov = {bytes, 8};
	struct fi_rma_iov remote[2] = {{memory.address, 8, memory.key}, {memory.address, 8, memory.key}};
	struct fi_msg_rma msg = {.msg_iov = &iov, .iov_count = 1, .addr = PEER, .rma_iov = remote, .rma_iov_count = 1};
	CHECK(fi_write(a.ep, NULL, 8, NULL, PEER, memory.address, memory.key, NULL) == -FI_EINVAL);
	CHECK(fi_write(a.ep, bytes, 8, NULL, 99, memory.address, memory.key, NULL) == -FI_EINVAL);
	CHECK(fi_read(a.ep, bytes, 8, NULL, FI_ADDR_UNSPEC, memory.address, memory.key, NULL) == -FI_EINVAL);
	CHECK(fi_writemsg(a.ep, &msg, FI_FENCE) == -FI_EBADFLAGS);
	CHECK(fi_readmsg(a.ep, &msg, FI_PEEK) == -FI_EBADFLAGS);
	msg.rma_iov_count = 2;
	CHECK(fi_writemsg(a.ep, &msg, 0) == -FI_EINVAL);
	msg.rma_iov_count = 1;
	remote[0].len = 7;
	CHECK(fi_writemsg(a.ep, &msg, 0) == -FI_EINVAL);
	msg.rma_iov = NULL;
	CHECK(fi_readmsg(a.ep, &msg, 0) == -FI_EINVAL);
	CHECK(fi_writemsg(a.ep, NULL, 0) == -FI_EINVAL);
	closed(&memory);
	close_both();
}

/* Sizes of libfabric's types, from FI_INT8 to FI_DOUBLE. */
static const size_t sizes_of[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8};

static void queries_say_which_atomic_operations_exist(void)
{
	open_both(0);
	int known = 0;
	for (int type = 0; type < FI_DATATYPE_LAST; type++)
		for (int op = 0; op < FI_ATOMIC_OP_LAST; op++) {
			int is_float = type == FI_FLOAT || type == FI_DOUBLE;
			int is_known = (size_t)type < COUNT(sizes_of);
			int compares = op >= FI_CSWAP, has_bits = op == FI_BOR || op == FI_BAND || op == FI_BXOR || op == FI_MSWAP;
			int exists = is_known && !(is_float && has_bits);
			int plain = exists && !compares && op != FI_ATOMIC_READ, fetch = exists && !compares;
			int compare = exists && compares;
			struct fi_atomic_attr attr = {0, 0};
			size_t count = 0;
			int answers[6] = {
				fi_query_atomic(domain, type, op, &attr, 0),
				fi_query_atomic(domain, type, op, &attr, FI_FETCH_ATOMIC),
				fi_query_atomic(domain, type, op, &attr, FI_COMPARE_ATOMIC),
				fi_atomicvalid(a.ep, type, op, &count),
				fi_fetch_atomicvalid(a.ep, type, op, &count),
				fi_compare_atomicvalid(a.ep, type, op, &count),
			};
			int expected[3] = {plain, fetch, compare};
			for (int i = 0; i < 6; i++)
				CHECK(answers[i] == (expected[i % 3] ? 0 : -FI_EOPNOTSUPP));
			if (exists) {
				CHECK(attr.size == sizes_of[type] && attr.count == 4096 / attr.size && count == attr.count);
				known++;
			}
		}
	CHECK(known == 8 * 19 + 2 * 15);
	struct fi_atomic_attr attr;
	CHECK(fi_query_atomic(domain, FI_INT32, FI_SUM, &attr, FI_TAGGED) == -FI_EOPNOTSUPP);
	CHECK(fi_query_atomic(domain, -1, FI_SUM, &attr, 0) < 0 && fi_query_atomic(domain, FI_VOID, FI_SUM, &attr, 0) < 0);
	close_both();
}

static void atomic_operations_are_done_by_each_call(void)
{
	open_both(WITH_COUNTERS);
	struct memory memory = registered(64, both);
	int64_t *words = (int64_t *)memory.bytes, operands[4] = {5, 6, 7, 8}, results[4], compares[4] = {10, 12, 0, 16};
	struct fi_ioc out[2] = {{operands, 1}, {operands + 1, 3}}, in[2] = {{results, 3}, {results + 3, 1}};
	struct fi_ioc compare[2] = {{compares, 2}, {compares + 2, 2}};
	struct fi_rma_ioc remote = {memory.address, 4, memory.key};
	struct fi_msg_atomic msg = {.msg_iov = out, .iov_count = 2, .addr = PEER, .rma_iov = &remote, .rma_iov_count = 1,
		.datatype = FI_INT64, .op = FI_SUM, .context = &contexts[1]};
	uint64_t at = memory.address, key = memory.key;

	CALL(fi_atomic(a.ep, operands, 4, NULL, PEER, at, key, FI_INT64, FI_SUM, &contexts[0]));
	CHECK(succeed(&a, &contexts[0]).flags == (FI_ATOMIC | FI_WRITE));
	CHECK(words[0] == 5 && words[1] == 6 && words[2] == 7 && words[3] == 8);
	CALL(fi_atomicv(a.ep, out, NULL, 2, PEER, at, key, FI_INT64, FI_SUM, &contexts[0]));
	succeed(&a, &contexts[0]);
	CHECK(words[0] == 10 && words[3] == 16);
	CALL(fi_atomicmsg(a.ep, &msg, FI_COMPLETION));
	succeed(&a, &contexts[1]);
	CHECK(words[0] == 15 && words[3] == 24);
	CALL(fi_inject_atomic(a.ep, operands, 1, PEER, at, key, FI_INT64, FI_SUM));
	while (fi_cntr_read(a.accesses) < 4)
		fi_cq_read(b.cq, NULL, 0);
	CHECK(words[0] == 20);

	CALL(fi_fetch_atomic(a.ep, operands, 2, NULL, results, NULL, PEER, at, key, FI_INT64, FI_ATOMIC_WRITE, &contexts[0]));
	CHECK(succeed(&a, &contexts[0]).flags == (FI_ATOMIC | FI_READ));
	CHECK(results[0] == 20 && results[1] == 18 && words[0] == 5 && words[1] == 6);
	/* A read has no operands. */
	CALL(fi_fetch_atomic(a.ep, NULL, 4, NULL, results, NULL, PEER, at, key, FI_INT64, FI_ATOMIC_READ, &contexts[0]));
	succeed(&a, &contexts[0]);
	CHECK(results[0] == 5 && results[1] == 6 && results[2] == 21 && results[3] == 24);
	CALL(fi_fetch_atomicv(a.ep, out, NULL, 2, in, NULL, 2, PEER, at, key, FI_INT64, FI_SUM, &contexts[0]));
	succeed(&a, &contexts[0]);
	CHECK(results[0] == 5 && results[3] == 24 && words[0] == 10 && words[3] == 32);
	msg.op = FI_MAX;
	operands[3] = 100;
	CALL(fi_fetch_atomicmsg(a.ep, &msg, in, NULL, 2, FI_COMPLETION));
	succeed(&a, &contexts[1]);
	CHECK(results[3] == 32 && words[0] == 10 && words[3] == 100);
	words[3] = 16;

	CALL(fi_compare_atomic(a.ep, operands, 4, NULL, compares, NULL, results, NULL, PEER, at, key, FI_INT64, FI_CSWAP,
		&contexts[0]));
	succeed(&a, &contexts[0]);
	CHECK(results[0] == 10 && results[1] == 12 && results[2] == 28 && results[3] == 16);
	CHECK(words[0] == 5 && words[1] == 6 && words[2] == 28 && words[3] == 100);
	CALL(fi_compare_atomicv(a.ep, out, NULL, 2, compare, NULL, 2, in, NULL, 2, PEER, at, key, FI_INT64, FI_CSWAP_NE,
		&contexts[0]));
	succeed(&a, &contexts[0]);
	CHECK(results[2] == 28 && words[2] == 7);
	msg.op = FI_MSWAP;
	compares[0] = 0xff;
	words[0] = 0x1234;
	CALL(fi_compare_atomicmsg(a.ep, &msg, compare, NULL, 2, in, NULL, 2, FI_COMPLETION));
	succeed(&a, &contexts[1]);
	CHECK(results[0] == 0x1234 && words[0] == 0x1205);

	double *number = (double *)memory.bytes, operand = 1.5;
	*number = 2.25;
	CALL(fi_atomic(a.ep, &operand, 1, NULL, PEER, at, key, FI_DOUBLE, FI_PROD, &contexts[0]));
	succeed(&a, &contexts[0]);
	CHECK(*number == 3.375);
	closed(&memory);
	close_both();
}

static void atomic_operations_that_cannot_be_are_refused(void)
{
	open_both(0);
	struct memory memory = registered(8192, both), readable = registered(64, FI_REMOTE_READ);
	static int64_t operands[600], results[600];
	struct fi_rma_ioc remote = {memory.address, 2, memory.key};
	struct fi_ioc out = {operands, 1};
	struct fi_msg_atomic msg = {.msg_iov = &out, .iov_count = 1, .addr = PEER, .rma_iov = &remote, .rma_iov_count = 1,
		.datatype = FI_INT64, .op = FI_SUM};
	uint64_t at = memory.address, key = memory.key;
	CHECK(fi_atomic(a.ep, operands, 1, NULL, PEER, at, key, FI_INT64, FI_ATOMIC_READ, NULL) == -FI_EOPNOTSUPP);
	CHECK(fi_atomic(a.ep, operands, 1, NULL, PEER, at, key, FI_INT64, FI_CSWAP, NULL) == -FI_EOPNOTSUPP);
	CHECK(fi_atomic(a.ep, operands, 1, NULL, PEER, at, key, FI_DOUBLE, FI_BOR, NULL) == -FI_EOPNOTSUPP);
	CHECK(fi_atomic(a.ep, operands, 1, NULL, PEER, at, key, FI_LONG_DOUBLE, FI_SUM, NULL) == -FI_EOPNOTSUPP);
	CHECK(fi_atomic(a.ep, operands, 1, NULL, PEER, at, key, FI_INT64, 99, NULL) == -FI_EOPNOTSUPP);
	CHECK(fi_atomic(a.ep, NULL, 1, NULL, PEER, at, key, FI_INT64, FI_SUM, NULL) == -FI_EINVAL);
	CHECK(fi_atomic(a.ep, operands, 1, NULL, 99, at, key, FI_INT64, FI_SUM, NULL) == -FI_EINVAL);
	CHECK(fi_atomic(a.ep, operands, 513, NULL, PEER, at, key, FI_INT64, FI_SUM, NULL) == -FI_EMSGSIZE);
	CHECK(fi_atomic(a.ep, operands, SIZE_MAX, NULL, PEER, at, key, FI_INT64, FI_SUM, NULL) == -FI_EINVAL);
	CHECK(fi_atomicmsg(a.ep, &msg, 0) == -FI_EINVAL);
	remote.count = 1;
	CHECK(fi_atomicmsg(a.ep, &msg, FI_FENCE) == -FI_EBADFLAGS);
	msg.rma_iov_count = 2;
	CHECK(fi_atomicmsg(a.ep, &msg, 0) == -FI_EINVAL);
	CALL(fi_atomic(a.ep, operands, 1, NULL, PEER, readable.address, readable.key, FI_INT64, FI_SUM, &contexts[0]));
	fail(&a, &contexts[0], FI_EACCES);
	CALL(fi_atomic(a.ep, operands, 1, NULL, PEER, at + 4, key, FI_INT64, FI_SUM, &contexts[0]));
	fail(&a, &contexts[0], FI_EINVAL);
	CALL(fi_fetch_atomic(a.ep, operands, 512, NULL, results, NULL, PEER, at + 8192 - 4088, key, FI_INT64, FI_SUM,
		&contexts[0]));
	fail(&a, &contexts[0], FI_EACCES);
	CALL(fi_fetch_atomic(a.ep, operands, 512, NULL, results, NULL, PEER, at, key, FI_INT64, FI_SUM, &contexts[0]));
	succeed(&a, &contexts[0]);
	closed(&readable);
	closed(&memory);
	close_both();
}

static void a_thousand_accesses_are_under_way(void)
{
	open_both(0);
	struct memory memory = registered(1000 * 20, both);
	unsigned char *bytes = filled(1000 * 20, 3), *got = calloc(1000, 20);
	for (size_t round = 0; round < 2; round++) {
		for (size_t i = 0; i < 1000; i++) {
			uint64_t at = memory.address + i * 20;
			ssize_t answer = round ? fi_read(a.ep, got + i * 20, 20, NULL, PEER, at, memory.key, &contexts[i])
				: fi_write(a.ep, bytes + i * 20, 20, NULL, PEER, at, memory.key, &contexts[i]);
			CALL(answer);
		}
		for (size_t i = 0; i < 1000; i++) {
			struct fi_cq_tagged_entry entry;
			CHECK(take(&a, &entry) == 1);
		}
		check_filled(round ? got : memory.bytes, 1000 * 20, 3);
	}
	free(bytes);
	free(got);
	closed(&memory);
	close_both();
}

static void accesses_of_peers_are_counted(void)
{
	open_both(COUNTS_PEERS);
	struct memory memory = registered(3000000, both), readable = registered(8, FI_REMOTE_READ);
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
	struct fid_cntr *changes;
	uint64_t reads = 0, writes = 0, at = memory.address, key = memory.key;
	CALL(fi_cntr_open(domain, &attr, &changes, NULL));
	CALL(fi_mr_bind(memory.mr, &changes->fid, FI_REMOTE_WRITE));
	CALL(fi_mr_enable(memory.mr));
	CHECK(fi_mr_bind(memory.mr, &changes->fid, FI_REMOTE_READ) == -FI_EBADFLAGS);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		size_t len = sizes[i];
		unsigned char *bytes = filled(len, (unsigned)i);
		CALL(fi_write(a.ep, bytes, len, NULL, PEER, at, key, &contexts[0]));
		/* The bytes are there when the number is. */
		CALL(fi_cntr_wait(b.writes_of_peers, ++writes, -1));
		check_filled(memory.bytes, len, (unsigned)i);
		succeed(&a, &contexts[0]);
		CALL(fi_read(a.ep, bytes, len, NULL, PEER, at, key, &contexts[0]));
		succeed(&a, &contexts[0]);
		reads++;
		CALL(fi_writedata(a.ep, bytes, len, NULL, 1, PEER, at, key, &contexts[0]));
		succeed(&b, NULL);
		succeed(&a, &contexts[0]);
		writes++;
		CHECK(fi_cntr_read(b.reads_of_peers) == reads && fi_cntr_read(b.writes_of_peers) == writes);
		CHECK(fi_cntr_read(changes) == writes);
		free(bytes);
	}
	int64_t word = 5, result;
	CALL(fi_atomic(a.ep, &word, 1, NULL, PEER, at, key, FI_INT64, FI_SUM, &contexts[0]));
	succeed(&a, &contexts[0]);
	CALL(fi_fetch_atomic(a.ep, &word, 1, NULL, &result, NULL, PEER, at, key, FI_INT64, FI_SUM, &contexts[0]));
	succeed(&a, &contexts[0]);
	CALL(fi_fetch_atomic(a.ep, NULL, 1, NULL, &result, NULL, PEER, at, key, FI_INT64, FI_ATOMIC_READ, &contexts[0]));
	succeed(&a, &contexts[0]);
	CHECK(fi_cntr_read(b.reads_of_peers) == reads + 2 && fi_cntr_read(b.writes_of_peers) == writes + 1);
	CHECK(fi_cntr_read(changes) == writes + 2);
	/* What fails is not counted, and neither are accesses to other regions or of this side. */
	CALL(fi_write(a.ep, &word, 8, NULL, PEER, readable.address, readable.key, &contexts[0]));
	fail(&a, &contexts[0], FI_EACCES);
	CALL(fi_read(a.ep, &word, 8, NULL, PEER, readable.address, readable.key, &contexts[0]));
	succeed(&a, &contexts[0]);
	CHECK(fi_cntr_read(b.reads_of_peers) == reads + 3 && fi_cntr_read(b.writes_of_peers) == writes + 1);
	CHECK(fi_cntr_read(a.reads_of_peers) == 0 && fi_cntr_read(a.writes_of_peers) == 0);
	CHECK(fi_cntr_read(changes) == writes + 2 && fi_cntr_readerr(b.writes_of_peers) == 0);
	CALL(fi_close(&changes->fid));
	closed(&readable);
	closed(&memory);
	close_both();
}

static const struct test cases[] = {
	CASE(all_sizes_are_written_and_read),
	CASE(a_word_comes_after_the_bytes),
	CASE(injected_bytes_may_change_at_once),
	CASE(what_is_not_permitted_fails),
	CASE(regions_are_registered_in_each_way),
	CASE(bad_arguments_are_refused),
	CASE(queries_say_which_atomic_operations_exist),
	CASE(atomic_operations_are_done_by_each_call),
	CASE(atomic_operations_that_cannot_be_are_refused),
	CASE(a_thousand_accesses_are_under_way),
	CASE(accesses_of_peers_are_counted),
};

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo();
	is_virtual = argc > 1 && strcmp(argv[1], "virtual") == 0;
	hints->caps = FI_MSG | FI_RMA | FI_ATOMIC | FI_RMA_EVENT;
	hints->tx_attr->msg_order = FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
	hints->domain_attr->mr_mode = is_virtual ? FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY : 0;
	run(hints, cases, COUNT(cases), NULL);
	return 0;
}
