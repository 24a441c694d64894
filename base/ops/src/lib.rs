//! What each operation of the Data Streaming Accelerator 1.x *means*, on plain slices, as fast as this CPU can.
//!
//! ```text
//! copy  copy_within  dualcast        bytes from here to there          ┐
//! fill  fill16                       a pattern, again and again        │
//! compare  compare_pattern           the first byte that differs       ├─► Kernels ─► arch::{avx512, avx2, portable}
//! delta::{create, apply, entries}    differences as 10-byte entries    │   (dispatch)
//! crc::{crc32c, copy_crc32c}         CRC32C in its four flag modes     │
//! dif::{check, insert, strip, update, guard}   T10 integrity tuples    │
//! flush::{flush, write_back}         lines out of the cache            ┘
//! ```
//!
//! Every function is safe, keeps nothing, allocates nothing and starts no thread. The free functions run the fastest
//! kernels this CPU has; the same operations are methods of [`dispatch::Kernels`] for whoever wants to choose.
//! Operations that can stop half-way take and return what is needed to go on, so that a transfer may be worked off in
//! chunks of any size that the operation's unit divides.
//!
//! Legality (alignment, limits, forbidden overlaps) is not judged here: that is the device's part.
//!
//! ```
//! use telpher_ops::{Hint, compare, copy, crc};
//!
//! let src = *b"123456789";
//! let mut dst = [0; 9];
//! copy(&src, &mut dst, Hint::Cache);
//! assert_eq!(compare(&src, &dst), None);
//! assert_eq!(crc::crc32c(0, &dst, crc::CrcMode::default()), 0xe306_9283);
//! ```
//!
//! Citations: **SPEC** is Intel's *Data Streaming Accelerator Architecture Specification*, order 341204-006US.

// `arch` alone may open `unsafe_code` again; every other file forbids it in its first line of code.
#![deny(unsafe_code)]

mod arch;
pub mod compare;
pub mod copy;
pub mod crc;
pub mod delta;
pub mod dif;
pub mod dispatch;
pub mod dualcast;
pub mod fill;
pub mod flush;
mod hint;
mod polynomial;

pub use compare::{compare, compare_pattern};
pub use copy::{copy, copy_within};
pub use dispatch::{Kernels, Level};
pub use dualcast::dualcast;
pub use fill::{fill, fill16};
pub use hint::{Hint, STREAM_BYTES};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
