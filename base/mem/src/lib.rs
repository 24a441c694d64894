#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Space ─┬─ Local    this process' memory: guarded assembly kernels; SIGSEGV and SIGBUS continue at a landing
//!        ├─ Strict   the same, but pages that are not present are faults
//!        ├─ Remote   another process' memory, by system calls
//!        └─ MockSpace (test-util)  sparse pages in safe Rust
//! Fault             address, direction, bytes done: exact
//! StableBuf(Mut)    owned bytes at a fixed address: Vec, Box, Arc, &'static, Region, Slice
//! Region            owned pages, 4 KiB or 2 MiB
//! Pool              hands out buffers from memory that is mapped beforehand
//! Shared            bytes of a file that other processes share and may truncate
//! Lineage           distinguishes a forked child from its parent
//! spawn_unsignalled starts a thread that handles no signals of the process
//! Distance          distance between two CPUs, measured by the travel time of a cache line
//! Nodes             the NUMA node of a thread or a page
//! Userfault         page faults that a thread of this process handles, and page moves
//! Scan              the pages that are present, read from the page tables
//! Perf              loads and stores that the processor samples, with their addresses
//! Tract             owned pages that are known by address only
//! TransparentHugePages  the system's setting for huge pages of private memory
//! MemoryFile        an unnamed file in memory; a Window maps parts of several
//! write_file        writes a file for the user in a directory that others may write to: follows no link, truncates
//! nothing
//! hook              lets a foreign signal handler handle the faults of the kernels
//! Pages (test-util) pages to protect, discard, truncate
//! ```
#![deny(unsafe_code)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("telpher-mem is for x86-64 Linux: its kernels are assembly and its faults are signals");

mod distance;
pub mod hook;
mod lineage;
mod local;
mod map;
#[cfg(any(test, feature = "test-util"))]
mod mock;
mod nodes;
mod output;
#[cfg(any(test, feature = "test-util"))]
mod pages;
mod perf;
mod pool;
mod presence;
mod region;
mod remote;
mod scan;
mod shared;
mod space;
mod stable;
mod strict;
mod thread;
mod tract;
mod transparent;
mod userfault;

pub use distance::{Distance, line_round_trip};
pub use lineage::{Lineage, on_fork};
pub use local::{Isa, Local, STREAM_FILL_BYTES, STREAM_MOVE_BYTES};
pub use map::{FileError, MapError, MemoryFile, Window};
#[cfg(any(test, feature = "test-util"))]
pub use mock::{MockSpace, PageRequest};
pub use nodes::Nodes;
pub use output::{check_writable, create_file, write_file};
#[cfg(any(test, feature = "test-util"))]
pub use pages::{Pages, Protection};
pub use perf::{Event, Perf, PerfCounts, PerfError, Record, Records, Sample};
pub use pool::{Piece, Pool, PoolOptions, Supply};
pub use presence::Pagemap;
pub use region::{Backing, PageSize, Region};
pub use remote::Remote;
pub use scan::{PageRun, Scan};
pub use shared::{MOST_SHARED, Shared, SharedError, torn_pages};
pub use space::{Fault, PAGE_BYTES, Space, WriteHint};
pub use stable::{OutOfRange, Slice, StableBuf, StableBufMut, Tagged};
pub use strict::Strict;
pub use thread::spawn_unsignalled;
pub use tract::Tract;
pub use transparent::TransparentHugePages;
pub use userfault::{Progress, Userfault, UserfaultError, UserfaultEvent, UserfaultFeatures};
