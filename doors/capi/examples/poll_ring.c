/* The poll-mode layer: one thread, one queue, a ring of copies that never blocks and never allocates.
 *
 *     cc poll_ring.c $(pkg-config --cflags --libs telpher) -o poll_ring && ./poll_ring model:spr
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <telpher.h>

#define BLOCK 4096
#define BLOCKS 1000
#define PLACES 32

static int check(int result) {
    if (result < 0) {
        fprintf(stderr, "poll_ring: %s\n", telpher_last_error());
        exit(1);
    }
    return result;
}

int main(int argc, char **argv) {
    telpher_device *device;
    telpher_channel *channel;
    check(telpher_device_open(&device, argc > 1 ? argv[1] : "model:spr", NULL));
    check(telpher_channel_new(&channel, device, 0, PLACES, NULL));

    unsigned char *src = malloc(BLOCKS * BLOCK), *dst = malloc(BLOCKS * BLOCK);
    if (src == NULL || dst == NULL)
        return 1;
    for (size_t i = 0; i < BLOCKS * BLOCK; i++)
        src[i] = (unsigned char)(i % 251);

    size_t prepared = 0, ended = 0;
    unsigned long long sum = 0;
    while (ended < BLOCKS) {
        for (; prepared < BLOCKS; prepared++) {
            telpher_op op = telpher_op_copy(dst + prepared * BLOCK, src + prepared * BLOCK, BLOCK);
            op.user_data = prepared;
            int taken = telpher_channel_put(channel, &op, NULL);
            if (taken == -EAGAIN)
                break; /* the channel is full */
            check(taken);
        }
        check(telpher_channel_submit(channel));

        telpher_completion done[PLACES];
        int n = check(telpher_channel_completed(channel, done, PLACES));
        for (int i = 0; i < n; i++) {
            if (done[i].result.status < 0) {
                char text[128];
                telpher_result_text(&done[i].result, text, sizeof text);
                fprintf(stderr, "poll_ring: block %llu: %s\n", (unsigned long long)done[i].user_data, text);
                return 1;
            }
            sum += done[i].user_data;
        }
        ended += (size_t)n;
    }
    printf("%zu blocks of %d bytes, numbers add up to %llu, %s\n", ended, BLOCK, sum,
           memcmp(src, dst, BLOCKS * BLOCK) == 0 ? "equal" : "different");

    free(src);
    free(dst);
    check(telpher_channel_free(channel));
    telpher_device_close(device);
    return 0;
}
