//! The intended location of a result: in the cache or in memory.
#![forbid(unsafe_code)]

/// The location in which the writer wants the result. A hint never changes the bytes written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Hint {
    /// In the cache: ordinary stores (the descriptor flag Cache Control 1).
    #[default]
    Cache,
    /// In memory: from [`STREAM_BYTES`] on, non-temporal stores that bypass the cache. Shorter results use ordinary
    /// stores, because evicting them costs more than it saves.
    Memory,
}

/// From this length on [`Hint::Memory`] uses non-temporal stores. Source: measured (AMD EPYC of family 26, 1 MiB of
/// second-level cache, `copy` against `memcpy`). From cold buffers streaming is faster by a factor of 1.05 to 1.08 at
/// 64 to 256 KiB and 1.3 from 1 MiB on. From cached buffers it is slower by a factor of 3 below 1 MiB and 1.3 there.
pub const STREAM_BYTES: usize = 1 << 20;

impl Hint {
    /// Returns true if a result of `len` bytes is written past the cache.
    pub(crate) const fn streams(self, len: usize) -> bool {
        matches!(self, Hint::Memory) && len >= STREAM_BYTES
    }
}
