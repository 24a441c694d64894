//! Faults of a modelled device, which accesses the program's memory in this process.
#![allow(unsafe_code, reason = "edits the context of a fault, and takes over fault handling from `mem`")]

use telpher_interpose::{Handler, Monitor, Offer, Options, SubmitInstruction, install, join};
use telpher_mem::hook;

/// Takes over the process' signals: a modelled device's faults continue at their landings, all others are the
/// program's. Its handlers can be deferred from now on. Under `telpher run` the signals stay with that library, which
/// asks this one about faults.
///
/// # Errors
/// As a sentence, if a sandbox forbids it.
pub(crate) fn take_over() -> Result<(), String> {
    // SAFETY: `fixup` continues every such fault at its landing, and no code of this library blocks the two signals.
    unsafe { hook::adopt() };
    if join(resume) {
        return Ok(());
    }
    install(&ModelFaults, Options { rewrite: false })
        .map_err(|errno| format!("cannot handle signals: {}", std::io::Error::from_raw_os_error(errno)))
}

/// Continues after a fault of a modelled device.
unsafe extern "C" fn resume(context: &mut libc::ucontext_t) -> bool {
    hook::resume(context)
}

/// Handles the faults; the process has no emulated portals.
#[derive(Debug)]
struct ModelFaults;

impl Handler for ModelFaults {
    fn is_portal(&self, _address: u64) -> bool {
        false
    }

    fn enqueue(&self, _how: SubmitInstruction, _destination: u64, _descriptor: &[u64; 8]) -> Offer {
        Offer::Retry
    }

    fn wait(&self, _monitor: Option<&Monitor>, _control: u32, _deadline: u64) -> bool {
        false
    }

    fn fixup(&self, context: &mut libc::ucontext_t) -> bool {
        hook::resume(context)
    }
}
