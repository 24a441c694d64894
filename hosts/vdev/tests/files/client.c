/* C programs' accesses to the driver's files, one function per case. DEVICES has the links to the device and its
 * queues. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVICES "/sys/bus/dsa/devices"
#define PHYSICAL "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0"
#define SIZE DEVICES "/wq0.0/size"

#define EXPECT(condition)                                                                                   \
	do {                                                                                                \
		if (!(condition)) {                                                                         \
			fprintf(stderr, "%s:%d: %s does not hold (%s)\n", __FILE__, __LINE__, #condition,   \
				strerror(errno));                                                           \
			exit(1);                                                                            \
		}                                                                                           \
	} while (0)
#define REFUSES(call, error) EXPECT((errno = 0, (call)) == -1 && errno == (error))

/* The attribute's text after a new open. */
static const char *text(const char *path)
{
	static char buffer[8192];
	int fd = open(path, O_RDONLY);
	EXPECT(fd >= 0);
	ssize_t n = read(fd, buffer, sizeof buffer - 1);
	EXPECT(n >= 0);
	EXPECT(read(fd, buffer + n, 1) == 0);
	buffer[n] = 0;
	EXPECT(close(fd) == 0);
	return buffer;
}

#define HOLDS(path, wanted) EXPECT(strcmp(text(path), wanted) == 0)

static void descriptors(void)
{
	int fd = open(SIZE, O_RDWR | O_CLOEXEC);
	EXPECT(fd >= 0);
	EXPECT(write(fd, "16\n", 3) == 3);
	char buffer[16] = "";
	EXPECT(lseek(fd, 0, SEEK_SET) == 0 && read(fd, buffer, 16) == 3 && strcmp(buffer, "16\n") == 0);
	/* Another descriptor writes; reads from the beginning and at an offset see it. */
	int other = open(SIZE, O_WRONLY | O_TRUNC | O_CREAT, 0666);
	EXPECT(write(other, "128", 3) == 3 && close(other) == 0);
	EXPECT(pread(fd, buffer, 16, 1) == 3 && memcmp(buffer, "28\n", 3) == 0);
	struct iovec in = { buffer, 16 };
	EXPECT(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, &in, 1) == 4);
	/* A vector is one write. */
	struct iovec out[2] = { { "1", 1 }, { "1\n", 2 } };
	EXPECT(writev(fd, out, 2) == 3);
	HOLDS(SIZE, "11\n");
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 100);
	EXPECT(copy >= 100 && close(fd) == 0 && write(copy, "12", 2) == 2);
	EXPECT(dup2(copy, 200) == 200 && close(copy) == 0 && write(200, "13", 2) == 2);
	EXPECT(dup3(200, 201, O_CLOEXEC) == 201 && close_range(200, 200, 0) == 0 && write(201, "14", 2) == 2);
	HOLDS(SIZE, "14\n");
	REFUSES(write(201, "bad", 3), EINVAL);
	const void *volatile nowhere = (void *)8;
	REFUSES(write(201, nowhere, 3), EFAULT);
	EXPECT(write(201, "", 0) == 0);
	closefrom(150);
	REFUSES(write(201, "1", 1), EBADF);
	/* The number is now that of another file. */
	int pipes[2];
	EXPECT(pipe(pipes) == 0 && dup2(pipes[1], 201) == 201 && write(201, "x", 1) == 1);
	EXPECT(read(pipes[0], buffer, 1) == 1);
}

