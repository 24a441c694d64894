/* Executes itself by every function of the C library that executes programs, with environments that contain nothing
 * of the run. Each new program must find the given variable, and the preloaded library.
 *
 *   followed VARIABLE           tries everything
 *   followed check VARIABLE ... is the program that is executed */
#include "client.h"
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>

static const char *variable;
/* Absolute: programs are also executed from another directory. */
static char self[4096];
static char *const nothing[] = { NULL };

static int check(int argc, char **argv)
{
	const char *list = getenv("LD_PRELOAD");
	EXPECT(getenv(argv[2]) != NULL, "%s is not there", argv[2]);
	EXPECT(list != NULL && *list != 0, "LD_PRELOAD is not there");
	if (strcmp(argv[2], "TELPHER_RUN") == 0)
		EXPECT(dlsym(RTLD_DEFAULT, "telpher_emulates") != NULL, "the library is not loaded: LD_PRELOAD=%s", list);
	/* The following arguments are numbers, from 0. */
	for (int i = 3; i < argc; i++)
		EXPECT(atoi(argv[i]) == i - 3, "argument %d is %s", i, argv[i]);
	return 42;
}

static void ended(pid_t child, const char *how)
{
	int status;
	EXPECT(child > 0, "%s: no child", how);
	EXPECT(waitpid(child, &status, 0) == child, "%s: waitpid", how);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 42, "%s: status %#x", how, status);
}

/* Executes in a child of fork. */
#define IN_CHILD(how)                    \
	for (pid_t child = fork();; ) \
		if (child != 0) {        \
			ended(child, how); \
			break;           \
		} else

static void executes(void)
{
	char *const argv[] = { "followed", "check", (char *)variable, NULL };
	int opened = open(self, O_RDONLY), directory = open("/", O_PATH);

	IN_CHILD("execve, nothing") { execve(self, argv, nothing); _exit(1); }
	IN_CHILD("execve, null") { execve(self, argv, NULL); _exit(1); }
	IN_CHILD("execve, another list")
	{
		char *const other[] = { "LD_PRELOAD=libc.so.6", "A=b", NULL };
		execve(self, argv, other);
		_exit(1);
	}
	IN_CHILD("execv") { clearenv(); execv(self, argv); _exit(1); }
	IN_CHILD("execvp") { clearenv(); setenv("PATH", "/nowhere:/proc/self", 1); execvp("exe", argv); _exit(1); }
	IN_CHILD("execvpe") { setenv("PATH", "/proc/self", 1); execvpe("exe", argv, nothing); _exit(1); }
	IN_CHILD("fexecve") { fexecve(opened, argv, nothing); _exit(1); }
	IN_CHILD("execveat, a path") { execveat(directory, self + 1, argv, nothing, 0); _exit(1); }
	IN_CHILD("execveat, a file") { execveat(opened, "", argv, nothing, AT_EMPTY_PATH); _exit(1); }
	IN_CHILD("execl, without more")
	{
		clearenv();
		execl(self, "followed", "check", variable, (char *)NULL);
		_exit(1);
	}
	IN_CHILD("execl")
	{
		clearenv();
		execl(self, "followed", "check", variable, "0", "1", "2", "3", "4", "5", "6", (char *)NULL);
		_exit(1);
	}
	IN_CHILD("execlp")
	{
		clearenv();
		setenv("PATH", "/proc/self", 1);
		execlp("exe", "followed", "check", variable, "0", "1", "2", "3", (char *)NULL);
		_exit(1);
	}
	IN_CHILD("execle")
	{
		execle(self, "followed", "check", variable, "0", "1", "2", (char *)NULL, nothing);
		_exit(1);
	}
	close(opened);
	close(directory);
}

static void spawns(void)
{
	char *const argv[] = { "followed", "check", (char *)variable, NULL };
	pid_t child = 0;
	EXPECT(posix_spawn(&child, self, NULL, NULL, argv, nothing) == 0, "posix_spawn");
	ended(child, "posix_spawn");
	EXPECT(posix_spawn(&child, self, NULL, NULL, argv, NULL) == 0, "posix_spawn, null");
	ended(child, "posix_spawn, null");
	setenv("PATH", "/proc/self", 1);
	EXPECT(posix_spawnp(&child, "exe", NULL, NULL, argv, nothing) == 0, "posix_spawnp");
	ended(child, "posix_spawnp");
	EXPECT(posix_spawn(&child, "/nowhere", NULL, NULL, argv, nothing) == ENOENT, "posix_spawn of nothing");
}

