/* One shared queue, several processes: each works in its own memory, with its own address space identifier, and the
 * driver counts them. */
#include "client.h"
#include <dirent.h>
#include <sys/wait.h>

enum { PROCESSES = 4, ROUNDS = 300, IN_FLIGHT = 4 };

/* Returns the number in an attribute. */
static long attribute(const char *path)
{
	char text[64] = "";
	int fd = open(path, O_RDONLY);
	EXPECT(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "%s", path);
	close(fd);
	return strtol(text, NULL, 0);
}

static void work(int number, int ready, int go)
{
	/* The same addresses contain other bytes in every process. */
	static unsigned char from[IN_FLIGHT][8192], to[IN_FLIGHT][8192];
	static record __attribute__((aligned(32))) r[IN_FLIGHT];
	struct queue q = open_queue(SHARED);
	char byte;
	EXPECT(write(ready, "r", 1) == 1 && read(go, &byte, 1) == 1, "barrier");
	for (int i = 0; i < ROUNDS; i++) {
		for (int k = 0; k < IN_FLIGHT; k++) {
			fill_known(from[k], sizeof from[k], number * 1000003 + i * IN_FLIGHT + k);
			desc d = moving(to[k], from[k], sizeof to[k], &r[k]);
			submit(&q, &d);
		}
		for (int k = 0; k < IN_FLIGHT; k++) {
			EXPECT(wait_for(&r[k]) == DSA_COMP_SUCCESS, "process %d: %#x", number, r[k].status);
			EXPECT(memcmp(from[k], to[k], sizeof to[k]) == 0, "process %d: bytes of round %d", number, i);
		}
	}
	EXPECT(write(ready, "d", 1) == 1 && read(go, &byte, 1) == 1, "barrier");
	_exit(0);
}

int main(void)
{
	int ready[2], go[2];
	EXPECT(pipe(ready) == 0 && pipe(go) == 0, "pipes");
	pid_t children[PROCESSES];
	for (int i = 0; i < PROCESSES; i++) {
		children[i] = fork();
		if (children[i] == 0)
			work(i, ready[1], go[0]);
	}
	char bytes[PROCESSES];
	for (int phase = 0; phase < 2; phase++) {
		for (int i = 0; i < PROCESSES; i++)
			EXPECT(read(ready[0], bytes, 1) == 1, "barrier");
		long clients = attribute("/sys/bus/dsa/devices/wq0.0/clients");
		EXPECT(clients == PROCESSES, "%ld clients of the queue", clients);
		clients = attribute("/sys/bus/dsa/devices/dsa0/clients");
		EXPECT(clients == PROCESSES, "%ld clients of the device", clients);
		EXPECT(write(go[1], "gggggggg", PROCESSES) == PROCESSES, "go");
	}
	for (int i = 0; i < PROCESSES; i++) {
		int status;
		EXPECT(waitpid(children[i], &status, 0) == children[i] && status == 0, "child %d: %#x", i, status);
	}
	/* The children ended without closing: after the last wait, the driver counts no clients. */
	EXPECT(attribute("/sys/bus/dsa/devices/wq0.0/clients") == 0, "clients after all have gone");
	return 0;
}
