//! Bytes that several owners share: data under way between sockets, engines and backends.

use smallvec::SmallVec;
use telpher_mem::SharedBytes;

/// A part of shared bytes.
pub use telpher_mem::SharedPart as Segment;

/// Bytes that are not changed any more, and that several owners may read.
pub type Shared = SharedBytes;

/// The data of a read, in its order. A single segment, as most short reads have, needs no allocation.
pub type Segments = SmallVec<[Segment; 1]>;
