//! Programs that the program executes: they are loaded with this library as well.
#![allow(unsafe_code, reason = "interposes the C library's functions of these names")]

use telpher_interpose::exec::Words;
use telpher_tier_wire::VARIABLE;

telpher_interpose::exec_symbols!();

/// Restores this library and its settings in the environments of executed programs.
pub(crate) fn follow(settings: &str) {
    let words = Words {
        prefix: "telpher: ",
        consequence: "its memory is not managed",
        otherwise: "link it dynamically against glibc",
    };
    telpher_interpose::exec::start(&[(VARIABLE, settings.as_bytes())], Some(words));
}
