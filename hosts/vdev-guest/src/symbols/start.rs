//! What the dynamic linker calls when this library comes and when the program ends, and by what the library is known.
#![allow(unsafe_code, reason = "places functions in the sections the dynamic linker calls; exports a name")]
#![cfg(not(test))]

use crate::symbols::process;

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    crate::start::start();
}

/// The program is over: what it has submitted ends first, and its code is as it was.
extern "C" fn end() {
    process::finish();
    telpher_interpose::sites::undo_all();
}

/// Tells a program that looks for it by dlsym(3) that instructions are emulated in this process: the environment, which announces
/// them, reaches also programs that never load this.
#[unsafe(export_name = "telpher_emulates")]
static EMULATES: u8 = 1;
