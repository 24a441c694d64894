/* A packet loop over DPDK's asynchronous vhost, with DPDK's idxd driver for the copies.
 *
 *   dpdk_vhost EAL-OPTIONS -- SOCKET [bare]
 *
 * Each packet that the guest sends is given back to the guest, in order and unchanged. The first DMA device copies into
 * the guest, the second out of it.
 *
 * DPDK's vhost library asks only for completed copies. After a copy that failed, the driver reports no further
 * completion until the program asks for the status of each copy, which the library never does. So this program puts
 * two functions of its own before the driver's: they keep the addresses of each copy, and repeat failed copies with the
 * CPU. With `bare` the library calls the driver directly.
 *
 * Standard output: "ready", then "queue Q disabled: R returned, U undelivered" after each disabled queue. A queue must
 * not be enabled before this line. The command "clear" on standard input clears both queues and prints one line of
 * counts. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rte_dmadev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_vhost.h>
#include <rte_vhost_async.h>

#define BURST 32
#define DESCRIPTORS 1024
#define BUFFERS 16384
#define WAITING 4096
/* Seconds after which a queue is regarded as stuck. */
#define PATIENCE 3

/* The rings of the only pair of queues: the guest receives on the first and transmits on the second. */
enum { INTO_GUEST, OUT_OF_GUEST, QUEUES };

struct job {
	rte_iova_t from, to;
	unsigned int len;
};

static int16_t dma[QUEUES];
static atomic_int guest = -1;
static struct rte_mempool *pool;

/* The driver's own functions, and the copies by their number. */
static rte_dma_copy_t driver_copy;
static rte_dma_completed_t driver_completed;
static rte_dma_completed_status_t driver_status;
static void *of_driver[QUEUES];
static struct job jobs[QUEUES][1 << 16];
static uint64_t repeated;

/* Packets on their way back to the guest, oldest first. */
static struct rte_mbuf *waiting[WAITING];
static unsigned int waits;
static uint64_t taken, given;

/* Packets of a queue that was disabled, from the thread of the vhost library to the main thread. */
static struct {
	struct rte_mbuf *packets[WAITING];
	unsigned int count, undelivered;
	/* Set by the library's thread when the above is complete, cleared by the main thread. */
	atomic_int full;
} disabled[QUEUES];

static void fail(const char *what, int error)
{
	fprintf(stderr, "cannot %s: %s\n", what, strerror(error < 0 ? -error : error));
	exit(1);
}

static int number_of(void *driver)
{
	return of_driver[0] == driver ? 0 : 1;
}

static int copy(void *driver, uint16_t channel, rte_iova_t from, rte_iova_t to, unsigned int len, uint64_t flags)
{
	int index = driver_copy(driver, channel, from, to, len, flags);

	if (index >= 0)
		jobs[number_of(driver)][index] = (struct job){ from, to, len };
	return index;
}

static uint16_t completed(void *driver, uint16_t channel, uint16_t most, uint16_t *last, bool *failed)
{
	enum rte_dma_status_code status[DESCRIPTORS];
	uint16_t count = driver_completed(driver, channel, most, last, failed), more, index;

	while (*failed && count < most) {
		*failed = false;
		more = driver_status(driver, channel, RTE_MIN(most - count, DESCRIPTORS), last, status);
		for (index = 0; index < more; index++) {
			struct job *job = &jobs[number_of(driver)][(uint16_t)(*last - more + 1 + index)];

			if (status[index] == RTE_DMA_STATUS_SUCCESSFUL)
				continue;
			memmove((void *)job->to, (void *)job->from, job->len);
			repeated++;
		}
		count += more;
	}
	*failed = false;
	return count;
}

static void start_dma(int bare)
{
	struct rte_dma_conf device = { .nb_vchans = 1 };
	struct rte_dma_vchan_conf channel = { .direction = RTE_DMA_DIR_MEM_TO_MEM, .nb_desc = DESCRIPTORS };
	int queue, error;

	for (queue = 0; queue < QUEUES; queue++) {
		struct rte_dma_fp_object *functions;

		dma[queue] = rte_dma_next_dev(queue ? dma[0] + 1 : 0);
		if (dma[queue] < 0)
			fail("find two DMA devices; are there two queues named dpdk_0 and dpdk_1", ENODEV);
		if ((error = rte_dma_configure(dma[queue], &device)) || (error = rte_dma_vchan_setup(dma[queue], 0, &channel)) ||
		    (error = rte_dma_start(dma[queue])) || (error = rte_vhost_async_dma_configure(dma[queue], 0)))
			fail("start a DMA device", error);
		if (bare)
			continue;
		functions = &rte_dma_fp_objs[dma[queue]];
		of_driver[queue] = functions->dev_private;
		driver_copy = functions->copy;
		driver_completed = functions->completed;
		driver_status = functions->completed_status;
		functions->copy = copy;
		functions->completed = completed;
	}
}

static time_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec;
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

