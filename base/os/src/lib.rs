#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("telpher-os is for x86-64 Linux");

mod cache_monitor;
mod clock;
mod cpus;
mod distance;
mod energy;
mod error_chain;
mod eventfd;
mod ioctl;
mod lineage;
mod log;
mod memory;
mod new_memory;
mod nodes;
mod output;
pub mod page_presence;
mod peer;
mod perf;
mod processor;
mod random;
mod scan;
mod shared_files;
mod size;
mod stamps;
mod termination;
mod thread;
mod ticks;
mod transparent_huge_pages;
mod userfault;

pub use cache_monitor::{CacheMonitor, CacheMonitorError};
pub use clock::{clock_ns, monotonic_ns};
pub use cpus::{allowed_cpus, run_on};
pub use distance::{Distance, line_round_trip};
pub use energy::{EnergyError, PackageEnergy};
pub use error_chain::chain;
pub use eventfd::PeerEventfd;
pub use ioctl::ioctl_number;
pub use lineage::{Lineage, on_fork};
pub use log::Log;
pub use memory::{MemoryError, available_memory, check_memory};
pub use new_memory::{
    PUBLISHED, PUBLISHED_DEVICES, PUBLISHED_FROM, map_private, map_shared, published_words, published_words_as,
    published_words_or_own,
};
pub use nodes::{Nodes, parse_number_list};
pub use output::{check_writable, create_file, write_file};
pub use page_presence::Pagemap;
pub use peer::{Peer, peer, sender};
pub use perf::{
    CounterEvent, CounterReading, DeviceCounter, Event, Perf, PerfCounts, PerfError, Record, Records, Sample,
};
pub use processor::{cache_bytes, cpu_name, kernel_release};
pub use random::Random;
pub use scan::{PageRun, Scan};
pub use shared_files::{FileIdentity, SharedFiles, SharedRange, is_memory};
pub use size::{parse_size, size};
pub use stamps::{ns_between, prepare_stamps, stamp};
pub use termination::Termination;
pub use thread::{BiasedGuard, BiasedMutex, NoBarrier, spawn_unsignalled};
pub use ticks::{ticks, ticks_in_order};
pub use transparent_huge_pages::{COST_OF_NEVER, TransparentHugePages};
pub use userfault::{Progress, Userfault, UserfaultError, UserfaultEvent, UserfaultFeatures};

/// Bytes of the smallest page.
pub const PAGE_BYTES: u64 = 4096;
