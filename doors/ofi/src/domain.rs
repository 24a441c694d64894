//! Fabrics and domains: parents of the other objects, which count as used while one of these exists.

use std::sync::Arc;

/// A fabric. All fabrics are the same one: this machine.
#[derive(Debug)]
pub(crate) struct Fabric;

/// A domain.
#[derive(Debug)]
pub(crate) struct Domain {
    /// Keeps the fabric in use.
    pub(crate) _fabric: Arc<Fabric>,
    /// True if messages must move while the program makes no calls.
    pub(crate) automatic_progress: bool,
}
