//! Fabrics and domains: parents of the other objects, which count as used while one of these exists.

use std::sync::Arc;

/// A fabric. All fabrics are the same one: this machine.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    /// The version of the interface that its program was compiled for.
    pub(crate) api_version: u32,
}

/// A domain.
#[derive(Debug)]
pub(crate) struct Domain {
    /// Kept in use.
    pub(crate) fabric: Arc<Fabric>,
    /// True if messages must move while the program makes no calls.
    pub(crate) automatic_progress: bool,
}
