/* Threads that run one site while it is being rewritten, and threads that start and end; a full queue answers Retry
 * on the shared one. Every copy is checked. */
#include "client.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 400 };

static struct queue queues[2];
static pthread_barrier_t start;

/* Not inlined, so that all threads use one site. */
static __attribute__((noinline)) void one_site(void *portal, const desc *d)
{
	movdir64b(portal, d);
}

static __attribute__((noinline)) int another_site(void *portal, const desc *d)
{
	return enqcmd(portal, d);
}

static void *work(void *arg)
{
	uintptr_t number = (uintptr_t)arg;
	unsigned char from[3000], to[3000];
	record __attribute__((aligned(32))) r;
	pthread_barrier_wait(&start);
	for (int i = 0; i < ROUNDS; i++) {
		fill_known(from, sizeof from, number * ROUNDS + i);
		memset(to, 0, sizeof to);
		desc d = moving(to, from, sizeof to, &r);
		/* Each thread has its own slots, as in clients with many threads. */
		unsigned slot = (number * 1024 + i * 64) % PAGE;
		if (i % 2)
			one_site(queues[0].portal + slot, &d);
		else
			while (another_site(queues[1].portal + slot, &d))
				sched_yield();
		EXPECT(wait_for(&r) == DSA_COMP_SUCCESS, "thread %d: %#x", (int)number, r.status);
		EXPECT(memcmp(from, to, sizeof to) == 0, "thread %d: bytes of round %d", (int)number, i);
	}
	return NULL;
}

int main(void)
{
	queues[0] = open_queue(DEDICATED);
	queues[1] = open_queue(SHARED);
	for (int round = 0; round < 5; round++) {
		pthread_t threads[THREADS];
		EXPECT(pthread_barrier_init(&start, NULL, THREADS) == 0, "barrier");
		for (uintptr_t i = 0; i < THREADS; i++)
			EXPECT(pthread_create(&threads[i], NULL, work, (void *)i) == 0, "thread");
		for (int i = 0; i < THREADS; i++)
			EXPECT(pthread_join(threads[i], NULL) == 0, "join");
	}
	close_queue(&queues[0]);
	close_queue(&queues[1]);
	return 0;
}
