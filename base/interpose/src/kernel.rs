//! Direct system calls: the C library's functions of the same names may be the ones that we replace.
#![allow(unsafe_code, reason = "makes system calls")]

use std::arch::asm;
use std::sync::atomic::AtomicU32;

/// A kernel error number.
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

/// Converts a C integer to a call's argument.
const fn word(value: i32) -> usize {
    (value as isize).cast_unsigned()
}

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

/// Makes a system call with up to six arguments.
///
/// # Safety
/// The arguments are valid for the call of that number, and the caller wants its effect on this process.
#[inline]
unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    let result: i64;
    // SAFETY: the kernel's calling convention preserves everything but rax, rcx and r11. Its effect on memory is the
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
/// A new handler may be called for `signal` on any thread, and returns through its restorer.
pub(crate) unsafe fn action(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, Errno> {
    let mut old = KernelAction::default();
    let new = new.map_or(0, |new| std::ptr::from_ref(new).addr());
    // SAFETY: both structures have the kernel's layout and live across the call; the handler is the caller's promise.
    unsafe {
        call(libc::SYS_rt_sigaction, [word(signal), new, (&raw mut old).expose_provenance(), SET_BYTES, 0, 0])?;
    }
    Ok(old)
}

/// How a thread's signal mask changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Adds signals to it.
    Block,
    /// Removes signals from it.
    Unblock,
    /// Replaces it.
    Set,
}

impl Change {
    /// Returns the mask after the change.
    pub(crate) fn apply(self, mask: u64, set: u64) -> u64 {
        match self {
            Change::Block => mask | set,
            Change::Unblock => mask & !set,
            Change::Set => set,
        }
    }
}

/// Calls `rt_sigprocmask`; returns the mask before.
pub(crate) fn mask(change: Option<(Change, u64)>) -> u64 {
    let mut old = 0u64;
    let (how, set) = match &change {
        None => (libc::SIG_BLOCK, 0),
        Some((Change::Block, set)) => (libc::SIG_BLOCK, (&raw const *set).addr()),
        Some((Change::Unblock, set)) => (libc::SIG_UNBLOCK, (&raw const *set).addr()),
        Some((Change::Set, set)) => (libc::SIG_SETMASK, (&raw const *set).addr()),
    };
    // SAFETY: both sets have the kernel's eight bytes and live across the call. With such arguments the call cannot
    // fail.
    let _ = unsafe {
        call(libc::SYS_rt_sigprocmask, [word(how), set, (&raw mut old).expose_provenance(), SET_BYTES, 0, 0])
    };
    old
}

/// All signals except those that must never be blocked; blocked while our own handlers run.
pub(crate) const ALL: u64 = !crate::signals::PROTECTED;

/// Returns the ids of process and thread.
fn ids() -> (usize, usize) {
    // SAFETY: queries numbers; cannot fail.
    let pid = unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0);
    // SAFETY: as before.
    let tid = unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0);
    (pid, tid)
}

/// `getpid`.
pub(crate) fn process() -> usize {
    ids().0
}

/// Sends `info` to this thread again, as if it had not arrived yet.
///
/// # Errors
/// `EAGAIN`: the queue of real-time signals is full.
pub(crate) fn send_again(signal: i32, info: &libc::siginfo_t) -> Result<(), Errno> {
    let (pid, tid) = ids();
    let info = std::ptr::from_ref(info).expose_provenance();
    // SAFETY: reads a siginfo that lives; a thread may send itself any si_code. The signal's effect is the program's
    // responsibility.
    unsafe { call(libc::SYS_rt_tgsigqueueinfo, [pid, tid, word(signal), info, 0, 0]) }.map(|_| ())
}

/// `rt_sigpending`.
pub(crate) fn pending() -> u64 {
    let mut set = 0u64;
    // SAFETY: writes eight bytes; cannot fail.
    let _ = unsafe { call(libc::SYS_rt_sigpending, [(&raw mut set).expose_provenance(), SET_BYTES, 0, 0, 0, 0]) };
    set
}

