//! Programs that the program executes: they have this library, too.
#![allow(unsafe_code, reason = "stands in front of the C library's functions of these names")]

use telpher_interpose::exec::Words;
use telpher_tier_wire::VARIABLE;

telpher_interpose::exec_symbols!();

/// Has this library and its settings restored in the environments of programs that are executed.
pub(crate) fn follow(settings: &str) {
    /// An address of this library's.
    static INSIDE: u8 = 1;
    let words = Words {
        prefix: "telpher: ",
        consequence: "its memory is not managed",
        otherwise: "link it dynamically against glibc",
    };
    telpher_interpose::exec::start((&raw const INSIDE).cast(), &[(VARIABLE, settings.as_bytes())], Some(words));
}