/* The library calls this with the queue's lock held, so the functions without lock are used. */
static int vring_state_changed(int vid, uint16_t queue, int enable)
{
	uint16_t before, after, avail, count;
	time_t end = now() + PATIENCE;

	if (enable || guest < 0 || queue >= QUEUES || disabled[queue].full)
		return 0;
	disabled[queue].count = disabled[queue].undelivered = 0;
	while (rte_vhost_async_get_inflight_thread_unsafe(vid, queue) > 0 && now() < end) {
		rte_vhost_get_vring_base(vid, queue, &avail, &before);
		count = rte_vhost_clear_queue_thread_unsafe(vid, queue, disabled[queue].packets + disabled[queue].count,
							    BURST, dma[queue], 0);
		rte_vhost_get_vring_base(vid, queue, &avail, &after);
		disabled[queue].count += count;
		/* The library copied these packets but did not give their buffers to the guest. */
		if (count && before == after)
			disabled[queue].undelivered += count;
	}
	disabled[queue].full = 1;
	return 0;
}

static const struct rte_vhost_device_ops operations = {
	.new_device = new_device, .destroy_device = destroy_device, .vring_state_changed = vring_state_changed
};

static void insert(unsigned int at, struct rte_mbuf **packets, unsigned int count)
{
	if (waits + count > WAITING)
		fail("keep so many packets", ENOBUFS);
	memmove(waiting + at + count, waiting + at, (waits - at) * sizeof(waiting[0]));
	memcpy(waiting + at, packets, count * sizeof(packets[0]));
	waits += count;
}

/* Takes over the packets of queues that were disabled. */
static void look_at_disabled(void)
{
	int queue;

	for (queue = 0; queue < QUEUES; queue++) {
		unsigned int count = disabled[queue].count, undelivered = disabled[queue].undelivered;
		struct rte_mbuf **packets = disabled[queue].packets;

		if (!disabled[queue].full)
			continue;
		if (queue == OUT_OF_GUEST) {
			insert(waits, packets, count);
			taken += count;
		} else {
			/* Undelivered packets are the last, and older than those that wait. */
			rte_pktmbuf_free_bulk(packets, count - undelivered);
			insert(0, packets + count - undelivered, undelivered);
			given -= undelivered;
		}
		printf("queue %d disabled: %u returned, %u undelivered\n", queue, count, undelivered);
		fflush(stdout);
		disabled[queue].full = 0;
	}
}

static void turn(int vid)
{
	struct rte_mbuf *packets[BURST];
	uint16_t count;
	int in_flight;

	if (waits + 2 * BURST < WAITING / 2) {
		count = rte_vhost_async_try_dequeue_burst(vid, OUT_OF_GUEST, pool, packets, BURST, &in_flight,
							  dma[OUT_OF_GUEST], 0);
		insert(waits, packets, count);
		taken += count;
	}
	if (!disabled[INTO_GUEST].full) {
		count = rte_vhost_submit_enqueue_burst(vid, INTO_GUEST, waiting, RTE_MIN(waits, (unsigned int)BURST),
						       dma[INTO_GUEST], 0);
		memmove(waiting, waiting + count, (waits - count) * sizeof(waiting[0]));
		waits -= count;
		given += count;
	}
	count = rte_vhost_poll_enqueue_completed(vid, INTO_GUEST, packets, BURST, dma[INTO_GUEST], 0);
	rte_pktmbuf_free_bulk(packets, count);
}

static void clear(int vid)
{
	struct rte_mbuf *packets[BURST];
	int in_flight[QUEUES], queue;
	time_t end = now() + PATIENCE;

	for (queue = 0; queue < QUEUES; queue++)
		while ((in_flight[queue] = rte_vhost_async_get_inflight(vid, queue)) && now() < end) {
			uint16_t count = rte_vhost_clear_queue(vid, queue, packets, BURST, dma[queue], 0);

			rte_pktmbuf_free_bulk(packets, count);
		}
	printf("cleared: in flight %d %d, taken %lu, given %lu, waiting %u, repeated %lu, out of the pool %u\n",
	       in_flight[INTO_GUEST], in_flight[OUT_OF_GUEST], taken, given, waits, repeated, rte_mempool_in_use_count(pool));
	fflush(stdout);
}

int main(int count, char **words)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	int used = rte_eal_init(count, words), error;
	uint64_t turns = 0;
	char line[16];

	if (used < 0 || used + 1 >= count)
		fail("start: options of EAL, then --, then a socket", EINVAL);
	pool = rte_pktmbuf_pool_create("packets", BUFFERS, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, rte_socket_id());
	if (!pool)
		fail("make a pool of packets", rte_errno);
	start_dma(used + 2 < count && !strcmp(words[used + 2], "bare"));
	if ((error = rte_vhost_driver_register(words[used + 1], RTE_VHOST_USER_ASYNC_COPY)) ||
	    (error = rte_vhost_driver_callback_register(words[used + 1], &operations)) ||
	    (error = rte_vhost_driver_start(words[used + 1])))
		fail("serve the socket", error);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		int vid = guest;

		if (turns++ % 256 == 0 && poll(&input, 1, 0) > 0) {
			if (read(0, line, sizeof(line)) <= 0)
				return 0;
			if (vid >= 0)
				clear(vid);
		}
		look_at_disabled();
		if (vid >= 0)
			turn(vid);
	}
}
