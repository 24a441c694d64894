//! The attribute tables, one file per kind of object.

pub(super) mod bus;
pub(super) mod common;
pub(super) mod device;
pub(super) mod engine;
pub(super) mod file;
pub(super) mod group;
pub(super) mod module;
pub(super) mod pci;
pub(super) mod pmu;
pub(super) mod wq;

use super::attribute::{Check, check};
use crate::tree::Errno;

/// The configuration tables are writable (GENCAP bit 31).
pub(super) const CONFIGURABLE: Check =
    check(Errno::PERM, |kernel, id, _| kernel.dsa(id).capabilities().gen_cap.configurable());
/// The device is not enabled.
pub(super) const DEVICE_NOT_ENABLED: Check =
    check(Errno::PERM, |kernel, id, _| kernel.dsa(id).state != super::device::State::Enabled);
