//! Where a result should land: in the cache or in memory.
#![forbid(unsafe_code)]

/// Where the writer wants the result. A hint never changes the bytes written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Hint {
    /// In the cache: ordinary stores (the descriptor flag Cache Control 1).
    #[default]
    Cache,
    /// In memory: from [`STREAM_BYTES`] on, non-temporal stores that pass by the cache. Shorter results use ordinary
    /// stores, since evicting them costs more than it saves.
    Memory,
}

/// From this many bytes on [`Hint::Memory`] uses non-temporal stores.
/// Source: measured (AMD EPYC of family 26, 1 MiB of second-level cache, `copy` against `memcpy`): from cold buffers
/// streaming gains 1.05 to 1.08 at 64 to 256 KiB and 1.3 from 1 MiB on; from cached ones it loses 3 below 1 MiB, 1.3 there.
pub const STREAM_BYTES: usize = 1 << 20;

impl Hint {
    /// Whether a result of `len` bytes is written past the cache.
    pub(crate) const fn streams(self, len: usize) -> bool {
        matches!(self, Hint::Memory) && len >= STREAM_BYTES
    }
}
