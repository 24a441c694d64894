//! Sites: instructions that trapped once and are rewritten to call the emulation directly.
//!
//! ```text
//! site:        jmp trampoline            (5 bytes; the rest of a longer instruction stays and is not reached)
//! trampoline:  step over the red zone; call entry::enter; step back; jmp site + length
//! ```
//!
//! Other threads may be executing the site. So its first byte becomes an invalid opcode (06h, which no 64-bit program
//! uses), then the other bytes change, then the first becomes the jump's. After each step every thread passes a
//! serialising instruction (`membarrier`). A thread that executes the site in between traps. The handler checks the
//! table of sites first, and sends the thread to the trampoline.
//!
//! Bytes are written through /proc/self/mem, so no page is ever both writable and executable, and no page's protection
//! changes. A shared file mapping refuses the write; then the site continues to trap.
#![allow(unsafe_code, reason = "changes the program's code")]

mod entered;
mod jump;
mod near;
mod patch;
mod table;

use crate::decode::{Instruction, LONGEST, Operation, decode};
use crate::{entry, guarded_access, kernel};
use jump::JUMP;
use patch::Patch;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use table::{Phase, SITES, Site};

pub(crate) use entered::entered;
pub use jump::Refusal;

/// Event counts of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Instructions emulated after a trap.
    pub traps: u64,
    /// Instructions emulated by a rewritten site's call.
    pub calls: u64,
    /// Sites that are rewritten now.
    pub sites: u64,
}

static TRAPS: AtomicU64 = AtomicU64::new(0);
static REWRITTEN: AtomicU64 = AtomicU64::new(0);
static REWRITING: AtomicBool = AtomicBool::new(false);
static LOCK: Lock = Lock(AtomicBool::new(false));

/// The lock for changing code.
#[derive(Debug)]
struct Lock(AtomicBool);

#[derive(Debug)]
struct Locked<'a>(&'a Lock);

impl Lock {
    /// Never waits: signal handlers call it.
    fn take(&self) -> Option<Locked<'_>> {
        // Acquire: pairs with the Release of `drop`.
        let free = !self.0.swap(true, Ordering::Acquire);
        // Not `then_some`, which would create a guard in any case, and drop it.
        free.then(|| Locked(self))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of `take`.
        self.0.0.store(false, Ordering::Release);
    }
}

/// Returns the event counts of this process.
///
/// # Staleness
/// Other threads count while this reads.
#[must_use]
pub fn counters() -> Counters {
    // Relaxed, here and at the increments: the counts publish nothing else.
    Counters { traps: TRAPS.load(Ordering::Relaxed), calls: entered::calls(), sites: REWRITTEN.load(Ordering::Relaxed) }
}

pub(crate) fn count_trap() {
    TRAPS.fetch_add(1, Ordering::Relaxed);
}

/// Allows or forbids rewriting more sites.
pub fn set_rewriting(allowed: bool) {
    // Relaxed: only a hint.
    REWRITING.store(allowed, Ordering::Relaxed);
}

/// In the child of a fork: the thread that was changing code does not exist here. A site that was being changed stays
/// so: it traps and is sent to its trampoline.
pub(crate) fn after_fork_child() {
    LOCK.0.store(false, Ordering::Release);
}

/// The bytes of one instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Code {
    /// Reads as many bytes from `address` as are readable.
    fn read(address: u64) -> Self {
        let mut code = Code { bytes: [0; LONGEST], length: 0 };
        // A cache line lies in one page, so all of it is readable or none.
        let mut line = address & !63;
        let mut skip = (address & 63) as usize;
        while code.length < LONGEST {
            let Ok(words) = guarded_access::load(line) else { break };
            for byte in words.iter().flat_map(|word| word.to_le_bytes()).skip(skip) {
                if code.length < LONGEST {
                    code.bytes[code.length] = byte;
                    code.length += 1;
                }
            }
            skip = 0;
            line = line.wrapping_add(64);
        }
        code
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn starts_with(&self, bytes: [u8; JUMP]) -> bool {
        self.bytes().starts_with(&bytes)
    }
}

/// The state of an address at which a thread trapped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inspected {
    /// A rewritten site, or one that is being rewritten or undone: the thread may continue here.
    Rewritten {
        /// The trampoline.
        trampoline: u64,
    },
    /// Code of the program.
    Code(Code),
}

/// Determines the state of `address`, even while another thread changes it.
pub(crate) fn inspect(address: u64) -> Inspected {
    let Ok(at) = usize::try_from(address) else { return Inspected::Code(Code::read(address)) };
    loop {
        let before = SITES.find(at).map(Site::state);
        let code = Code::read(address);
        // Acquire: the state is read again after the bytes.
        fence(Ordering::Acquire);
        let site = SITES.find(at);
        let state = site.map(Site::state);
        // Old and new bytes may be mixed if a thread changed them meanwhile; a changed state shows this.
        if state != before {
            continue;
        }
        return match (site, state.map(|state| state.phase)) {
            (Some(site), Some(Phase::Changing)) => Inspected::Rewritten { trampoline: site.trampoline() as u64 },
            (Some(site), Some(Phase::Rewritten)) if site.jump().is_some_and(|jump| code.starts_with(jump)) => {
                Inspected::Rewritten { trampoline: site.trampoline() as u64 }
            }
            // Not the code that was rewritten: it was unloaded or overwritten.
            _ => Inspected::Code(code),
        };
    }
}

