//! Children of `vfork`: their calls stay with the CPU. Such a child has its parent's memory and thread pointer, and its
//! parent's thread waits until it has ended or executed a program. So only a note in the thread's storage shows it.
#![allow(unsafe_code, reason = "replaces the C library's vfork, written in assembly")]

use crate::thread::vforked;
use std::arch::naked_asm;

/// Returns whether this is a child of `vfork`.
#[inline]
pub(crate) fn is_child() -> bool {
    vforked().get() > 0
}

/// `vfork`, with a note for the time until the parent goes on. The return address is kept in a register meanwhile,
/// because the child returns first and uses the stack. Source: glibc, sysdeps/unix/sysv/linux/x86_64/vfork.S.
///
/// # Safety
/// As for the C library's function.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn vfork() -> libc::pid_t {
    naked_asm!(
        "endbr64",
        "mov rdx, qword ptr [rip + telpher_offload_vforked@GOTTPOFF]",
        "pop rdi",
        "mov eax, {number}",
        // Keeps all registers but rax, rcx and r11.
        "syscall",
        "test eax, eax",
        "jz 2f",
        "push rdi",
        "cmp rax, -4095",
        "jae 3f",
        "dec qword ptr fs:[rdx]",
        "ret",
        // A jump leaves the processor's shadow stack as it is; the parent returns by it later.
        "2:",
        "inc qword ptr fs:[rdx]",
        "jmp rdi",
        "3:",
        "push rax",
        "call qword ptr [rip + {errno}@GOTPCREL]",
        "pop rdx",
        "neg edx",
        "mov dword ptr [rax], edx",
        "mov rax, -1",
        "ret",
        number = const libc::SYS_vfork,
        errno = sym libc::__errno_location,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_is_there_in_the_child_and_gone_in_the_parent() {
        for _ in 0..3 {
            assert!(!is_child());
            // SAFETY: the child only reads its note, makes another such child, and exits.
            let child = unsafe { vfork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe {
                    let own = vfork();
                    if own == 0 {
                        libc::_exit(if is_child() { 0 } else { 1 });
                    }
                    let mut status = 0;
                    let ended = libc::waitpid(own, &raw mut status, 0) == own && status == 0;
                    libc::_exit(if ended && is_child() { 0 } else { 1 });
                }
            }
            assert!(child > 0, "{}", std::io::Error::last_os_error());
            let mut status = 1;
            // SAFETY: our own child, and a local variable for its status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        assert!(!is_child());
    }
}
