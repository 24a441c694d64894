#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod capture;
mod config;
mod endpoint;
mod error;
mod forward;
mod frames;
mod interface;
mod nic;
mod packet_socket;
mod segments;
mod snapshot;
mod stats;
mod switch;
mod tap;

pub use capture::{Capture, CaptureCounts, CaptureWriter};
pub use config::{PortConfig, PortKind, SwitchConfig};
pub use endpoint::End;
pub use error::SwitchError;
pub use forward::{Forwarder, Full, Mode, RETRY_FOR, Route, Settings, partner, routes, shares};
pub use frames::SHORTEST;
pub use nic::{Nic, NicState};
pub use snapshot::{PortSnapshot, Snapshot, StageCycles};
pub use stats::{Counts, NicStats, PortCounts, PortStats, Stages};
pub use switch::{Switch, SwitchPort};
pub use tap::Tap;
