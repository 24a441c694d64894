//! Builds a part that is preloaded into programs, for the build script of who carries it.
//!
//! It is another crate type with another panic strategy, and must not share features with its host; so it is a cargo run of
//! its own, in a target directory of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What is built: the package, its profile, and the packages it is made of: a change in one of them builds it anew.
pub(crate) struct Guest {
    pub(crate) package: &'static str,
    pub(crate) profile: &'static str,
    pub(crate) sources: &'static [&'static str],
}

impl Guest {
    /// Builds it, and tells cargo what to look at; where the shared object is.
    pub(crate) fn build(&self) -> PathBuf {
        let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
        let root = folder.ancestors().nth(2).expect("doors lie two folders deep").to_owned();
        for source in self.sources {
            for part in ["src", "asm", "Cargo.toml"] {
                let path = root.join(source).join(part);
                if path.exists() {
                    println!("cargo::rerun-if-changed={}", path.display());
                }
            }
        }
        println!("cargo::rerun-if-changed=build.rs");
        for shared in ["doors/guest.rs", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", root.join(shared).display());
        }
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
        // OUT_DIR is `<profile>/build/<package>/out`, one for each choice of features; the guest is the same for all.
        let profile = out.ancestors().nth(3).unwrap_or(&out);
        self.run_cargo(&root, &profile.join("guest").join(self.package))
    }

    fn run_cargo(&self, root: &Path, target: &Path) -> PathBuf {
        let cargo = std::env::var_os("CARGO").expect("cargo sets it");
        let mut command = Command::new(cargo);
        command
            .current_dir(root)
            .args(["build", "--quiet", "--profile", self.profile, "--package", self.package, "--lib", "--target-dir"])
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
        assert!(status.success(), "building the preloaded part (package {}) failed: {status}", self.package);
        target.join(self.profile).join(format!("lib{}.so", self.package.replace('-', "_")))
    }
}
