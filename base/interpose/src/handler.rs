//! The interface to the owner of the portals: their addresses, and the handling of 64 bytes stored there.

use crate::thread::{Monitor, Thread};
use std::sync::OnceLock;
use telpher_abi::Offer;

/// The instruction that sent 64 bytes to a portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitInstruction {
    /// MOVDIR64B: posted, the submitter gets no answer.
    Movdir64b,
    /// ENQCMD: the submitter waits for the answer. Dword 0 of the descriptor is zero; the receiver fills in PASID and
    /// Priv.
    Enqcmd,
    /// A single 64-byte vector store; for a device the same as MOVDIR64B.
    Store,
}

impl SubmitInstruction {
    /// For use in a [`Handler`]'s [`enqueue`](Handler::enqueue): true if the instruction trapped, false if its site was
    /// rewritten and made a call.
    #[must_use]
    #[inline]
    pub fn is_trap() -> bool {
        Thread::current().by_trap.get()
    }
}

/// The owner of the portals, called by the traps and the rewritten sites.
///
/// Every function is called on the program's thread in the middle of an instruction; the interrupted code may hold any
/// lock. So nothing here may allocate, block on a lock, touch a thread-local with a destructor, or unwind. `errno`
/// belongs to the program. All functions except [`fixup`](Handler::fixup) run on a stack of at least
/// [`STACK_BYTES`](crate::STACK_BYTES) if one of the pool was free. The program's signal handlers are deferred until
/// the instruction ends. (A system call may end with `EINTR` nevertheless, see
/// [`signals::is_deferred`](crate::signals::is_deferred).)
pub trait Handler: Sync {
    /// True if `address` lies in a portal page.
    fn is_portal(&self, address: u64) -> bool;

    /// 64 bytes arrive at `destination`, which is 64-byte aligned and was a portal when
    /// [`is_portal`](Handler::is_portal) was called. Only ENQCMD passes the answer on to the program.
    fn enqueue(&self, how: SubmitInstruction, destination: u64, descriptor: &[u64; 8]) -> Offer;

    /// UMWAIT with the armed line (a line that has already changed is not waited for), or TPAUSE without. Returns when
    /// the line changes, the time-stamp counter reaches `deadline`, a signal was deferred, or earlier. Returns true if
    /// a time limit of the system ended the wait (CF). Bit 0 of `control` asks for the lighter state C0.1; the other
    /// bits are zero.
    fn wait(&self, monitor: Option<&Monitor>, control: u32, deadline: u64) -> bool;

    /// A SIGSEGV or SIGBUS that the processor raised. Returns true if it has changed `context` so that the thread
    /// continues where this owner wants. Runs inside the signal handler, before other code examines the fault.
    fn fixup(&self, context: &mut libc::ucontext_t) -> bool;
}

/// Set before the first trap can occur.
static HANDLER: OnceLock<&'static dyn Handler> = OnceLock::new();

/// Sets the handler; only the first call does.
pub(crate) fn set_handler(handler: &'static dyn Handler) {
    let _ = HANDLER.set(handler);
}

/// Returns the installed handler.
pub(crate) fn handler() -> &'static dyn Handler {
    *HANDLER.get().expect("traps and sites are there only since `install`")
}
