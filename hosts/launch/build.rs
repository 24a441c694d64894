//! Builds all libraries that are preloaded into programs, so that they travel inside the binary; `src/libraries.rs`
//! includes them. They are compressed as one stream: they have much code in common.
//!
//! They are shared objects, and must not share features with the crates that carry them. So one nested cargo run builds
//! them all, in a target directory of its own, with the profile `preloaded` of the workspace.
//!
//! A package of this crate has no workspace around it. Its folder `sources` has one with these libraries and what they
//! depend on, written by `ci/publish.sh`. Its manifests have another name there, since cargo leaves crates within a
//! package out.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each library's folder, and its name in `src/libraries.rs`. To unpack one, those before it are unpacked, too.
const LIBRARIES: [(&str, &str); 5] = [
    ("hosts/vdev-guest", "VDEV"),
    ("hosts/offload-guest", "OFFLOAD"),
    ("hosts/tier-guest", "TIER"),
    // Not preloaded: libfabric loads it. It travels in the binary all the same.
    ("doors/ofi", "FABRIC"),
    // Users preload it, and not this crate.
    ("doors/mpi", "COLLECTIVES"),
];

/// Higher levels take seconds to gain a few percent.
const LEVEL: i32 = 9;

/// As a power of two, how far back the stream may refer: further than all libraries are long.
const WINDOW: u32 = 24;

const PROFILE: &str = "preloaded";

fn main() {
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let workspace = folder.ancestors().nth(2).expect("crates lie two folders deep");
    let is_packaged = !workspace.join("hosts/launch/build.rs").exists();
    println!("cargo::rerun-if-changed=build.rs");
    let unpacked = out.join("sources");
    if is_packaged {
        unpack(&folder.join("sources"), &unpacked);
    } else {
        for path in sources(workspace) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let root = if is_packaged { &unpacked } else { workspace };
    // OUT_DIR is `<profile>/build/<package>/out`, one for each choice of features. The libraries are the same for all
    // of them.
    let target = out.ancestors().nth(3).unwrap_or(&out).join("preloaded");
    run_cargo(root, &target);
    pack(&LIBRARIES.map(|(library, _)| target.join(PROFILE).join(file_name(library))), &out);
}

/// Writes the libraries as `libraries.zst`, and as `places.rs` where each is: a constant with its offset, its length
/// and its hash.
fn pack(files: &[PathBuf; LIBRARIES.len()], out: &Path) {
    let mut all = Vec::new();
    let mut places = String::new();
    for ((_, constant), file) in LIBRARIES.iter().zip(files) {
        let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("reading {} failed: {error}", file.display()));
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        let (offset, len, hash) = (all.len(), bytes.len(), hasher.finish());
        writeln!(places, "const {constant}_PLACE: Place = Place {{ offset: {offset}, len: {len}, hash: {hash} }};")
            .expect("a string grows");
        all.extend(bytes);
    }
    let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL).expect("memory for the compressor");
    encoder.window_log(WINDOW).expect("a window that zstd has");
    encoder.long_distance_matching(true).expect("a flag that zstd has");
    encoder.write_all(&all).expect("a vector grows");
    let packed = encoder.finish().expect("a vector grows");
    for (name, bytes) in [("libraries.zst", packed), ("places.rs", places.into_bytes())] {
        let path = out.join(name);
        std::fs::write(&path, bytes).unwrap_or_else(|error| panic!("writing {} failed: {error}", path.display()));
    }
}

/// The name of a library's shared object.
fn file_name(library: &str) -> String {
    format!("libtelpher_{}.so", name(library).replace('-', "_"))
}

/// The name of a manifest in a package.
const PACKAGED_MANIFEST: &str = "manifest.toml";

/// Copies the workspace of a package, with the usual names of its manifests.
fn unpack(from: &Path, to: &Path) {
    let failed = |error: std::io::Error| -> ! {
        panic!(
            "the sources of the preloaded libraries cannot be copied from {}: {error}; is this package complete?",
            from.display()
        )
    };
    std::fs::create_dir_all(to).unwrap_or_else(|error| failed(error));
    for entry in std::fs::read_dir(from).unwrap_or_else(|error| failed(error)) {
        let path = entry.unwrap_or_else(|error| failed(error)).path();
        let name = path.file_name().expect("an entry of a folder has a name");
        if path.is_dir() {
            unpack(&path, &to.join(name));
            continue;
        }
        let name = if name == PACKAGED_MANIFEST { "Cargo.toml".as_ref() } else { name };
        if let Err(error) = std::fs::copy(&path, to.join(name)) {
            failed(error);
        }
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
