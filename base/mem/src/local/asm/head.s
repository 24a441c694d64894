# Guarded kernels: every instruction that touches memory of the space is listed in a fixup table.
#
# Rules of all kernels:
#   r8   bytes asked for                 rdx  bytes still to do
#   rax  result: bytes done, or offset   rdx  result: 0, or which access faulted
#   r11  written by the trap handler only (the `value` of the table row)
# The kernels are leaf functions: no stack but the red zone, no callee-saved register.
#
# A table row is { instruction, landing, value }. On a fault at `instruction` the handler sets r11 = value and continues
# at `landing`. The landing computes from r8, rdx and r11 how many bytes were *stored*: a retry must not read a source
# byte that an overlapping move has already overwritten.

.pushsection .rodata.telpher_mem_fixups, "a", @progbits
.p2align 2
.globl telpher_mem_fixups_begin
.hidden telpher_mem_fixups_begin
telpher_mem_fixups_begin:
.popsection

.macro guard landing, value, insn:vararg
771:
    \insn
    .pushsection .rodata.telpher_mem_fixups, "a", @progbits
    .long 771b - .
    .long \landing - .
    .long \value
    .popsection
.endm

.macro function name
    .p2align 6
    .globl \name
    .hidden \name
    .type \name, @function
\name:
    .cfi_startproc
.endm

.macro endfunction name
    .cfi_endproc
    .size \name, . - \name
.endm

# Row i of 16 bytes, read at offset p: the shuffle that rotates a 16-byte pattern by p.
.pushsection .rodata.telpher_mem_rotate, "a", @progbits
.p2align 5
.Lrotate_table:
    .byte 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    .byte 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
.popsection

.pushsection .text.telpher_mem, "ax", @progbits
.p2align 6
.globl telpher_mem_text_begin
.hidden telpher_mem_text_begin
telpher_mem_text_begin:

# ---- One row per instruction set: the same operations in three widths. Register n of a macro is a vector register.
# ----

.macro x_ld_sse2 n, m:vararg
    movdqu xmm\n, \m
.endm
.macro x_st_sse2 n, m:vararg
    movdqu \m, xmm\n
.endm
.macro v_ld_sse2 n, m:vararg
    movdqu xmm\n, \m
.endm
.macro v_st_sse2 n, m:vararg
    movdqu \m, xmm\n
.endm
.macro v_sta_sse2 n, m:vararg
    movdqa \m, xmm\n
.endm
.macro v_nt_sse2 n, m:vararg
    movntdq \m, xmm\n
.endm
.macro finish_sse2
    mov rax, r8
    xor edx, edx
    ret
.endm
.macro zeroupper_sse2
.endm

.macro x_ld_avx2 n, m:vararg
    vmovdqu xmm\n, \m
.endm
.macro x_st_avx2 n, m:vararg
    vmovdqu \m, xmm\n
.endm
.macro v_ld_avx2 n, m:vararg
    vmovdqu ymm\n, \m
.endm
.macro v_st_avx2 n, m:vararg
    vmovdqu \m, ymm\n
.endm
.macro v_sta_avx2 n, m:vararg
    vmovdqa \m, ymm\n
.endm
.macro v_nt_avx2 n, m:vararg
    vmovntdq \m, ymm\n
.endm
.macro finish_avx2
    mov rax, r8
    xor edx, edx
    vzeroupper
    ret
.endm
.macro zeroupper_avx2
    vzeroupper
.endm

# Registers 20 and up have no legacy alias, so no upper half becomes dirty and no vzeroupper is needed.
.macro x_ld_avx512 n, m:vararg
    vmovdqu64 xmm2\n, \m
.endm
.macro x_st_avx512 n, m:vararg
    vmovdqu64 \m, xmm2\n
.endm
.macro y_ld_avx512 n, m:vararg
    vmovdqu64 ymm2\n, \m
.endm
.macro y_st_avx512 n, m:vararg
    vmovdqu64 \m, ymm2\n
.endm
.macro v_ld_avx512 n, m:vararg
    vmovdqu64 zmm2\n, \m
.endm
.macro v_st_avx512 n, m:vararg
    vmovdqu64 \m, zmm2\n
.endm
.macro v_sta_avx512 n, m:vararg
    vmovdqa64 \m, zmm2\n
.endm
.macro v_nt_avx512 n, m:vararg
    vmovntdq \m, zmm2\n
.endm
.macro finish_avx512
    mov rax, r8
    xor edx, edx
    ret
.endm
.macro zeroupper_avx512
.endm

# ---- Landings. ----

.macro landings isa
# done = the bytes finished before, plus the value.
.Lstart_\isa:
    mov rax, r8
    sub rax, rdx
    add rax, r11
    jmp .Lfaulted_\isa
# done = the value.
.Lfixed_\isa:
    mov rax, r11
    jmp .Lfaulted_\isa
# Overlapping vectors of both ends: value = (bytes of the first end) << 16 | bytes that the second end still lacks.
.Lends_\isa:
    movzx ecx, r11w
    mov rax, rdx
    sub rax, rcx
    shr r11d, 16
    cmp rax, r11
    cmovb rax, r11
    add rax, r8
    sub rax, rdx
.Lfaulted_\isa:
    sfence
    zeroupper_\isa
    mov edx, 1
    ret
.endm
