//! `telpher tier`: unmodified programs with their memory on several tiers.
//!
//! ```text
//! run ──► nodes (which tiers) ──► telpher-vdev's Preloaded: the program, with telpher-tier-guest loaded first
//!          guest ──► folder/PID.json ──► top, while it runs
//!                                    ──► report, when it has ended
//! pause ──► folder/PID.pause ──► guest    pages stay where they are, until resume removes it
//! ```

mod image;
mod nodes;
mod pause;
mod run;
mod top;

pub(crate) use pause::{PauseError, pause};
pub(crate) use run::run;
pub(crate) use top::{TopError, top};

/// Returns whether this machine's nodes are tiers without options.
pub(crate) fn has_nodes() -> bool {
    nodes::tiers(&[], None).is_ok()
}
