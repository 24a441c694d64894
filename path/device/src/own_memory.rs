//! The only place that gives the model access to this process' memory.
#![allow(unsafe_code, reason = "operating on this process's memory by address is what a device does")]

use crate::model::Residency;
use telpher_mem::{Local, Space, Strict};

/// Returns this process' memory as a modelled device sees it.
pub(crate) fn own_memory(residency: Residency) -> Box<dyn Space> {
    // SAFETY: addresses reach the space in two ways only. Descriptors come in `Submission`s, whose makers vouched for
    // every address in them and in their batch members. The event log's address comes from a register: it is memory
    // that the device owns (a replica's), or was written through the unsafe `ModelDevice::device`.
    let local = unsafe { Local::new() };
    match residency {
        Residency::Lenient => Box::new(local),
        Residency::Strict => Box::new(Strict::new(local)),
    }
}
