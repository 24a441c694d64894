.macro kernels isa, v
    landings \isa
    move \isa, \v, up
    move \isa, \v, down
    fill \isa, \v
    compare \isa, \v, mem, compare
    compare \isa, \v, pat, compare_pattern
.endm

kernels sse2, 16
kernels avx2, 32
kernels avx512, 64

# ---- The processor's own string moves: the fastest for tens of kilobytes and more on processors with fast strings.
# ----

# Like move_up; the distance must not be small.
function telpher_mem_rep_move
    mov r8, rdx
    mov rcx, rdx
    guard .Lrep, 0, rep movsb
    finish_sse2
endfunction telpher_mem_rep_move

# Like fill, for a pattern of equal bytes.
function telpher_mem_rep_fill
    mov r8, rdx
    mov rcx, rdx
    mov eax, esi
    guard .Lrep, 0, rep stosb
    finish_sse2
.Lrep:
    mov rax, r8
    sub rax, rcx
    mov edx, 1
    ret
endfunction telpher_mem_rep_fill

# ---- Byte by byte: find the access that faults. The row's value is returned in rdx: 1 rsi side, 2 rdi side. ----

function telpher_mem_exact_up
    mov r8, rdx
    test rdx, rdx
    jz 2f
1:  guard .Lexact, 1, mov al, [rsi]
    guard .Lexact, 2, mov [rdi], al
    inc rsi
    inc rdi
    dec rdx
    jnz 1b
2:  finish_sse2
endfunction telpher_mem_exact_up

function telpher_mem_exact_down
    mov r8, rdx
    test rdx, rdx
    jz 2f
1:  guard .Lexact, 1, mov al, [rsi+rdx-1]
    guard .Lexact, 2, mov [rdi+rdx-1], al
    dec rdx
    jnz 1b
2:  finish_sse2
endfunction telpher_mem_exact_down

# rax = offset of the first difference, or len. The rdi side is read first.
function telpher_mem_exact_compare
    mov r8, rdx
    test rdx, rdx
    jz 2f
1:  guard .Lexact, 2, mov al, [rdi]
    guard .Lexact, 1, cmp al, [rsi]
    jne 3f
    inc rsi
    inc rdi
    dec rdx
    jnz 1b
2:  finish_sse2
3:  mov rax, r8
    sub rax, rdx
    xor edx, edx
    ret
endfunction telpher_mem_exact_compare

.Lexact:
    mov rax, r8
    sub rax, rdx
    mov edx, r11d
    ret

# fn(rdi address, rsi word 0, rdx word 1, rcx word 2, r8 word 3). Stores stay in order, so the last one is a release.
function telpher_mem_record
    guard .Lfailed, 1, mov [rdi+8], rdx
    guard .Lfailed, 1, mov [rdi+16], rcx
    guard .Lfailed, 1, mov [rdi+24], r8
    guard .Lfailed, 1, mov [rdi], rsi
    xor eax, eax
    xor edx, edx
    ret
.Lfailed:
    xor eax, eax
    mov edx, r11d
    ret
endfunction telpher_mem_record

# fn(rdi address).
function telpher_mem_probe_read
    guard .Lfailed, 1, movzx eax, byte ptr [rdi]
    xor eax, eax
    xor edx, edx
    ret
endfunction telpher_mem_probe_read

# An atomic write that changes nothing: concurrent stores of other threads are kept.
function telpher_mem_probe_write
    guard .Lfailed, 1, lock or byte ptr [rdi], 0
    xor eax, eax
    xor edx, edx
    ret
endfunction telpher_mem_probe_write

# One byte of each page from rdi to rsi, the last byte of the range, is read, and for writing stored again. The bytes
# between the first and the last one have different places in their pages: with the same place, a processor takes the
# next load for one that depends on the store before. A range that wraps has faulted before, as no process can access
# the last page of the address space.
.macro probe_pages access, store:vararg
function telpher_mem_probe_pages_\access
    xor ecx, ecx
1:  guard .Lfailed, 1, movzx eax, byte ptr [rdi]
    \store
    or rdi, 4095
    inc rdi
    cmp rdi, rsi
    ja 2f
    add ecx, 64
    and ecx, 4032
    lea rax, [rdi+rcx]
    cmp rax, rsi
    cmovbe rdi, rax
    jmp 1b
2:  xor eax, eax
    xor edx, edx
    ret
endfunction telpher_mem_probe_pages_\access
.endm
probe_pages read
probe_pages write, guard .Lfailed, 1, mov byte ptr [rdi], al

# One word. fn(rdi address) -> (rax word, rdx faulted).
.macro load bytes, insn:vararg
function telpher_mem_load_\bytes
    guard .Lfailed, 1, \insn
    xor edx, edx
    ret
endfunction telpher_mem_load_\bytes
.endm
load 1, movzx eax, byte ptr [rdi]
load 2, movzx eax, word ptr [rdi]
load 4, mov eax, dword ptr [rdi]
load 8, mov rax, qword ptr [rdi]

# fn(rdi address, rsi expected, rdx new) -> (rax word before, rdx faulted). `widen` clears the bits above the word.
.macro exchange bytes, size, new, widen:vararg
function telpher_mem_exchange_\bytes
    mov rax, rsi
    guard .Lfailed, 1, lock cmpxchg \size ptr [rdi], \new
    \widen
    xor edx, edx
    ret
endfunction telpher_mem_exchange_\bytes
.endm
exchange 1, byte, dl, movzx eax, al
exchange 2, word, dx, movzx eax, ax
exchange 4, dword, edx, mov eax, eax
exchange 8, qword, rdx

# fn(rdi first line, rsi unused, rdx bytes, a multiple of 64) -> (rax bytes flushed, rdx faulted).
.macro flush name, insn
function telpher_mem_\name
    mov r8, rdx
    test rdx, rdx
    jz 2f
1:  guard .Lstart_sse2, 0, \insn byte ptr [rdi]
    add rdi, 64
    sub rdx, 64
    jnz 1b
2:  sfence
    finish_sse2
endfunction telpher_mem_\name
.endm
flush clflush, clflush
flush clflushopt, clflushopt

.globl telpher_mem_text_end
.hidden telpher_mem_text_end
telpher_mem_text_end:
.popsection

.pushsection .rodata.telpher_mem_fixups, "a", @progbits
.globl telpher_mem_fixups_end
.hidden telpher_mem_fixups_end
telpher_mem_fixups_end:
.popsection
