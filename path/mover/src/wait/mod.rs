//! Waiting for a record: clocks, wait policies, predictions, and a timer for records that do not come.

pub(crate) mod forecast;
pub(crate) mod stall_timer;
pub(crate) mod time;
mod waiter;

pub use waiter::{DEFAULT_PAUSES, Wait};
pub(crate) use waiter::{Pass, Waiter};