/// Calls `openat` to read a file.
///
/// # Safety
/// `path` is a string, and `directory` a descriptor or `AT_FDCWD`.
pub(crate) unsafe fn open(directory: i32, path: *const libc::c_char, flags: i32) -> Result<i32, Errno> {
    let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: the path is the caller's promise; without O_CREAT no file is created.
    let opened = unsafe { call(libc::SYS_openat, [word(directory), path.expose_provenance(), word(flags), 0, 0, 0]) }?;
    i32::try_from(opened).map_err(|_| libc::EBADF)
}

/// Calls `close` for a descriptor that the caller has opened.
pub(crate) fn close(descriptor: i32) {
    // SAFETY: no pointer is passed.
    let _ = unsafe { call(libc::SYS_close, [word(descriptor), 0, 0, 0, 0, 0]) };
}

/// Calls `pread64`: returns the number of bytes read; 0 if the file cannot be read.
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

/// Calls `faccessat`: true if this user can execute the file.
///
/// # Safety
/// As [`open`].
pub(crate) unsafe fn may_execute(directory: i32, path: *const libc::c_char) -> bool {
    let arguments = [word(directory), path.expose_provenance(), word(libc::X_OK), 0, 0, 0];
    // SAFETY: the path is the caller's promise.
    unsafe { call(libc::SYS_faccessat, arguments) }.is_ok()
}

/// Calls `fgetxattr`: true if the file has an attribute of this name.
pub(crate) fn has_attribute(descriptor: i32, name: &std::ffi::CStr) -> bool {
    // SAFETY: the name is a string that lives; with a size of zero nothing is written.
    unsafe { call(libc::SYS_fgetxattr, [word(descriptor), name.as_ptr().addr(), 0, 0, 0, 0]) }
        .is_ok_and(|bytes| bytes > 0)
}

/// Calls `fstatfs`: true if programs on this file system gain no rights when executed.
pub(crate) fn is_nosuid(descriptor: i32) -> bool {
    /// Words of the kernel's `struct statfs` on x86-64, and the index of the flags. Source: asm-generic/statfs.h.
    const WORDS: usize = 15;
    const FLAGS: usize = 10;
    /// Source: linux/statfs.h, ST_NOSUID.
    const NOSUID: u64 = 2;
    let mut status = [0_u64; WORDS];
    let arguments = [word(descriptor), status.as_mut_ptr().expose_provenance(), 0, 0, 0, 0];
    // SAFETY: writes a structure of `WORDS` words.
    let known = unsafe { call(libc::SYS_fstatfs, arguments) }.is_ok();
    known && status[FLAGS] & NOSUID != 0
}

/// True if this process gains no rights by executing a program (`PR_GET_NO_NEW_PRIVS`).
pub(crate) fn gains_no_rights() -> bool {
    // SAFETY: queries a number.
    let answer = unsafe { call(libc::SYS_prctl, [word(libc::PR_GET_NO_NEW_PRIVS), 0, 0, 0, 0, 0]) };
    answer == Ok(1)
}

/// Returns the real user and group.
pub(crate) fn user_and_group() -> (u32, u32) {
    // SAFETY: queries a number; cannot fail.
    let user = unsafe { call(libc::SYS_getuid, [0; 6]) }.unwrap_or(0);
    // SAFETY: as before.
    let group = unsafe { call(libc::SYS_getgid, [0; 6]) }.unwrap_or(0);
    (u32::try_from(user).unwrap_or(u32::MAX), u32::try_from(group).unwrap_or(u32::MAX))
}

/// Calls `writev` to write the parts to standard error in one call. Errors are ignored.
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

/// `munmap`; returns false if the kernel refuses.
///
/// # Safety
/// The pages belong to the caller and are no longer used.
pub(crate) unsafe fn unmap(address: usize, bytes: usize) -> bool {
    // SAFETY: forwarded.
    unsafe { call(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]) }.is_ok()
}

/// Changes the size of a mapping with `mremap`, and its address if it may move; returns the address.
///
/// # Safety
/// The pages belong to the caller, and no reference to those that go or move is used any more.
pub(crate) unsafe fn remap(address: usize, old: usize, new: usize, may_move: bool) -> Result<usize, Errno> {
    let flags = if may_move { word(libc::MREMAP_MAYMOVE) } else { 0 };
    // SAFETY: forwarded.
    unsafe { call(libc::SYS_mremap, [address, old, new, flags, 0, 0]) }
}

