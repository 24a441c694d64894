/* Packets, DMA queues, ports and sockets as documented, without a guest: ownership of packets, the caller's memory, threads, and
 * wrong arguments. tests/vhost.rs tests with a guest. */
#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFERS 256
#define LONGEST 1600

static telpher_vhost_pool *pool_of(uint32_t buffers) {
    telpher_vhost_pool *pool;
    CHECK(telpher_vhost_pool_new(&pool, buffers, LONGEST, NULL, 0) == 0);
    return pool;
}

static void the_caller_owns_a_packet_until_it_returns_it(void) {
    telpher_vhost_pool *pool = pool_of(BUFFERS);
    telpher_packet packets[BUFFERS + 1], more;
    CHECK(telpher_vhost_alloc_burst(pool, packets, BUFFERS + 1) == BUFFERS && telpher_vhost_pool_available(pool) == 0);
    CHECK(telpher_vhost_alloc_burst(pool, &more, 1) == 0);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        CHECK(packets[i].len == 0 && packets[i].id != 0);
        packets[i].len = LONGEST;
        memset(packets[i].data, (int)i, LONGEST);
        /* The packet's whole buffer, from the first byte of the headroom on. */
        memset((unsigned char *)packets[i].data - 128, (int)i, 128);
    }
    for (uint32_t i = 0; i < BUFFERS; i++) {
        const unsigned char *bytes = (const unsigned char *)packets[i].data - 128;
        CHECK(bytes[0] == (i & 0xff) && memcmp(bytes, bytes + 1, LONGEST + 127) == 0);
    }
    CHECK(telpher_vhost_pool_free(pool) == -EBUSY && says("outstanding"));
    CHECK(telpher_vhost_free_burst(pool, packets, 100) == 100 && telpher_vhost_pool_available(pool) == 100);
    /* A copy of a returned packet is refused, also when its buffer is in use again. */
    CHECK(telpher_vhost_free_burst(pool, packets, 1) == -EINVAL && says("returned before"));
    CHECK(telpher_vhost_alloc_burst(pool, &more, 1) == 1 && more.data == packets[99].data && more.id != packets[99].id);
    CHECK(telpher_vhost_free_burst(pool, &packets[99], 1) == -EINVAL && telpher_vhost_free_burst(pool, &more, 1) == 1);
    /* A refused packet in the middle of a burst: the packets in front of it are taken. */
    packets[50] = packets[200];
    telpher_packet row[3] = {packets[101], packets[101], packets[102]};
    CHECK(telpher_vhost_free_burst(pool, row, 3) == 1 && telpher_vhost_free_burst(pool, row + 1, 2) == -EINVAL);
    CHECK(telpher_vhost_free_burst(pool, row + 2, 1) == 1 && telpher_vhost_free_burst(pool, packets + 103, 153) == 153);
    CHECK(telpher_vhost_pool_available(pool) == BUFFERS - 1 && telpher_vhost_free_burst(pool, packets + 100, 1) == 1);
    CHECK(telpher_vhost_pool_free(pool) == 0);
}

static void a_pool_may_use_the_callers_memory(void) {
    const size_t size = telpher_vhost_pool_size(16, LONGEST);
    unsigned char *memory = malloc(size);
    telpher_vhost_pool *pool;
    telpher_packet packets[16];
    CHECK(size >= 16 * LONGEST && telpher_vhost_pool_new(&pool, 16, LONGEST, memory, size - 1) == -EINVAL && pool == NULL);
    CHECK(says("telpher_vhost_pool_size"));
    CHECK(telpher_vhost_pool_new(&pool, 16, LONGEST, memory, size) == 0);
    CHECK(telpher_vhost_alloc_burst(pool, packets, 16) == 16);
    for (int i = 0; i < 16; i++) {
        unsigned char *const data = packets[i].data;
        CHECK(data >= memory + 128 && data + LONGEST <= memory + size);
        memset(data - 128, i, LONGEST + 128);
    }
    CHECK(telpher_vhost_pool_free(pool) == -EBUSY && telpher_vhost_free_burst(pool, packets, 16) == 16);
    CHECK(telpher_vhost_pool_free(pool) == 0);
    free(memory);
}

