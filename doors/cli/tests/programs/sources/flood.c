/* Fills a queue forever without waiting; the test kills it. `flood shared` or `flood dedicated`. Prints "flooding"
 * once it does. */
#include "client.h"

int main(int argc, char **argv)
{
	static unsigned char from[4096], to[4096];
	static record __attribute__((aligned(32))) r;
	struct queue q = open_queue(argc > 1 && strcmp(argv[1], "shared") == 0 ? SHARED : DEDICATED);
	desc d = moving(to, from, sizeof to, &r);
	printf("flooding\n");
	fflush(stdout);
	for (;;) {
		if (q.shared)
			enqcmd(q.portal, &d);
		else
			movdir64b(q.portal, &d);
	}
}
