//! Opens devices: turns a name into portals.
//!
//! ```text
//! "model:spr", "model:FILE" ──► DeviceName ──► ModelDevice ──► portal("wq0.0") ──► Portal
//! accel-config JSON  ◄──► config ──► registers ──► Enable Device, Enable WQ
//! runner: inline (the submitting thread executes), threaded (engines on threads that spin, then park), or auto
//! imposed times: the records of a modelled device are written when a simulated device would have written them
//! ```
//!
//! Only front ends choose a device; everything else uses the [`Portal`](telpher_portal::Portal)s from this crate.
//!
//! ```
//! use telpher_device::{ModelDevice, ModelOptions};
//! use telpher_abi::Descriptor;
//! use telpher_portal::{Portal, RecordCell};
//! use telpher_portal::Submission;
//!
//! let device = ModelDevice::start(ModelOptions::default())?;
//! let portal = device.portal("wq0.0")?;
//! let record = RecordCell::new();
//! // SAFETY: a No-op accesses no memory but its record, which outlives the loop below.
//! let nop = unsafe { Submission::vouch(Descriptor::nop().with_record(record.address())) };
//! let _ = portal.offer(&nop);
//! while record.status().is_none() {
//!     portal.drive();
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod apply;
mod attach;
mod config;
mod counting;
mod device_times;
mod imposed;
pub mod in_process;
mod listing;
mod model;
mod name;
mod open;
mod own_memory;
mod portal;
pub mod published;
mod replica;
mod runner;
mod spaces;
mod sync;
mod windows;

pub use apply::ApplyError;
pub use config::{Bandwidth, Config, ConfigError, EngineConfig, GroupConfig, WqConfig, WqMode};
pub use counting::CountsIn;
pub use device_times::{DescriptorTime, DeviceTimes, DeviceTimesError};
pub use imposed::{ImposedSum, ImposedTimes};
pub use listing::{EngineListing, GroupListing, Listing, WqListing, hardware};
pub use model::{CommandFailed, ModelDevice, ModelOptions, PortalError, Residency, StartError};
pub use name::{DeviceName, ModelSource, NameError, WqName};
pub use open::{OpenError, OpenOptions, Opened, PreparedDevice, RequestError, Skipped, open, open_requested, prepare};
pub use replica::{QueueImage, ReplicaReport};
pub use runner::Runner;
pub use spaces::WindowSpaces;
pub use telpher_model::{Capabilities, DeviceCounts, LONGEST_NS, Preset, Tolerances, Totals};

/// The README's examples, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
