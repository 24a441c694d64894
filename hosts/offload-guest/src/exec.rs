//! Programs that the program executes: they are loaded with this library as well.
#![allow(unsafe_code, reason = "interposes the C library's functions of these names")]

use telpher_interpose::exec::Words;

telpher_interpose::exec_symbols!();

/// Restores this library and a variable with its settings in the environments of executed programs. `consequence` says
/// what follows for programs that cannot load the library.
pub(crate) fn follow(variable: &str, settings: &str, consequence: &'static str) {
    let words = Words { prefix: "telpher: ", consequence, otherwise: "link it dynamically against glibc" };
    telpher_interpose::exec::start(&[(variable, settings.as_bytes())], Some(words));
}
