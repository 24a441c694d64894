//! Costs: what operations take on this machine, and the choice between device and CPU that follows.

mod chooser;
mod cold_boundary;
pub(crate) mod costs;
pub(crate) mod estimate;
pub(crate) mod messages;
pub(crate) mod tuning;
pub(crate) mod verdict_bits;

pub use chooser::Learning;
pub(crate) use chooser::{Choice, DeviceChooser, choose, learn};
pub use cold_boundary::ColdBoundary;
