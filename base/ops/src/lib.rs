//! The effect of each operation of the Data Streaming Accelerator on plain slices, as fast as this CPU allows.
//!
//! ```text
//! copy  copy_within  dualcast        copies of bytes                   ┐
//! fill  fill16                       a repeated pattern                │
//! compare  compare_pattern           the first byte that differs       ├─► Kernels ─► arch::{avx512, avx2, portable}
//! delta::{create, apply, entries}    differences as 10-byte entries    │   (dispatch)
//! crc::{crc32c, copy_crc32c, …}      CRC32C in its four flag modes     │
//! crc64::{crc64, copy_crc64}         CRC64 in the same modes           │
//! dif::{check, insert, strip, update, generate, guard}   T10 tuples    │
//! convert  reduce{,_dualcast}  fold  arithmetic on arrays of numbers   │
//! flush::{flush, write_back}         removal of lines from the cache   ┘
//! sgl::{gather, scatter, scatter_fill}   buffers named by a list
//! Variants                           which variants of the AVX-512 kernels run on this processor
//! ```
//!
//! Every function is safe, keeps nothing and starts no thread, and only [`Variants::measure`] allocates. The free
//! functions run the fastest kernels of this CPU; [`dispatch::Kernels`] offers the same operations as methods for
//! callers that want to choose. Operations that can stop half-way take and return the state needed to continue. So a
//! transfer can be processed in chunks of any size that is a multiple of the operation's unit.
//!
//! Legality (alignment, limits, forbidden overlaps) is not checked here; the device does that.
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

// Only `arch` may allow `unsafe_code` again; every other file forbids it in its first line of code.
#![deny(unsafe_code)]

mod arch;
pub mod compare;
pub mod convert;
pub mod copy;
pub mod crc;
pub mod crc64;
pub mod delta;
pub mod dif;
pub mod dispatch;
pub mod dualcast;
pub mod fill;
pub mod flush;
mod hint;
mod measure;
pub mod number;
mod polynomial;
pub mod reduce;
pub mod sgl;
mod variants;

pub use compare::{compare, compare_pattern};
pub use convert::convert;
pub use copy::{copy, copy_within};
pub use dispatch::{Kernels, Level};
pub use dualcast::dualcast;
pub use fill::{fill, fill16};
pub use hint::{Hint, STREAM_BYTES};
pub use number::{Arithmetic, E4m3Overflow};
pub use reduce::{fold, reduce, reduce_blocks, reduce_dualcast};
pub use variants::{VariantError, Variants};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
