/* UMONITOR, UMWAIT and TPAUSE with every register, with and without REX.W: they return in time with the CPU's flags,
 * and invalid forms fault as on the CPU. */
#include "client.h"
#include <setjmp.h>
#include <signal.h>
#include <x86intrin.h>

/* Used by name in assembly, so not static. */
record __attribute__((aligned(64))) idle[2];
uint64_t deadline, flags;
uint64_t control;
static int waits;

/* CF, PF, AF, ZF, SF, OF. Only CF may be set: it shows that the system's limit ended the wait. */
#define ARITHMETIC 0x8d5ul
#define CF 1ul

static sigjmp_buf back;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info, (void)context;
	siglongjmp(back, 1);
}

/* Runs `bytes` with the control word in `reg`, the deadline in EDX:EAX, and all flags set. */
#define WAIT(name, reg, bytes)                                                                                            \
	do {                                                                                                                \
		for (int i = 0; i < 4; i++) {                                                                               \
			control = i & 1;                                                                                    \
			deadline = __rdtsc() + 50000;                                                                       \
			uint64_t begin = __rdtsc();                                                                         \
			__asm__ volatile("mov deadline(%%rip), %%rdx\n\tmov %%edx, %%eax\n\tshr $32, %%rdx\n\t"             \
					 "mov control(%%rip), %%" #reg "\n\tpushq $0xad7\n\tpopf\n\t"                     \
					 ".byte " bytes "\n\tpushf\n\tpopq flags(%%rip)"                                    \
					 :                                                                                  \
					 :                                                                                  \
					 : "rax", "rdx", #reg, "memory", "cc");                                           \
			EXPECT((flags & ARITHMETIC & ~CF) == 0, name " left %#lx", flags);                                  \
			/* A second is generous on a busy machine, and shorter than forever. */                             \
			EXPECT(__rdtsc() - begin < 6000000000ul, name " did not wake up");                                  \
			waits++;                                                                                            \
		}                                                                                                           \
	} while (0)

/* The control word is in EAX or EDX, so it is a part of the deadline; this deadline has passed. */
#define WAIT_IN_DEADLINE(name, bytes)                                                                                       \
	do {                                                                                                                \
		for (int i = 0; i < 3; i++) {                                                                               \
			__asm__ volatile("xor %%eax, %%eax\n\txor %%edx, %%edx\n\t.byte " bytes                             \
					 :                                                                                  \
					 :                                                                                  \
					 : "rax", "rdx", "memory", "cc");                                                   \
			waits++;                                                                                            \
		}                                                                                                           \
	} while (0)

#define MONITOR(name, reg, bytes)                                                                                           \
	do {                                                                                                                \
		for (int i = 0; i < 3; i++) {                                                                               \
			__asm__ volatile("lea idle(%%rip), %%" #reg "\n\tpushq $0xad7\n\tpopf\n\t.byte " bytes              \
					 "\n\tpushf\n\tpopq flags(%%rip)"                                                   \
					 :                                                                                  \
					 :                                                                                  \
					 : #reg, "memory", "cc");                                                           \
			EXPECT((flags & ARITHMETIC) == ARITHMETIC, name " changed flags: %#lx", flags);                     \
			waits++;                                                                                            \
		}                                                                                                           \
	} while (0)

/* Returns true if the statement raised SIGSEGV. */
#define REFUSED(statement) (sigsetjmp(back, 1) ? 1 : ({ statement; 0; }))

static void what_the_cpu_refuses(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	EXPECT(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
	for (volatile int i = 0; i < 3; i++) {
		/* A set bit of the control word other than bit 0 is #GP. */
		EXPECT(REFUSED(__asm__ volatile(".byte 0xf2, 0x0f, 0xae, 0xf1" : : "c"(2), "a"(0), "d"(0))), "UMWAIT 2");
		EXPECT(REFUSED(__asm__ volatile(".byte 0x66, 0x0f, 0xae, 0xf1" : : "c"(4), "a"(0), "d"(0))), "TPAUSE 4");
		/* UMONITOR loads from its address. */
		EXPECT(REFUSED(__asm__ volatile(".byte 0xf3, 0x0f, 0xae, 0xf0" : : "a"(8ul))), "UMONITOR of address 8");
		EXPECT(REFUSED(__asm__ volatile(".byte 0xf3, 0x0f, 0xae, 0xf0" : : "a"(0xdead000000000000ul))),
		       "UMONITOR of a non-canonical address");
	}
	signal(SIGSEGV, SIG_DFL);
}

/* The loop of the manual: arm, check again, wait; a record ends the wait. */
static void a_record_ends_the_loop(const struct queue *q, int rex)
{
	static record __attribute__((aligned(64))) r;
	static unsigned char from[4096], to[4096];
	for (int i = 0; i < 100; i++) {
		desc d = moving(to, from, sizeof to, &r);
		submit(q, &d);
		double until = now() + 30;
		while (r.status == 0) {
			EXPECT(now() < until, "no record");
			uint64_t slice = __rdtsc() + 100000;
			if (rex) {
				__asm__ volatile(".byte 0xf3, 0x48, 0x0f, 0xae, 0xf0" : : "a"(&r) : "memory");
				if (r.status == 0)
					__asm__ volatile(".byte 0xf2, 0x48, 0x0f, 0xae, 0xf1"
							 :
							 : "c"(0), "a"((uint32_t)slice), "d"((uint32_t)(slice >> 32))
							 : "memory", "cc");
			} else {
				__asm__ volatile(".byte 0xf3, 0x0f, 0xae, 0xf0" : : "a"(&r) : "memory");
				if (r.status == 0)
					__asm__ volatile(".byte 0xf2, 0x0f, 0xae, 0xf1"
							 :
							 : "c"(1), "a"((uint32_t)slice), "d"((uint32_t)(slice >> 32))
							 : "memory", "cc");
			}
		}
		EXPECT(r.status == DSA_COMP_SUCCESS, "status %#x", r.status);
	}
}

int main(void)
{
	struct queue q = open_queue(DEDICATED);

	MONITOR("umonitor rax", rax, "0xf3, 0x0f, 0xae, 0xf0");
	MONITOR("umonitor rcx", rcx, "0xf3, 0x0f, 0xae, 0xf1");
	MONITOR("umonitor rdx", rdx, "0xf3, 0x0f, 0xae, 0xf2");
	MONITOR("umonitor rbx", rbx, "0xf3, 0x0f, 0xae, 0xf3");
	MONITOR("umonitor rsi", rsi, "0xf3, 0x0f, 0xae, 0xf6");
	MONITOR("umonitor rdi", rdi, "0xf3, 0x0f, 0xae, 0xf7");
	MONITOR("umonitor r8", r8, "0xf3, 0x41, 0x0f, 0xae, 0xf0");
	MONITOR("umonitor r9", r9, "0xf3, 0x41, 0x0f, 0xae, 0xf1");
	MONITOR("umonitor r12", r12, "0xf3, 0x41, 0x0f, 0xae, 0xf4");
	MONITOR("umonitor r15", r15, "0xf3, 0x41, 0x0f, 0xae, 0xf7");
	MONITOR("REX.W umonitor rax", rax, "0xf3, 0x48, 0x0f, 0xae, 0xf0");
	MONITOR("REX.W umonitor r13", r13, "0xf3, 0x49, 0x0f, 0xae, 0xf5");

	WAIT("umwait ecx", rcx, "0xf2, 0x0f, 0xae, 0xf1");
	WAIT("umwait ebx", rbx, "0xf2, 0x0f, 0xae, 0xf3");
	WAIT("umwait esi", rsi, "0xf2, 0x0f, 0xae, 0xf6");
	WAIT("umwait edi", rdi, "0xf2, 0x0f, 0xae, 0xf7");
	WAIT("umwait r8d", r8, "0xf2, 0x41, 0x0f, 0xae, 0xf0");
	WAIT("umwait r11d", r11, "0xf2, 0x41, 0x0f, 0xae, 0xf3");
	WAIT("umwait r15d", r15, "0xf2, 0x41, 0x0f, 0xae, 0xf7");
	WAIT("REX.W umwait ecx", rcx, "0xf2, 0x48, 0x0f, 0xae, 0xf1");
	WAIT("REX.W umwait r12d", r12, "0xf2, 0x49, 0x0f, 0xae, 0xf4");
	WAIT("tpause ecx", rcx, "0x66, 0x0f, 0xae, 0xf1");
	WAIT("tpause ebx", rbx, "0x66, 0x0f, 0xae, 0xf3");
	WAIT("tpause edi", rdi, "0x66, 0x0f, 0xae, 0xf7");
	WAIT("tpause r8d", r8, "0x66, 0x41, 0x0f, 0xae, 0xf0");
	WAIT("tpause r14d", r14, "0x66, 0x41, 0x0f, 0xae, 0xf6");
	WAIT("REX.W tpause ecx", rcx, "0x66, 0x48, 0x0f, 0xae, 0xf1");
	WAIT_IN_DEADLINE("umwait eax", "0xf2, 0x0f, 0xae, 0xf0");
	WAIT_IN_DEADLINE("umwait edx", "0xf2, 0x0f, 0xae, 0xf2");
	WAIT_IN_DEADLINE("tpause eax", "0x66, 0x0f, 0xae, 0xf0");
	WAIT_IN_DEADLINE("tpause edx", "0x66, 0x0f, 0xae, 0xf2");

	a_record_ends_the_loop(&q, 0);
	a_record_ends_the_loop(&q, 1);
	what_the_cpu_refuses();
	expect_alive(&q);
	close_queue(&q);
	printf("%d waits\n", waits);
	return 0;
}
