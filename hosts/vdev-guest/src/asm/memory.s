# memcpy, memmove, memset, memcmp, bcmp and strlen, hidden outside this library: those of telpher-interpose.

    .section .text.telpher_guest_memory, "ax", @progbits
    .globl memcpy
    .hidden memcpy
    .type memcpy, @function
memcpy:
    jmp     telpher_own_move
    .size memcpy, . - memcpy
    .globl memmove
    .hidden memmove
    .type memmove, @function
memmove:
    jmp     telpher_own_move
    .size memmove, . - memmove
    .globl memset
    .hidden memset
    .type memset, @function
memset:
    jmp     telpher_own_fill
    .size memset, . - memset
    .globl memcmp
    .hidden memcmp
    .type memcmp, @function
memcmp:
    jmp     telpher_own_compare
    .size memcmp, . - memcmp
    .globl bcmp
    .hidden bcmp
    .type bcmp, @function
bcmp:
    jmp     telpher_own_compare
    .size bcmp, . - bcmp
    .globl strlen
    .hidden strlen
    .type strlen, @function
strlen:
    jmp     telpher_own_length
    .size strlen, . - strlen
    .text
