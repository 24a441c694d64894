# Comparisons. fn(rdi a, rsi b or pattern, rdx len) -> (rax offset of the first difference or len, rdx faulted).
#
# Vector 9 holds the pattern, vector 8 the pattern rotated to end with the range. `src` is mem (compare with rsi) or
# pat.

# r9 = bit set of the bytes that differ in one vector; ZF is set accordingly. `at` is an address without a base; it is
# added to rdi and rsi.
.macro x_diff_mem_sse2 p, at
    guard .Lstart_sse2, 0, movdqu xmm0, [rdi+\at]
    guard .Lstart_sse2, 0, movdqu xmm1, [rsi+\at]
    pcmpeqb xmm0, xmm1
    pmovmskb r9d, xmm0
    xor r9d, 0xffff
.endm
.macro x_diff_pat_sse2 p, at
    guard .Lstart_sse2, 0, movdqu xmm0, [rdi+\at]
    pcmpeqb xmm0, xmm\p
    pmovmskb r9d, xmm0
    xor r9d, 0xffff
.endm
.macro v_diff_mem_sse2 p, at
    x_diff_mem_sse2 \p, \at
.endm
.macro v_diff_pat_sse2 p, at
    x_diff_pat_sse2 \p, \at
.endm
.macro x_diff_mem_avx2 p, at
    guard .Lstart_avx2, 0, vmovdqu xmm0, [rdi+\at]
    guard .Lstart_avx2, 0, vpcmpeqb xmm0, xmm0, [rsi+\at]
    vpmovmskb r9d, xmm0
    xor r9d, 0xffff
.endm
.macro x_diff_pat_avx2 p, at
    guard .Lstart_avx2, 0, vpcmpeqb xmm0, xmm\p, [rdi+\at]
    vpmovmskb r9d, xmm0
    xor r9d, 0xffff
.endm
.macro v_diff_mem_avx2 p, at
    guard .Lstart_avx2, 0, vmovdqu ymm0, [rdi+\at]
    guard .Lstart_avx2, 0, vpcmpeqb ymm0, ymm0, [rsi+\at]
    vpmovmskb r9d, ymm0
    xor r9d, -1
.endm
.macro v_diff_pat_avx2 p, at
    guard .Lstart_avx2, 0, vpcmpeqb ymm0, ymm\p, [rdi+\at]
    vpmovmskb r9d, ymm0
    xor r9d, -1
.endm
.macro x_diff_mem_avx512 p, at
    guard .Lstart_avx512, 0, vmovdqu64 xmm20, [rdi+\at]
    guard .Lstart_avx512, 0, vpcmpneqb k1, xmm20, [rsi+\at]
    kmovd r9d, k1
    test r9d, r9d
.endm
.macro x_diff_pat_avx512 p, at
    guard .Lstart_avx512, 0, vpcmpneqb k1, xmm2\p, [rdi+\at]
    kmovd r9d, k1
    test r9d, r9d
.endm
.macro y_diff_mem_avx512 p, at
    guard .Lstart_avx512, 0, vmovdqu64 ymm20, [rdi+\at]
    guard .Lstart_avx512, 0, vpcmpneqb k1, ymm20, [rsi+\at]
    kmovd r9d, k1
    test r9d, r9d
.endm
.macro y_diff_pat_avx512 p, at
    guard .Lstart_avx512, 0, vpcmpneqb k1, ymm2\p, [rdi+\at]
    kmovd r9d, k1
    test r9d, r9d
.endm
.macro v_diff_mem_avx512 p, at
    guard .Lstart_avx512, 0, vmovdqu64 zmm20, [rdi+\at]
    guard .Lstart_avx512, 0, vpcmpneqb k1, zmm20, [rsi+\at]
    kmovq r9, k1
    test r9, r9
.endm
.macro v_diff_pat_avx512 p, at
    guard .Lstart_avx512, 0, vpcmpneqb k1, zmm2\p, [rdi+\at]
    kmovq r9, k1
    test r9, r9
