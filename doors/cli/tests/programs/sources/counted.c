/* Does work whose amount is known, then executes a command while its queue is open:
 * `counted COPIES BYTES NOOPS COMMAND`. Prints `retries N`. */
#include "client.h"

static unsigned char from[1 << 16] = { 1 }, to[1 << 16] = { 1 };

int main(int count, char **words)
{
	EXPECT(count == 5, "counted COPIES BYTES NOOPS COMMAND");
	static record __attribute__((aligned(32))) r;
	int copies = atoi(words[1]), bytes = atoi(words[2]), noops = atoi(words[3]), retries = 0;
	/* Every page is present, so that no copy waits for one. */
	memset(from, 2, sizeof from);
	memset(to, 2, sizeof to);
	struct queue q = open_queue(SHARED);
	for (int i = 0; i < copies + noops; i++) {
		desc d = i < copies ? moving(to, from, bytes, &r) : asking(DSA_OPCODE_NOOP, &r);
		for (double until = now() + 30; enqcmd(q.portal, &d); retries++)
			EXPECT(now() < until, "Retry for ever");
		EXPECT(wait_for(&r) == DSA_COMP_SUCCESS, "status %#x", r.status);
	}
	printf("retries %d\n", retries);
	fflush(stdout);
	return system(words[4]) == 0 ? 0 : 1;
}
