/* fork(): the child has no portal and may not use the parent's file; it opens its own. Also work in flight when the
 * parent forks, and a child that ends with work in flight. */
#include "client.h"
#include <signal.h>
#include <sys/wait.h>

static int ended(pid_t child)
{
	int status;
	EXPECT(waitpid(child, &status, 0) == child, "waitpid");
	return status;
}

/* Runs `body` in a child and uses its result as exit code. */
static int in_child(int (*body)(struct queue *), struct queue *q)
{
	pid_t child = fork();
	EXPECT(child >= 0, "fork");
	if (child == 0)
		_exit(body(q));
	return ended(child);
}

/* The mapping is not inherited (VM_DONTCOPY): the address is unmapped. */
static int touches_the_portal(struct queue *q)
{
	static record __attribute__((aligned(32))) r;
	desc d = asking(DSA_OPCODE_NOOP, &r);
	signal(SIGSEGV, SIG_DFL);
	movdir64b(q->portal, &d);
	return 0;
}

static int maps_again(struct queue *q)
{
	return mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, q->fd, 0) == MAP_FAILED && errno == EPERM ? 0 : 1;
}

/* Opens the shared queue itself and copies, many times. */
static int copies(struct queue *inherited)
{
	static unsigned char from[5000], to[5000];
	static record __attribute__((aligned(32))) r;
	(void)inherited;
	struct queue q = open_queue(SHARED);
	for (int i = 0; i < 200; i++) {
		fill_known(from, sizeof from, getpid() + i);
		desc d = moving(to, from, sizeof to, &r);
		EXPECT(run(&q, &d) == DSA_COMP_SUCCESS, "status %#x", r.status);
		EXPECT(memcmp(from, to, sizeof to) == 0, "bytes");
	}
	close_queue(&q);
	return 0;
}

/* Ends with descriptors in flight. */
static int leaves_work(struct queue *inherited)
{
	static unsigned char from[8][1 << 17], to[8][1 << 17];
	static record __attribute__((aligned(32))) r[8];
	(void)inherited;
	struct queue q = open_queue(SHARED);
	for (int i = 0; i < 8; i++) {
		desc d = moving(to[i], from[i], sizeof to[i], &r[i]);
		submit(&q, &d);
	}
	return 0;
}

int main(void)
{
	static unsigned char from[1 << 20], to[1 << 20];
	static record __attribute__((aligned(32))) r;
	struct queue dedicated = open_queue(DEDICATED), shared = open_queue(SHARED);
	expect_alive(&dedicated);
	expect_alive(&shared);

	int status = in_child(touches_the_portal, &dedicated);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "a child used its parent's portal: %#x", status);
	EXPECT(in_child(maps_again, &dedicated) == 0, "a child mapped its parent's file");
	EXPECT(in_child(maps_again, &shared) == 0, "a child mapped its parent's file");

	/* Children and parent at the same time, each in its own memory. */
	pid_t children[4];
	for (int i = 0; i < 4; i++) {
		children[i] = fork();
		if (children[i] == 0)
			_exit(copies(NULL));
	}
	EXPECT(copies(NULL) == 0, "the parent");
	for (int i = 0; i < 4; i++)
		EXPECT(ended(children[i]) == 0, "child %d", i);

	/* Work in flight across a fork belongs to the parent alone. */
	for (int i = 0; i < 50; i++) {
		fill_known(from, sizeof from, i);
		desc d = moving(to, from, sizeof to, &r);
		submit(&dedicated, &d);
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		EXPECT(wait_for(&r) == DSA_COMP_SUCCESS, "status %#x", r.status);
		EXPECT(memcmp(from, to, sizeof to) == 0, "bytes across a fork");
		EXPECT(ended(child) == 0, "child");
	}
	for (int i = 0; i < 10; i++)
		EXPECT(in_child(leaves_work, NULL) == 0, "a child that leaves work");

	/* The parent has lost nothing. */
	expect_alive(&dedicated);
	expect_alive(&shared);
	close_queue(&dedicated);
	close_queue(&shared);
	return 0;
}
