/* A program whose memory other processes read, and these other processes.
 *
 *   tier_readers hold                     maps pages that begin with their number, prints where, ends with its input
 *   tier_readers trace PID START PAGES    attaches and prints so; after a line of input it stops the first thread and
 *                                         reads with PTRACE_PEEKDATA
 *   tier_readers mem PID START PAGES      reads /proc/PID/mem
 *   tier_readers vm PID START PAGES       reads with process_vm_readv
 *
 * Each reads all pages ROUNDS times, and prints how many reads failed or returned another number. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is_so) \
    do { \
        if (!(is_so)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #is_so, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

enum { PAGE = 4096, PAGES = 8192, ROUNDS = 10 };

static void hold(void) {
    unsigned char *memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                                 -1, 0);
    CHECK(memory != MAP_FAILED);
    for (unsigned long page = 0; page < PAGES; page++)
        memcpy(memory + page * PAGE, &page, sizeof page);
    /* Needed if Yama lets only parents trace. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    printf("%d %lu %d\n", getpid(), (unsigned long)memory, PAGES);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    for (unsigned long page = 0; page < PAGES; page++)
        CHECK(memcmp(memory + page * PAGE, &page, sizeof page) == 0);
}

int main(int count, char **words) {
    CHECK(count == 2 || count == 5);
    if (strcmp(words[1], "hold") == 0) {
        hold();
        return 0;
    }
    CHECK(count == 5);
    pid_t pid = atoi(words[2]);
    unsigned long start = strtoul(words[3], NULL, 10), pages = strtoul(words[4], NULL, 10), wrong = 0;
    int traces = strcmp(words[1], "trace") == 0, by_file = strcmp(words[1], "mem") == 0, fd = -1;
    char path[64];
    if (traces) {
        CHECK(ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0);
        printf("attached\n");
        fflush(stdout);
        CHECK(getchar() != EOF);
        CHECK(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0 && waitpid(pid, NULL, __WALL) == pid);
    } else if (by_file) {
        snprintf(path, sizeof path, "/proc/%d/mem", pid);
        fd = open(path, O_RDONLY);
        CHECK(fd >= 0);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (unsigned long page = 0; page < pages; page++) {
            unsigned long found = ~0ul, address = start + page * PAGE;
            struct iovec here = {&found, sizeof found}, there = {(void *)address, sizeof found};
            if (traces)
                found = (unsigned long)ptrace(PTRACE_PEEKDATA, pid, address, NULL);
            else if (by_file)
                (void)!pread(fd, &found, sizeof found, (off_t)address);
            else
                (void)!process_vm_readv(pid, &here, 1, &there, 1, 0);
            wrong += found != page;
        }
    if (traces)
        CHECK(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0);
    printf("%lu of %lu wrong\n", wrong, ROUNDS * pages);
    return 0;
}
