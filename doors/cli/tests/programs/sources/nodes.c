/* The node under its other names and descriptors: /dev/char, O_PATH, a path with ./ and .. in it, relative to a
 * directory. */
#include "client.h"
#include <dirent.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static void works(int fd, const char *what)
{
	static record __attribute__((aligned(32))) r;
	EXPECT(fd >= 0, "%s", what);
	desc d = asking(DSA_OPCODE_NOOP, &r);
	char *portal = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0);
	EXPECT(portal != MAP_FAILED, "mmap: %s", what);
	EXPECT(enqcmd(portal, &d) == 0 && wait_for(&r) == DSA_COMP_SUCCESS, "%s: %#x", what, r.status);
	EXPECT(munmap(portal, PAGE) == 0 && close(fd) == 0, "%s", what);
}

static int number(const char *path)
{
	FILE *file = fopen(path, "r");
	int n = -1;
	EXPECT(file && fscanf(file, "%d", &n) == 1, "%s", path);
	fclose(file);
	return n;
}

int main(void)
{
	works(open(SHARED, O_RDWR), "by name");
	works(open("/dev/./dsa/../dsa/wq0.0", O_RDWR), "with dots");
	struct stat s;
	EXPECT(stat(SHARED, &s) == 0 && S_ISCHR(s.st_mode), "a character device: %#o", s.st_mode);
	char path[64];
	int major = number("/sys/bus/dsa/devices/dsa0/cdev_major"), minor = number("/sys/bus/dsa/devices/wq0.0/cdev_minor");
	EXPECT(s.st_rdev == makedev(major, minor), "%u:%u is not %d:%d", major(s.st_rdev), minor(s.st_rdev), major, minor);
	snprintf(path, sizeof path, "/dev/char/%d:%d", major, minor);
	works(open(path, O_RDWR), path);
	int dir = open("/dev/dsa", O_RDONLY | O_DIRECTORY);
	EXPECT(dir >= 0, "the directory");
	works(openat(dir, "wq0.0", O_RDWR | O_CLOEXEC), "relative to it");
	EXPECT(chdir("/dev/dsa") == 0, "chdir");
	works(open("wq0.0", O_RDWR), "relative to the current one");
	EXPECT(fstatat(dir, "wq0.1", &s, 0) == 0 && S_ISCHR(s.st_mode), "fstatat");
	EXPECT(open("/dev/dsa/wq0.7", O_RDWR) == -1 && errno == ENOENT, "a queue that is not enabled");
	EXPECT(access(SHARED, R_OK | W_OK) == 0, "access");
	/* Both queues are listed, and no others. */
	DIR *list = opendir("/dev/dsa");
	int seen = 0;
	for (struct dirent *e; (e = readdir(list));) {
		if (e->d_name[0] != '.') {
			EXPECT(strcmp(e->d_name, "wq0.0") == 0 || strcmp(e->d_name, "wq0.1") == 0, "%s", e->d_name);
			seen++;
		}
	}
	EXPECT(seen == 2, "%d nodes", seen);
	closedir(list);
	return 0;
}
