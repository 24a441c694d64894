/* A 64-byte AVX-512 store to the portal page is a submission, because it is one write on the bus; shorter stores are
 * none. This simulates a CPU that has MOVDIR64B and finds no device behind the page: there, too, the store itself
 * faults. Ends with 77 if the CPU has no AVX-512. */
#include "client.h"
#include <immintrin.h>

#define SUBMIT(name, ...)                                                                                                   \
	do {                                                                                                                \
		for (int i = 0; i < 3; i++) {                                                                               \
			d = asking(DSA_OPCODE_NOOP, &r);                                                                    \
			__m512i v = _mm512_loadu_si512(&d);                                                                 \
			__VA_ARGS__;                                                                                        \
			EXPECT(wait_for(&r) == DSA_COMP_SUCCESS, name ": %#x", r.status);                                   \
		}                                                                                                           \
	} while (0)

static struct queue q;

__attribute__((target("avx512f,avx512bw,avx2"))) static void stores(void)
{
	static record __attribute__((aligned(32))) r;
	static desc d;
	SUBMIT("vmovdqa64", _mm512_store_si512((void *)q.portal, v));
	SUBMIT("vmovdqu64 at another slot", _mm512_storeu_si512((void *)(q.portal + 0x7c0), v));
	SUBMIT("vmovntdq", _mm512_stream_si512((void *)(q.portal + 64), v));
	SUBMIT("vmovdqu8", __asm__ volatile("vmovdqu8 %0, (%1)" ::"v"(v), "r"(q.portal) : "memory"));
	SUBMIT("vmovaps, high register, index",
	       __asm__ volatile("vmovdqa64 %0, %%zmm31\n\tvmovaps %%zmm31, 0x40(%1,%2,8)" ::"v"(v), "r"(q.portal), "r"(8ul)
				: "memory", "xmm31"));
	/* Two halves are two writes, and neither is a descriptor. */
	d = asking(DSA_OPCODE_NOOP, &r);
	_mm256_store_si256((__m256i *)q.portal, _mm256_loadu_si256((const __m256i *)&d));
	_mm256_store_si256((__m256i *)(q.portal + 32), _mm256_loadu_si256((const __m256i *)&d + 1));
	expect_alive(&q);
	EXPECT(r.status == 0, "two halves made a descriptor");
}

int main(void)
{
	if (!__builtin_cpu_supports("avx512bw"))
		return 77;
	q = open_queue(DEDICATED);
	stores();
	expect_alive(&q);
	close_queue(&q);
	return 0;
}
