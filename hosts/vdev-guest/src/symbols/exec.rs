//! Programs that the program executes get this library too.
#![allow(unsafe_code, reason = "replaces the C library's functions of these names")]

telpher_interpose::exec_symbols!();