static void flags(void)
{
	REFUSES(open(DEVICES "/wq0.0/state", O_WRONLY), EACCES);
	REFUSES(open(DEVICES "/wq0.0/state", O_RDWR), EACCES);
	REFUSES(open("/sys/bus/dsa/drivers/idxd/bind", O_RDONLY), EACCES);
	REFUSES(open(SIZE, O_RDONLY | O_DIRECTORY), ENOTDIR);
	REFUSES(open(SIZE "/", O_RDONLY), ENOTDIR);
	REFUSES(open(SIZE, O_RDWR | O_CREAT | O_EXCL, 0600), EEXIST);
	REFUSES(open(SIZE, O_RDONLY | O_DIRECT), EINVAL);
	REFUSES(open(DEVICES "/wq0.0", O_RDONLY | O_NOFOLLOW), ELOOP);
	REFUSES(open(DEVICES "/wq0.0", O_WRONLY), EISDIR);
	REFUSES(open(DEVICES "/nothing", O_RDONLY), ENOENT);
	REFUSES(open(DEVICES "/nothing", O_WRONLY | O_CREAT, 0600), EACCES);
	REFUSES(open(DEVICES "/nothing/more", O_WRONLY | O_CREAT, 0600), ENOENT);
	int fd = open(DEVICES "/wq0.0/occupancy", O_RDONLY);
	char c;
	EXPECT(fd >= 0);
	REFUSES(read(fd, &c, 1), EOPNOTSUPP);
	REFUSES(write(fd, "1", 1), EBADF);
	EXPECT((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY && fcntl(fd, F_GETFD) == 0 && isatty(fd) == 0);
	/* The lowest number, on which redirections rely. */
	EXPECT(close(0) == 0 && open(SIZE, O_WRONLY) == 0);
	REFUSES(read(0, &c, 1), EBADF);
	EXPECT((fcntl(0, F_GETFL) & O_ACCMODE) == O_WRONLY);
	const char *volatile nowhere = NULL;
	REFUSES(open(nowhere, O_RDONLY), EFAULT);
	REFUSES(open("", O_RDONLY), ENOENT);
	char long_path[PATH_MAX + 10] = DEVICES "/";
	memset(long_path + strlen(long_path), 'x', PATH_MAX - strlen(long_path));
	REFUSES(open(long_path, O_RDONLY), ENAMETOOLONG);
}

static void relative(void)
{
	int devices = open(DEVICES, O_PATH | O_DIRECTORY);
	EXPECT(devices >= 0);
	int wq = openat(devices, "wq0.0", O_PATH);
	EXPECT(wq >= 0);
	int fd = openat(wq, "size", O_RDWR);
	EXPECT(fd >= 0 && write(fd, "5\n", 2) == 2 && close(fd) == 0);
	HOLDS(SIZE, "5\n");
	struct stat by_path, by_descriptor, by_name;
	EXPECT(stat(PHYSICAL "/wq0.0/size", &by_path) == 0 && fstatat(wq, "size", &by_name, 0) == 0);
	fd = open(SIZE, O_RDONLY);
	EXPECT(fstat(fd, &by_descriptor) == 0);
	EXPECT(by_path.st_ino == by_descriptor.st_ino && by_path.st_ino == by_name.st_ino);
	EXPECT(by_path.st_dev == by_descriptor.st_dev && by_descriptor.st_size == 4096);
	EXPECT(by_descriptor.st_mode == (S_IFREG | 0644) && by_descriptor.st_uid == 0 && by_descriptor.st_nlink == 1);
	EXPECT(fstatat(wq, "", &by_name, AT_EMPTY_PATH) == 0 && S_ISDIR(by_name.st_mode) && by_name.st_size == 0);
	char link[PATH_MAX] = "";
	EXPECT(readlinkat(devices, "wq0.0", link, sizeof link) > 0);
	EXPECT(strcmp(link, "../../../devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0") == 0);
	EXPECT(faccessat(wq, "size", W_OK, 0) == 0 && faccessat(wq, "state", W_OK, AT_EACCESS) == 0);
	REFUSES(faccessat(wq, "size", X_OK, 0), EACCES);
	REFUSES(faccessat(wq, "nothing", F_OK, 0), ENOENT);
	/* From the driver's directories to the machine's, and back. */
	EXPECT(fchdir(wq) == 0);
	char cwd[PATH_MAX];
	EXPECT(getcwd(cwd, sizeof cwd) && strcmp(cwd, PHYSICAL "/wq0.0") == 0);
	EXPECT((fd = open("../../../../../kernel/mm", O_RDONLY | O_DIRECTORY)) >= 0 && close(fd) == 0);
	EXPECT((fd = open("../../../../../../etc/passwd", O_RDONLY)) >= 0 && close(fd) == 0);
	EXPECT(chdir("/sys/kernel") == 0 && chdir("../bus") == 0 && access("dsa/devices/dsa0/state", R_OK) == 0);
	EXPECT(chdir("/") == 0 && access("sys/bus/dsa", F_OK) == 0 && access("usr/../sys/bus/./dsa//devices", F_OK) == 0);
	EXPECT(chdir("/usr/bin") == 0 && access("../../sys/bus/dsa", F_OK) == 0);
	REFUSES(getcwd(cwd, 1) ? 0 : -1, ERANGE);
	EXPECT(chdir(DEVICES) == 0);
	REFUSES(getcwd(cwd, 5) ? 0 : -1, ERANGE);
	char *allocated = get_current_dir_name();
	EXPECT(allocated && strcmp(allocated, DEVICES) == 0);
	free(allocated);
}

static void resolved(void)
{
	char path[PATH_MAX];
	EXPECT(realpath(DEVICES "/wq0.0", path) && strcmp(path, PHYSICAL "/wq0.0") == 0);
	EXPECT(realpath(PHYSICAL "/../subsystem/devices", path) && strcmp(path, "/sys/bus/pci/devices") == 0);
	char *allocated = canonicalize_file_name("/dev/char/240:0");
	EXPECT(allocated && strcmp(allocated, "/dev/dsa/wq0.0") == 0);
	free(allocated);
	REFUSES(realpath(DEVICES "/nothing", path) ? 0 : -1, ENOENT);
	/* /proc shows the program's paths for our descriptors, also in a short buffer. */
	int fd = open(DEVICES, O_RDONLY), attribute = open(SIZE, O_RDONLY);
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, 24);
	EXPECT(n == (ssize_t)strlen(DEVICES) && memcmp(path, DEVICES, n) == 0);
	snprintf(link, sizeof link, "/proc/self/fd/%d", attribute);
	n = readlink(link, path, sizeof path);
	EXPECT(n == (ssize_t)strlen(PHYSICAL "/wq0.0/size") && memcmp(path, PHYSICAL "/wq0.0/size", n) == 0);
	/* Opening the link in /proc opens the attribute. */
	int again = open(link, O_RDWR);
	EXPECT(again >= 0 && write(again, "31", 2) == 2);
	HOLDS(SIZE, "31\n");
	EXPECT(chdir(DEVICES) == 0);
	n = readlink("/proc/self/cwd", path, sizeof path);
	EXPECT(n == (ssize_t)strlen(DEVICES) && memcmp(path, DEVICES, n) == 0);
}