/* The C library starts the shell itself, with this process' environment. */
static void shells(void)
{
	char command[8192], line[64] = "";
	snprintf(command, sizeof command, "test \"$0\" = sh && exec '%s' check %s 0 \"1\" '2'", self, variable);
	IN_CHILD("system")
	{
		clearenv();
		int status = system(command);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
	snprintf(command, sizeof command, "'%s' check %s; echo $?", self, variable);
	IN_CHILD("popen")
	{
		clearenv();
		FILE *file = popen(command, "r");
		EXPECT(file != NULL && fgets(line, sizeof line, file) != NULL && strcmp(line, "42\n") == 0, "popen: %s", line);
		EXPECT(pclose(file) == 0, "pclose");
		_exit(42);
	}
	EXPECT(system(NULL) != 0, "there is a shell");
}

static long size_of_memory(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	EXPECT(file != NULL && fscanf(file, "%ld", &pages) == 1, "statm");
	fclose(file);
	return pages;
}

/* Executes in a child of vfork; a separate function, since the child continues in its parent's frame. */
static __attribute__((noinline)) pid_t shares(char **environment)
{
	char *const argv[] = { "followed", "check", (char *)variable, NULL };
	pid_t child = vfork();
	if (child == 0) {
		execve(self, argv, environment);
		_exit(1);
	}
	return child;
}

/* A child of vfork shares its parent's memory: whatever it allocates must be freed, and nothing else may change. */
static void shares_memory(char **environment, const char *how)
{
	char **before = environ;
	long pages = 0;
	for (int i = 0; i < 20; i++) {
		ended(shares(environment), how);
		if (i == 0)
			pages = size_of_memory();
	}
	EXPECT(environ == before, "the environment of the parent has changed");
	/* A thread of the library may have allocated pages meanwhile; twenty copies of a large environment are more. */
	EXPECT(size_of_memory() - pages < 400, "%ld pages are left of children of vfork, %s", size_of_memory() - pages, how);
}

static char **large(int count)
{
	char **environment = calloc(count + 1, sizeof *environment);
	EXPECT(environment != NULL, "memory");
	for (int i = 0; i < count; i++)
		EXPECT(asprintf(&environment[i], "V%d=%d", i, i) > 0, "memory");
	return environment;
}

static void *in_small_thread(void *environment)
{
	char *const argv[] = { "followed", "check", (char *)variable, NULL };
	pid_t child = 0;
	EXPECT(posix_spawn(&child, self, NULL, NULL, argv, environment) == 0, "posix_spawn in a small thread");
	ended(child, "posix_spawn in a small thread");
	return NULL;
}

static void is_large(void)
{
	char *const argv[] = { "followed", "check", (char *)variable, NULL };
	char **environment = large(20000);
	shares_memory(environment, "large");
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	EXPECT(pthread_attr_setstacksize(&attributes, 64 << 10) == 0, "stack");
	EXPECT(pthread_create(&thread, &attributes, in_small_thread, environment) == 0, "thread");
	pthread_join(thread, NULL);
	/* More than the kernel accepts. */
	char **too_large = large(1000000);
	errno = 0;
	EXPECT(execve(self, argv, too_large) == -1 && errno == E2BIG, "an environment that is too large");
	errno = 0;
	EXPECT(execve("/nowhere", argv, environment) == -1 && errno == ENOENT, "a program that is not there");
	errno = 0;
	EXPECT(execle("/nowhere", "a", "b", "c", "d", "e", "f", "g", (char *)NULL, environment) == -1 && errno == ENOENT,
	       "a program that is not there, by execle");
}

int main(int argc, char **argv)
{
	if (argc > 2 && strcmp(argv[1], "check") == 0)
		return check(argc, argv);
	EXPECT(argc == 2, "a variable");
	variable = argv[1];
	EXPECT(readlink("/proc/self/exe", self, sizeof self - 1) > 0, "readlink");
	executes();
	shells();
	shares_memory((char **)nothing, "nothing");
	is_large();
	spawns();
	return 0;
}
