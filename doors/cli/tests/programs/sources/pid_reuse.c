// Starts a process with a chosen PID, as an ordinary user, with a library open at every low descriptor.
//   pid_reuse PID LIBRARY READY
// The process creates the file READY when it is set up, and sleeps until it is killed. Needs root, which may choose
// PIDs.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    pid_t number = atoi(argv[1]);
    struct clone_args args = {
        .exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&number, .set_tid_size = 1};
    long child = syscall(SYS_clone3, &args, sizeof args);
    if (child < 0) {
        perror("clone3 with a number of its own");
        return 3;
    }
    if (child > 0) {
        int status;
        waitpid(child, &status, 0);
        return 0;
    }
    int ready = open(argv[3], O_CREAT | O_EXCL | O_WRONLY, 0644);
    int library = open(argv[2], O_RDONLY);
    if (ready < 0 || library < 0 || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)) return 4;
    for (int descriptor = 3; descriptor < 200; descriptor++)
        if (descriptor != ready && descriptor != library) dup2(library, descriptor);
    if (write(ready, "ready\n", 6) != 6) return 5;
    pause();
    return 0;
}
