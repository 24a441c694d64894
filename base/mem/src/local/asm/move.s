# Moves. fn(rdi dst, rsi src, rdx len) -> (rax done, rdx faulted).
#
# Up to 8 vectors: everything is loaded before anything is stored, so overlap does not matter. Stores go in the
# direction of the move, so that no byte past a fault is stored. More than 8 vectors: blocks of 4 vectors with an
# aligned destination. Each block is loaded before it is stored, in the direction in which overlap is allowed.

# `w`-byte registers, `h` of them at each end; covers h*w <= rdx <= 2*h*w. dir is up or down.
.macro ends1 isa, dir, k, w
    guard .Lstart_\isa, 0, \k\()_ld_\isa 0, [rsi]
    guard .Lstart_\isa, 0, \k\()_ld_\isa 1, [rsi+rdx-\w]
.ifc \dir,up
    guard .Lstart_\isa, 0, \k\()_st_\isa 0, [rdi]
    guard .Lstart_\isa, \w, \k\()_st_\isa 1, [rdi+rdx-\w]
.else
    guard .Lstart_\isa, 0, \k\()_st_\isa 1, [rdi+rdx-\w]
    guard .Lstart_\isa, \w, \k\()_st_\isa 0, [rdi]
.endif
.endm

.macro ends2 isa, dir, k, w
.irp i, 0, 1
    guard .Lstart_\isa, 0, \k\()_ld_\isa \i, [rsi+\i*\w]
.endr
.irp i, 2, 3
    guard .Lstart_\isa, 0, \k\()_ld_\isa \i, [rsi+rdx-(4-\i)*\w]
.endr
.ifc \dir,up
.irp i, 0, 1
    guard .Lstart_\isa, \i*\w, \k\()_st_\isa \i, [rdi+\i*\w]
.endr
.irp i, 2, 3
    guard .Lends_\isa, 2*\w*65536+(4-\i)*\w, \k\()_st_\isa \i, [rdi+rdx-(4-\i)*\w]
.endr
.else
.irp i, 3, 2
    guard .Lstart_\isa, (3-\i)*\w, \k\()_st_\isa \i, [rdi+rdx-(4-\i)*\w]
.endr
.irp i, 1, 0
    guard .Lends_\isa, 2*\w*65536+(\i+1)*\w, \k\()_st_\isa \i, [rdi+\i*\w]
.endr
.endif
.endm

.macro ends4 isa, dir, k, w
.irp i, 0, 1, 2, 3
    guard .Lstart_\isa, 0, \k\()_ld_\isa \i, [rsi+\i*\w]
.endr
.irp i, 4, 5, 6, 7
    guard .Lstart_\isa, 0, \k\()_ld_\isa \i, [rsi+rdx-(8-\i)*\w]
.endr
.ifc \dir,up
.irp i, 0, 1, 2, 3
    guard .Lstart_\isa, \i*\w, \k\()_st_\isa \i, [rdi+\i*\w]
.endr
.irp i, 4, 5, 6, 7
    guard .Lends_\isa, 4*\w*65536+(8-\i)*\w, \k\()_st_\isa \i, [rdi+rdx-(8-\i)*\w]
.endr
.else
.irp i, 7, 6, 5, 4
    guard .Lstart_\isa, (7-\i)*\w, \k\()_st_\isa \i, [rdi+rdx-(8-\i)*\w]
.endr
.irp i, 3, 2, 1, 0
    guard .Lends_\isa, 4*\w*65536+(\i+1)*\w, \k\()_st_\isa \i, [rdi+\i*\w]
.endr
.endif
.endm

# The same with general registers: a and b are registers of w bytes.
.macro gpr isa, dir, a, b, w
    guard .Lstart_\isa, 0, mov \a, [rsi]
    guard .Lstart_\isa, 0, mov \b, [rsi+rdx-\w]
.ifc \dir,up
    guard .Lstart_\isa, 0, mov [rdi], \a
    guard .Lstart_\isa, \w, mov [rdi+rdx-\w], \b
.else
    guard .Lstart_\isa, 0, mov [rdi+rdx-\w], \b
    guard .Lstart_\isa, \w, mov [rdi], \a
.endif
    mov rax, r8
    xor edx, edx
    ret
.endm

# Sizes below 16. Entered with rdx < 16.
.macro below16 isa, dir
    cmp edx, 8
    jb 1f
    gpr \isa, \dir, r9, r10, 8
1:  cmp edx, 4
    jb 1f
    gpr \isa, \dir, r9d, r10d, 4
1:  cmp edx, 2
    jb 1f
    gpr \isa, \dir, r9w, r10w, 2
1:  test edx, edx
    jz 1f
    guard .Lstart_\isa, 0, movzx eax, byte ptr [rsi]
    guard .Lstart_\isa, 0, mov [rdi], al
