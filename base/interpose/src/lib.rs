//! Hooks into a process we do not own.
#![deny(unsafe_code)]
