# Folding. fn(rdi src, rsi register, rdx len, rcx multipliers, r8 into) -> (rax 0, rdx faulted).
#
# Replaces a message of len bytes, a multiple of 256 and not 0, by 256 bytes with the same remainder modulo a polynomial
# of at most 32 bits. Four vectors are moved 256 bytes forward by two carry-less multiplies for each lane, and added to
# the bytes there. The register is added to the first four bytes of the message. Only the end stores.
function telpher_mem_fold_avx512
    vmovd xmm24, esi
    guard .Lfailed, 1, vpxorq zmm20, zmm24, [rdi]
.irp i, 1, 2, 3
    guard .Lfailed, 1, vmovdqu64 zmm2\i, [rdi+\i*64]
.endr
    vbroadcasti32x4 zmm28, [rcx]
    jmp 2f
    .p2align 5
1:
.irp i, 0, 1, 2, 3
    vpclmulqdq zmm24, zmm2\i, zmm28, 0x11
    vpclmulqdq zmm2\i, zmm2\i, zmm28, 0x00
    guard .Lfailed, 1, vpternlogq zmm2\i, zmm24, [rdi+\i*64], 0x96  # xor of three
.endr
2:  add rdi, 256
    sub rdx, 256
    jnz 1b
.irp i, 0, 1, 2, 3
    vmovdqu64 [r8+\i*64], zmm2\i
.endr
    xor eax, eax
    xor edx, edx
    ret
endfunction telpher_mem_fold_avx512
