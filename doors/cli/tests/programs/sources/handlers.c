/* The program's own handlers and masks: it sees exactly those that it has set, its handlers run for real faults
 * only, and blocked or ignored SIGILL and SIGSEGV do not disable the device. */
#include "client.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

enum { STORMS = 300 };

static struct queue q;
static sigjmp_buf back;
static volatile sig_atomic_t heard[NSIG];
static void *volatile where;
static volatile int code;

static void jump(int signal, siginfo_t *info, void *context)
{
	(void)context;
	heard[signal]++;
	where = info->si_addr;
	code = info->si_code;
	siglongjmp(back, 1);
}

static void count(int signal)
{
	heard[signal]++;
}

static void copy_once(unsigned seed)
{
	static __thread unsigned char from[777], to[777];
	static __thread record __attribute__((aligned(32))) r;
	fill_known(from, sizeof from, seed);
	desc d = moving(to, from, sizeof to, &r);
	EXPECT(run(&q, &d) == DSA_COMP_SUCCESS, "status %#x", r.status);
	EXPECT(memcmp(from, to, sizeof to) == 0, "bytes");
}

/* Real faults reach the program's handler with their address and code. */
static void real_faults(void)
{
	for (volatile int i = 0; i < 3; i++) {
		heard[SIGSEGV] = heard[SIGILL] = 0;
		if (sigsetjmp(back, 1) == 0)
			*(volatile char *)0x123000 = 1;
		EXPECT(heard[SIGSEGV] == 1 && where == (void *)0x123000 && code == SEGV_MAPERR, "SIGSEGV at %p, code %d", where, code);
		if (sigsetjmp(back, 1) == 0)
			__asm__ volatile("the_ud2: ud2");
		extern char the_ud2[];
		EXPECT(heard[SIGILL] == 1 && where == the_ud2, "SIGILL at %p, not %p", where, the_ud2);
		copy_once(i);
	}
}

/* An unmapped source faults at the submission, not in the device: the fault has the source's address. */
static void faulting_source(void)
{
	unsigned char *p = pages(2, 0);
	EXPECT(munmap(p + PAGE, PAGE) == 0, "munmap");
	for (volatile int i = 0; i < 3; i++) {
		heard[SIGSEGV] = 0;
		if (sigsetjmp(back, 1) == 0)
			movdir64b(q.portal, p + PAGE - 32);
		EXPECT(heard[SIGSEGV] == 1 && where == p + PAGE, "SIGSEGV at %p, not %p", where, (void *)(p + PAGE));
		/* An unaligned destination is #GP, without an address. */
		heard[SIGSEGV] = 0;
		if (sigsetjmp(back, 1) == 0)
			movdir64b(q.portal + 8, p);
		EXPECT(heard[SIGSEGV] == 1 && code == SI_KERNEL && where == NULL, "#GP: %p, code %d", where, code);
		/* ENQCMD with bits in the first dword, which the CPU fills, and ENQCMDS outside the kernel are #GP,
		 * too. */
		static desc d = { .pasid = 1 };
		heard[SIGSEGV] = 0;
		if (sigsetjmp(back, 1) == 0)
			enqcmd(q.portal, &d);
		EXPECT(heard[SIGSEGV] == 1 && code == SI_KERNEL && where == NULL, "ENQCMD: %p, code %d", where, code);
		heard[SIGSEGV] = 0;
		if (sigsetjmp(back, 1) == 0)
			__asm__ volatile(".byte 0xf3, 0x0f, 0x38, 0xf8, 0x02" ::"a"(q.portal), "d"(p) : "memory", "cc");
		EXPECT(heard[SIGSEGV] == 1 && code == SI_KERNEL && where == NULL, "ENQCMDS: %p, code %d", where, code);
		copy_once(i);
	}
}

static void what_is_set_is_seen(void)
{
	struct sigaction set = { .sa_handler = count, .sa_flags = SA_RESTART | SA_NODEFER }, seen;
	sigemptyset(&set.sa_mask);
	sigaddset(&set.sa_mask, SIGUSR2);
	const int signals[] = { SIGILL, SIGSEGV, SIGBUS, SIGUSR1, SIGTRAP };
	for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
		struct sigaction before;
		EXPECT(sigaction(signals[i], &set, &before) == 0, "set %d", signals[i]);
		EXPECT(sigaction(signals[i], NULL, &seen) == 0, "see %d", signals[i]);
		/* The C library adds its own restorer, which is visible (0x04000000). */
		int flags = seen.sa_flags & ~0x04000000;
		EXPECT(seen.sa_handler == count && flags == (SA_RESTART | SA_NODEFER), "handler of %d: flags %#x", signals[i], flags);
		EXPECT(sigismember(&seen.sa_mask, SIGUSR2) == 1 && sigismember(&seen.sa_mask, SIGUSR1) == 0, "mask of %d", signals[i]);
		EXPECT(sigaction(signals[i], &before, NULL) == 0, "restore %d", signals[i]);
		/* signal() returns the previous handler. */
		EXPECT(signal(signals[i], SIG_IGN) == before.sa_handler, "signal(%d)", signals[i]);
		EXPECT(signal(signals[i], before.sa_handler) == SIG_IGN, "signal(%d) again", signals[i]);
		EXPECT(sigaction(signals[i], &before, NULL) == 0, "restore %d", signals[i]);
	}
	sigset_t all, old, now_blocked;
	sigfillset(&all);
	EXPECT(sigprocmask(SIG_SETMASK, &all, &old) == 0, "block all");
	EXPECT(sigprocmask(SIG_SETMASK, NULL, &now_blocked) == 0, "look");
	EXPECT(sigismember(&now_blocked, SIGILL) == 1 && sigismember(&now_blocked, SIGSEGV) == 1, "blocked as asked");
	/* A blocked synchronous signal would kill the process; submissions must work all the same. */
	copy_once(1);
	copy_once(2);
	EXPECT(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0, "unblock");
	signal(SIGILL, SIG_IGN);
	signal(SIGSEGV, SIG_IGN);
	copy_once(3);
	signal(SIGILL, SIG_DFL);
	signal(SIGSEGV, SIG_DFL);
	copy_once(4);
}

