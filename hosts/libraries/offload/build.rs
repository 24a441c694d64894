//! Gives the library the name under which programs are linked with it. A program that was linked with an installed copy
//! then uses the copy that `telpher offload` preloads, and loads no second one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtelpher-offload.so");
}
