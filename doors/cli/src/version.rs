//! What `telpher --version` prints.

use std::sync::LazyLock;
use telpher_mem::Isa;

/// The commit this binary was built from; `unknown` if it was built without git.
pub(crate) const COMMIT: &str = env!("TELPHER_COMMIT");
/// The target triple.
pub(crate) const TARGET: &str = env!("TELPHER_TARGET");

/// The version, commit, target, and the kernels that this machine's processor executes.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| {
    format!("{}\ncommit: {COMMIT}\ntarget: {TARGET}\nkernels: {}", env!("CARGO_PKG_VERSION"), kernels())
});

/// Names the kernels that this machine's processor executes.
pub(crate) fn kernels() -> String {
    let copies = format!("{:?}", Isa::best()).to_lowercase();
    format!("operations {}, guarded copies {copies}", telpher_ops::dispatch::description())
}
