/* Copies a buffer and computes its CRC32C in the same pass, while the program does other work.
 *
 *     cc copy_crc.c $(pkg-config --cflags --libs telpher) -o copy_crc && ./copy_crc model:spr
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <telpher.h>

#define LEN (1024 * 1024)

static void check(int result) {
    if (result < 0) {
        fprintf(stderr, "copy_crc: %s\n", telpher_last_error());
        exit(1);
    }
}

int main(int argc, char **argv) {
    telpher_device *device;
    telpher_mover *mover;
    check(telpher_device_open(&device, argc > 1 ? argv[1] : "model:spr", NULL));
    check(telpher_mover_new(&mover, device, "threshold=16k"));

    unsigned char *src = malloc(LEN), *dst = malloc(LEN);
    if (src == NULL || dst == NULL)
        return 1;
    for (size_t i = 0; i < LEN; i++)
        src[i] = (unsigned char)(i * 7);

    telpher_op op = telpher_op_copy_crc(dst, src, LEN, 0);
    telpher_job *job;
    check(telpher_start(mover, &op, &job));

    /* From here until the job has ended src and dst must not be used. The program can do other work meanwhile. */
    long turns = 0;
    while (telpher_job_wait(job, 100 * 1000) == 0)
        turns++;
    (void)turns;

    telpher_result result;
    check(telpher_job_result(job, 0, &result));
    check(telpher_job_free(job));
    printf("%d bytes, CRC32C %08x, %s\n", LEN, result.crc, memcmp(src, dst, LEN) == 0 ? "equal" : "different");

    free(src);
    free(dst);
    check(telpher_mover_free(mover));
    telpher_device_close(device);
    return 0;
}
