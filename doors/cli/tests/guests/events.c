/*
 * A guest's program: counts an event of the device while a command runs, as `perf stat -a` does, and prints the count.
 *
 * Usage: events CATEGORY EVENT COMMAND [ARGUMENT...]
 *
 * Source: Linux, Documentation/ABI/testing/sysfs-bus-event_source-devices-dsa (format: event_category is config:0-3,
 * event is config:4-31); perf_event_open(2).
 */
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PMU "/sys/bus/event_source/devices/dsa0/"

/* The first number in a file; the program ends if there is none. */
static unsigned number(const char *path) {
    FILE *file = fopen(path, "r");
    unsigned value;
    if (file == NULL || fscanf(file, "%u", &value) != 1) {
        perror(path);
        exit(1);
    }
    fclose(file);
    return value;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: events CATEGORY EVENT COMMAND [ARGUMENT...]\n");
        return 1;
    }
    struct perf_event_attr event = {
        .type = number(PMU "type"),
        .size = sizeof event,
        .config = strtoul(argv[1], NULL, 0) | strtoul(argv[2], NULL, 0) << 4,
    };
    /* The driver's counters belong to one processor. */
    int counter = (int)syscall(SYS_perf_event_open, &event, -1, (int)number(PMU "cpumask"), -1, 0);
    if (counter < 0) {
        perror("perf_event_open");
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        execvp(argv[3], argv + 3);
        perror(argv[3]);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "%s failed\n", argv[3]);
        return 1;
    }
    uint64_t count;
    if (read(counter, &count, sizeof count) != sizeof count) {
        perror("reading the counter");
        return 1;
    }
    printf("%llu\n", (unsigned long long)count);
    return 0;
}
