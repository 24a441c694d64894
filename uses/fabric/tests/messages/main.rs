//! Messages between endpoints of one process: matching, protocols, failures.

mod atomics;
mod automatic;
mod common;
mod completions;
mod deadlock;
mod devices;
mod failures;
mod hostile;
mod kills;
mod mapped;
mod matching;
mod ordering;
mod pulls;
mod rma;
mod soak;
