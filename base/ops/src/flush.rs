//! Cache Flush: removes lines from the cache. Source of the meaning: SPEC §8.3.
//!
//! Only x86-64 allows this in user mode; on other targets both functions do nothing.
#![forbid(unsafe_code)]

use crate::dispatch::Kernels;

/// Writes back and drops every cache line that `buf` touches, including partial lines, and waits for completion. The
/// contents do not change.
#[inline]
pub fn flush(buf: &[u8]) {
    Kernels::best().flush(buf);
}

/// Writes back every cache line that `buf` touches and may keep them in the cache (Cache Flush with Cache Control 1,
/// which early devices have). A CPU that cannot keep them drops them.
#[inline]
pub fn write_back(buf: &[u8]) {
    Kernels::best().write_back(buf);
}

impl Kernels {
    /// [`flush`](fn@flush); the same at every level, since the instruction is chosen by the CPU alone.
    pub fn flush(self, buf: &[u8]) {
        self.flush_lines(buf);
    }

    /// [`write_back`]; the same at every level, since the instruction is chosen by the CPU alone.
    pub fn write_back(self, buf: &[u8]) {
        self.write_back_lines(buf);
    }
}
