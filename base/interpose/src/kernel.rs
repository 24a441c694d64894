//! System calls, made directly: the C library's functions of the same names may be the ones we stand in for.
#![allow(unsafe_code, reason = "makes system calls")]

use std::arch::asm;

/// A negated return value of the kernel.
pub type Errno = i32;

/// The kernel's `struct sigaction` on x86-64.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct KernelAction {
    pub(crate) handler: usize,
    pub(crate) flags: u64,
    pub(crate) restorer: usize,
    pub(crate) mask: u64,
}

/// A C integer as a call's argument.
const fn word(value: i32) -> usize {
    (value as isize).cast_unsigned()
}

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

/// One system call with up to six arguments.
///
/// # Safety
/// The arguments are what the call of that number asks for, and what it does to this process is what the caller wants.
#[inline]
unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    let result: i64;
    // SAFETY: the kernel's calling convention: it preserves everything but rax, rcx and r11. What it does to memory is the
    // caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    // Errors are -4095..=-1; the cast keeps such a small number.
    #[allow(clippy::cast_possible_truncation, reason = "-4095 to -1, or a word of 64 bits")]
    if (-4095..0).contains(&result) { Err(-result as Errno) } else { Ok(result.cast_unsigned() as usize) }
}

/// `rt_sigaction`.
///
/// # Safety
/// A new handler is fit to be called for `signal` on any thread, and returns through its restorer.
pub(crate) unsafe fn action(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, Errno> {
    let mut old = KernelAction::default();
    let new = new.map_or(0, |new| std::ptr::from_ref(new).addr());
    // SAFETY: both are structures of the kernel's layout that live across the call; the handler is the caller's promise.
    unsafe {
        call(libc::SYS_rt_sigaction, [word(signal), new, (&raw mut old).expose_provenance(), SET_BYTES, 0, 0])?;
    }
    Ok(old)
}

/// How a thread's signal mask changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Adds to it.
    Block,
    /// Takes from it.
    Unblock,
    /// Replaces it.
    Set,
}

impl Change {
    /// The mask after the change.
    pub(crate) fn apply(self, mask: u64, set: u64) -> u64 {
        match self {
            Change::Block => mask | set,
            Change::Unblock => mask & !set,
            Change::Set => set,
        }
    }
}

/// `rt_sigprocmask`: the mask before.
pub(crate) fn mask(change: Option<(Change, u64)>) -> u64 {
    let mut old = 0u64;
    let (how, set) = match &change {
        None => (libc::SIG_BLOCK, 0),
        Some((Change::Block, set)) => (libc::SIG_BLOCK, (&raw const *set).addr()),
        Some((Change::Unblock, set)) => (libc::SIG_UNBLOCK, (&raw const *set).addr()),
        Some((Change::Set, set)) => (libc::SIG_SETMASK, (&raw const *set).addr()),
    };
    // SAFETY: both sets have the kernel's eight bytes and live across the call. With such arguments the call cannot fail.
    let _ = unsafe {
        call(libc::SYS_rt_sigprocmask, [word(how), set, (&raw mut old).expose_provenance(), SET_BYTES, 0, 0])
    };
    old
}

/// All signals but those that must never be blocked: what is blocked while our own handlers run.
pub(crate) const ALL: u64 = !crate::signals::PROTECTED;

/// Process and thread.
fn ids() -> (usize, usize) {
    // SAFETY: asks for numbers; cannot fail.
    let pid = unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0);
    // SAFETY: as before.
    let tid = unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0);
    (pid, tid)
}

/// `getpid`.
pub(crate) fn process() -> usize {
    ids().0
}

/// Sends `info` to this thread as if it had not arrived yet.
///
/// # Errors
/// `EAGAIN`: the queue of real-time signals is full.
pub(crate) fn send_again(signal: i32, info: &libc::siginfo_t) -> Result<(), Errno> {
    let (pid, tid) = ids();
    let info = std::ptr::from_ref(info).expose_provenance();
    // SAFETY: reads a siginfo that lives; to oneself any si_code may be sent. What a signal does is the program's affair.
    unsafe { call(libc::SYS_rt_tgsigqueueinfo, [pid, tid, word(signal), info, 0, 0]) }.map(|_| ())
}

/// `rt_sigpending`.
pub(crate) fn pending() -> u64 {
    let mut set = 0u64;
    // SAFETY: writes eight bytes; cannot fail.
    let _ = unsafe { call(libc::SYS_rt_sigpending, [(&raw mut set).expose_provenance(), SET_BYTES, 0, 0, 0, 0]) };
    set
}

/// `openat`, to read a file.
///
/// # Safety
/// `path` is a string, and `directory` a descriptor or `AT_FDCWD`.
pub(crate) unsafe fn open(directory: i32, path: *const libc::c_char, flags: i32) -> Result<i32, Errno> {
    let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: the path is the caller's promise; without O_CREAT no file is made.
    let opened = unsafe { call(libc::SYS_openat, [word(directory), path.expose_provenance(), word(flags), 0, 0, 0]) }?;
    i32::try_from(opened).map_err(|_| libc::EBADF)
}

