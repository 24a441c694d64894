/* DPDK's asynchronous vhost as it ships: a backend at one socket. The software DMA makes its copies. Commands come from
 * standard input.
 *
 *   dpdk_async EAL-OPTIONS -- SOCKET [DEVICE]    with --vdev dma_skeleton0[,lcore=N] among the options
 *
 *   sink LEN       receives the packets that the guest sends
 *   source LEN     sends packets of LEN bytes into the guest, as many as it has buffers for
 *   return LEN     sends received packets back with swapped addresses
 *   drain          both sides receive all packets in flight and drop them
 *   rest           stops
 *   count          prints the number of packets in the guest's direction, and a time in nanoseconds
 *
 * The answer to each command ends with "done". If DEVICE (the options of a net_virtio_user device) is given, the guest
 * is in this program, on the same thread, and does the other half of each command: it sends packets of LEN bytes,
 * receives them, or returns the 512 packets that it sent first. Written for `telpher bench vhost`, after the "Vhost
 * Library" chapter of DPDK's programmer's guide. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rte_dmadev.h>
#include <rte_eal.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_mbuf.h>
#include <rte_vhost.h>
#include <rte_vhost_async.h>

#define BURST 32
#define DESCRIPTORS 1024
#define BUFFERS 32768
#define LOOPING 512
/* Turns between two polls of standard input. */
#define LOOK 4096

/* The rings of the only pair of queues: the guest receives on the first and transmits on the second. */
enum { INTO_GUEST = 0, OUT_OF_GUEST = 1 };
enum work { REST, SINK, SOURCE, RETURN, DRAIN };

static int16_t dma;
static volatile int guest = -1;
static struct rte_mempool *pool;
/* The port of a guest in this program (-1 without one), its packets, and the number of packets in its direction. */
static int inside = -1;
static struct rte_mempool *guest_pool;
static struct rte_mbuf *kept[BURST];
static uint16_t keeps;
static uint64_t packets_seen;

static void fail(const char *what, int error)
{
	printf("cannot %s: %s\n", what, strerror(error < 0 ? -error : error));
	exit(1);
}

static int new_device(int vid)
{
	if (rte_vhost_async_channel_register(vid, INTO_GUEST) < 0 || rte_vhost_async_channel_register(vid, OUT_OF_GUEST) < 0)
		return -1;
	rte_vhost_enable_guest_notification(vid, OUT_OF_GUEST, 0);
	guest = vid;
	return 0;
}

static void destroy_device(int vid)
{
	guest = -1;
	rte_vhost_async_channel_unregister(vid, INTO_GUEST);
	rte_vhost_async_channel_unregister(vid, OUT_OF_GUEST);
}

static const struct rte_vhost_device_ops operations = { .new_device = new_device, .destroy_device = destroy_device };

static void start_dma(void)
{
	struct rte_dma_conf device = { .nb_vchans = 1 };
	struct rte_dma_vchan_conf channel = { .direction = RTE_DMA_DIR_MEM_TO_MEM, .nb_desc = DESCRIPTORS };
	int error;

	dma = rte_dma_next_dev(0);
	if (dma < 0)
		fail("find the software DMA; is there a --vdev dma_skeleton0", ENODEV);
	if ((error = rte_dma_configure(dma, &device)) || (error = rte_dma_vchan_setup(dma, 0, &channel)) ||
	    (error = rte_dma_start(dma)) || (error = rte_vhost_async_dma_configure(dma, 0)))
		fail("start the software DMA", error);
}

/* Frees the packets that the guest has received. */
static void collect(int vid)
{
	struct rte_mbuf *done[BURST];
	uint16_t count = rte_vhost_poll_enqueue_completed(vid, INTO_GUEST, done, BURST, dma, 0);

	rte_pktmbuf_free_bulk(done, count);
}

/* Submits packets to the guest and frees those that were not accepted; with `patience` it retries first. */
static void give(int vid, struct rte_mbuf **packets, uint16_t count, int patience)
{
	uint16_t given = 0;
	int tries = 0;

	do {
		given += rte_vhost_submit_enqueue_burst(vid, INTO_GUEST, packets + given, count - given, dma, 0);
		collect(vid);
	} while (given < count && patience && tries++ < 64);
	rte_pktmbuf_free_bulk(packets + given, count - given);
}

static void swap_addresses(struct rte_mbuf *packet)
{
	struct rte_ether_hdr *header = rte_pktmbuf_mtod(packet, struct rte_ether_hdr *);
	struct rte_ether_addr address = header->dst_addr;

	header->dst_addr = header->src_addr;
	header->src_addr = address;
}

static uint16_t make(struct rte_mempool *from, struct rte_mbuf **packets, uint16_t len)
{
	uint16_t index;

	if (rte_pktmbuf_alloc_bulk(from, packets, BURST))
		return 0;
	for (index = 0; index < BURST; index++) {
		packets[index]->data_len = packets[index]->pkt_len = len;
		memset(rte_pktmbuf_mtod(packets[index], char *), 0, sizeof(struct rte_ether_hdr));
	}
	return BURST;
}

