//! Tells the compiler the commit and the target that `telpher --version` prints.
//!
//! The commit is that of the git checkout which tracks this file, or that of the package that Cargo made of it. In a
//! source archive, or without git, it is `unknown`. A new commit runs this script again.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let commit = checkout().or_else(package).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=TELPHER_COMMIT={commit}");
    println!("cargo::rustc-env=TELPHER_TARGET={}", std::env::var("TARGET").expect("Cargo sets TARGET"));
}

/// Returns the output of git; `None` if git fails or does not exist.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Returns the commit of the checkout.
fn checkout() -> Option<String> {
    // A commit changes a file below refs/heads; a change of branch changes HEAD; `git gc` moves refs to packed-refs.
    for name in ["HEAD", "refs/heads", "packed-refs"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // An archive may be unpacked inside the checkout of another project, which does not track this file.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// Returns the commit that Cargo wrote into the package.
fn package() -> Option<String> {
    let text = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    rest.split('"').nth(1)?.get(..12).map(str::to_owned)
}