/// `close`, of a descriptor that the caller has opened.
pub(crate) fn close(descriptor: i32) {
    // SAFETY: no pointer is passed.
    let _ = unsafe { call(libc::SYS_close, [word(descriptor), 0, 0, 0, 0, 0]) };
}

/// `pread64`: bytes of a file, as many as there are; 0 if it cannot be read.
pub(crate) fn read_at(descriptor: i32, offset: u64, into: &mut [u8]) -> usize {
    let Ok(offset) = usize::try_from(offset) else { return 0 };
    let arguments = [word(descriptor), into.as_mut_ptr().expose_provenance(), into.len(), offset, 0, 0];
    // SAFETY: writes into a slice that lives.
    unsafe { call(libc::SYS_pread64, arguments) }.unwrap_or(0)
}

/// `newfstatat`.
///
/// # Safety
/// As [`open`].
pub(crate) unsafe fn status(directory: i32, path: *const libc::c_char, flags: i32) -> Result<libc::stat, Errno> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    let arguments =
        [word(directory), path.expose_provenance(), status.as_mut_ptr().expose_provenance(), word(flags), 0, 0];
    // SAFETY: the path is the caller's promise; the kernel's structure on x86-64 is the C library's.
    unsafe { call(libc::SYS_newfstatat, arguments) }?;
    // SAFETY: the call has succeeded, and filled it in.
    Ok(unsafe { status.assume_init() })
}

/// `faccessat`: the file can be executed by this user.
///
/// # Safety
/// As [`open`].
pub(crate) unsafe fn may_execute(directory: i32, path: *const libc::c_char) -> bool {
    let arguments = [word(directory), path.expose_provenance(), word(libc::X_OK), 0, 0, 0];
    // SAFETY: the path is the caller's promise.
    unsafe { call(libc::SYS_faccessat, arguments) }.is_ok()
}

/// `fgetxattr`: the file has an attribute of this name.
pub(crate) fn has_attribute(descriptor: i32, name: &std::ffi::CStr) -> bool {
    // SAFETY: the name is a string that lives; with a size of zero nothing is written.
    unsafe { call(libc::SYS_fgetxattr, [word(descriptor), name.as_ptr().addr(), 0, 0, 0, 0]) }
        .is_ok_and(|bytes| bytes > 0)
}

/// `fstatfs`: programs of this file system gain no rights when they are executed.
pub(crate) fn is_nosuid(descriptor: i32) -> bool {
    /// Words of the kernel's `struct statfs` on x86-64, and which of them has the flags. Source: asm-generic/statfs.h.
    const WORDS: usize = 15;
    const FLAGS: usize = 10;
    /// Source: linux/statfs.h, ST_NOSUID.
    const NOSUID: u64 = 2;
    let mut status = [0_u64; WORDS];
    let arguments = [word(descriptor), status.as_mut_ptr().expose_provenance(), 0, 0, 0, 0];
    // SAFETY: writes a structure of so many words.
    let known = unsafe { call(libc::SYS_fstatfs, arguments) }.is_ok();
    known && status[FLAGS] & NOSUID != 0
}

/// This process gains no rights by executing a program (`PR_GET_NO_NEW_PRIVS`).
pub(crate) fn gains_no_rights() -> bool {
    // SAFETY: asks for a number.
    let answer = unsafe { call(libc::SYS_prctl, [word(libc::PR_GET_NO_NEW_PRIVS), 0, 0, 0, 0, 0]) };
    answer == Ok(1)
}

/// Real user and group.
pub(crate) fn user_and_group() -> (u32, u32) {
    // SAFETY: asks for a number; cannot fail.
    let user = unsafe { call(libc::SYS_getuid, [0; 6]) }.unwrap_or(0);
    // SAFETY: as before.
    let group = unsafe { call(libc::SYS_getgid, [0; 6]) }.unwrap_or(0);
    (u32::try_from(user).unwrap_or(u32::MAX), u32::try_from(group).unwrap_or(u32::MAX))
}

/// `writev` of some parts to standard error, in one call. Nothing can be done if it cannot be written.
pub(crate) fn write_error(parts: &[&[u8]]) {
    const MOST: usize = 10;
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST];
    for (vector, part) in vectors.iter_mut().zip(parts) {
        *vector = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
    }
    let count = parts.len().min(MOST);
    let arguments = [word(libc::STDERR_FILENO), vectors.as_ptr().expose_provenance(), count, 0, 0, 0];
    // SAFETY: reads slices that live.
    let _ = unsafe { call(libc::SYS_writev, arguments) };
}

/// `execveat`.
///
/// # Safety
/// As execveat(2).
pub(crate) unsafe fn execute(
    directory: i32,
    path: *const libc::c_char,
    arguments: *const *const libc::c_char,
    environment: *const *const libc::c_char,
    flags: i32,
) -> Errno {
    let words = [
        word(directory),
        path.expose_provenance(),
        arguments.expose_provenance(),
        environment.expose_provenance(),
        word(flags),
        0,
    ];
    // SAFETY: forwarded. It returns only if it fails.
    unsafe { call(libc::SYS_execveat, words) }.err().unwrap_or(libc::ENOEXEC)
}