struct worker {
    const telpher_vhost_pool *pool;
    const telpher_vhost_port *port;
    unsigned wrong;
    unsigned char mark;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    telpher_packet burst[16], other[16];
    for (int round = 0; round < 2000; round++) {
        const int count = telpher_vhost_alloc_burst(worker->pool, burst, 16);
        worker->wrong += count < 0;
        for (int i = 0; i < count; i++)
            memset(burst[i].data, worker->mark, burst[i].len = 64);
        /* No frontend is connected: the packets stay with the caller. */
        worker->wrong += telpher_vhost_submit_enqueue_burst(worker->port, 0, burst, (uint32_t)count) != 0;
        worker->wrong += telpher_vhost_try_dequeue_burst(worker->port, 0, other, 16) != 0;
        worker->wrong += telpher_vhost_poll_enqueue_completed(worker->port, 0, round % 2 ? other : NULL, 16) != 0;
        for (int i = 0; i < count; i++) {
            const unsigned char *bytes = burst[i].data;
            worker->wrong += bytes[0] != worker->mark || memcmp(bytes, bytes + 1, 63) != 0;
        }
        worker->wrong += telpher_vhost_free_burst(worker->pool, burst, (uint32_t)count) != count;
    }
    return NULL;
}

static void threads_share_a_pool_and_a_port(void) {
    telpher_vhost_pool *pool = pool_of(48);
    telpher_vhost_port *port;
    CHECK(telpher_vhost_port_new(&port, pool, NULL, 0, NULL) == 0);
    struct worker workers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){pool, port, 0, (unsigned char)(i + 1)};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK(workers[i].wrong == 0);
    }
    /* The port keeps 16 buffers in reserve. */
    CHECK(telpher_vhost_pool_available(pool) == 48 - 16 && telpher_vhost_pool_free(pool) == -EBUSY);
    telpher_vhost_port_free(port);
    CHECK(telpher_vhost_pool_free(pool) == 0);
}

static void handles_are_independent(telpher_device *device) {
    telpher_vhost_pool *pool = pool_of(16);
    telpher_vhost_dma_queue *dma_queue;
    telpher_vhost_port *port;
    telpher_vhost_socket *socket, *other;
    telpher_vhost_socket_state state;
    telpher_vhost_dma_queue_stats stats;
    char path[64], text[100];
    snprintf(path, sizeof path, "/tmp/telpher-vhost-%d.sock", (int)getpid());
    CHECK(telpher_vhost_dma_queue_new(&dma_queue, device, 0, 16) == 0);
    const telpher_vhost_queue queues[2] = {{.dma_queues = &dma_queue, .dma_queue_count = 1, .device_from = 64}, {.device_from = UINT32_MAX}};
    CHECK(telpher_vhost_port_new(&port, pool, queues, 2, "pairs=2 without=ring_packed drain-timeout=10ms") == 0);
    CHECK(telpher_vhost_dma_queue_stats_of(dma_queue, &stats) == 0 && stats.copies == 0 && stats.in_flight == 0);
    /* The port keeps using its DMA queue. A dedicated queue belongs to the DMA queue until both are freed. */
    telpher_queue_info info;
    telpher_channel *channel;
    CHECK(telpher_device_queue(device, 0, &info) == 0);
    telpher_vhost_dma_queue_free(dma_queue);
    const int had = telpher_channel_new(&channel, device, 0, 4, NULL);
    CHECK(had == (info.dedicated ? -EBUSY : 0) && telpher_channel_free(channel) == 0);
    CHECK(telpher_vhost_socket_new(&socket, port, path, TELPHER_VHOST_SERVER) == 0 && access(path, F_OK) == 0);
    CHECK(telpher_vhost_socket_state_of(socket, &state) == 0 && state.connected == 0 && state.sessions == 0);
    CHECK(telpher_vhost_socket_last(socket, text, sizeof text) == 0 && text[0] == 0);
    /* The second socket checks whether the first one listens; the first may count this as a session. */
    CHECK(telpher_vhost_socket_new(&other, port, path, TELPHER_VHOST_SERVER) == -EADDRINUSE && other == NULL && says(path));
    /* The socket keeps the port alive. */
    telpher_vhost_port_free(port);
    CHECK(telpher_vhost_pool_free(pool) == -EBUSY && access(path, F_OK) == 0);
    telpher_vhost_socket_free(socket);
    CHECK(access(path, F_OK) != 0 && telpher_vhost_pool_free(pool) == 0);
    CHECK(telpher_channel_new(&channel, device, 0, 4, NULL) == 0 && telpher_channel_free(channel) == 0);
    /* The socket waits for a missing frontend in the background. */
    pool = pool_of(16);
    CHECK(telpher_vhost_port_new(&port, pool, NULL, 0, NULL) == 0);
    CHECK(telpher_vhost_socket_new(&socket, port, path, TELPHER_VHOST_CLIENT) == 0);
    telpher_vhost_socket_free(socket);
    telpher_vhost_port_free(port);
    CHECK(telpher_vhost_pool_free(pool) == 0);
}

