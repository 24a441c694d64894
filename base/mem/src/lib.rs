#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Space ─┬─ Local    this process' memory: guarded assembly kernels; SIGSEGV and SIGBUS continue at a landing
//!        ├─ Strict   the same, but pages that are not present are faults
//!        ├─ Remote   another process' memory, or what it has granted, by system calls
//!        └─ MockSpace (test-util)  sparse pages in safe Rust
//! Fault             address, direction, bytes done: exact
//! StableBuf(Mut)    owned bytes at a fixed address: Vec, Box, Arc, &'static, Region, Slice
//! Region            owned pages, 4 KiB or 2 MiB
//! BlockMemory       equal blocks of one mapping, each owned by a writer or shared by readers
//! PrivateFile       a file in memory that only this user can write, locked by this process
//! Pool              hands out buffers from memory that is mapped beforehand
//! Shared            bytes of a file that other processes share and may truncate
//! RawPages             owned pages that are known by address only
//! MemoryFile        an unnamed file in memory; a Window maps parts of several
//! ProcessMemory     the memory of an address space by its file, /proc/PID/mem
//! MemoryGrant       memory that other processes may access until it is revoked, as GrantedMemory
//! hook              lets a foreign signal handler handle the faults of the kernels
//! Pages (test-util) pages to protect, discard, truncate
//! ```
#![deny(unsafe_code)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("telpher-mem is for x86-64 Linux: its kernels are assembly and its faults are signals");

mod block_state;
mod blocks;
mod gaps;
mod grant;
pub mod hook;
mod local;
mod map;
#[cfg(any(test, feature = "test-util"))]
mod mock;
#[cfg(any(test, feature = "test-util"))]
mod pages;
mod pool;
mod private_file;
mod process_memory;
mod raw_pages;
mod region;
mod remote;
mod shared;
mod space;
mod stable_buf;
mod strict_space;
mod sync;

pub use blocks::{BlockError, BlockMemory, BlockPages, BlockRun, OwnedBytes, SharedBytes, SharedPart, SharedRun};
pub use grant::{Access, GrantError, GrantFile, GrantedMemory, MemoryGrant};
pub use local::{Isa, Local, STREAM_FILL_BYTES, STREAM_MIN_BYTES, STREAM_MOVE_BYTES, WordWidth};
pub use map::{DurableFile, DurableFileError, FileError, MapError, MemoryFile, Persistence, Window};
#[cfg(any(test, feature = "test-util"))]
pub use mock::{MockSpace, PageRequest};
#[cfg(any(test, feature = "test-util"))]
pub use pages::{Pages, Protection};
pub use pool::{Pool, PoolAllocator, PoolBuffer, PoolOptions};
pub use private_file::{PrivateFile, PrivateFileError};
pub use process_memory::ProcessMemory;
pub use raw_pages::RawPages;
pub use region::{Backing, PageSize, Region};
pub use remote::{Remote, bring_in_for_writing};
pub use shared::{MOST_SHARED, SharedError, SharedMapping, SharedWords, SharedWords64, torn_pages};
pub use space::{FOLDED_BYTES, Fault, PAGE_BYTES, Space, WriteHint};
pub use stable_buf::{OutOfRange, Slice, StableBuf, StableBufMut, Tagged, contents};
pub use strict_space::Strict;
