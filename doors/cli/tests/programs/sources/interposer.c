/* A program that interposes memcpy, memset, memcmp and malloc itself, as DTO does. Its memcpy uses the device; none
 * of these functions may be called again meanwhile, so the device's own copying must not use them. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

static _Thread_local int in_memcpy;
static int copies, allocations;
static int through_the_device(void *to, const void *from, size_t len);

void *memcpy(void *restrict to, const void *restrict from, size_t len)
{
	char *t = to;
	const char *f = from;
	copies++;
	if (len >= 256 && !in_memcpy) {
		in_memcpy = 1;
		int done = through_the_device(to, from, len);
		in_memcpy = 0;
		if (done)
			return to;
	} else if (in_memcpy) {
		/* The code that submits has called this memcpy itself. */
		__builtin_trap();
	}
	while (len--) {
		*t++ = *f++;
		__asm__ volatile("" ::: "memory");
	}
	return to;
}

void *memmove(void *to, const void *from, size_t len)
{
	char *t = to;
	const char *f = from;
	if (in_memcpy)
		__builtin_trap();
	if (t < f)
		for (size_t i = 0; i < len; i++) {
			t[i] = f[i];
			__asm__ volatile("" ::: "memory");
		}
	else
		while (len--) {
			t[len] = f[len];
			__asm__ volatile("" ::: "memory");
		}
	return to;
}

void *memset(void *to, int byte, size_t len)
{
	char *t = to;
	if (in_memcpy)
		__builtin_trap();
	while (len--) {
		*t++ = byte;
		__asm__ volatile("" ::: "memory");
	}
	return to;
}

int memcmp(const void *a, const void *b, size_t len)
{
	const unsigned char *x = a, *y = b;
	if (in_memcpy)
		__builtin_trap();
	for (size_t i = 0; i < len; i++) {
		if (x[i] != y[i])
			return x[i] - y[i];
		__asm__ volatile("" ::: "memory");
	}
	return 0;
}

/* A heap that only grows, and traps if it is called during a memcpy through the device. */
static char heap[64 << 20] __attribute__((aligned(64)));
static atomic_size_t used;

void *malloc(size_t size)
{
	if (in_memcpy)
		__builtin_trap();
	allocations++;
	size_t at = atomic_fetch_add(&used, (size + 16 + 63) & ~(size_t)63);
	if (at + size + 16 > sizeof heap)
		return NULL;
	*(size_t *)(heap + at + 8) = size;
	return heap + at + 16;
}

void free(void *p)
{
	if (in_memcpy)
		__builtin_trap();
	(void)p;
}

void *calloc(size_t count, size_t size)
{
	/* The heap begins as zeros, and no memory is used twice. */
	return malloc(count * size);
}

void *realloc(void *p, size_t size)
{
	char *to = malloc(size), *from = p;
	size_t had = from ? *(size_t *)(from - 8) : 0;
	for (size_t i = 0; to && i < size && i < had; i++)
		to[i] = from[i];
	return to;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	char *p = malloc(size + alignment);
	return (void *)(((uintptr_t)p + alignment - 1) & ~(alignment - 1));
}

#include "client.h"

static struct queue q;

/* Written without any function above, since this runs inside memcpy. */
static int through_the_device(void *to, const void *from, size_t len)
{
	static _Thread_local struct {
		uint64_t word[4];
	} __attribute__((aligned(32))) r;
	if (!q.portal || len > 1 << 20)
		return 0;
	uint64_t __attribute__((aligned(64))) d[8] = { 0 };
	r.word[0] = 0;
	d[0] = (uint64_t)DSA_OPCODE_MEMMOVE << 56 | (uint64_t)(IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_RCR | IDXD_OP_FLAG_BOF) << 32;
	d[1] = (uintptr_t)&r;
	d[2] = (uintptr_t)from;
	d[3] = (uintptr_t)to;
	d[4] = len;
	movdir64b(q.portal, d);
	while (*(volatile unsigned char *)&r == 0)
		__builtin_ia32_pause();
	return *(volatile unsigned char *)&r == DSA_COMP_SUCCESS;
}

int main(void)
{
	q = open_queue(DEDICATED);
	unsigned char *from = malloc(100000), *to = malloc(100000);
	for (int i = 0; i < 200; i++) {
		size_t len = 256 + 491 * i;
		fill_known(from, len, i);
		/* Through a pointer, so that the compiler cannot insert a copy of its own here. */
		void *(*volatile copy)(void *restrict, const void *restrict, size_t) = memcpy;
		copy(to, from, len);
		EXPECT(memcmp(from, to, len) == 0, "bytes of %zu", len);
	}
	printf("%d copies, %d allocations\n", copies > 200, allocations > 0);
	expect_alive(&q);
	close_queue(&q);
	return 0;
}
