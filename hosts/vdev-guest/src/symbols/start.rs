//! The functions that the dynamic linker calls when it loads this library and when the program ends, and the symbol
//! that identifies the library.
#![allow(unsafe_code, reason = "places functions in the sections that the dynamic linker calls; exports a name")]
#![cfg(not(test))]

use crate::run;
use crate::symbols::process;
use telpher_interpose::{Fixup, share};

telpher_interpose::start_and_end!(begin, end);

extern "C" fn begin() {
    crate::start::start();
}

/// The program ends: waits for its descriptors, then restores its code.
extern "C" fn end() {
    process::finish();
    telpher_interpose::sites::undo_all();
}

/// A program can find this symbol with dlsym(3) to learn that instructions are emulated in this process. The
/// environment variable announces them too, but also reaches programs that never load this library.
#[unsafe(export_name = "telpher_emulates")]
static EMULATES: u8 = 1;

/// Lets the library of `telpher offload` use this library's traps. Returns false outside a run.
#[unsafe(no_mangle)]
extern "C" fn telpher_share_signals(fixup: Fixup) -> bool {
    // The other library's constructor may run first.
    crate::start::start();
    run::view().is_some() && share(fixup)
}