/* SA_RESETHAND, raise() and kill() are not traps. */
static void sent_signals(void)
{
	struct sigaction once = { .sa_handler = count, .sa_flags = SA_RESETHAND }, seen;
	heard[SIGILL] = 0;
	EXPECT(sigaction(SIGILL, &once, NULL) == 0, "sigaction");
	raise(SIGILL);
	EXPECT(heard[SIGILL] == 1, "raise(SIGILL) was heard %d times", (int)heard[SIGILL]);
	EXPECT(sigaction(SIGILL, NULL, &seen) == 0 && seen.sa_handler == SIG_DFL, "reset");
	copy_once(5);
	/* Blocked, then pending, then delivered when unblocked. */
	signal(SIGSEGV, count);
	heard[SIGSEGV] = 0;
	sigset_t segv, pending;
	sigemptyset(&segv);
	sigaddset(&segv, SIGSEGV);
	sigprocmask(SIG_BLOCK, &segv, NULL);
	kill(getpid(), SIGSEGV);
	copy_once(6);
	EXPECT(heard[SIGSEGV] == 0, "heard while blocked");
	EXPECT(sigpending(&pending) == 0 && sigismember(&pending, SIGSEGV) == 1, "pending");
	sigprocmask(SIG_UNBLOCK, &segv, NULL);
	EXPECT(heard[SIGSEGV] == 1, "heard %d times once unblocked", (int)heard[SIGSEGV]);
	signal(SIGSEGV, SIG_DFL);
}

/* Timer signals arrive anywhere in a stream of submissions, also in the middle of one; their handler submits, too. */
static void submits_itself(int signal)
{
	struct itimerval never = { { 0, 0 }, { 0, 0 } };
	copy_once(++heard[signal]);
	/* If a copy takes longer than the timer, only this handler would ever run. */
	if (heard[signal] == STORMS)
		setitimer(ITIMER_REAL, &never, NULL);
}

static void storms(void)
{
	struct sigaction action = { .sa_handler = submits_itself, .sa_flags = SA_RESTART };
	struct itimerval often = { { 0, 200 }, { 0, 200 } };
	heard[SIGALRM] = 0;
	EXPECT(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
	EXPECT(setitimer(ITIMER_REAL, &often, NULL) == 0, "setitimer");
	static unsigned char from[4096], to[4096];
	static record __attribute__((aligned(32))) r;
	double until = now() + 20;
	for (unsigned i = 0; heard[SIGALRM] < STORMS; i++) {
		EXPECT(now() < until, "%d signals in 20 s", (int)heard[SIGALRM]);
		fill_known(from, sizeof from, i);
		desc d = moving(to, from, sizeof to, &r);
		EXPECT(run(&q, &d) == DSA_COMP_SUCCESS, "status %#x", r.status);
		EXPECT(memcmp(from, to, sizeof to) == 0, "bytes");
	}
	signal(SIGALRM, SIG_DFL);
}

/* A small alternate stack for SIGSEGV, as Rust's and other runtimes install: the kernel may put a trap's frame
 * there, 3 KiB with AVX-512, but no emulation runs on it. */
static void alternate_stack(void)
{
	static char small[16384];
	stack_t stack = { .ss_sp = small, .ss_size = sizeof small }, off = { .ss_flags = SS_DISABLE };
	struct sigaction action = { .sa_sigaction = jump, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	memset(small, 0x5a, sizeof small);
	EXPECT(sigaltstack(&stack, NULL) == 0, "sigaltstack");
	EXPECT(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGILL, &action, NULL) == 0, "sigaction");
	copy_once(9);
	for (unsigned i = 0; i < sizeof small / 2; i++)
		EXPECT(small[i] == 0x5a, "half of the alternate stack was used for a submission, byte %u", i);
	heard[SIGSEGV] = 0;
	if (sigsetjmp(back, 1) == 0)
		*(volatile char *)0x123000 = 1;
	EXPECT(heard[SIGSEGV] == 1, "the handler on its stack");
	copy_once(10);
	EXPECT(sigaltstack(&off, NULL) == 0, "sigaltstack off");
}

static void *in_a_thread(void *arg)
{
	(void)arg;
	what_is_set_is_seen();
	return NULL;
}

int main(void)
{
	/* One handler is set before the device is opened, one after. */
	struct sigaction action = { .sa_sigaction = jump, .sa_flags = SA_SIGINFO };
	EXPECT(sigaction(SIGILL, &action, NULL) == 0, "sigaction");
	q = open_queue(DEDICATED);
	copy_once(0);
	EXPECT(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
	copy_once(1);
	EXPECT(heard[SIGILL] == 0 && heard[SIGSEGV] == 0, "the program heard of a submission");
	real_faults();
	faulting_source();
	what_is_set_is_seen();
	sent_signals();
	storms();
	alternate_stack();
	pthread_t thread;
	EXPECT(pthread_create(&thread, NULL, in_a_thread, NULL) == 0 && pthread_join(thread, NULL) == 0, "thread");
	expect_alive(&q);
	close_queue(&q);
	return 0;
}
