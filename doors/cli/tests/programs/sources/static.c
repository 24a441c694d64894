/* Linked statically: configures the device by writing attributes, submits by write(), and undoes the configuration.
 * `static submit` then uses ENQCMD, which cannot be emulated in a static program. */
#include "client.h"

#define D "/sys/bus/dsa/devices/"

static void attribute(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY);
	EXPECT(fd >= 0, "%s", path);
	EXPECT(write(fd, value, strlen(value)) == (ssize_t)strlen(value), "%s to %s", value, path);
	EXPECT(close(fd) == 0, "close %s", path);
}

static void shows(const char *path, const char *value)
{
	char text[64] = "";
	int fd = open(path, O_RDONLY);
	ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	EXPECT(len > 0 && strcmp(text, value) == 0, "%s shows %s", path, text);
	close(fd);
}

int main(int argc, char **argv)
{
	attribute(D "engine0.0/group_id", "0");
	attribute(D "wq0.0/group_id", "0");
	attribute(D "wq0.0/mode", "dedicated");
	attribute(D "wq0.0/size", "16");
	attribute(D "wq0.0/priority", "10");
	attribute(D "wq0.0/type", "user");
	attribute(D "wq0.0/name", "static\n");
	attribute(D "wq0.0/block_on_fault", "1");
	if (access(D "wq0.0/driver_name", F_OK) == 0)
		attribute(D "wq0.0/driver_name", "user");
	attribute("/sys/bus/dsa/drivers/idxd/bind", "dsa0");
	attribute("/sys/bus/dsa/drivers/user/bind", "wq0.0");
	shows(D "dsa0/state", "enabled\n");
	shows(D "dsa0/wq0.0/state", "enabled\n");

	static unsigned char from[100000], to[100000];
	static record __attribute__((aligned(32))) r;
	int fd = open("/dev/dsa/wq0.0", O_RDWR);
	EXPECT(fd >= 0, "open");
	shows(D "wq0.0/clients", "1\n");
	for (int i = 0; i < 50; i++) {
		fill_known(from, sizeof from, i);
		desc d = moving(to, from, sizeof to, &r);
		EXPECT(write(fd, &d, sizeof d) == (ssize_t)sizeof d, "write");
		EXPECT(wait_for(&r) == DSA_COMP_SUCCESS, "status %#x", r.status);
		EXPECT(memcmp(from, to, sizeof to) == 0, "bytes");
	}
	/* The memory of other processes is out of reach: a null source gives a fault in the record, nothing else. */
	desc wild = moving(to, NULL, 64, &r);
	wild.flags &= ~IDXD_OP_FLAG_BOF;
	EXPECT(write(fd, &wild, sizeof wild) == (ssize_t)sizeof wild && wait_for(&r) == 0x03, "a null source: %#x", r.status);
	if (argc > 1 && strcmp(argv[1], "submit") == 0) {
		desc d = asking(DSA_OPCODE_NOOP, &r);
		static char __attribute__((aligned(64))) nowhere[64];
		enqcmd(nowhere, &d);
	}
	EXPECT(close(fd) == 0, "close");
	attribute("/sys/bus/dsa/drivers/user/unbind", "wq0.0");
	attribute("/sys/bus/dsa/drivers/idxd/unbind", "dsa0");
	shows(D "dsa0/state", "disabled\n");
	return 0;
}
