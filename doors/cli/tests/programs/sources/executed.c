/* exec(): the mapping is gone, close-on-exec closes the file, and an inherited file belongs to another address space
 * but still counts as a client. Without arguments the program executes itself with the numbers of an inherited and
 * of a closed descriptor. */
#include "client.h"
#include <sys/ioctl.h>

static int afterwards(int inherited, int closed)
{
	EXPECT(fcntl(closed, F_GETFD) == -1 && errno == EBADF, "close-on-exec left %d open", closed);
	/* The dedicated queue's file is still open here. */
	EXPECT(open(DEDICATED, O_RDWR) == -1 && errno == EBUSY, "the inherited file");
	EXPECT(mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, inherited, 0) == MAP_FAILED && errno == EPERM, "mmap of another's");
	static record __attribute__((aligned(32))) r;
	desc d = asking(DSA_OPCODE_NOOP, &r);
	EXPECT(write(inherited, &d, sizeof d) == -1 && errno == EPERM, "write to another's");
	EXPECT(ioctl(inherited, TIOCGWINSZ, &r) == -1 && errno == ENOTTY, "ioctl");
	EXPECT(close(inherited) == 0, "close");
	struct queue q = open_queue(DEDICATED);
	expect_alive(&q);
	close_queue(&q);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3)
		return afterwards(atoi(argv[1]), atoi(argv[2]));
	/* The program has submitted before, so that the emulation has state to lose. */
	int inherited = open(DEDICATED, O_RDWR);
	EXPECT(inherited >= 0, "open");
	struct queue dedicated = { .fd = inherited };
	dedicated.portal = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, inherited, 0);
	EXPECT(dedicated.portal != MAP_FAILED, "mmap");
	expect_alive(&dedicated);
	struct queue shared = open_queue(SHARED);
	expect_alive(&shared);
	char a[16], b[16];
	snprintf(a, sizeof a, "%d", inherited);
	snprintf(b, sizeof b, "%d", shared.fd);
	execl("/proc/self/exe", argv[0], a, b, NULL);
	EXPECT(0, "exec");
}
