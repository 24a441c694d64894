//! Builds all libraries that are preloaded into programs, so that they travel inside the binary; `src/libraries.rs`
//! includes them.
//!
//! They are shared objects, and must not share features with the crates that carry them. So one nested cargo run builds
//! them all, in a target directory of its own, with the profile `preloaded` of the workspace.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each library's folder, and the variable in which `src/libraries.rs` finds its path.
const LIBRARIES: [(&str, &str); 5] = [
    ("hosts/vdev-guest", "TELPHER_VDEV_LIBRARY"),
    ("hosts/tier-guest", "TELPHER_TIER_LIBRARY"),
    ("hosts/offload-guest", "TELPHER_OFFLOAD_LIBRARY"),
    // Not preloaded: libfabric loads it. It travels in the binary all the same.
    ("doors/ofi", "TELPHER_FABRIC_LIBRARY"),
    // Users preload it, and not this crate.
    ("doors/mpi", "TELPHER_COLLECTIVES_LIBRARY"),
];

const PROFILE: &str = "preloaded";

fn main() {
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = folder.ancestors().nth(2).expect("crates lie two folders deep");
    for path in sources(root) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    // OUT_DIR is `<profile>/build/<package>/out`, one for each choice of features. The libraries are the same for all
    // of them.
    let target = out.ancestors().nth(3).unwrap_or(&out).join("preloaded");
    run_cargo(root, &target);
    for (library, variable) in LIBRARIES {
        let file = format!("libtelpher_{}.so", name(library).replace('-', "_"));
        println!("cargo::rustc-env={variable}={}", target.join(PROFILE).join(file).display());
    }
}

/// The last part of a folder; the package is named after it.
fn name(folder: &str) -> &str {
    folder.rsplit('/').next().expect("a part")
}

/// The files and folders whose change makes a new build necessary: those of each library, and of the crates of this
/// workspace that it depends on, read from the manifests.
fn sources(root: &Path) -> Vec<PathBuf> {
    let workspace = std::fs::read_to_string(root.join("Cargo.toml")).expect("the workspace has a manifest");
    let mut waiting: Vec<String> = LIBRARIES.iter().map(|(library, _)| (*library).into()).collect();
    let mut crates = BTreeSet::new();
    while let Some(folder) = waiting.pop() {
        let manifest = std::fs::read_to_string(root.join(&folder).join("Cargo.toml")).expect("a crate has a manifest");
        if crates.insert(folder) {
            let dependencies = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
            let names =
                dependencies.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once(" = "));
            waiting.extend(names.filter_map(|(name, _)| folder_of(&workspace, name)));
        }
    }
    let parts = crates
        .iter()
        .flat_map(|folder| ["src", "asm", "build.rs", "Cargo.toml"].map(|part| root.join(folder).join(part)));
    let own = ["hosts/launch/build.rs", "Cargo.toml"].map(|file| root.join(file));
    parts.filter(|path| path.exists()).chain(own).collect()
}

/// The folder that the workspace's manifest gives for a crate of its own: `telpher-abi = { path = "base/abi", … }`.
fn folder_of(workspace: &str, name: &str) -> Option<String> {
    let line =
        workspace.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(" = { path")))?;
    line.split('"').nth(1).map(str::to_owned)
}

fn run_cargo(root: &Path, target: &Path) {
    let cargo = std::env::var_os("CARGO").expect("cargo sets it");
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["build", "--quiet", "--profile", PROFILE, "--target-dir"]).arg(target);
    for (library, _) in LIBRARIES {
        command.args(["--package", &format!("telpher-{}", name(library))]);
    }
    if root.join("Cargo.lock").exists() {
        command.arg("--locked");
    }
    // Variables meant for the outer build are removed: flags (`--cfg loom`), wrappers (clippy), the target directory,
    // and what cargo says about this package.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let kept = ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_INCREMENTAL", "CARGO_REGISTRIES", "CARGO_HTTP"];
        let foreign = text.starts_with("CARGO") && !kept.iter().any(|prefix| text.starts_with(prefix));
        if foreign || ["RUSTFLAGS", "RUSTDOCFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"].contains(&&*text) {
            command.env_remove(&name);
        }
    }
    let status = command.status().expect("cargo runs");
    assert!(status.success(), "building the preloaded libraries failed: {status}");
}