/// `pidfd_open`.
pub(crate) fn open_process(process: i32) -> Result<i32, Errno> {
    // SAFETY: no pointer is passed.
    let opened = unsafe { call(libc::SYS_pidfd_open, [word(process), 0, 0, 0, 0, 0]) }?;
    i32::try_from(opened).map_err(|_| libc::EBADF)
}

/// `munmap`.
///
/// # Safety
/// The pages are the caller's, and nothing uses them any more.
pub(crate) unsafe fn unmap(address: usize, bytes: usize) {
    // SAFETY: forwarded.
    let _ = unsafe { call(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]) };
}

/// `sched_yield`.
pub(crate) fn yield_now() {
    // SAFETY: changes nothing.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// The base of GS.
pub(crate) fn gs_base() -> u64 {
    const ARCH_GET_GS: usize = 0x1004;
    let mut base = 0u64;
    // SAFETY: writes eight bytes; cannot fail.
    let _ = unsafe { call(libc::SYS_arch_prctl, [ARCH_GET_GS, (&raw mut base).expose_provenance(), 0, 0, 0, 0]) };
    base
}

/// Commands of `membarrier`.
const REGISTER_SYNC_CORE: usize = 1 << 6;
const SYNC_CORE: usize = 1 << 5;

/// Returns when every thread of this process has executed a serialising instruction, or will do so before its next one in user
/// mode.
///
/// # Errors
/// `ENOSYS`, `EINVAL`: the kernel cannot.
pub(crate) fn serialise_all_threads() -> Result<(), Errno> {
    // SAFETY: a barrier changes nothing but time.
    match unsafe { call(libc::SYS_membarrier, [SYNC_CORE, 0, 0, 0, 0, 0]) } {
        Err(libc::EPERM) => {
            // SAFETY: declares that barriers will be asked for.
            unsafe { call(libc::SYS_membarrier, [REGISTER_SYNC_CORE, 0, 0, 0, 0, 0])? };
            // SAFETY: as before.
            unsafe { call(libc::SYS_membarrier, [SYNC_CORE, 0, 0, 0, 0, 0]) }.map(|_| ())
        }
        result => result.map(|_| ()),
    }
}

/// Private anonymous memory: anywhere, or exactly at `address` where nothing is yet.
///
/// # Errors
/// As `mmap`; `EEXIST` if something is there.
pub(crate) fn map(address: Option<usize>, bytes: usize, protection: i32) -> Result<usize, Errno> {
    let place = if address.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | place;
    let arguments = [address.unwrap_or(0), bytes, word(protection), word(flags), usize::MAX, 0];
    // SAFETY: new memory, which replaces none.
    let got = unsafe { call(libc::SYS_mmap, arguments) }?;
    match address {
        // Kernels before 4.17 take the address for a hint.
        Some(address) if got != address => {
            // SAFETY: just mapped, and nobody knows of it.
            let _ = unsafe { call(libc::SYS_munmap, [got, bytes, 0, 0, 0, 0]) };
            Err(libc::EEXIST)
        }
        _ => Ok(got),
    }
}

/// Makes pages inaccessible.
///
/// # Safety
/// They are the caller's, and nobody uses them.
pub(crate) unsafe fn forbid(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: forwarded.
    unsafe { call(libc::SYS_mprotect, [address, bytes, word(libc::PROT_NONE), 0, 0, 0]) }.map(|_| ())
}

/// This process' memory as a file: writes through it do not ask for write permission of the pages, and copy private ones.
#[derive(Debug)]
pub(crate) struct Memory {
    descriptor: usize,
}

impl Memory {
    /// # Errors
    /// As `open`: /proc may be absent, or the process not allowed.
    pub(crate) fn open() -> Result<Self, Errno> {
        let path = c"/proc/thread-self/mem";
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        let arguments = [word(libc::AT_FDCWD), path.as_ptr().addr(), word(flags), 0, 0, 0];
        // SAFETY: the path is a string that lives.
        let descriptor = unsafe { call(libc::SYS_openat, arguments) }?;
        Ok(Self { descriptor })
    }

    /// Writes `bytes` at `address`; false if not all of them were.
    ///
    /// # Safety
    /// Nothing relies on what was there.
    pub(crate) unsafe fn write(&self, address: usize, bytes: &[u8]) -> bool {
        let arguments = [self.descriptor, bytes.as_ptr().expose_provenance(), bytes.len(), address, 0, 0];
        // SAFETY: reads a slice that lives; what is written is the caller's affair.
        let written = unsafe { call(libc::SYS_pwrite64, arguments) };
        written == Ok(bytes.len())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        let _ = unsafe { call(libc::SYS_close, [self.descriptor, 0, 0, 0, 0, 0]) };
    }
}
