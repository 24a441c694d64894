# Fills. fn(rdi dst, rsi low pattern, rdx len, rcx high pattern) -> (rax done, rdx faulted).
#
# Storing a byte twice is harmless here, so every landing restarts from the beginning of its block.
# Vector 0 begins at the pattern's byte 0. Vector 1 is rotated so that it ends with the range. Vector 2 is rotated so
# that it begins at the first aligned address.

.macro x_make_sse2
    movq xmm0, rsi
    movq xmm1, rcx
    punpcklqdq xmm0, xmm1
.endm
.macro x_rotate_sse2 n
    movdqu [rsp-32], xmm0
    movdqu [rsp-16], xmm0
    movdqu xmm\n, [rsp+rax-32]
.endm
.macro v_widen_sse2 n
.endm

.macro x_make_avx2
    vmovq xmm0, rsi
    vpinsrq xmm0, xmm0, rcx, 1
.endm
.macro x_rotate_avx2 n
    lea r10, [rip+.Lrotate_table]
    vmovdqu xmm\n, [r10+rax]
    vpshufb xmm\n, xmm0, xmm\n
.endm
.macro v_widen_avx2 n
    vinserti128 ymm\n, ymm\n, xmm\n, 1
.endm

.macro x_make_avx512
    vmovq xmm20, rsi
    vmovq xmm21, rcx
    vpunpcklqdq xmm20, xmm20, xmm21
.endm
.macro x_rotate_avx512 n
    lea r10, [rip+.Lrotate_table]
    vmovdqu64 xmm2\n, [r10+rax]
    vpshufb xmm2\n, xmm20, xmm2\n
.endm
.macro v_widen_avx512 n
    vshufi64x2 zmm2\n, zmm2\n, zmm2\n, 0
.endm

# Makes all vectors at once from a pattern of equal bytes.
.macro v_splat_sse2
    movq xmm0, rsi
    punpcklqdq xmm0, xmm0
.endm
.macro v_splat_avx2
    vmovq xmm0, rsi
    vpbroadcastq ymm0, xmm0
.endm
.macro v_splat_avx512
    vpbroadcastq zmm20, rsi
.endm

# More than 4 vectors; `t` ends with the range, `a` begins at the first aligned address.
.macro fill_blocks isa, v, st, t, a
    mov r9, rdi
    and r9d, \v-1
    neg r9
    add r9, \v
    guard .Lstart_\isa, 0, v_st_\isa 0, [rdi]
    add rdi, r9
    sub rdx, r9
    cmp rdx, 4*\v
    jbe 3f
    .p2align 5
2:
.irp i, 0, 1, 2, 3
    guard .Lstart_\isa, 0, \st \a, [rdi+\i*\v]
.endr
    add rdi, 4*\v
    sub rdx, 4*\v
    cmp rdx, 4*\v
    ja 2b
3:
.irp i, 4, 3, 2, 1
    guard .Lstart_\isa, 0, v_st_\isa \t, [rdi+rdx-\i*\v]
.endr
.endm

.macro long_fill isa, v, st
    x_make_\isa
    mov eax, edx
    and eax, 15
    x_rotate_\isa 1
    mov eax, edi
    neg eax
    and eax, 15
    x_rotate_\isa 2
    v_widen_\isa 0
    v_widen_\isa 1
    v_widen_\isa 2
    fill_blocks \isa, \v, \st, 1, 2
.endm

# 16 bytes to 4 vectors; `t` is the vector that ends with the range.
.macro fill_short isa, v, t
    cmp rdx, 32
    ja 1f
    guard .Lstart_\isa, 0, x_st_\isa 0, [rdi]
    guard .Lstart_\isa, 0, x_st_\isa \t, [rdi+rdx-16]
    finish_\isa
1:
.if \v >= 32  # 4 vectors of 16 bytes end at 64
    cmp rdx, 64
    ja 1f
.endif
    guard .Lstart_\isa, 0, x_st_\isa 0, [rdi]
    guard .Lstart_\isa, 0, x_st_\isa 0, [rdi+16]
    guard .Lstart_\isa, 0, x_st_\isa \t, [rdi+rdx-32]
    guard .Lstart_\isa, 0, x_st_\isa \t, [rdi+rdx-16]
    finish_\isa
.if \v >= 32
1:  cmp rdx, 2*\v
    jbe 1f
    guard .Lstart_\isa, 0, v_st_\isa 0, [rdi]
    guard .Lstart_\isa, 0, v_st_\isa 0, [rdi+\v]
    guard .Lstart_\isa, 0, v_st_\isa \t, [rdi+rdx-2*\v]
    guard .Lstart_\isa, 0, v_st_\isa \t, [rdi+rdx-\v]
    finish_\isa
1:  guard .Lstart_\isa, 0, v_st_\isa 0, [rdi]
    guard .Lstart_\isa, 0, v_st_\isa \t, [rdi+rdx-\v]
    finish_\isa
.endif
.endm

.macro fill isa, v
function telpher_mem_fill_\isa
    mov r8, rdx
    cmp rdx, 16
    jb .Lbelow16_fill_\isa
    mov r9, rsi
    ror r9, 8
    cmp rsi, rcx
    jne .Lmixed_fill_\isa
    cmp r9, rsi
    jne .Lmixed_fill_\isa
    v_splat_\isa
    cmp rdx, 4*\v
    ja .Luniform_fill_\isa
    fill_short \isa, \v, 0
    .p2align 4
.Luniform_fill_\isa:
    fill_blocks \isa, \v, v_sta_\isa, 0, 0
    finish_\isa
    .p2align 4
.Lmixed_fill_\isa:
    cmp rdx, 4*\v
    ja .Llong_fill_\isa
    x_make_\isa
    mov eax, edx
    and eax, 15
    x_rotate_\isa 1
    v_widen_\isa 0
    v_widen_\isa 1
    fill_short \isa, \v, 1
    .p2align 4
.Lbelow16_fill_\isa:
    mov rax, rcx
    mov ecx, edx
    cmp edx, 8
    jb 1f
    shl ecx, 3  # 8*(len-8) modulo 64
    mov r9, rsi
    shrd r9, rax, cl
    guard .Lstart_\isa, 0, mov [rdi], rsi
    guard .Lstart_\isa, 0, mov [rdi+rdx-8], r9
    mov rax, r8
    xor edx, edx
    ret
1:  cmp edx, 4
    jb 1f
    sub ecx, 4
    shl ecx, 3
    mov r9, rsi
    shr r9, cl
    guard .Lstart_\isa, 0, mov [rdi], esi
    guard .Lstart_\isa, 0, mov [rdi+rdx-4], r9d
    mov rax, r8
    xor edx, edx
    ret
1:  test edx, edx
    jz 1f
    mov eax, esi
    guard .Lstart_\isa, 0, mov [rdi], al
    shr eax, 8
    cmp edx, 2
    jb 1f
    guard .Lstart_\isa, 0, mov [rdi+1], al
    je 1f
    shr esi, 16
    mov eax, esi
    guard .Lstart_\isa, 0, mov [rdi+2], al
1:  mov rax, r8
    xor edx, edx
    ret
    .p2align 4
.Llong_fill_\isa:
    long_fill \isa, \v, v_sta_\isa
    finish_\isa
endfunction telpher_mem_fill_\isa

# The same for more than 4 vectors, bypassing the caches.
function telpher_mem_fill_stream_\isa
    mov r8, rdx
    long_fill \isa, \v, v_nt_\isa
    sfence
    finish_\isa
endfunction telpher_mem_fill_stream_\isa
.endm
