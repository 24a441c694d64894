//! What the owner of the portals brings: where they are, and what becomes of 64 bytes stored there.

use crate::thread::Thread;

/// How 64 bytes were sent to a portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// MOVDIR64B: posted, the submitter hears nothing.
    Movdir64b,
    /// ENQCMD: the submitter waits for the answer. Dword 0 of the descriptor is zero; PASID and Priv are for the
    /// receiver to fill in.
    Enqcmd,
    /// One 64-byte vector store, to a device the same as MOVDIR64B.
    Store,
}

impl How {
    /// For a [`Handler`] in [`enqueue`](Handler::enqueue): true if the instruction trapped, false if its site was rewritten and
    /// called.
    #[must_use]
    #[inline]
    pub fn is_trap() -> bool {
        Thread::current().by_trap.get()
    }
}

/// What the portal said. Only ENQCMD tells it to the program.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Taken.
    Accepted,
    /// Not taken: full, above the threshold, disabled, or of the wrong kind.
    Retry,
}

/// A line armed by UMONITOR.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Monitor {
    /// Start of the 64-byte line that is watched.
    pub address: u64,
    /// What it held when it was armed; other contents mean that the wait is over.
    pub line: [u64; 8],
}

/// The owner of the portals, as the traps and the rewritten sites call it.
///
/// Every function is called on the program's thread in the middle of an instruction, possibly with any lock held by the
/// interrupted code: nothing here may allocate, block on a lock, touch a thread-local with a destructor, or unwind. `errno`
/// belongs to the program. All of them but [`fixup`](Handler::fixup) run on a stack of at least
/// [`STACK_BYTES`](crate::STACK_BYTES) where one of the pool was free, with the program's signal handlers put off until the
/// instruction ends (a system call may end with `EINTR` all the same, see
/// [`signals::is_deferred`](crate::signals::is_deferred)).
pub trait Handler: Sync {
    /// True if `address` lies in a portal page.
    fn is_portal(&self, address: u64) -> bool;

    /// 64 bytes arrive at `destination`, which is aligned to 64 bytes and was a portal when it was asked for.
    fn enqueue(&self, how: How, destination: u64, descriptor: &[u64; 8]) -> Answer;

    /// UMWAIT (with the line that was armed; one that has changed already is not waited for) or TPAUSE (without): returns
    /// when the line changes, the time-stamp counter reaches `deadline`, a signal was put off, or whenever it likes. True
    /// if a time limit of the system ended it (CF). Bit 0 of `control` asks for the lighter state C0.1; the others are zero.
    fn wait(&self, monitor: Option<&Monitor>, control: u32, deadline: u64) -> bool;

    /// A SIGSEGV or SIGBUS that the processor raised: true if `context` has been changed so that the thread goes on
    /// where this owner wants it. Runs inside the signal handler, before anything else looks at the fault.
    fn fixup(&self, context: &mut libc::ucontext_t) -> bool;
}
