//! The part of the virtual device inside a program.
#![deny(unsafe_code)]

mod files;
mod observe;
mod symbols;
