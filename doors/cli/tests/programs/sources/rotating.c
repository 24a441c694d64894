/* Every 64-byte slot of a portal page is the queue's portal, the mapping outlives its file descriptor, and a queue
 * may be mapped more than once. */
#include "client.h"

static void every_slot(const struct queue *q)
{
	static unsigned char from[256], to[256];
	static record __attribute__((aligned(32))) r;
	for (unsigned offset = 0; offset < PAGE; offset += 64) {
		fill_known(from, sizeof from, offset);
		desc d = moving(to, from, sizeof from, &r);
		submit_at(q, offset, &d);
		EXPECT(wait_for(&r) == DSA_COMP_SUCCESS, "slot %#x", offset);
		EXPECT(memcmp(from, to, sizeof to) == 0, "bytes through slot %#x", offset);
	}
}

int main(void)
{
	const char *paths[] = { SHARED, DEDICATED };
	for (int i = 0; i < 2; i++) {
		struct queue q = open_queue(paths[i]);
		every_slot(&q);
		/* A second mapping of the same file, and the first one after the second is unmapped. */
		char *again = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, q.fd, 0);
		EXPECT(again != MAP_FAILED && again != q.portal, "a second mapping");
		struct queue second = { .shared = q.shared, .portal = again };
		every_slot(&second);
		EXPECT(munmap(again, PAGE) == 0, "munmap");
		/* As DPDK does: the descriptor is closed at once, the portal stays. */
		EXPECT(close(q.fd) == 0, "close");
		every_slot(&q);
		/* The mapping keeps a dedicated queue busy, because it holds the file. */
		if (!q.shared)
			EXPECT(open(paths[i], O_RDWR) == -1 && errno == EBUSY, "the mapping holds the file");
		EXPECT(munmap(q.portal, PAGE) == 0, "munmap");
		/* Some clients close the same number again; the device must not use it for anything. */
		EXPECT(close(q.fd) == -1 && errno == EBADF, "closed twice");
		q = open_queue(paths[i]);
		expect_alive(&q);
		close_queue(&q);
	}
	return 0;
}
