/* Prints which submission mechanisms work: "mmap: ok" or an errno, then the status of a No-op by each mechanism. */
#include "client.h"

static void tell(const char *what, int error)
{
	const char *name = error == EPERM ? "EPERM" : error == EINVAL ? "EINVAL" : strerror(error);
	printf("%s: %s\n", what, name);
}

int main(void)
{
	static record __attribute__((aligned(32))) r;
	int fd = open(DEDICATED, O_RDWR);
	EXPECT(fd >= 0, "open");
	char *portal = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0);
	desc d = asking(DSA_OPCODE_NOOP, &r);
	if (portal == MAP_FAILED) {
		tell("mmap", errno);
	} else {
		printf("mmap: ok\n");
		movdir64b(portal, &d);
		printf("MOVDIR64B: %#x\n", wait_for(&r));
	}
	memset(&r, 0, sizeof r);
	if (write(fd, &d, sizeof d) != sizeof d)
		tell("write", errno);
	else
		printf("write: %#x\n", wait_for(&r));
	static desc __attribute__((aligned(64))) list[2];
	static record __attribute__((aligned(32))) of[2];
	for (int i = 0; i < 2; i++)
		list[i] = asking(DSA_OPCODE_NOOP, &of[i]);
	d = asking(DSA_OPCODE_BATCH, &r);
	d.desc_list_addr = (uintptr_t)list;
	d.desc_count = 2;
	if (write(fd, &d, sizeof d) != sizeof d)
		tell("write of a batch", errno);
	else
		printf("write of a batch: %#x\n", wait_for(&r));
	return 0;
}
