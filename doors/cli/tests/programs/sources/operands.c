/* Every form of operand: any register, displacement, scaled index, RIP-relative, FS- and GS-relative, 32-bit
 * addresses, redundant prefixes; on the dedicated queue by MOVDIR64B and on the shared one by ENQCMD. Flags and
 * registers must be as the CPU leaves them. Each site runs three times: the first may trap, later ones may be
 * rewritten. */
#include "client.h"
#include <asm/prctl.h>
#include <sys/syscall.h>

static struct queue queues[2];
/* The current portal, and the record that shows whether a submission arrived. */
static char *portal;
static record __attribute__((aligned(32))) seen;
static desc plain;
static const desc *address = &plain;
static __thread desc mine;
static int sites;

/* Checks that one more submission arrived with all 64 bytes: the record's address is in the first half, a reserved
 * byte in the last. */
static void arrived(const char *what)
{
	unsigned status = wait_for(&seen);
	EXPECT(status == DSA_COMP_SUCCESS, "%s: %#x", what, status);
	seen.status = 0;
	sites++;
}

/* One instruction with the portal in one register and the descriptor's address in another. */
#define FROM_REGISTER(mnemonic, portal_register, source_register)                                                           \
	do {                                                                                                                \
		for (int i = 0; i < 3; i++) {                                                                               \
			__asm__ volatile("push %1\n\tpush %0\n\tpop %%" #portal_register "\n\tpop %%" #source_register      \
					 "\n\t" mnemonic " (%%" #source_register "), %%" #portal_register                   \
					 :                                                                                  \
					 : "m"(portal), "m"(address)                                                        \
					 : #portal_register, #source_register, "memory", "cc");                             \
			arrived(mnemonic " (%" #source_register "), %" #portal_register);                                   \
		}                                                                                                           \
	} while (0)

#define WITH_OPERAND(mnemonic, operand, ...)                                                                                \
	do {                                                                                                                \
		for (int i = 0; i < 3; i++) {                                                                               \
			__asm__ volatile(mnemonic " " operand ", %%rax" : : "a"(portal), __VA_ARGS__ : "memory", "cc");     \
			arrived(mnemonic " " operand);                                                                      \
		}                                                                                                           \
	} while (0)

#define RAW(name, bytes, to, from)                                                                                          \
	do {                                                                                                                \
		for (int i = 0; i < 3; i++) {                                                                               \
			__asm__ volatile(".byte " bytes : : "a"(to), "d"(from) : "memory", "cc");                           \
			arrived(name);                                                                                      \
		}                                                                                                           \
	} while (0)

#define EVERY_SHAPE(mnemonic)                                                                                               \
	do {                                                                                                                \
		FROM_REGISTER(mnemonic, rax, rdx);                                                                          \
		FROM_REGISTER(mnemonic, rdx, rax);                                                                          \
		FROM_REGISTER(mnemonic, rbx, rcx);                                                                          \
		FROM_REGISTER(mnemonic, rcx, rbx);                                                                          \
		FROM_REGISTER(mnemonic, rsi, rdi);                                                                          \
		FROM_REGISTER(mnemonic, rdi, rsi);                                                                          \
		FROM_REGISTER(mnemonic, r8, r9);                                                                            \
		FROM_REGISTER(mnemonic, r9, r8);                                                                            \
		FROM_REGISTER(mnemonic, r10, r11);                                                                          \
		FROM_REGISTER(mnemonic, r11, r10);                                                                          \
		FROM_REGISTER(mnemonic, r12, r13);                                                                          \
		FROM_REGISTER(mnemonic, r13, r12);                                                                          \
		FROM_REGISTER(mnemonic, r14, r15);                                                                          \
		FROM_REGISTER(mnemonic, r15, r14);                                                                          \
		/* RBP as destination and as base. */                                                                       \
		for (int i = 0; i < 3; i++) {                                                                               \
			__asm__ volatile("push %%rbp\n\tmov %%rax, %%rbp\n\t" mnemonic " (%%rdx), %%rbp\n\tpop %%rbp"       \
					 :                                                                                  \
					 : "a"(portal), "d"(address)                                                        \
					 : "memory", "cc");                                                                 \
			arrived(mnemonic " (%rdx), %rbp");                                                                  \
			__asm__ volatile("push %%rbp\n\tmov %%rdx, %%rbp\n\t" mnemonic " (%%rbp), %%rax\n\tpop %%rbp"       \
					 :                                                                                  \
					 : "a"(portal), "d"(address)                                                        \
					 : "memory", "cc");                                                                 \
			arrived(mnemonic " (%rbp), %rax");                                                                  \
		}                                                                                                           \
		/* The stack pointer as base: the descriptor is in the middle of a larger stack. */                         \
		for (int i = 0; i < 3; i++) {                                                                               \
			__asm__ volatile("mov %%rsp, %%rbx\n\tmov %%rdx, %%rsp\n\t" mnemonic                                \
					 " (%%rsp), %%rax\n\tmov %%rbx, %%rsp"                                              \
					 :                                                                                  \
					 : "a"(portal), "d"(on_stack)                                                       \
					 : "rbx", "memory", "cc");                                                          \
			arrived(mnemonic " (%rsp), %rax");                                                                  \
		}                                                                                                           \
		WITH_OPERAND(mnemonic, "0x40(%%rdx)", "d"(at - 0x40));                                                      \
		WITH_OPERAND(mnemonic, "-0x80(%%rdx)", "d"(at + 0x80));                                                     \
		WITH_OPERAND(mnemonic, "0x12345(%%rdx)", "d"(at - 0x12345));                                                \
		WITH_OPERAND(mnemonic, "-0x12345(%1)", "r"(at + 0x12345));                                                  \
		WITH_OPERAND(mnemonic, "(%%rdx,%%rcx,1)", "d"(at - 7), "c"(7ul));                                           \
		WITH_OPERAND(mnemonic, "0x10(%%rdx,%%rcx,4)", "d"(at - 0x10 - 4 * 1001), "c"(1001ul));                      \
		WITH_OPERAND(mnemonic, "-0x4000(%%rdx,%%rcx,8)", "d"(at + 0x4000 + 8 * 33), "c"(-33ul));                    \
		WITH_OPERAND(mnemonic, "(,%%rcx,8)", "c"((uintptr_t)&in_low[0] / 8));                                       \
		WITH_OPERAND(mnemonic, "plain(%%rip)", "m"(plain));                                                         \
		WITH_OPERAND(mnemonic, "%%fs:mine@tpoff", "m"(mine));                                                       \
		WITH_OPERAND(mnemonic, "%%fs:(%%rdx)", "d"(at - fs));                                                       \
		WITH_OPERAND(mnemonic, "%%gs:0x100(%%rdx)", "d"(-0x100l));                                                  \
		/* Redundant segment prefixes change nothing in 64-bit mode. */                                            \
		WITH_OPERAND(mnemonic, "%%ds:(%%rdx)", "d"(&plain));                                                        \
	} while (0)

/* RAX with the flags after one instruction that started with all arithmetic flags set (or clear). */
static uint64_t flags_after(const char *to, const void *from, int shared, uint64_t before)
{
	uint64_t after;
	if (shared)
		__asm__ volatile("push %3\n\tpopf\n\tenqcmd (%2), %1\n\tpushf\n\tpop %0"
				 : "=&r"(after)
				 : "r"(to), "r"(from), "r"(before)
				 : "memory", "cc");
	else
		__asm__ volatile("push %3\n\tpopf\n\tmovdir64b (%2), %1\n\tpushf\n\tpop %0"
				 : "=&r"(after)
				 : "r"(to), "r"(from), "r"(before)
				 : "memory", "cc");
	return after;
}

/* CF, PF, AF, ZF, SF, OF. */
#define ARITHMETIC 0x8d5ul
#define ZF 0x40ul

static void flags_are_as_the_cpu_leaves_them(int shared)
{
	for (int i = 0; i < 3; i++) {
		uint64_t set = flags_after(portal, &plain, shared, ARITHMETIC | 0x202);
		arrived("flags set before");
		uint64_t clear = flags_after(portal, &plain, shared, 0x202);
		arrived("flags clear before");
		if (shared) {
			EXPECT((set & ARITHMETIC) == 0 && (clear & ARITHMETIC) == 0, "ENQCMD left %#lx, %#lx", set, clear);
			/* Ordinary memory is no enqueue register. */
			static char __attribute__((aligned(64))) nothing[64];
			uint64_t retry = flags_after(nothing, &plain, 1, ARITHMETIC | 0x202);
			EXPECT((retry & ARITHMETIC) == ZF, "ENQCMD to memory left %#lx", retry);
		} else {
			EXPECT((set & ARITHMETIC) == ARITHMETIC && (clear & ARITHMETIC) == 0, "MOVDIR64B left %#lx, %#lx", set,
			       clear);
		}
	}
}

/* Vector registers and the red zone are unchanged by a submission at a new site and at the same site later. */
static void other_state_survives(void)
{
	for (int i = 0; i < 3; i++) {
		uint64_t low[6], out[6], zone;
		for (int k = 0; k < 6; k++)
			low[k] = 0x0101010101010101ul * (k + 1);
		__asm__ volatile("movdqu (%3), %%xmm0\n\tmovdqu 16(%3), %%xmm7\n\tmovdqu 32(%3), %%xmm15\n\t"
				 "movq $0x5a5a5a5a, -8(%%rsp)\n\tmovq $0x3c3c3c3c, -128(%%rsp)\n\t"
				 "movdir64b (%2), %1\n\t"
				 "mov -8(%%rsp), %0\n\txor -128(%%rsp), %0\n\t"
				 "movdqu %%xmm0, (%4)\n\tmovdqu %%xmm7, 16(%4)\n\tmovdqu %%xmm15, 32(%4)"
				 : "=&r"(zone)
				 : "r"(portal), "r"(&plain), "r"(low), "r"(out)
				 : "xmm0", "xmm7", "xmm15", "memory", "cc");
		arrived("movdir64b with live vector registers");
		EXPECT(memcmp(low, out, sizeof out) == 0, "vector registers changed");
		EXPECT(zone == (0x5a5a5a5a ^ 0x3c3c3c3c), "the red zone changed: %#lx", zone);
	}
}

int main(void)
{
	plain = asking(DSA_OPCODE_NOOP, &seen);
	mine = plain;
	/* The address as a number, to which offsets can be added. */
	uintptr_t at = (uintptr_t)&plain;
	unsigned char *stack = pages(64, 0);
	desc *on_stack = (desc *)(stack + 32 * PAGE + 8);
	*on_stack = plain;
	/* Below 2 GiB, for scaled indices without base and for 32-bit addresses. */
	desc *in_low = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	EXPECT(in_low != MAP_FAILED, "low page");
	*in_low = plain;
	unsigned long fs = 0;
	EXPECT(syscall(SYS_arch_prctl, ARCH_GET_FS, &fs) == 0 && fs != 0, "FS base");
	EXPECT(syscall(SYS_arch_prctl, ARCH_SET_GS, &plain) == 0, "GS base");

	queues[0] = open_queue(DEDICATED);
	queues[1] = open_queue(SHARED);
	portal = queues[0].portal;
	EVERY_SHAPE("movdir64b");
	flags_are_as_the_cpu_leaves_them(0);
	other_state_survives();
	portal = queues[1].portal;
	EVERY_SHAPE("enqcmd");
	flags_are_as_the_cpu_leaves_them(1);

	/* 32-bit addresses: prefix 67h, both operands below 4 GiB. */
	for (int k = 0; k < 2; k++) {
		char *low = mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED | MAP_32BIT, queues[k].fd, 0);
		EXPECT(low != MAP_FAILED && (uintptr_t)low < 1ul << 32, "a portal below 4 GiB");
		/* The upper halves of the registers must be ignored. */
		uint64_t to = (uintptr_t)low | 0xdead00000000, from = (uintptr_t)in_low | 0xbeef00000000;
		if (k == 0)
			RAW("67 66 0F 38 F8 02", "0x67, 0x66, 0x0f, 0x38, 0xf8, 0x02", to, from);
		else
			RAW("67 F2 0F 38 F8 02", "0x67, 0xf2, 0x0f, 0x38, 0xf8, 0x02", to, from);
		EXPECT(munmap(low, PAGE) == 0, "munmap");
	}
	/* Prefixes in another order, and a REX without effect. */
	portal = queues[0].portal;
	RAW("3E 66 0F 38 F8 02", "0x3e, 0x66, 0x0f, 0x38, 0xf8, 0x02", portal, &plain);
	RAW("66 3E 48 0F 38 F8 02", "0x66, 0x3e, 0x48, 0x0f, 0x38, 0xf8, 0x02", portal, &plain);
	portal = queues[1].portal;
	RAW("F2 40 0F 38 F8 02", "0xf2, 0x40, 0x0f, 0x38, 0xf8, 0x02", portal, &plain);

	/* MOVDIR64B to ordinary memory is an ordinary copy. */
	unsigned char from[64 + 1], __attribute__((aligned(64))) to[64];
	for (int i = 0; i < 3; i++) {
		fill_known(from, sizeof from, i);
		movdir64b(to, from + 1);
		EXPECT(memcmp(to, from + 1, 64) == 0, "MOVDIR64B to memory");
	}
	printf("%d submissions\n", sites);
	return 0;
}
