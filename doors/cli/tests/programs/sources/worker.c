/* Copies and checks forever, or for as many seconds as the first argument says; each round opens and closes the
 * queue. Ends with 0 when the time is over or the device is gone, with 1 if bytes are wrong. */
#include "client.h"

int main(int argc, char **argv)
{
	static unsigned char from[20000], to[20000];
	static record __attribute__((aligned(32))) r;
	double until = now() + (argc > 1 ? atof(argv[1]) : 1e9);
	for (unsigned round = 0; now() < until; round++) {
		int fd = open(SHARED, O_RDWR);
		char *portal = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0);
		if (portal == MAP_FAILED) {
			dprintf(2, "the device has gone: %s\n", strerror(errno));
			return 0;
		}
		for (int i = 0; i < 20; i++) {
			fill_known(from, sizeof from, round * 20 + i);
			desc d = moving(to, from, sizeof to, &r);
			while (enqcmd(portal, &d))
				if (now() > until)
					return 0;
			EXPECT(wait_for(&r) == DSA_COMP_SUCCESS, "status %#x", r.status);
			EXPECT(memcmp(from, to, sizeof to) == 0, "bytes");
		}
		munmap(portal, PAGE);
		close(fd);
	}
	return 0;
}
