//! Rules of the project as tests over `cargo metadata` and the source tree: which crate may depend on which, where
//! unsafe code is allowed, which third-party crates are used and under which licence, and what every crate must have.

mod arrows;
mod cycles;
mod defects;
mod dependencies;
mod environment;
mod language;
mod licence;
mod metadata;
mod metrics;
mod order;
mod unsafe_modules;

use std::path::{Path, PathBuf};

/// Returns the root of the workspace.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("doors/cli lies two folders deep").to_owned()
}

/// Returns all files of the project, without built and hidden ones, in a fixed order.
fn files() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        let entries = std::fs::read_dir(folder).expect("a folder of the project");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        for path in paths {
            let name = path.file_name().expect("a name").to_string_lossy();
            if path.is_dir() {
                let built = ["target", "corpus", "artifacts", "proptest-regressions"].contains(&name.as_ref());
                if !built && (!name.starts_with('.') || name == ".ci") {
                    walk(&path, found);
                }
            } else if path.extension().is_none_or(|extension| extension != "html") {
                // Skip reports, which commands write into the current folder.
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found
}

/// Returns a path relative to the root, as text.
fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned()
}

/// Returns the contents of a text file; `None` if it is not text.
fn text(path: &Path) -> Option<String> {
    String::from_utf8(std::fs::read(path).expect("a readable file")).ok()
}

/// Returns the Rust files of the project: relative path and contents.
fn rust_files() -> Vec<(String, String)> {
    let rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    files().iter().filter(|path| rust(path)).map(|path| (relative(path), text(path).expect("UTF-8"))).collect()
}

/// Fails with all findings at once.
fn none(what: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{what}:\n    {}", findings.join("\n    "));
}
