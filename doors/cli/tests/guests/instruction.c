/*
 * Checks the guest's MOVDIR64B, which movdir64b.c supplies: every kind of operand, and CPUID. Linked statically at a
 * fixed address, see there. Ends with 0, or prints the encoding that failed.
 */
#include <cpuid.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 64, ARCH_SET_GS = 0x1001 };

/* Below 4 GiB, so that an address-size prefix reaches them. */
static uint8_t *source, *destination;
static int failed;
/* Not static: assembler code names it. */
uint8_t relative[SIZE];

static void prepare(uint8_t seed)
{
    for (int i = 0; i < SIZE; i++)
        source[i] = relative[i] = (uint8_t)(seed + 7 * i);
    memset(destination - SIZE, 0xee, 3 * SIZE);
}

static void compare(const char *encoding)
{
    int is_wrong = memcmp(source, destination, SIZE) != 0;
    for (int i = 0; i < SIZE; i++)
        is_wrong |= destination[i - SIZE] != 0xee || destination[SIZE + i] != 0xee;
    if (is_wrong) {
        printf("wrong bytes: %s\n", encoding);
        failed = 1;
    }
}

/* The operands' registers are named, so that REX and SIB are encoded as the text says. */
#define CHECK(text, source_register, source_value, index_register, index_value, destination_register)                  \
    do {                                                                                                               \
        prepare((uint8_t)__LINE__);                                                                                    \
        register uint64_t from asm(source_register) = (uint64_t)(source_value);                                        \
        register uint64_t index asm(index_register) = (uint64_t)(index_value);                                         \
        register uint64_t to asm(destination_register) = (uint64_t)destination;                                        \
        asm volatile(text : "+r"(from), "+r"(index), "+r"(to) : : "memory", "cc");                                     \
        compare(text);                                                                                                 \
    } while (0)

int main(void)
{
    unsigned int eax, ebx, ecx, edx;
    uint8_t *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (low == MAP_FAILED || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        printf("no memory below 4 GiB, or no CPUID leaf 7\n");
        return 1;
    }
    if (!(ecx >> 28 & 1)) {
        printf("no MOVDIR64B in CPUID\n");
        return 1;
    }
    /* Not aligned: only the destination must be. */
    source = low + 1001;
    destination = low + 2048;
    memset(low, 0, 4096);

    CHECK("movdir64b (%%rdx), %%rax", "rdx", source, "rcx", 0, "rax");
    CHECK("movdir64b (%%r8), %%r15", "r8", source, "rcx", 0, "r15");
    CHECK("movdir64b (%%rax), %%r9", "rax", source, "rcx", 0, "r9");
    CHECK("movdir64b (%%r13), %%rdi", "r13", source, "rcx", 0, "rdi");
    CHECK("movdir64b (%%r12), %%rdi", "r12", source, "rcx", 0, "rdi");
    CHECK("movdir64b 100(%%rsi), %%rbx", "rsi", source - 100, "rcx", 0, "rbx");
    CHECK("movdir64b -100(%%r12), %%r8", "r12", source + 100, "rcx", 0, "r8");
    CHECK("movdir64b 70000(%%rsi), %%rbx", "rsi", source - 70000, "rcx", 0, "rbx");
    CHECK("movdir64b -70000(%%r13), %%rbx", "r13", source + 70000, "rcx", 0, "rbx");
    CHECK("movdir64b (%%rsi,%%rcx,8), %%rbx", "rsi", source - 800, "rcx", 100, "rbx");
    CHECK("movdir64b 4(%%r13,%%r12,4), %%r14", "r13", source - 404, "r12", 100, "r14");
    CHECK("movdir64b 70000(%%rsi,%%r12,2), %%r14", "rsi", source - 70200, "r12", 100, "r14");
    CHECK("movdir64b 5(,%%rcx,1), %%rax", "rdx", 0, "rcx", source - 5, "rax");
    CHECK("movdir64b relative(%%rip), %%rax", "rdx", 0, "rcx", 0, "rax");
    CHECK("movdir64b relative, %%rax", "rdx", 0, "rcx", 0, "rax");
    /* The upper halves do not count with an address-size prefix. */
    CHECK("shl $32, %%rdx; shr $32, %%rdx; movdir64b (%%edx), %%eax", "rdx", source, "rcx", 0, "rax");
    CHECK("btsq $40, %%r8; movdir64b 4(%%r8d,%%ecx,2), %%r9d", "r8", source - 24, "rcx", 10, "r9");
    if (syscall(SYS_arch_prctl, ARCH_SET_GS, source - 4096) == 0)
        CHECK("movdir64b %%gs:4096(%%rcx), %%rax", "rdx", 0, "rcx", 0, "rax");
    else
        failed = 1;
    return failed;
}
