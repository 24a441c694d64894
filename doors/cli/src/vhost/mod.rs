//! `telpher vhost`: a small software switch between virtual machines, whose copies ride a device.
//!
//! ```text
//! Forwarder: one thread over its streams, turn after turn
//!   end ── collect ◄── copies that have landed are shown to the guest
//!   end ── take ──► work (mode) ──► submit ──► end
//! ```
#![allow(dead_code, reason = "the command itself comes next")]

pub(crate) mod end;
pub(crate) mod forward;
pub(crate) mod frames;
