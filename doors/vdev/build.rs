//! Builds the part that is preloaded into programs and hands its path to `src/image.rs`, so that it travels inside the binary.
//!
//! It is another crate type with another panic strategy, and must not share features with the host; so it is a cargo run of
//! its own, in a target directory of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages the guest is made of: a change in one of them builds it anew.
const SOURCES: &[&str] = &[
    "base/abi",
    "base/mem",
    "base/ops",
    "base/interpose",
    "path/portal",
    "path/model",
    "path/device",
    "doors/vdev-wire",
    "doors/vdev-guest",
];

fn main() {
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = folder.ancestors().nth(2).expect("doors/vdev lies two folders deep").to_owned();
    for source in SOURCES {
        for part in ["src", "asm", "Cargo.toml"] {
            let path = root.join(source).join(part);
            if path.exists() {
                println!("cargo::rerun-if-changed={}", path.display());
            }
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", root.join("Cargo.toml").display());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let image = build(&root, &out.join("guest"));
    println!("cargo::rustc-env=TELPHER_GUEST_IMAGE={}", image.display());
}

fn build(root: &Path, target: &Path) -> PathBuf {
    let cargo = std::env::var_os("CARGO").expect("cargo sets it");
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(["build", "--quiet", "--profile", "guest", "--package", "telpher-vdev-guest", "--lib", "--target-dir"])
        .arg(target);
    if root.join("Cargo.lock").exists() {
        command.arg("--locked");
    }
    // What was meant for the outer build: flags (`--cfg loom`), wrappers (clippy), target directory, and what cargo told this
    // script about its own package.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let kept = ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_INCREMENTAL", "CARGO_REGISTRIES", "CARGO_HTTP"];
        let foreign = text.starts_with("CARGO") && !kept.iter().any(|prefix| text.starts_with(prefix));
        if foreign || ["RUSTFLAGS", "RUSTDOCFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"].contains(&&*text) {
            command.env_remove(&name);
        }
    }
    let status = command.status().expect("cargo runs");
    assert!(status.success(), "building the preloaded part (package telpher-vdev-guest) failed: {status}");
    target.join("guest/libtelpher_vdev_guest.so")
}
