/* A dedicated queue can be opened once, by any process, until the last reference to the file is gone: close, munmap,
 * the end of a process and kill -9 all release one, before the waiting parent learns of them. */
#include "client.h"
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

static void is_busy(const char *why)
{
	errno = 0;
	int fd = open(DEDICATED, O_RDWR);
	EXPECT(fd == -1 && errno == EBUSY, "open: %s", why);
}

static void is_free(const char *why)
{
	int fd = open(DEDICATED, O_RDWR);
	EXPECT(fd >= 0, "open: %s", why);
	EXPECT(close(fd) == 0, "close: %s", why);
}

static int in_child(void (*body)(const char *), const char *why)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		body(why);
		_exit(0);
	}
	EXPECT(waitpid(child, &status, 0) == child, "waitpid");
	return status;
}

int main(void)
{
	is_free("at first");
	int fd = open(DEDICATED, O_RDWR);
	EXPECT(fd >= 0, "open");
	is_busy("open here");
	EXPECT(in_child(is_busy, "open in the parent") == 0, "child");
	int copy = dup(fd);
	close(fd);
	is_busy("a dup is left");
	int high = fcntl(copy, F_DUPFD_CLOEXEC, 100);
	close(copy);
	is_busy("another dup is left");
	EXPECT(dup2(0, high) == high, "dup2 over it");
	is_free("dup2 has closed the last");

	/* A child that inherits the file holds it, too. */
	fd = open(DEDICATED, O_RDWR);
	int stop[2];
	EXPECT(pipe(stop) == 0, "pipe");
	pid_t child = fork();
	if (child == 0) {
		char byte;
		close(stop[1]);
		_exit(read(stop[0], &byte, 1) == 0 ? 0 : 1);
	}
	close(stop[0]);
	close(fd);
	is_busy("a child has inherited it");
	close(stop[1]);
	int status;
	EXPECT(waitpid(child, &status, 0) == child && status == 0, "child: %#x", status);
	is_free("the child has ended");

	/* Another process receives the file over a socket. */
	int pair[2];
	EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
	fd = open(DEDICATED, O_RDWR);
	char byte = 'x', control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec io = { &byte, 1 };
	struct msghdr message = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof fd);
	EXPECT(sendmsg(pair[0], &message, 0) == 1, "sendmsg");
	close(fd);
	is_busy("in flight over a socket");
	close(pair[0]);
	close(pair[1]);
	is_free("the socket has gone, and the file with it");

	/* kill -9 with work in flight: the queue is free when the parent's wait returns. */
	for (int i = 0; i < 20; i++) {
		int ready[2];
		EXPECT(pipe(ready) == 0, "pipe");
		child = fork();
		if (child == 0) {
			static unsigned char from[1 << 16], to[1 << 16];
			static record __attribute__((aligned(32))) r;
			struct queue q = open_queue(DEDICATED);
			EXPECT(write(ready[1], "r", 1) == 1, "ready");
			for (;;) {
				desc d = moving(to, from, sizeof to, &r);
				submit(&q, &d);
			}
		}
		EXPECT(read(ready[0], &byte, 1) == 1, "ready");
		is_busy("the child has it");
		kill(child, SIGKILL);
		EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "killed: %#x", status);
		is_free("the child was killed");
		close(ready[0]);
		close(ready[1]);
	}

	/* A shared queue can be opened any number of times, here twice in a row. */
	int a = open(SHARED, O_RDWR), b = open(SHARED, O_RDWR);
	EXPECT(a >= 0 && b >= 0, "twice");
	close(a);
	static record __attribute__((aligned(32))) r;
	desc d = asking(DSA_OPCODE_NOOP, &r);
	char *portal = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, b, 0);
	EXPECT(portal != MAP_FAILED, "mmap of the second");
	EXPECT(enqcmd(portal, &d) == 0 && wait_for(&r) == DSA_COMP_SUCCESS, "the second works");
	return 0;
}
