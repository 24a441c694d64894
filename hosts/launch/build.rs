//! Packs all libraries that are preloaded into programs, so that they travel inside the binary; `src/libraries.rs`
//! includes them. They are compressed as one stream: they have much code in common.
//!
//! They are shared objects, and must not share features with the crates that carry them. So they are dependencies of
//! this script: packages in `hosts/libraries`, outside of the workspace, each with a shared object of its own name. In
//! a release build, cargo compiles what they have in common with the command once.
//!
//! A package of this crate has no workspace around it, and so none of its profiles. Its folder `sources` has one with
//! these libraries and what they depend on, written by `ci/publish.sh`, and a nested cargo run builds them, with the
//! profile `preloaded` of that workspace. Its manifests have another name there, since cargo leaves crates within a
//! package out.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each library's folder in `hosts/libraries`, and its name in `src/libraries.rs`. To unpack one, those before it are
/// unpacked, too.
const LIBRARIES: [(&str, &str); 5] = [
    ("vdev", "VDEV"),
    ("offload", "OFFLOAD"),
    ("tier", "TIER"),
    // Not preloaded: libfabric loads it. It travels in the binary all the same.
    ("fabric", "FABRIC"),
    // Users preload it, and not this crate.
    ("collectives", "COLLECTIVES"),
];

/// Higher levels take seconds to gain a few percent.
const LEVEL: i32 = 9;

/// As a power of two, how far back the stream may refer: further than all libraries are long.
const WINDOW: u32 = 24;

const PROFILE: &str = "preloaded";

fn main() {
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    // Cargo also runs this script again when a dependency has changed.
    println!("cargo::rerun-if-changed=build.rs");
    let sources = folder.join("sources");
    let is_packaged = !folder.with_file_name("libraries").exists();
    let built = if is_packaged { build(&sources, &out) } else { dependencies() };
    pack(&LIBRARIES.map(|(library, _)| built.join(file_name(library))), &out);
}

/// The folder with the shared objects that are dependencies of this script. Cargo tells a script nothing about them,
/// but leaves them in `<profile>/deps`, and this script is in `<profile>/build/<package>`.
fn dependencies() -> PathBuf {
    let own = std::env::current_exe().expect("Linux knows the path");
    own.ancestors().nth(3).expect("cargo's folders").join("deps")
}

/// Builds the libraries of a package, and returns the folder with their shared objects.
fn build(sources: &Path, out: &Path) -> PathBuf {
    let unpacked = out.join("sources");
    unpack(sources, &unpacked);
    // OUT_DIR is `<profile>/build/<package>/out`, one for each choice of features. The libraries are the same for all
    // of them.
    let target = out.ancestors().nth(3).unwrap_or(out).join("preloaded");
    run_cargo(&unpacked, &target);
    target.join(PROFILE)
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
    format!("libtelpher_library_{library}.so")
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

/// Runs cargo for the workspace of a package.
fn run_cargo(root: &Path, target: &Path) {
    let cargo = std::env::var_os("CARGO").expect("cargo sets it");
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["build", "--quiet", "--profile", PROFILE, "--target-dir"]).arg(target);
    for (library, _) in LIBRARIES {
        command.args(["--package", &format!("telpher-library-{library}")]);
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
