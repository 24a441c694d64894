//! A connection within one process.

use crate::config::Config;
use crate::error::FabricError;
use crate::incoming::{Inbound, Incoming};
use crate::layout::Sizes;
use crate::memory::Memory;
use crate::outgoing::Outgoing;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Connects the two ends of a connection within this process, without a socket. For tests and measurements.
///
/// # Errors
/// A size outside its limits, or the system's refusal.
pub fn link(config: &Config) -> Result<(Outgoing, Incoming), FabricError> {
    let (memory, file) = Memory::create(Sizes::of(config)?)?;
    let opened = Memory::open(file.as_fd(), *memory.sizes())?;
    Ok((Outgoing::new(memory), Incoming::new(opened, Arc::new(Inbound::counted_by(&Arc::default())))))
}
