//! The libraries that are preloaded into programs, and libfabric's provider, as `build.rs` has built them.
//!
//! Each is a `static`, which is in a binary once. Of a `const`, each crate that uses it has a copy.

use crate::Image;

/// The virtual device inside a program: `telpher-vdev-guest`.
pub static VDEV: Image<'static> = Image { name: "telpher-run", bytes: include_bytes!(env!("TELPHER_VDEV_LIBRARY")) };

/// The manager of a program's memory: `telpher-tier-guest`.
pub static TIER: Image<'static> = Image { name: "telpher-tier", bytes: include_bytes!(env!("TELPHER_TIER_LIBRARY")) };

/// The memory functions in front of the C library's: `telpher-offload-guest`.
pub static OFFLOAD: Image<'static> =
    Image { name: "telpher-offload", bytes: include_bytes!(env!("TELPHER_OFFLOAD_LIBRARY")) };

/// The provider that libfabric loads: `telpher-ofi`.
pub static FABRIC: Image<'static> =
    Image { name: "telpher-fabric", bytes: include_bytes!(env!("TELPHER_FABRIC_LIBRARY")) };

/// The collective operations in front of an MPI's: `telpher-mpi`.
pub static COLLECTIVES: Image<'static> =
    Image { name: "telpher-collectives", bytes: include_bytes!(env!("TELPHER_COLLECTIVES_LIBRARY")) };