/// True for instructions whose emulation changes only registers that a call can change.
fn is_rewritable(instruction: Instruction) -> bool {
    let long = usize::from(instruction.length) >= JUMP;
    long && match instruction.operation {
        Operation::Movdir64b { .. }
        | Operation::Umonitor { .. }
        | Operation::Umwait { .. }
        | Operation::Tpause { .. } => true,
        Operation::Enqcmd { supervisor, .. } => !supervisor,
        Operation::Movdiri { .. }
        | Operation::Store64 { .. }
        | Operation::Store { .. }
        | Operation::StringStore { .. } => false,
    }
}

/// Called on a trap: rewrites the site if that is possible now.
pub(crate) fn rewrite_after_trap(address: u64, instruction: Instruction) {
    if is_rewritable(instruction) && REWRITING.load(Ordering::Relaxed) {
        // If this fails, the site traps again.
        let _ = rewrite(address);
    }
}

/// Rewrites the site at `address` without waiting for it to trap. Async-signal-safe.
///
/// # Errors
/// See [`Refusal`].
pub fn rewrite(address: u64) -> Result<(), Refusal> {
    let _lock = LOCK.take().ok_or(Refusal::Busy)?;
    // Under the lock: `undo_all` forbids rewriting before it takes the lock.
    if !REWRITING.load(Ordering::Relaxed) {
        return Err(Refusal::Off);
    }
    let code = match inspect(address) {
        Inspected::Rewritten { .. } => return Ok(()),
        Inspected::Code(code) => code,
    };
    let instruction =
        decode(code.bytes()).filter(|&instruction| is_rewritable(instruction)).ok_or(Refusal::NotASite)?;
    let at = usize::try_from(address).map_err(|_| Refusal::NotASite)?;
    let original: [u8; JUMP] = *code.bytes().first_chunk().ok_or(Refusal::NotASite)?;
    let known = SITES.find(at).filter(|site| {
        let same = site.is(instruction, original);
        if site.state().phase == Phase::Rewritten {
            // The jump is gone: other code is there now, or the original again.
            REWRITTEN.fetch_sub(1, Ordering::Relaxed);
            site.set(Phase::Original);
        }
        if !same {
            // Its record stays unchanged, for threads that are in the trampoline.
            site.retire();
        }
        same
    });
    if known.is_some_and(|site| site.state().phase == Phase::Refused) {
        return Err(Refusal::Protected);
    }
    // An error here would affect all sites.
    let patch = Patch::new().inspect_err(|_| set_rewriting(false))?;
    let site = match known {
        Some(site) => site,
        None => {
            let trampoline = near::trampoline(at, instruction.length)?;
            let site = SITES.add(at, instruction, original, trampoline).ok_or(Refusal::Full)?;
            near::fill(&patch, trampoline, at + usize::from(instruction.length), site)
                .inspect_err(|_| site.set(Phase::Refused))?;
            site
        }
    };
    let jump = site.jump().ok_or(Refusal::Unreachable)?;
    entry::make_stacks();
    site.set(Phase::Changing);
    // SAFETY: the site contains `original`, as was just read under the lock. Threads that execute the intermediate
    // bytes are sent to the trampoline, which does what the instruction does.
    let done = unsafe { patch.replace(at, original, jump) };
    site.set(if done { Phase::Rewritten } else { Phase::Refused });
    if !done {
        return Err(Refusal::Protected);
    }
    REWRITTEN.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Restores the original bytes at every site, and stops rewriting until [`set_rewriting`] allows it again. Not for
/// signal handlers.
pub fn undo_all() {
    set_rewriting(false);
    let Some(_lock) = (0..100_000).find_map(|_| {
        LOCK.take().or_else(|| {
            kernel::yield_now();
            None
        })
    }) else {
        return;
    };
    let Ok(patch) = Patch::new() else { return };
    for site in SITES.all().filter(|site| site.state().phase == Phase::Rewritten) {
        let Some(jump) = site.jump() else { continue };
        // Unloaded or overwritten code no longer contains our jump.
        let ours = Code::read(site.address() as u64).starts_with(jump);
        site.set(Phase::Changing);
        // SAFETY: the site contains our jump, as was just read under the lock; see `rewrite`.
        let undone = !ours || unsafe { patch.replace(site.address(), jump, site.original()) };
        site.set(if undone { Phase::Original } else { Phase::Rewritten });
        if undone {
            REWRITTEN.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
