# memmove, memset, memcmp and strlen with the C library's semantics, under names of their own.
# Intel syntax. Arguments: rdi, rsi, rdx; result: rax. The calling convention keeps the direction flag clear.

    .section .text.telpher_own_memory, "ax", @progbits
    .p2align 6

    .globl telpher_own_move
    .hidden telpher_own_move
    .type telpher_own_move, @function
# Ranges may overlap: a short range is loaded completely before it is stored.
telpher_own_move:
    mov     rax, rdi
    cmp     rdx, 16
    jb      .Ltelpher_move_under_16
    cmp     rdx, 32
    ja      .Ltelpher_move_over_32
    movups  xmm0, [rsi]
    movups  xmm1, [rsi + rdx - 16]
    movups  [rdi], xmm0
    movups  [rdi + rdx - 16], xmm1
    ret
.Ltelpher_move_over_32:
    cmp     rdx, 64
    ja      .Ltelpher_move_over_64
    movups  xmm0, [rsi]
    movups  xmm1, [rsi + 16]
    movups  xmm2, [rsi + rdx - 32]
    movups  xmm3, [rsi + rdx - 16]
    movups  [rdi], xmm0
    movups  [rdi + 16], xmm1
    movups  [rdi + rdx - 32], xmm2
    movups  [rdi + rdx - 16], xmm3
    ret
.Ltelpher_move_over_64:
    mov     rcx, rdi
    sub     rcx, rsi
    cmp     rcx, rdx
    jb      .Ltelpher_move_down           # 0 < dst - src < len: from the end
    mov     rcx, rdx
    rep     movsb
    ret
.Ltelpher_move_down:
    # 32 bytes per round from the end; the first 32 were loaded before anything was stored.
    movups  xmm4, [rsi]
    movups  xmm5, [rsi + 16]
.Ltelpher_move_down_turn:
    movups  xmm0, [rsi + rdx - 16]
    movups  xmm1, [rsi + rdx - 32]
    movups  [rdi + rdx - 16], xmm0
    movups  [rdi + rdx - 32], xmm1
    sub     rdx, 32
    cmp     rdx, 32
    ja      .Ltelpher_move_down_turn
    movups  [rdi], xmm4
    movups  [rdi + 16], xmm5
    ret
.Ltelpher_move_under_16:
    cmp     edx, 8
    jb      .Ltelpher_move_under_8
    mov     rcx, [rsi]
    mov     r8, [rsi + rdx - 8]
    mov     [rdi], rcx
    mov     [rdi + rdx - 8], r8
    ret
.Ltelpher_move_under_8:
    cmp     edx, 4
    jb      .Ltelpher_move_under_4
    mov     ecx, [rsi]
    mov     r8d, [rsi + rdx - 4]
    mov     [rdi], ecx
    mov     [rdi + rdx - 4], r8d
    ret
.Ltelpher_move_under_4:
    test    edx, edx
    jz      .Ltelpher_move_done
    # One, two or three bytes: the first, the middle, the last.
    mov     r9, rdx
    shr     r9
    movzx   ecx, byte ptr [rsi]
    movzx   r8d, byte ptr [rsi + r9]
    movzx   r10d, byte ptr [rsi + rdx - 1]
    mov     [rdi], cl
    mov     [rdi + r9], r8b
    mov     [rdi + rdx - 1], r10b
.Ltelpher_move_done:
    ret
    .size telpher_own_move, . - telpher_own_move

    .globl telpher_own_fill
    .hidden telpher_own_fill
    .type telpher_own_fill, @function
telpher_own_fill:
    mov     r8, rdi
    mov     eax, esi
    mov     rcx, rdx
    rep     stosb
    mov     rax, r8
    ret
    .size telpher_own_fill, . - telpher_own_fill

    .globl telpher_own_compare
    .hidden telpher_own_compare
    .type telpher_own_compare, @function
telpher_own_compare:
    xor     ecx, ecx
    cmp     rdx, 8
    jb      .Ltelpher_compare_bytes
    lea     r8, [rdx - 8]
.Ltelpher_compare_words:
    mov     rax, [rdi + rcx]
    cmp     rax, [rsi + rcx]
    jne     .Ltelpher_compare_bytes
    add     rcx, 8
    cmp     rcx, r8
    jbe     .Ltelpher_compare_words
.Ltelpher_compare_bytes:
    cmp     rcx, rdx
    jae     .Ltelpher_compare_equal
    movzx   eax, byte ptr [rdi + rcx]
    movzx   r8d, byte ptr [rsi + rcx]
    inc     rcx
    sub     eax, r8d
    jz      .Ltelpher_compare_bytes
    ret
.Ltelpher_compare_equal:
    xor     eax, eax
    ret
    .size telpher_own_compare, . - telpher_own_compare

    .globl telpher_own_length
    .hidden telpher_own_length
    .type telpher_own_length, @function
telpher_own_length:
    xor     eax, eax
.Ltelpher_length_turn:
    cmp     byte ptr [rdi + rax], 0
    je      .Ltelpher_length_done
    inc     rax
    jmp     .Ltelpher_length_turn
.Ltelpher_length_done:
    ret
    .size telpher_own_length, . - telpher_own_length
    .text
