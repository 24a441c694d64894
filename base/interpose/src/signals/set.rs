//! Sets of signals as the kernel writes them: bit `n - 1` is signal `n`.

/// SIGILL, SIGBUS and SIGSEGV, which are never really blocked, ignored or defaulted. Bit `n - 1` is signal `n`.
pub const PROTECTED: u64 = 1 << (libc::SIGILL - 1) | 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSEGV - 1);

/// The same signals as numbers.
pub(crate) const PROTECTED_SIGNALS: [i32; 3] = [libc::SIGILL, libc::SIGBUS, libc::SIGSEGV];

/// Returns the bit of a signal, 1 to 64, in a set.
pub(crate) const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}
