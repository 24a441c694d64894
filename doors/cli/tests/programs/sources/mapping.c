/* Linked statically: opens a queue and maps its portal, which the kernel refuses. The first argument says what it
 * does then: fails: ends with 1; goes-on: closes the queue and ends with 0; writes: submits by write(2). */
#include "client.h"

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int fd = open(SHARED, O_RDWR);
	EXPECT(fd >= 0, "open");
	EXPECT(mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENODEV, "mmap");
	if (strcmp(what, "fails") == 0)
		return 1;
	if (strcmp(what, "writes") == 0) {
		static record __attribute__((aligned(32))) r;
		desc d = asking(DSA_OPCODE_NOOP, &r);
		EXPECT(write(fd, &d, sizeof d) == (ssize_t)sizeof d && wait_for(&r) == DSA_COMP_SUCCESS, "write");
	}
	EXPECT(close(fd) == 0, "close");
	return 0;
}