.endm

# ZF is clear if any byte of four vectors differs.
.macro block_diff_mem_sse2
.irp i, 0, 1, 2, 3
    guard .Lstart_sse2, 0, movdqu xmm\i, [rdi+\i*16]
.endr
.irp i, 0, 1, 2, 3
    guard .Lstart_sse2, 0, movdqu xmm4, [rsi+\i*16]
    pcmpeqb xmm\i, xmm4
.endr
    block_all_sse2
.endm
.macro block_diff_pat_sse2
.irp i, 0, 1, 2, 3
    guard .Lstart_sse2, 0, movdqu xmm\i, [rdi+\i*16]
    pcmpeqb xmm\i, xmm9
.endr
    block_all_sse2
.endm
.macro block_all_sse2
    pand xmm0, xmm1
    pand xmm2, xmm3
    pand xmm0, xmm2
    pmovmskb r9d, xmm0
    cmp r9d, 0xffff
.endm
.macro block_diff_mem_avx2
.irp i, 0, 1, 2, 3
    guard .Lstart_avx2, 0, vmovdqu ymm\i, [rdi+\i*32]
    guard .Lstart_avx2, 0, vpxor ymm\i, ymm\i, [rsi+\i*32]
.endr
    block_all_avx2
.endm
.macro block_diff_pat_avx2
.irp i, 0, 1, 2, 3
    guard .Lstart_avx2, 0, vpxor ymm\i, ymm9, [rdi+\i*32]
.endr
    block_all_avx2
.endm
.macro block_all_avx2
    vpor ymm0, ymm0, ymm1
    vpor ymm2, ymm2, ymm3
    vpor ymm0, ymm0, ymm2
    vptest ymm0, ymm0
.endm
.macro block_diff_mem_avx512
.irp i, 0, 1, 2, 3
    guard .Lstart_avx512, 0, vmovdqu64 zmm2\i, [rdi+\i*64]
    guard .Lstart_avx512, 0, vpxorq zmm2\i, zmm2\i, [rsi+\i*64]
.endr
    block_all_avx512
.endm
.macro block_diff_pat_avx512
.irp i, 0, 1, 2, 3
    guard .Lstart_avx512, 0, vpxorq zmm2\i, zmm29, [rdi+\i*64]
.endr
    block_all_avx512
.endm
.macro block_all_avx512
    vporq zmm20, zmm20, zmm21
    vpternlogq zmm20, zmm22, zmm23, 0xfe  # or of three
    vptestmq k1, zmm20, zmm20
    kortestb k1, k1
.endm

# Puts the pattern in rsi into vector 9, and the pattern rotated by len modulo 8 into vector 8.
.macro make_mem_sse2
.endm
.macro make_mem_avx2
.endm
.macro make_mem_avx512
.endm
.macro make_pat_sse2
    movq xmm9, rsi
    punpcklqdq xmm9, xmm9
    movq xmm8, r10
    punpcklqdq xmm8, xmm8
.endm
.macro make_pat_avx2
    vmovq xmm9, rsi
    vpbroadcastq ymm9, xmm9
    vmovq xmm8, r10
    vpbroadcastq ymm8, xmm8
.endm
.macro make_pat_avx512
    vpbroadcastq zmm29, rsi
    vpbroadcastq zmm28, r10
.endm
.macro rotate_mem
.endm
.macro rotate_pat
    mov ecx, edx
    shl ecx, 3
    mov r10, rsi
    ror r10, cl
.endm

# Below 16 bytes: r9 = difference of the first word, then of the last.
.macro word_mem isa, a, p, t, w
    guard .Lstart_\isa, 0, mov \a, [rdi]
    guard .Lstart_\isa, 0, xor \a, [rsi]
    jnz .Lfirst_mem_\isa
    guard .Lstart_\isa, 0, mov \a, [rdi+rdx-\w]
    guard .Lstart_\isa, 0, xor \a, [rsi+rdx-\w]
