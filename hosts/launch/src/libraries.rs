//! The libraries that are preloaded into programs, and libfabric's provider, as `build.rs` has packed them: where
//! each is in the stream that `image.rs` unpacks.

use crate::Image;
use crate::image::Place;

include!(concat!(env!("OUT_DIR"), "/places.rs"));

/// The virtual device inside a program: `telpher-vdev-guest`.
pub static VDEV: Image = Image { name: "telpher-run", place: VDEV_PLACE };

/// The memory functions in front of the C library's: `telpher-offload-guest`.
pub static OFFLOAD: Image = Image { name: "telpher-offload", place: OFFLOAD_PLACE };

/// The manager of a program's memory: `telpher-tier-guest`.
pub static TIER: Image = Image { name: "telpher-tier", place: TIER_PLACE };

/// The provider that libfabric loads: `telpher-ofi`.
pub static FABRIC: Image = Image { name: "telpher-fabric", place: FABRIC_PLACE };

/// The collective operations in front of an MPI's: `telpher-mpi`.
pub static COLLECTIVES: Image = Image { name: "telpher-collectives", place: COLLECTIVES_PLACE };
