/* Two endpoints of this process, and checks of their completions: for the programs that call the provider through libfabric.
 */
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK_AT(line, condition)                                                                                      \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, line, #condition);                          \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)
#define CHECK(condition) CHECK_AT(__LINE__, condition)

#define CALL(call)                                                                                                     \
	do {                                                                                                           \
		long answer_ = (long)(call);                                                                           \
		if (answer_ != 0) {                                                                                    \
			fprintf(stderr, "%s:%d: %s: %s (%ld)\n", __FILE__, __LINE__, #call, fi_strerror((int)-answer_),  \
				answer_);                                                                              \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* One side: an endpoint with its queue and its addresses. The peer has number 0, the side itself number 1. */
struct side {
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_cntr *sends, *receives, *accesses, *reads_of_peers, *writes_of_peers;
	char name[64];
	size_t name_len;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct side a, b;
enum { PEER = 0, SELF = 1 };

enum { WITH_COUNTERS = 1, SELECTIVE = 2, COUNTS_PEERS = 4 };

/* The entries that a program asks a completion queue to have; 0 leaves it to the provider. */
static size_t queue_size;

static inline void open_side(struct side *side, int how)
{
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .size = queue_size};
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	CALL(fi_cq_open(domain, &cq, &side->cq, NULL));
	CALL(fi_av_open(domain, &av, &side->av, NULL));
	CALL(fi_endpoint(domain, info, &side->ep, NULL));
	CALL(fi_ep_bind(side->ep, &side->av->fid, 0));
	uint64_t selective = how & SELECTIVE ? FI_SELECTIVE_COMPLETION : 0;
	CALL(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV | selective));
	side->sends = side->receives = side->accesses = side->reads_of_peers = side->writes_of_peers = NULL;
	if (how & COUNTS_PEERS) {
		struct fi_cntr_attr cntr = {.events = FI_CNTR_EVENTS_COMP};
		CALL(fi_cntr_open(domain, &cntr, &side->reads_of_peers, NULL));
		CALL(fi_cntr_open(domain, &cntr, &side->writes_of_peers, NULL));
		CALL(fi_ep_bind(side->ep, &side->reads_of_peers->fid, FI_REMOTE_READ));
		CALL(fi_ep_bind(side->ep, &side->writes_of_peers->fid, FI_REMOTE_WRITE));
	}
	if (how & WITH_COUNTERS) {
		struct fi_cntr_attr cntr = {.events = FI_CNTR_EVENTS_COMP};
		CALL(fi_cntr_open(domain, &cntr, &side->sends, NULL));
		CALL(fi_cntr_open(domain, &cntr, &side->receives, NULL));
		CALL(fi_cntr_open(domain, &cntr, &side->accesses, NULL));
		CALL(fi_ep_bind(side->ep, &side->sends->fid, FI_SEND));
		CALL(fi_ep_bind(side->ep, &side->receives->fid, FI_RECV));
		CALL(fi_ep_bind(side->ep, &side->accesses->fid, FI_READ | FI_WRITE));
	}
	CALL(fi_enable(side->ep));
	side->name_len = sizeof(side->name);
	CALL(fi_getname(&side->ep->fid, side->name, &side->name_len));
}

static inline void close_side(struct side *side)
{
	CALL(fi_close(&side->ep->fid));
	if (side->sends) {
		CALL(fi_close(&side->sends->fid));
		CALL(fi_close(&side->receives->fid));
		CALL(fi_close(&side->accesses->fid));
	}
	if (side->reads_of_peers) {
		CALL(fi_close(&side->reads_of_peers->fid));
		CALL(fi_close(&side->writes_of_peers->fid));
	}
	CALL(fi_close(&side->cq->fid));
	CALL(fi_close(&side->av->fid));
}

static inline void introduce(struct side *to, struct side *peer)
{
	fi_addr_t number;
	CHECK(fi_av_insert(to->av, peer->name, 1, &number, 0, NULL) == 1 && number == PEER);
	CHECK(fi_av_insert(to->av, to->name, 1, &number, 0, NULL) == 1 && number == SELF);
}

static inline void close_both(void)
{
	close_side(&a);
	close_side(&b);
}

/* Waits for a completion of `side`; the other side makes progress meanwhile. Returns 1, or a negative error. */
static inline ssize_t take(struct side *side, struct fi_cq_tagged_entry *entry)
{
	for (unsigned pass = 0;; pass++) {
		ssize_t got = fi_cq_read(side->cq, entry, 1);
		if (got != -FI_EAGAIN)
			return got;
		fi_cq_read((side == &a ? &b : &a)->cq, NULL, 0);
		/* The threads that open connections need a core. On a busy machine this one would keep theirs. */
		if (pass > 100)
			sched_yield();
	}
}

static inline struct fi_cq_tagged_entry succeed_at(int line, struct side *side, void *context)
{
	struct fi_cq_tagged_entry entry;
	memset(&entry, 0xee, sizeof(entry));
	CHECK_AT(line, take(side, &entry) == 1);
	CHECK_AT(line, entry.op_context == context);
	return entry;
}

static inline struct fi_cq_err_entry fail_at(int line, struct side *side, void *context, int err)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	memset(&error, 0, sizeof(error));
	CHECK_AT(line, take(side, &entry) == -FI_EAVAIL);
	CHECK_AT(line, fi_cq_read(side->cq, &entry, 1) == -FI_EAVAIL);
	CHECK_AT(line, fi_cq_readerr(side->cq, &error, 0) == 1);
	CHECK_AT(line, error.op_context == context);
	CHECK_AT(line, error.err == err);
	CHECK_AT(line, strlen(fi_cq_strerror(side->cq, error.prov_errno, error.err_data, NULL, 0)) > 0);
	return error;
}

