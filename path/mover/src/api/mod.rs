//! The interface: what programs call, the buffers they pass in, and the results they get.
//!
//! Every interface (job, batch, scope, channel) has the operations of [`operation`].

pub(crate) mod batch;
pub(crate) mod channel;
pub(crate) mod channel_policy;
pub(crate) mod dry_run;
pub(crate) mod durable;
pub(crate) mod error;
pub(crate) mod grant;
pub(crate) mod job;
pub(crate) mod mover;
pub(crate) mod notifier;
#[cfg(feature = "device")]
pub(crate) mod open;
pub(crate) mod operation;
pub(crate) mod outcome;
pub(crate) mod policy;
pub(crate) mod scope;
pub(crate) mod setting;
pub(crate) mod window;