static int count_entries(const char *path, const char *wanted, unsigned char *type)
{
	DIR *directory = opendir(path);
	EXPECT(directory);
	int count = 0;
	struct dirent *entry;
	while ((entry = readdir(directory))) {
		EXPECT(entry->d_name[0] != '.' || strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
		if (strcmp(entry->d_name, wanted) == 0) {
			struct stat status;
			EXPECT(fstatat(dirfd(directory), wanted, &status, AT_SYMLINK_NOFOLLOW) == 0);
			EXPECT(status.st_ino == entry->d_ino);
			*type = entry->d_type;
			count++;
		}
	}
	EXPECT(closedir(directory) == 0);
	return count;
}

static int starts_with_wq(const struct dirent *entry)
{
	return strncmp(entry->d_name, "wq", 2) == 0;
}

static void listed(void)
{
	unsigned char type;
	EXPECT(count_entries("/sys/bus", "dsa", &type) == 1 && type == DT_DIR);
	EXPECT(count_entries("/sys/bus", "pci", &type) <= 1);
	EXPECT(count_entries("/proc", "cpuinfo", &type) == 1);
	EXPECT(count_entries("/dev/dsa", "wq0.0", &type) == 1 && type == DT_CHR);
	EXPECT(count_entries(DEVICES, "wq0.0", &type) == 1 && type == DT_LNK);
	EXPECT(count_entries(DEVICES "/wq0.0/", "size", &type) == 1 && type == DT_REG);
	DIR *directory = opendir(DEVICES);
	readdir(directory);
	long at = telldir(directory);
	char name[256];
	strcpy(name, readdir(directory)->d_name);
	seekdir(directory, at);
	EXPECT(strcmp(readdir(directory)->d_name, name) == 0);
	rewinddir(directory);
	EXPECT(telldir(directory) == 0 && closedir(directory) == 0);
	struct dirent **list;
	EXPECT(scandir(DEVICES, &list, starts_with_wq, alphasort) == 2);
	EXPECT(strcmp(list[0]->d_name, "wq0.0") == 0 && strcmp(list[1]->d_name, "wq0.1") == 0);
	free(list[0]), free(list[1]), free(list);
	REFUSES(scandir(DEVICES "/nothing", &list, NULL, NULL), ENOENT);
	REFUSES(scandir(SIZE, &list, NULL, NULL), ENOTDIR);
	REFUSES(opendir(SIZE) ? 0 : -1, ENOTDIR);
	glob_t found;
	EXPECT(glob("/sys/bus/d*/devices/wq*/siz?", 0, NULL, &found) == 0 && found.gl_pathc == 2);
	EXPECT(strcmp(found.gl_pathv[0], SIZE) == 0);
	globfree(&found);
	EXPECT(glob(DEVICES "/nothing*", 0, NULL, &found) == GLOB_NOMATCH);
}

static int walked_sizes, walked_links, walked_after;

static int visit(const char *path, const struct stat *status, int type, struct FTW *position)
{
	(void)status;
	if (strcmp(path + position->base, "size") == 0 && type == FTW_F)
		walked_sizes++;
	walked_links += type == FTW_SL;
	walked_after += type == FTW_DP;
	return 0;
}

static int stop(const char *path, const struct stat *status, int type, struct FTW *position)
{
	(void)path, (void)status, (void)type;
	return position->level == 1 ? 7 : 0;
}

static void walked(void)
{
	EXPECT(nftw("/sys/bus/dsa", visit, 16, FTW_PHYS | FTW_DEPTH) == 0);
	EXPECT(walked_sizes == 0 && walked_links >= 3 && walked_after >= 4);
	EXPECT(nftw(DEVICES, visit, 16, 0) == 0);
	/* Each directory once, whatever the number of links to it. */
	EXPECT(walked_sizes == 2);
	EXPECT(nftw(DEVICES, stop, 16, FTW_CHDIR) == 7);
	REFUSES(nftw(DEVICES "/nothing", visit, 16, 0), ENOENT);
}

static void streams(void)
{
	FILE *file = fopen(SIZE, "w");
	EXPECT(file && fileno(file) > 2 && fprintf(file, "%d\n", 21) == 3 && fclose(file) == 0);
	int number = 0;
	file = fopen(SIZE, "re");
	EXPECT(file && fscanf(file, "%d", &number) == 1 && number == 21);
	int fd = open(SIZE, O_WRONLY);
	EXPECT(dprintf(fd, "%d%s%.1f", 2, "2", 3.0) == 5);
	rewind(file);
	EXPECT(fscanf(file, "%d", &number) == 1 && number == 223 && fclose(file) == 0);
	file = fdopen(fd, "w");
	EXPECT(file && fileno(file) == fd && fputs("24", file) >= 0 && fflush(file) == 0);
	HOLDS(SIZE, "24\n");
	EXPECT(fputs("bad", file) >= 0);
	REFUSES(fclose(file) == EOF ? -1 : 0, EINVAL);
	REFUSES(fopen(DEVICES "/wq0.0/state", "w") ? 0 : -1, EACCES);
	REFUSES(fopen(DEVICES "/nothing", "r") ? 0 : -1, ENOENT);
	file = fopen("/proc/cpuinfo", "r");
	char line[4096];
	int found = 0;
	while (fgets(line, sizeof line, file))
		found |= strstr(line, "movdir64b") != NULL;
	EXPECT(found && fclose(file) == 0);
}

static void standard_output(void)
{
	int saved = dup(1);
	int fd = open(SIZE, O_WRONLY);
	EXPECT(dup2(fd, 1) == 1 && close(fd) == 0);
	printf("%d\n", 41);
	EXPECT(fflush(stdout) == 0);
	HOLDS(SIZE, "41\n");
	puts("bad");
	REFUSES(fflush(stdout), EINVAL);
	clearerr(stdout);
	EXPECT(dup2(saved, 1) == 1);
	printf("back\n");
	EXPECT(fflush(stdout) == 0);
	EXPECT(freopen(SIZE, "w", stdout));
	printf("42");
	EXPECT(fflush(stdout) == 0);
	HOLDS(SIZE, "42\n");
	EXPECT(putchar('7') == '7' && fclose(stdout) == 0);
	HOLDS(SIZE, "7\n");
}

static void refused(void)
{
	REFUSES(mkdir(DEVICES "/new", 0700), EPERM);
	REFUSES(mkdir(DEVICES "/dsa0", 0700), EEXIST);
	REFUSES(unlink(SIZE), EPERM);
	REFUSES(unlink(DEVICES "/nothing"), ENOENT);
	REFUSES(rmdir(DEVICES), EPERM);
	REFUSES(rename(SIZE, "/tmp/size"), EPERM);
	REFUSES(rename("/etc/hostname", SIZE), EXDEV);
	REFUSES(link(SIZE, "/tmp/size"), EPERM);
	REFUSES(symlink("x", DEVICES "/new"), EPERM);
	REFUSES(chdir(SIZE), ENOTDIR);
	EXPECT(chdir(DEVICES "/wq0.0") == 0);
	REFUSES(unlink("size"), EPERM);
	char template[] = "newXXXXXX";
	REFUSES(mkstemp(template), EACCES);
	EXPECT(truncate("size", 0) == 0 && access("size", F_OK) == 0);
}

static void copied(void)
{
	int from = open(SIZE, O_RDONLY), to = open(DEVICES "/wq0.1/size", O_WRONLY);
	REFUSES(copy_file_range(from, NULL, to, NULL, 10, 0), EINVAL);
	REFUSES(sendfile(to, from, NULL, 10), EINVAL);
	/* A copying program searches for holes. */
	EXPECT(lseek(from, 0, SEEK_DATA) == 0 && lseek(from, 0, SEEK_HOLE) == 4096 && lseek(from, 0, SEEK_END) == 4096);
	struct statfs mount, sysfs;
	EXPECT(fstatfs(from, &mount) == 0 && statfs("/sys", &sysfs) == 0 && mount.f_type == sysfs.f_type);
}

static void inherited(void)
{
	int fd = open(SIZE, O_WRONLY), directory = open(DEVICES, O_RDONLY);
	EXPECT(dup2(fd, 60) == 60 && dup2(directory, 61) == 61 && chdir(DEVICES "/wq0.0") == 0);
	if (fork() == 0) {
		dup2(60, 1);
		execl("/proc/self/exe", "client", "executed", NULL);
		_exit(2);
	}
	int status;
	EXPECT(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	HOLDS(SIZE, "53\n");
	/* Changes by a child of vfork to its descriptors do not affect the parent. */
	if (vfork() == 0) {
		close(60);
		dup2(61, fd);
		_exit(0);
	}
	EXPECT(write(60, "54", 2) == 2 && write(fd, "55", 2) == 2);
	HOLDS(SIZE, "55\n");
}

static void executed(void)
{
	EXPECT(write(60, "51", 2) == 2);
	HOLDS("size", "51\n");
	int fd = openat(61, "wq0.0/size", O_WRONLY);
	EXPECT(fd >= 0 && write(fd, "52", 2) == 2);
	HOLDS("../wq0.0/size", "52\n");
	printf("53\n");
	EXPECT(fflush(stdout) == 0);
}

static void node(void)
{
	struct stat status;
	EXPECT(stat("/dev/dsa/wq0.0", &status) == 0 && S_ISCHR(status.st_mode) && (status.st_mode & 0777) == 0600);
	EXPECT(major(status.st_rdev) == 240 && minor(status.st_rdev) == 0 && status.st_size == 0);
	struct stat dev;
	EXPECT(stat("/dev", &dev) == 0 && dev.st_dev == status.st_dev);
	struct statx extended;
	EXPECT(statx(AT_FDCWD, "/dev/char/240:0", 0, STATX_BASIC_STATS, &extended) == 0);
	EXPECT(extended.stx_rdev_major == 240 && extended.stx_ino == status.st_ino);
	EXPECT(extended.stx_dev_major == major(status.st_dev) && S_ISCHR(extended.stx_mode));
	/* The test's host has no queue behind it. */
	REFUSES(open("/dev/dsa/wq0.0", O_RDWR), ENXIO);
	REFUSES(open("/dev/char/240:0", O_RDWR), ENXIO);
}

static const struct {
	const char *name;
	void (*run)(void);
} CASES[] = {
	{ "descriptors", descriptors }, { "flags", flags },	{ "relative", relative },
	{ "resolved", resolved },	{ "listed", listed },	{ "walked", walked },
	{ "streams", streams },		{ "refused", refused }, { "standard_output", standard_output },
	{ "copied", copied },		{ "node", node },	{ "inherited", inherited },
	{ "executed", executed },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == 2 && i < sizeof CASES / sizeof *CASES; i++) {
		if (strcmp(argv[1], CASES[i].name) == 0) {
			CASES[i].run();
			return 0;
		}
	}
	fprintf(stderr, "no such case\n");
	return 2;
}