.endm
# The last word of the range holds pattern bytes (len-w).. ; rotated by len modulo 8 they are the top bytes of r10.
.macro word_pat isa, a, p, t, w
    guard .Lstart_\isa, 0, mov \a, [rdi]
    xor \a, \p
    jnz .Lfirst_pat_\isa
.if \w < 8
    shr r10, 64-8*\w
.endif
    guard .Lstart_\isa, 0, mov \a, [rdi+rdx-\w]
    xor \a, \t
.endm
.macro byte_mem isa
    guard .Lstart_\isa, 0, movzx r9d, byte ptr [rdi]
    guard .Lstart_\isa, 0, xor r9b, byte ptr [rsi]
.endm
.macro byte_pat isa
    guard .Lstart_\isa, 0, movzx r9d, byte ptr [rdi]
    xor r9b, sil
.endm
.macro words src, isa, a, p, t, w
    xor r9d, r9d
    word_\src \isa, \a, \p, \t, \w
    jz .Lequal_\src\()_\isa
    tzcnt r9, r9
    shr r9d, 3
    lea rax, [r8+r9-\w]
    xor edx, edx
    ret
.endm

.macro last src, isa, k, w
    \k\()_diff_\src\()_\isa 8, rdx-\w
    jz .Lequal_\src\()_\isa
    tzcnt r9, r9
    lea rax, [r8+r9-\w]
    xor edx, edx
    zeroupper_\isa
    ret
.endm

.macro compare isa, v, src, name
function telpher_mem_\name\()_\isa
    mov r8, rdx
    rotate_\src
    cmp rdx, 16
    jb .Lbelow16_\src\()_\isa
    make_\src\()_\isa
.if \v > 16
    cmp rdx, 32
    ja 1f
    x_diff_\src\()_\isa 9, 0
    jnz .Lfound_\src\()_\isa
    last \src, \isa, x, 16
1:
.endif
.if \v == 64
    cmp rdx, 64
    ja 1f
    y_diff_\src\()_\isa 9, 0
    jnz .Lfound_\src\()_\isa
    last \src, \isa, y, 32
1:
.endif
    cmp rdx, 4*\v
    jb 2f
    .p2align 5
1:
    block_diff_\src\()_\isa
    jnz 2f
    add rdi, 4*\v
.ifc \src,mem
    add rsi, 4*\v
.endif
    sub rdx, 4*\v
    cmp rdx, 4*\v
    jae 1b
# Single vectors: the rest, or the block that contains a difference.
2:  cmp rdx, \v
    jb 3f
    v_diff_\src\()_\isa 9, 0
    jnz .Lfound_\src\()_\isa
    add rdi, \v
.ifc \src,mem
    add rsi, \v
.endif
    sub rdx, \v
    jmp 2b
3:  test rdx, rdx
    jz .Lequal_\src\()_\isa
    last \src, \isa, v, \v
.Lequal_\src\()_\isa:
    finish_\isa
.Lfirst_\src\()_\isa:
    tzcnt r9, r9
    shr r9d, 3
    mov rax, r9
    xor edx, edx
    ret
.Lfound_\src\()_\isa:
    tzcnt r9, r9
    mov rax, r8
    sub rax, rdx
    add rax, r9
    xor edx, edx
    zeroupper_\isa
    ret
.Lbelow16_\src\()_\isa:
    cmp edx, 8
    jb 1f
    words \src, \isa, r9, rsi, r10, 8
1:  cmp edx, 4
    jb 1f
    words \src, \isa, r9d, esi, r10d, 4
1:  cmp edx, 2
    jb 1f
    words \src, \isa, r9w, si, r10w, 2
1:  test edx, edx
    jz .Lequal_\src\()_\isa
    byte_\src \isa
    jz .Lequal_\src\()_\isa
    xor eax, eax
    xor edx, edx
    ret
endfunction telpher_mem_\name\()_\isa
.endm
