/* The measured loops over a libfabric provider: over_libfabric SOCKET RANK CPU PROVIDER manual|auto private|shared.
 * The last argument says where the buffers are. */
#define _GNU_SOURCE
#include "control.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define CALL(call)                                                                                                     \
	do {                                                                                                           \
		long answer_ = (long)(call);                                                                           \
		if (answer_ != 0)                                                                                      \
			fail("%s: %s", #call, fi_strerror((int)-answer_));                                             \
	} while (0)
/* Calls again while the provider has no room. */
#define POST(call)                                                                                                     \
	do {                                                                                                           \
		ssize_t answer_;                                                                                       \
		while ((answer_ = (call)) == -FI_EAGAIN)                                                               \
			progress();                                                                                    \
		if (answer_ != 0)                                                                                      \
			fail("%s: %s", #call, fi_strerror((int)-answer_));                                             \
	} while (0)

enum { TAG = 1 };

/* What a rank tells the other one: its address, and its memory for remote access. */
struct card {
	uint64_t name_len, base, key;
	unsigned char name[232];
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_mr *memory;
static fi_addr_t peer;
static struct card mine, theirs;

/* The contexts tell sends and receives apart. */
static struct fi_context2 sends[WINDOW], receives[WINDOW], answer;
static uint64_t sent, received, answers, sending, receiving;

static void progress(void)
{
	struct fi_cq_entry entries[16];
	ssize_t got = fi_cq_read(cq, entries, 16);
	if (got == -FI_EAGAIN)
		return;
	if (got < 0) {
		struct fi_cq_err_entry error = {0};
		fi_cq_readerr(cq, &error, 0);
		fail("an operation failed: %s", fi_strerror(error.err ? error.err : (int)-got));
	}
	for (ssize_t i = 0; i < got; i++) {
		struct fi_context2 *context = entries[i].op_context;
		if (context == &answer)
			answers++;
		else if (context >= receives && context < receives + WINDOW)
			received++;
		else
			sent++;
	}
}

static void post_answer(unsigned char *bytes, size_t len)
{
	POST(fi_trecv(ep, bytes, len, NULL, FI_ADDR_UNSPEC, TAG, 0, &answer));
}

static void start_send(size_t slot, unsigned char *bytes, size_t len)
{
	if (len <= info->tx_attr->inject_size) {
		POST(fi_tinject(ep, bytes, len, peer, TAG));
		return;
	}
	POST(fi_tsend(ep, bytes, len, NULL, peer, TAG, &sends[slot]));
	sending++;
}

static void start_receive(size_t slot, unsigned char *bytes, size_t len)
{
	POST(fi_trecv(ep, bytes, len, NULL, FI_ADDR_UNSPEC, TAG, 0, &receives[slot]));
	receiving++;
}

static void finish(void)
{
	while (sent < sending || received < receiving)
		progress();
	sent = received = sending = receiving = 0;
}

static void send_one(unsigned char *bytes, size_t len)
{
	start_send(0, bytes, len);
	finish();
}

static void await_answer(unsigned char *bytes, size_t len)
{
	(void)bytes, (void)len;
	while (answers == 0)
		progress();
	answers--;
}

#include "loops.h"

static void access_remotely(int writes, size_t slot, size_t len, int rewritten)
{
	unsigned char *local = place(writes ? outgoing : incoming, len, rewritten, slot);
	/* Remote memory is that of the messages: a writer's bytes arrive in the incoming buffer, a reader's are outgoing. */
	uint64_t offset = (uint64_t)(place(incoming, len, rewritten, slot) - incoming) + (writes ? ROOM : 0);
	struct iovec segment = {.iov_base = local, .iov_len = len};
	struct fi_rma_iov target = {.addr = theirs.base + offset, .len = len, .key = theirs.key};
	void *desc = memory ? fi_mr_desc(memory) : NULL;
	struct fi_msg_rma msg = {.msg_iov = &segment,
				 .desc = &desc,
				 .iov_count = 1,
				 .addr = peer,
				 .rma_iov = &target,
				 .rma_iov_count = 1,
				 .context = &sends[slot]};
	if (writes)
		POST(fi_writemsg(ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
	else
		POST(fi_readmsg(ep, &msg, FI_COMPLETION));
	sending++;
}

/* Windows of remote accesses by rank 0. Rank 1 announces each window, after it rewrote what is read, and makes progress
 * until the accesses of the window have ended. The value is nanoseconds for an access. */
static struct found remote(int writes, size_t len, int rewritten, size_t window, uint64_t windows)
{
	struct times begin = {0};
	int owner = writes ? 0 : 1;
	if (!memory)
		fail("the provider has no remote memory access");
	if (window > WINDOW || (rewritten && window * len > ROOM))
		fail("no room for a window of %zu accesses", window);
	size_t places = rewritten ? window : 1;
	for (size_t i = 0; rank == owner && i < places; i++)
		fill(place(outgoing, len, rewritten, i), len, seed + i);
	for (uint64_t number = 0; number < windows + WARM; number++) {
		unsigned char *word = incoming + ROOM - LINE;
		if (number == WARM)
			begin = times_now();
		if (rank == 1 && !writes)
			for (size_t i = 0; rewritten && i < places; i++)
				rewrite(place(outgoing, len, rewritten, i), len);
		post_answer(word, 8);
		if (rank == 1) {
			send_one(outgoing + ROOM - LINE, 8);
			await_answer(word, 8);
			continue;
		}
		await_answer(word, 8);
		for (size_t i = 0; i < window; i++) {
			if (writes && rewritten)
				rewrite(place(outgoing, len, rewritten, i), len);
			access_remotely(writes, i, len, rewritten);
		}
		finish();
		send_one(outgoing + ROOM - LINE, 8);
	}
	struct times took = since(begin);
	for (size_t i = 0; rank != owner && i < places; i++)
		check(place(incoming, len, rewritten, i), len, seed + i, rewritten ? windows + WARM : 0);
	return (struct found){(double)took.wall / (double)(windows * window), took};
}

static int extra_task(const char *task, size_t len, int rewritten, size_t window, uint64_t count, struct found *found)
{
	if (strcmp(task, "write") == 0)
		*found = remote(1, len, rewritten, window, count);
	else if (strcmp(task, "read") == 0)
		*found = remote(0, len, rewritten, window, count);
	else
		return 0;
	return 1;
}

/* The first messages open the connections. Both ranks wait until theirs has arrived: a provider with manual progress may
 * still hold a message of a rank that waits for the bench. */
static void meet(void)
{
	struct iovec segment = {.iov_base = outgoing, .iov_len = 8};
	struct fi_msg_tagged msg = {
		.msg_iov = &segment, .iov_count = 1, .addr = peer, .tag = TAG, .context = &sends[0]};
	post_answer(incoming, 8);
	POST(fi_tsendmsg(ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
	sending++;
	finish();
	await_answer(incoming, 8);
}

static int ask_for(const char *provider, uint64_t caps, enum fi_progress by)
{
	struct fi_info *hints = fi_allocinfo();
	if (!hints)
		fail("no memory for hints");
	hints->caps = caps;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = by;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	hints->fabric_attr->prov_name = strdup(provider);
	int answer_ = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info);
	fi_freeinfo(hints);
	return answer_;
}

static void open_endpoint(const char *provider, int automatic)
{
	enum fi_progress by = automatic ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 1024};
	struct fi_av_attr av_attr = {.type = FI_AV_UNSPEC, .count = 2};
	int remote_access = ask_for(provider, FI_TAGGED | FI_RMA, by) == 0;
	if (!remote_access)
		CALL(ask_for(provider, FI_TAGGED, by));
	if (strcmp(info->fabric_attr->prov_name, provider) != 0)
		fail("libfabric offers %s, not %s", info->fabric_attr->prov_name, provider);
	CALL(fi_fabric(info->fabric_attr, &fabric, NULL));
	CALL(fi_domain(fabric, info, &domain, NULL));
	CALL(fi_cq_open(domain, &cq_attr, &cq, NULL));
	CALL(fi_av_open(domain, &av_attr, &av, NULL));
	CALL(fi_endpoint(domain, info, &ep, NULL));
	CALL(fi_ep_bind(ep, &av->fid, 0));
	CALL(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	CALL(fi_enable(ep));
	mine.name_len = sizeof(mine.name);
	CALL(fi_getname(&ep->fid, mine.name, &mine.name_len));
	if (!remote_access)
		return;
	uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE;
	CALL(fi_mr_reg(domain, outgoing, 2 * ROOM, access, 0, 1, 0, &memory, NULL));
	if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		CALL(fi_mr_bind(memory, &ep->fid, 0));
		CALL(fi_mr_enable(memory));
	}
	mine.key = fi_mr_key(memory);
	mine.base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)outgoing : 0;
}

static void print_card(char *text)
{
	const unsigned char *bytes = (const unsigned char *)&mine;
	for (size_t i = 0; i < sizeof(mine); i++)
		sprintf(text + 2 * i, "%02x", bytes[i]);
}

static void read_card(const char *text)
{
	unsigned char *bytes = (unsigned char *)&theirs;
	for (size_t i = 0; i < sizeof(theirs); i++)
		if (sscanf(text + 2 * i, "%2hhx", &bytes[i]) != 1)
			fail("not an address: %s", text);
}

int main(int count, char **arguments)
{
	char line[3 * sizeof(struct card)];
	alarm(LONGEST);
	if (count != 7)
		fail("usage: over_libfabric SOCKET RANK CPU PROVIDER manual|auto private|shared");
	rank = atoi(arguments[2]);
	connect_to_bench(arguments[1]);
	allocate(strcmp(arguments[6], "shared") == 0);
	open_endpoint(arguments[4], strcmp(arguments[5], "auto") == 0);
	pin(atoi(arguments[3]));
	print_card(line);
	uint32_t version = fi_version();
	dprintf(fileno(bench), "hello %d %s libfabric %u.%u%s\n", rank, line, FI_MAJOR(version), FI_MINOR(version),
		memory ? "" : ", no remote access");
	if (!next_line(line, sizeof(line)) || strncmp(line, "peer ", 5) != 0)
		fail("the bench has ended");
	read_card(line + 5);
	if (fi_av_insert(av, theirs.name, 1, &peer, 0, NULL) != 1)
		fail("the peer's address is refused");
	meet();
	alarm(0);
	dprintf(fileno(bench), "ready\n");
	obey();
	alarm(LONGEST);
	if (memory)
		fi_close(&memory->fid);
	fi_close(&ep->fid);
	fi_close(&cq->fid);
	fi_close(&av->fid);
	fi_close(&domain->fid);
	fi_close(&fabric->fid);
	fi_freeinfo(info);
	return 0;
}
