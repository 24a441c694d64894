//! On what a recording is replayed.

use telpher_sim::Machine;

/// On what a recording is replayed.
#[derive(Clone, Debug)]
pub struct PredictOptions {
    /// The machine.
    pub machine: Machine,
    /// The profile describes the recorded machine, so nothing is scaled.
    pub is_recorded_machine: bool,
    /// Most devices to use; `None` for all on the socket of the profile's first node.
    pub devices: Option<u16>,
    /// Devices write to the cache, not to memory.
    pub to_cache: bool,
    /// Comparisons (memcmp) are offloaded, too.
    pub comparisons: bool,
}

impl PredictOptions {
    /// All near devices of a machine other than the recorded one. They write to memory; comparisons stay on the CPU.
    #[must_use]
    pub fn on(machine: Machine) -> Self {
        PredictOptions { machine, is_recorded_machine: false, devices: None, to_cache: false, comparisons: false }
    }
}