#define succeed(side, context) succeed_at(__LINE__, side, context)
#define fail(side, context, err) fail_at(__LINE__, side, context, err)

__attribute__((unused)) static int contexts[8192];

/* Sends one message, so that the connection is open afterwards. */
static inline void connect_sides(struct side *from, struct side *to, fi_addr_t number)
{
	struct fi_msg msg = {.addr = number, .context = &contexts[0]};
	CALL(fi_sendmsg(from->ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
	msg.addr = FI_ADDR_UNSPEC;
	CALL(fi_recvmsg(to->ep, &msg, FI_COMPLETION));
	succeed(from, &contexts[0]);
	succeed(to, &contexts[0]);
}

static inline void open_both(int how)
{
	open_side(&a, how);
	open_side(&b, how);
	introduce(&a, &b);
	introduce(&b, &a);
	connect_sides(&a, &b, PEER);
	connect_sides(&b, &a, PEER);
	connect_sides(&b, &b, SELF);
	if (how & WITH_COUNTERS) {
		CALL(fi_cntr_set(a.sends, 0));
		CALL(fi_cntr_set(b.receives, 0));
	}
}

/* Moves messages until nothing more can happen without a receive. In an open connection no other thread takes part. */
static inline void settle(void)
{
	for (int i = 0; i < 2000; i++) {
		fi_cq_read(a.cq, NULL, 0);
		fi_cq_read(b.cq, NULL, 0);
	}
}

/* Bytes that differ between messages and places. */
static inline unsigned char byte_of(size_t place, unsigned seed)
{
	return (unsigned char)(place * 31 + (place >> 8) * 7 + seed);
}

static inline void *filled(size_t len, unsigned seed)
{
	unsigned char *bytes = malloc(len + 1);
	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_of(i, seed);
	return bytes;
}

static inline void check_filled(const unsigned char *bytes, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		CHECK(bytes[i] == byte_of(i, seed));
}

__attribute__((unused)) static const size_t sizes[] = {0,     1,     31,    32,     33,     64,     4095,   4096,    8191,
			       8192,  8193,  16384, 20000,  65536,  100001, 262144, 1048576, 3000000};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define CASE(name) {#name, name}
struct test {
	const char *name;
	void (*run)(void);
};

/* Opens a domain with these hints, which it frees, and runs the tests with this name, or all. Prints the name of each. */
static inline void run(struct fi_info *hints, const struct test *tests, size_t count, const char *only)
{
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("telpher");
	CALL(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(info->next == NULL);
	CALL(fi_fabric(info->fabric_attr, &fabric, NULL));
	CALL(fi_domain(fabric, info, &domain, NULL));
	int ran = 0;
	for (size_t i = 0; i < count; i++)
		if (!only || strcmp(only, tests[i].name) == 0) {
			/* A hang ends the program. */
			alarm(60);
			tests[i].run();
			printf("%s\n", tests[i].name);
			fflush(stdout);
			ran++;
		}
	CHECK(ran > 0);
	CALL(fi_close(&domain->fid));
	CALL(fi_close(&fabric->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);
}
