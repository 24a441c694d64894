//! Marks the shared object so that it stays loaded when libfabric closes it.
//!
//! An endpoint that a program has not closed has a thread, which would go on in memory that is gone.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
