//! The plan of one request: device or CPU, which queues, and how it is cut.
//!
//! A [`request`] is compared with a [`threshold`], may be cut into parts ([`split`]), and gets its queues from
//! [`route`].

pub(crate) mod credit;
pub(crate) mod flags;
pub(crate) mod limits;
pub(crate) mod queue_health;
pub(crate) mod request;
pub(crate) mod route;
pub(crate) mod split;
pub(crate) mod threshold;
pub(crate) mod topology;
