//! Settings from the environment.

use telpher_fabric::Copier;

/// Returns what copies the pieces of long messages.
pub(crate) fn copier() -> Copier {
    Copier::cpu()
}
