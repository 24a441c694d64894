//! The action that the program has set for a signal.

/// The program's action for a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Action {
    /// Address of a handler, or `SIG_DFL`, or `SIG_IGN`.
    pub handler: usize,
    /// `SA_*`.
    pub flags: u64,
    /// Signals blocked while the handler runs, besides its own. Bit `n - 1` is signal `n`.
    pub mask: u64,
}

/// True if the action is a function.
pub(super) fn handles(action: &Action) -> bool {
    action.handler != libc::SIG_DFL && action.handler != libc::SIG_IGN
}
