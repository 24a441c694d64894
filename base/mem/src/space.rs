//! An address space as one PASID sees it. Every access may fault and reports the exact address.

use std::fmt::Debug;

/// Faults are reported at this granularity.
pub use telpher_os::PAGE_BYTES;

/// An access that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("page fault on a {} at {address:#x} after {done} bytes", if *.write { "write" } else { "read" })]
pub struct Fault {
    /// First byte of the range that could not be accessed (the exact byte, not the page).
    pub address: u64,
    /// True if the access was a write.
    pub write: bool,
    /// Bytes of the operation completely processed before, counted from where it began (from the end for a backward
    /// move).
    pub done: u64,
}

/// Where written data should land. Source: SPEC §3.10 (cache control).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum WriteHint {
    /// In the cache: the data is read soon.
    Cache,
    /// In memory: large or cold results that should not displace other data.
    #[default]
    Memory,
    /// Past the caches, however short: another core reads the data, so this core's caches need not hold it.
    Stream,
}

/// Bytes to which [`Space::fold`] folds a message.
pub const FOLDED_BYTES: usize = 256;

/// Memory as one address space (PASID) sees it. Addresses are virtual addresses of that space.
///
/// No method panics or ends the process for any address, length or concurrent change of mappings. `len` and `address +
/// len` may have any value: a range that wraps past the end of the address space faults where it leaves it. Every
/// fault's `done` is exact to the byte; the operation wrote nothing past the fault.
pub trait Space: Send + Sync + Debug {
    /// Reads `into.len()` bytes. On a fault the first `done` bytes of `into` are valid.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault>;

    /// Writes `from`.
    fn write(&self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), Fault>;

    /// Copies in ascending order; correct if the ranges are disjoint or `dst < src`.
    fn move_forward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault>;

    /// Copies in descending order from the end; correct if `src < dst`. `done` counts from the end. A range that
    /// reaches the end of the address space or wraps faults at once, at address `u64::MAX` with `done` 0. If both
    /// ranges do, the source's fault is reported.
    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault>;

    /// Repeats the 16 bytes of `pattern` (`pattern[0]` low byte first), byte 0 of the pattern at `dst`.
    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault>;

    /// Returns the offset of the first byte that differs, if any. A difference before a fault is returned instead of
    /// the fault.
    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault>;

    /// Returns the offset of the first byte that differs from the repeated 8-byte pattern, if any.
    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault>;

    /// Replaces a message of `len` bytes, a multiple of [`FOLDED_BYTES`], by `FOLDED_BYTES` bytes with the same
    /// remainder, and reads each byte once. `register` is added to the first four bytes of the message. `by` moves the
    /// two halves of a lane of 16 bytes forward by `FOLDED_BYTES`.
    ///
    /// Returns false, and leaves anything in `into`, if the space cannot do this or if an access faults. Then the
    /// caller reads the bytes, which may fault again or not. Source: Gopal et al., *Fast CRC Computation for Generic
    /// Polynomials Using PCLMULQDQ Instruction*, Intel, 2009.
    fn fold(&self, address: u64, len: u64, register: u32, by: &[u64; 2], into: &mut [u8; FOLDED_BYTES]) -> bool {
        let _ = (address, len, register, by, into);
        false
    }

    /// Flushes every cache line of the range, partial lines included; faults like a read.
    fn flush(&self, address: u64, len: u64) -> Result<(), Fault>;

    /// Writes four words to a 32-byte aligned address; byte 0 becomes visible after all the others (release).
    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault>;

    /// Asks the system for a page, as a device with page requests does (block on fault). Returns true if an access of
    /// that kind may now succeed, false if the address is not mapped with that permission.
    fn page_request(&self, address: u64, write: bool) -> bool;
}
