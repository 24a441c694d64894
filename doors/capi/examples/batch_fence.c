/* Several operations submitted together. The members after a fence wait for those before it, and are abandoned if one of
 * those failed.
 *
 *     cc batch_fence.c $(pkg-config --cflags --libs telpher) -o batch_fence && ./batch_fence model:spr
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <telpher.h>

#define LEN 65536

static int check(int result) {
    if (result < 0) {
        fprintf(stderr, "batch_fence: %s\n", telpher_last_error());
        exit(1);
    }
    return result;
}

static unsigned char seen[LEN], expected[LEN], scratch[LEN], next[LEN], place[LEN];

/* Overwrites place if seen is as expected, and clears some scratch memory. */
static void round_of(const telpher_mover *mover) {
    telpher_op clear = telpher_op_fill(scratch, 0, LEN);
    telpher_op compare = telpher_op_compare(seen, expected, LEN);
    telpher_op overwrite = telpher_op_copy(place, next, LEN);
    compare.flags = TELPHER_EXPECT_EQUAL; /* a difference counts as a failure at the fence */
    overwrite.flags = TELPHER_FENCE;

    telpher_batch *batch;
    telpher_job *job;
    check(telpher_batch_new(mover, &batch));
    check(telpher_batch_add(batch, &clear));
    check(telpher_batch_add(batch, &compare));
    check(telpher_batch_add(batch, &overwrite));
    check(telpher_batch_submit(batch, &job));
    check(telpher_job_wait(job, -1));

    int members = check(telpher_job_results(job));
    for (int i = 0; i < members; i++) {
        telpher_result result;
        char text[128];
        telpher_job_result(job, (uint32_t)i, &result); /* a failed member is a result, not a reason to stop */
        telpher_result_text(&result, text, sizeof text);
        printf("member %d: %s\n", i, text);
    }
    check(telpher_job_free(job));
}

int main(int argc, char **argv) {
    telpher_device *device;
    telpher_mover *mover;
    check(telpher_device_open(&device, argc > 1 ? argv[1] : "model:spr", NULL));
    check(telpher_mover_new(&mover, device, "threshold=4k"));
    memset(next, 7, LEN);
    round_of(mover);
    printf("the place has %d\n", place[0]);
    memset(next, 8, LEN);
    seen[1234] = 1;
    round_of(mover);
    printf("the place has %d\n", place[0]);
    check(telpher_mover_free(mover));
    telpher_device_close(device);
    return 0;
}
