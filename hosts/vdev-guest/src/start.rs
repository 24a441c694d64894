//! Initialisation: in this library's constructor, or in the first call of a constructor that runs earlier.

use crate::faults;
use crate::fork;
use crate::run;
use crate::submit::Portals;
use crate::sync::{AtomicU8, Ordering};
use telpher_interpose::Options;

const UNTOUCHED: u8 = 0;
const STARTING: u8 = 1;
const DONE: u8 = 2;

static STAGE: AtomicU8 = AtomicU8::new(UNTOUCHED);

/// Initialises the library once. Costs one load afterwards.
#[inline]
pub(crate) fn start() {
    // Acquire: pairs with the Release in `begin`.
    if STAGE.load(Ordering::Acquire) != DONE {
        begin();
    }
}

/// Ends the process at once when this library panics, after the usual message. The library is built to unwind, like the
/// other preloaded libraries, but an unwinding panic would run through frames of the program.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

#[cold]
fn begin() {
    // A call during initialisation continues without it: before main there is one thread, and its calls here are passed
    // on to the kernel.
    if STAGE.compare_exchange(UNTOUCHED, STARTING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    if run::view().is_some() {
        end_on_panic();
        faults::adopt();
        // Initialised now, not in the middle of an instruction.
        let _ = faults::memory();
        // Fails only in a sandbox that forbids rt_sigaction: then instructions trap into the program, as without this
        // library.
        let _ = telpher_interpose::install(&Portals, Options { rewrite: run::rewrites() });
        fork::register();
        run::follow();
        crate::files::start();
        crate::symbols::standard::start();
        crate::windows::start();
    }
    // Release: pairs with the Acquire in `start`.
    STAGE.store(DONE, Ordering::Release);
}
