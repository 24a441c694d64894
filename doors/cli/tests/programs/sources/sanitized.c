/* Built with AddressSanitizer: allocates, writes, checks and frees memory, long enough for the library to manage
 * some of it. */
#include "client.h"

#define BYTES (20u << 20)

int main(void)
{
	for (unsigned round = 0; round < 100; round++) {
		unsigned char *bytes = malloc(BYTES);
		EXPECT(bytes != NULL, "memory");
		for (unsigned i = 0; i < BYTES; i += 512)
			bytes[i] = (unsigned char)(i / 512 + round);
		/* In this time the library scans some memory; it scans every 50 ms. */
		struct timespec pause = { .tv_nsec = 5000000 };
		nanosleep(&pause, NULL);
		for (unsigned i = 0; i < BYTES; i += 512)
			EXPECT(bytes[i] == (unsigned char)(i / 512 + round), "byte %u in round %u", i, round);
		free(bytes);
	}
	puts("done");
	return 0;
}
