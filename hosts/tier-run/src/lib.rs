//! Runs unmodified programs with their memory on several tiers.
//!
//! ```text
//! run ──► nodes (which tiers) ──► telpher-launch: the program, with telpher-tier-guest preloaded
//!          telpher-tier-guest ──► folder/PID.json ──► states, while the program runs and when it has ended
//! pause ──► folder/PID.pause ──► telpher-tier-guest    pages stay where they are, until resume removes the file
//! ```
#![forbid(unsafe_code)]

mod nodes;
mod pause;
mod run;

pub use nodes::{TierChoice, TiersError};
pub use pause::{PauseError, pause};
pub use run::{RunOptions, TierError, run};
