//! `install.sh` without a compilation: the archive that cargo has built already, from a script in cargo's place.
//! Everything else is as installed. Included by the tests that compile programs against the installed files.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The static library that cargo built for the whole workspace. The whole workspace is selected so that the features
/// are those of `cargo test --workspace`: with others, everything would be compiled once more.
fn archive(dml: &Path) -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(dml).args(["build", "--workspace", "--test", "cpp"]);
        let output = command.args(["--message-format", "json-render-diagnostics"]).output().expect("cargo runs");
        assert!(output.status.success(), "cargo build: {}", String::from_utf8_lossy(&output.stderr));
        let messages = String::from_utf8_lossy(&output.stdout);
        let mut files = messages.split('"').filter(|text| text.contains("/libtelpher_dml") && text.ends_with(".a"));
        PathBuf::from(files.next_back().expect("cargo names the archive"))
    })
}

/// Writes the script into a new folder. It checks its arguments, of which the profile is `profile`, and answers with
/// the archive.
pub(crate) fn cargo(dml: &Path, folder: &Path, profile: &str) -> PathBuf {
    std::fs::create_dir_all(folder).expect("a folder");
    let (cargo, named) = (folder.join("cargo"), folder.join("libtelpher_dml.a"));
    // Without the hash that cargo adds to the names of libraries that a test uses.
    symlink(archive(dml), &named).expect("a new name");
    let expected = format!("build --locked --manifest-path */Cargo.toml --profile {profile} --lib --message-format *");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in ({}) echo '{{\"filenames\":[\"{}\"]}}' ;; (*) exit 1 ;; esac\n",
        expected.replace(' ', "\\ "),
        named.display()
    );
    std::fs::write(&cargo, script).expect("a script");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("the test's own file");
    cargo
}

/// The command `install.sh`, with such a script in this new folder.
pub(crate) fn install(dml: &Path, folder: &Path) -> Command {
    let mut install = Command::new(dml.join("install.sh"));
    install.args(["--profile", "dev"]).env("CARGO", cargo(dml, folder, "dev"));
    install
}
