//! The rules of the house, as tests over `cargo metadata` and the source tree: which room may depend on which, where
//! unsafe code lives, which outside crates are used and under which licence, what every crate must bring.

mod arrows;
mod dependencies;
mod licence;
mod metadata;
mod order;
mod unsafe_rooms;

use std::path::{Path, PathBuf};

/// The root of the workspace.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("doors/cli lies two folders deep").to_owned()
}

/// All files of the project below `root`, without what is built or hidden, in a fixed order.
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
                // Reports are written into the current folder, which is often this one.
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found
}

/// A path relative to the root, as text.
fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned()
}

/// The contents of a text file; `None` if it is not text.
fn text(path: &Path) -> Option<String> {
    String::from_utf8(std::fs::read(path).expect("a readable file")).ok()
}

/// The Rust files of the project, relative path and contents.
fn rust_files() -> Vec<(String, String)> {
    let rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    files().iter().filter(|path| rust(path)).map(|path| (relative(path), text(path).expect("UTF-8"))).collect()
}

/// Fails with all findings at once.
fn none(what: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{what}:\n    {}", findings.join("\n    "));
}
