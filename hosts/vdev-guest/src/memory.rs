//! The memory functions that the compiler calls, hidden outside this library.
//!
//! A program may define its own `memcpy`; one that submits copies to the device would re-enter this library in the
//! middle of an emulated instruction. So this library calls its own.
#![allow(unsafe_code, reason = "assembly")]

telpher_interpose::hidden_memory_functions!();