static void wrong_arguments_return_an_errno(telpher_device *device) {
    telpher_vhost_pool *pool = (telpher_vhost_pool *)1;
    telpher_vhost_dma_queue *dma_queue = (telpher_vhost_dma_queue *)1;
    telpher_vhost_port *port = (telpher_vhost_port *)1;
    telpher_vhost_socket *socket = (telpher_vhost_socket *)1;
    telpher_packet packet = {NULL, 0, 0};
    telpher_vhost_state state;
    telpher_vhost_stats stats;
    telpher_vhost_dma_queue_stats dma_queue_stats;
    telpher_vhost_socket_state socket_state;
    unsigned char memory[64], address[6];
    char text[100];
    const uint32_t none[][2] = {{0, 100}, {1, 0}, {(1 << 24) + 1, 100}, {1, (1 << 20) + 1}, {UINT32_MAX, UINT32_MAX}};
    for (int i = 0; i < 5; i++) {
        CHECK(telpher_vhost_pool_new(&pool, none[i][0], none[i][1], NULL, 0) == -EINVAL && pool == NULL && says("2^24"));
        CHECK(telpher_vhost_pool_size(none[i][0], none[i][1]) == 0);
    }
    CHECK(telpher_vhost_pool_new(NULL, 1, 1, NULL, 0) == -EFAULT && telpher_vhost_pool_new(&pool, 1, 1, NULL, 1) == -EFAULT);
    CHECK(telpher_vhost_pool_new(&pool, 1, 1, memory, 0) == -EINVAL && telpher_vhost_pool_new(&pool, 1, 1, memory, 64) == -EINVAL);
    CHECK(telpher_vhost_pool_new(&pool, 1, 1, memory, SIZE_MAX) == -EOVERFLOW && pool == NULL);
    /* More than any machine has. */
    CHECK(telpher_vhost_pool_new(&pool, 1 << 24, 1 << 20, NULL, 0) < 0 && pool == NULL && telpher_last_error()[0] != 0);
    CHECK(telpher_vhost_pool_free(NULL) == 0 && telpher_vhost_pool_available(NULL) == -EFAULT);
    pool = pool_of(4);
    CHECK(telpher_vhost_alloc_burst(NULL, &packet, 1) == -EFAULT && telpher_vhost_alloc_burst(pool, NULL, 1) == -EFAULT);
    CHECK(telpher_vhost_alloc_burst(pool, NULL, 0) == 0 && telpher_vhost_free_burst(pool, NULL, 0) == 0);
    CHECK(telpher_vhost_free_burst(NULL, &packet, 1) == -EFAULT && telpher_vhost_free_burst(pool, NULL, 1) == -EFAULT);
    CHECK(telpher_vhost_free_burst(pool, &packet, 1) == -EINVAL && says("id 0x0"));

    CHECK(telpher_vhost_dma_queue_new(NULL, device, 0, 1) == -EFAULT && telpher_vhost_dma_queue_new(&dma_queue, NULL, 0, 1) == -EFAULT);
    CHECK(dma_queue == NULL && telpher_vhost_dma_queue_new(&dma_queue, device, 999, 1) == -EINVAL && says("no queue 999"));
    CHECK(telpher_vhost_dma_queue_new(&dma_queue, device, 0, 0) == -EINVAL && says("DMA queue") && dma_queue == NULL);
    CHECK(telpher_vhost_dma_queue_new(&dma_queue, device, 0, UINT32_MAX) == -EINVAL && dma_queue == NULL);
    CHECK(telpher_vhost_dma_queue_new(&dma_queue, device, 0, 1) == 0 && telpher_vhost_dma_queue_stats_of(dma_queue, NULL) == -EFAULT);
    CHECK(telpher_vhost_dma_queue_stats_of(NULL, &dma_queue_stats) == -EFAULT);

    telpher_vhost_queue queue = {.dma_queues = &dma_queue, .dma_queue_count = 1};
    telpher_vhost_dma_queue *const no_dma_queue = NULL;
    CHECK(telpher_vhost_port_new(NULL, pool, &queue, 1, NULL) == -EFAULT);
    CHECK(telpher_vhost_port_new(&port, NULL, &queue, 1, NULL) == -EFAULT && port == NULL);
    CHECK(telpher_vhost_port_new(&port, pool, NULL, 1, NULL) == -EFAULT && says("virtqueues"));
    CHECK(telpher_vhost_port_new(&port, pool, &queue, 1, "pairs=0") == -EINVAL && says("from 1 to 128"));
    CHECK(telpher_vhost_port_new(&port, pool, &queue, 1, "threshold=1") == -EINVAL && says("a port has"));
    queue.dma_queues = NULL;
    CHECK(telpher_vhost_port_new(&port, pool, &queue, 1, NULL) == -EFAULT && says("DMA queues"));
    queue.dma_queues = &no_dma_queue;
    CHECK(telpher_vhost_port_new(&port, pool, &queue, 1, NULL) == -EFAULT && says("the DMA queue"));
    queue.dma_queues = &dma_queue;
    queue.reserved = 1;
    CHECK(telpher_vhost_port_new(&port, pool, &queue, 1, NULL) == -EINVAL && says("reserved"));
    queue.reserved = 0;
    queue.reserved2[2] = 1;
    CHECK(telpher_vhost_port_new(&port, pool, &queue, 1, NULL) == -EINVAL && says("reserved") && port == NULL);
    queue.reserved2[2] = 0;
    CHECK(telpher_vhost_port_new(&port, pool, &queue, 1, "pairs=2") == 0);

    CHECK(telpher_vhost_submit_enqueue_burst(NULL, 0, &packet, 1) == -EFAULT);
    CHECK(telpher_vhost_submit_enqueue_burst(port, 0, NULL, 1) == -EFAULT && telpher_vhost_submit_enqueue_burst(port, 0, NULL, 0) == 0);
    CHECK(telpher_vhost_submit_enqueue_burst(port, 2, &packet, 1) == -EINVAL && says("no pair of queues 2; there are 2"));
    CHECK(telpher_vhost_submit_enqueue_burst(port, 1, &packet, 1) == -EINVAL && says("id 0x0"));
    CHECK(telpher_vhost_poll_enqueue_completed(NULL, 0, &packet, 1) == -EFAULT);
    CHECK(telpher_vhost_poll_enqueue_completed(port, UINT32_MAX, NULL, 0) == -EINVAL && telpher_vhost_poll_enqueue_completed(port, 0, NULL, 9) == 0);
    CHECK(telpher_vhost_try_dequeue_burst(NULL, 0, &packet, 1) == -EFAULT && telpher_vhost_try_dequeue_burst(port, 0, NULL, 1) == -EFAULT);
    CHECK(telpher_vhost_try_dequeue_burst(port, 9, &packet, 1) == -EINVAL && telpher_vhost_try_dequeue_burst(port, 0, NULL, 0) == 0);
    CHECK(telpher_vhost_wait(NULL, 0, 0) == -EFAULT && telpher_vhost_wait(port, 4, 0) == -EINVAL && says("no virtqueue 4"));
    CHECK(telpher_vhost_wait(port, 0, -2) == -EINVAL && telpher_vhost_wait(port, 1, -1) == 0); /* it does not run */
    CHECK(telpher_vhost_state_of(NULL, 0, &state) == -EFAULT && telpher_vhost_state_of(port, 0, NULL) == -EFAULT);
    CHECK(telpher_vhost_state_of(port, 4, &state) == -EINVAL && telpher_vhost_state_of(port, 3, &state) == 0 && state.size == 0);
    CHECK(telpher_vhost_stats_of(NULL, 0, &stats) == -EFAULT && telpher_vhost_stats_of(port, 0, NULL) == -EFAULT);
    CHECK(telpher_vhost_stats_of(port, 4, &stats) == -EINVAL && telpher_vhost_stats_of(port, 3, &stats) == 0 && stats.packets == 0);
    CHECK(telpher_vhost_broken(NULL, 0, text, 9) == -EFAULT && telpher_vhost_broken(port, 4, text, 9) == -EINVAL);
    CHECK(telpher_vhost_broken(port, 0, NULL, 9) == -EFAULT && telpher_vhost_broken(port, 0, NULL, 0) == 0);
    CHECK(telpher_vhost_announcement(NULL, address) == -EFAULT && telpher_vhost_announcement(port, NULL) == -EFAULT);
    CHECK(telpher_vhost_announcement(port, address) == 0 && telpher_vhost_drop_text(UINT32_MAX) == NULL);

    CHECK(telpher_vhost_socket_new(NULL, port, "/tmp/x", 0) == -EFAULT && telpher_vhost_socket_new(&socket, NULL, "/tmp/x", 0) == -EFAULT);
    CHECK(socket == NULL && telpher_vhost_socket_new(&socket, port, NULL, 0) == -EFAULT);
    CHECK(telpher_vhost_socket_new(&socket, port, "/tmp/x", 2) == -EINVAL && says("no role 2"));
    CHECK(telpher_vhost_socket_new(&socket, port, "/no/such/folder/socket", 0) == -ENOENT && says("/no/such/folder/socket"));
    char longest[200];
    memset(longest, 'x', sizeof longest);
    longest[199] = 0;
    CHECK(telpher_vhost_socket_new(&socket, port, longest, 0) < 0 && says("cannot name") && socket == NULL);
    CHECK(telpher_vhost_socket_state_of(NULL, &socket_state) == -EFAULT && telpher_vhost_socket_last(NULL, text, 9) == -EFAULT);
    telpher_vhost_socket_free(NULL);
    telpher_vhost_port_free(NULL);
    telpher_vhost_dma_queue_free(NULL);
    telpher_vhost_port_free(port);
    telpher_vhost_dma_queue_free(dma_queue);
    CHECK(telpher_vhost_pool_free(pool) == 0);
    CHECK(telpher_has("vhost") == 1 && strstr(telpher_options_help(), "of a port:") != NULL);
}

int main(int argc, char **argv) {
    const char *const runners[] = {"runner=inline", "runner=threaded"};
    for (int i = 0; i < 2; i++) {
        telpher_device *device;
        CHECK(telpher_device_open(&device, argc > 1 ? argv[1] : "model:spr", runners[i]) == 0);
        the_caller_owns_a_packet_until_it_returns_it();
        a_pool_may_use_the_callers_memory();
        threads_share_a_pool_and_a_port();
        handles_are_independent(device);
        wrong_arguments_return_an_errno(device);
        telpher_device_close(device);
    }
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