/// Sleeps while a word has a value; may return early.
pub(crate) fn futex_wait(watched: &AtomicU32, value: u32) {
    let operation = word(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG);
    let arguments = [watched.as_ptr().addr(), operation, value as usize, 0, 0, 0];
    // SAFETY: the word outlives the call; without a timeout nothing else is read.
    let _ = unsafe { call(libc::SYS_futex, arguments) };
}

/// Wakes one sleeper on a word.
pub(crate) fn futex_wake(watched: &AtomicU32) {
    let operation = word(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG);
    // SAFETY: the address only identifies the word.
    let _ = unsafe { call(libc::SYS_futex, [watched.as_ptr().addr(), operation, 1, 0, 0, 0]) };
}

/// `sched_yield`.
pub(crate) fn yield_now() {
    // SAFETY: changes nothing.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Returns the base of GS.
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

/// Returns once every thread of this process has executed a serialising instruction, or will do so before its next
/// instruction in user mode.
///
/// # Errors
/// `ENOSYS`, `EINVAL`: the kernel does not support it.
pub(crate) fn serialise_all_threads() -> Result<(), Errno> {
    // SAFETY: a barrier changes nothing but time.
    match unsafe { call(libc::SYS_membarrier, [SYNC_CORE, 0, 0, 0, 0, 0]) } {
        Err(libc::EPERM) => {
            // SAFETY: registers that barriers will be requested.
            unsafe { call(libc::SYS_membarrier, [REGISTER_SYNC_CORE, 0, 0, 0, 0, 0])? };
            // SAFETY: as before.
            unsafe { call(libc::SYS_membarrier, [SYNC_CORE, 0, 0, 0, 0, 0]) }.map(|_| ())
        }
        result => result.map(|_| ()),
    }
}

/// Maps private anonymous memory: anywhere, or exactly at `address` if that range is unused.
///
/// # Errors
/// As for `mmap`; `EEXIST` if the range is in use.
pub(crate) fn map(address: Option<usize>, bytes: usize, protection: i32) -> Result<usize, Errno> {
    let fixed_flag = if address.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed_flag;
    let arguments = [address.unwrap_or(0), bytes, word(protection), word(flags), usize::MAX, 0];
    // SAFETY: new memory that replaces no other mapping.
    let got = unsafe { call(libc::SYS_mmap, arguments) }?;
    match address {
        // Kernels before 4.17 treat the address as a hint.
        Some(address) if got != address => {
            // SAFETY: just mapped and unused.
            let _ = unsafe { call(libc::SYS_munmap, [got, bytes, 0, 0, 0, 0]) };
            Err(libc::EEXIST)
        }
        _ => Ok(got),
    }
}

/// Makes pages inaccessible.
///
/// # Safety
/// The pages belong to the caller and are not in use.
pub(crate) unsafe fn forbid(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: forwarded.
    unsafe { call(libc::SYS_mprotect, [address, bytes, word(libc::PROT_NONE), 0, 0, 0]) }.map(|_| ())
}

/// This process' memory as a file: writes through it do not need write permission of the pages, and copy private pages.
#[derive(Debug)]
pub(crate) struct Memory {
    descriptor: usize,
}

impl Memory {
    /// # Errors
    /// As for `open`: /proc may be missing, or the process not allowed.
    pub(crate) fn open() -> Result<Self, Errno> {
        let path = c"/proc/thread-self/mem";
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        let arguments = [word(libc::AT_FDCWD), path.as_ptr().addr(), word(flags), 0, 0, 0];
        // SAFETY: the path is a string that lives.
        let descriptor = unsafe { call(libc::SYS_openat, arguments) }?;
        Ok(Self { descriptor })
    }

    /// Writes `bytes` at `address`; returns false if not all were written.
    ///
    /// # Safety
    /// No code relies on the old contents.
    pub(crate) unsafe fn write(&self, address: usize, bytes: &[u8]) -> bool {
        let arguments = [self.descriptor, bytes.as_ptr().expose_provenance(), bytes.len(), address, 0, 0];
        // SAFETY: reads a slice that lives; the effect of the write is the caller's responsibility.
        let written = unsafe { call(libc::SYS_pwrite64, arguments) };
        written == Ok(bytes.len())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        let _ = unsafe { call(libc::SYS_close, [self.descriptor, 0, 0, 0, 0, 0]) };
    }
}
