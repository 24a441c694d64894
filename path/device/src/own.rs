//! The one place that gives the model this process's memory.
#![allow(unsafe_code, reason = "operating on this process's memory by address is what a device does")]

use crate::model::Residency;
use telpher_mem::{Local, Space, Strict};

/// This process's memory as a modelled device sees it.
pub(crate) fn own_memory(residency: Residency) -> Box<dyn Space> {
    // SAFETY: addresses reach the space in two ways only. Descriptors come in `Submission`s, whose makers vouched for
    // every address they and their batch members name. The event log's address comes from a register: that of memory the
    // device owns (a replica's), or one that was written through the unsafe `ModelDevice::device`.
    let local = unsafe { Local::new() };
    match residency {
        Residency::Lenient => Box::new(local),
        Residency::Strict => Box::new(Strict::new(local)),
    }
}