static void turn(int vid, enum work work, uint16_t len)
{
	struct rte_mbuf *packets[BURST];
	uint16_t count, index;
	int in_flight;

	if (work == SOURCE) {
		count = make(pool, packets, len);
		return count ? give(vid, packets, count, 0) : collect(vid);
	}
	count = rte_vhost_async_try_dequeue_burst(vid, OUT_OF_GUEST, pool, packets, BURST, &in_flight, dma, 0);
	if (work == SINK)
		return rte_pktmbuf_free_bulk(packets, count);
	if (work == DRAIN) {
		rte_pktmbuf_free_bulk(packets, count);
		return collect(vid);
	}
	for (index = 0; index < count; index++)
		swap_addresses(packets[index]);
	if (count)
		give(vid, packets, count, 1);
	else
		collect(vid);
}

/* The guest's half of the work. */
static void guest_turn(enum work work, uint16_t len)
{
	struct rte_mbuf *packets[BURST];
	uint16_t count, sent, index;

	if (work == SINK) {
		count = make(guest_pool, packets, len);
		sent = rte_eth_tx_burst(inside, 0, packets, count);
		packets_seen += sent;
		return rte_pktmbuf_free_bulk(packets + sent, count - sent);
	}
	if (work == DRAIN) {
		rte_pktmbuf_free_bulk(kept, keeps);
		keeps = 0;
	}
	if (work == SOURCE || work == DRAIN) {
		count = rte_eth_rx_burst(inside, 0, packets, BURST);
		packets_seen += count;
		return rte_pktmbuf_free_bulk(packets, count);
	}
	if (!keeps) {
		keeps = rte_eth_rx_burst(inside, 0, kept, BURST);
		packets_seen += keeps;
		for (index = 0; index < keeps; index++)
			swap_addresses(kept[index]);
	}
	sent = rte_eth_tx_burst(inside, 0, kept, keeps);
	memmove(kept, kept + sent, (keeps - sent) * sizeof(kept[0]));
	keeps -= sent;
}

/* The guest sends the packets that circulate. */
static void guest_begins(uint16_t len)
{
	struct rte_mbuf *packets[BURST];
	uint16_t count, sent, all;

	for (all = 0; all < LOOPING; all += BURST) {
		count = make(guest_pool, packets, len);
		sent = rte_eth_tx_burst(inside, 0, packets, count);
		rte_pktmbuf_free_bulk(packets + sent, count - sent);
	}
}

static void start_guest(const char *options)
{
	struct rte_eth_conf port = { 0 };
	uint16_t number;
	int error = rte_eal_hotplug_add("vdev", "net_virtio_user0", options);

	if (error || (error = rte_eth_dev_get_port_by_name("net_virtio_user0", &number)))
		fail("give the guest its device", error);
	guest_pool = rte_pktmbuf_pool_create("guest", BUFFERS, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, rte_socket_id());
	if (!guest_pool)
		fail("make the guest's pool of packets", rte_errno);
	if ((error = rte_eth_dev_configure(number, 1, 1, &port)) ||
	    (error = rte_eth_rx_queue_setup(number, 0, DESCRIPTORS, rte_socket_id(), NULL, guest_pool)) ||
	    (error = rte_eth_tx_queue_setup(number, 0, DESCRIPTORS, rte_socket_id(), NULL)) ||
	    (error = rte_eth_dev_start(number)))
		fail("start the guest's device", error);
	inside = number;
}

/* Executes the next line of standard input; without `wait` only if a line is available. */
static void listen_to(enum work *work, uint16_t *len, int wait)
{
	static char line[64];
	struct pollfd input = { .fd = 0, .events = POLLIN };

	if (poll(&input, 1, wait ? -1 : 0) <= 0)
		return;
	if (!fgets(line, sizeof(line), stdin))
		exit(0);
	if (sscanf(line, "sink %hu", len) == 1) {
		*work = SINK;
	} else if (sscanf(line, "source %hu", len) == 1) {
		*work = SOURCE;
	} else if (sscanf(line, "return %hu", len) == 1) {
		*work = RETURN;
		if (inside >= 0)
			guest_begins(*len);
	} else if (!strncmp(line, "drain", 5)) {
		*work = DRAIN;
	} else if (!strncmp(line, "count", 5)) {
		printf("%lu %.0f ", packets_seen, 1e9 * rte_rdtsc() / rte_get_tsc_hz());
	} else {
		*work = REST;
	}
	printf("done\n");
	fflush(stdout);
}

int main(int count, char **words)
{
	enum work work = REST;
	uint16_t len = 0;
	uint64_t turns = 0;
	int used = rte_eal_init(count, words), error;

	if (used < 0 || used + 1 >= count)
		fail("start: options of EAL, then --, then a socket", EINVAL);
	setvbuf(stdin, NULL, _IONBF, 0);
	pool = rte_pktmbuf_pool_create("packets", BUFFERS, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, rte_socket_id());
	if (!pool)
		fail("make a pool of packets", rte_errno);
	start_dma();
	if ((error = rte_vhost_driver_register(words[used + 1], RTE_VHOST_USER_ASYNC_COPY)) ||
	    (error = rte_vhost_driver_callback_register(words[used + 1], &operations)) ||
	    (error = rte_vhost_driver_start(words[used + 1])))
		fail("serve the socket", error);
	if (used + 2 < count)
		start_guest(words[used + 2]);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (work == REST || turns++ % LOOK == 0)
			listen_to(&work, &len, work == REST);
		if (guest < 0 || work == REST)
			continue;
		turn(guest, work, len);
		if (inside >= 0)
			guest_turn(work, len);
	}
}