1:  mov rax, r8
    xor edx, edx
    ret
.endm

# One block of four aligned stores; the landing of the first store differs after the unaligned head.
.macro block_up isa, st, firstlanding, firstvalue, v
    guard \firstlanding, \firstvalue, \st 0, [rdi]
.irp i, 1, 2, 3
    guard .Lstart_\isa, \i*\v, \st \i, [rdi+\i*\v]
.endr
.endm
.macro block_down isa, st, firstlanding, firstvalue, v
    guard \firstlanding, \firstvalue, \st 0, [rdi+rdx-\v]
.irp i, 1, 2, 3
    guard .Lstart_\isa, \i*\v, \st \i, [rdi+rdx-(\i+1)*\v]
.endr
.endm

# More than 8 vectors, ascending. The first block is loaded before the head is stored: with dst < src and a distance
# below one vector the head would overwrite what the block must read.
.macro long_up isa, v, st
    guard .Lstart_\isa, 0, v_ld_\isa 4, [rsi]
    mov r9, rdi
    and r9d, \v-1
    neg r9
    add r9, \v
.irp i, 0, 1, 2, 3
    guard .Lstart_\isa, 0, v_ld_\isa \i, [rsi+r9+\i*\v]
.endr
    guard .Lstart_\isa, 0, v_st_\isa 4, [rdi]
    add rdi, r9
    add rsi, r9
    sub rdx, r9
    block_up \isa, \st, .Lfixed_\isa, \v, \v
    add rdi, 4*\v
    add rsi, 4*\v
    sub rdx, 4*\v
    cmp rdx, 4*\v
    jb 3f
    .p2align 5
2:
.irp i, 0, 1, 2, 3
    guard .Lstart_\isa, 0, v_ld_\isa \i, [rsi+\i*\v]
.endr
    add rsi, 4*\v
    block_up \isa, \st, .Lstart_\isa, 0, \v
    add rdi, 4*\v
    sub rdx, 4*\v
    cmp rdx, 4*\v
    jae 2b
3:
.endm

.macro long_down isa, v, st
    guard .Lstart_\isa, 0, v_ld_\isa 4, [rsi+rdx-\v]
    lea r9, [rdi+rdx-1]
    and r9d, \v-1
    neg r9
    lea r9, [rdx+r9-1]
.irp i, 0, 1, 2, 3
    guard .Lstart_\isa, 0, v_ld_\isa \i, [rsi+r9-(\i+1)*\v]
.endr
    guard .Lstart_\isa, 0, v_st_\isa 4, [rdi+rdx-\v]
    mov rdx, r9
    block_down \isa, \st, .Lfixed_\isa, \v, \v
    sub rdx, 4*\v
    cmp rdx, 4*\v
    jb 3f
    .p2align 5
2:
.irp i, 0, 1, 2, 3
    guard .Lstart_\isa, 0, v_ld_\isa \i, [rsi+rdx-(\i+1)*\v]
.endr
    block_down \isa, \st, .Lstart_\isa, 0, \v
    sub rdx, 4*\v
    cmp rdx, 4*\v
    jae 2b
3:
.endm

.macro move isa, v, dir
function telpher_mem_move_\dir\()_\isa
    mov r8, rdx
.Lladder_\dir\()_\isa:
    cmp rdx, 2*\v
    ja 2f
    cmp rdx, 16
    jb .Lbelow16_\dir\()_\isa
.if \v > 16
    cmp rdx, 32
    ja 1f
.endif
    ends1 \isa, \dir, x, 16
    finish_\isa
.if \v == 32
1:  ends1 \isa, \dir, v, 32
    finish_\isa
.endif
.if \v == 64
1:  cmp rdx, 64
    ja 1f
    ends1 \isa, \dir, y, 32
    finish_\isa
1:  ends1 \isa, \dir, v, 64
    finish_\isa
.endif
    .p2align 4
2:  cmp rdx, 4*\v
    ja 2f
    ends2 \isa, \dir, v, \v
    finish_\isa
2:  cmp rdx, 8*\v
    ja .Llong_\dir\()_\isa
    ends4 \isa, \dir, v, \v
    finish_\isa
.Lbelow16_\dir\()_\isa:
    below16 \isa, \dir
    .p2align 4
.Llong_\dir\()_\isa:
    long_\dir \isa, \v, v_sta_\isa
    jmp .Lladder_\dir\()_\isa
endfunction telpher_mem_move_\dir\()_\isa

# The same for more than 8 vectors, bypassing the caches.
function telpher_mem_stream_\dir\()_\isa
    mov r8, rdx
    long_\dir \isa, \v, v_nt_\isa
    sfence
    jmp .Lladder_\dir\()_\isa
endfunction telpher_mem_stream_\dir\()_\isa
.endm
