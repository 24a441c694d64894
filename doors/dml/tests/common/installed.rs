//! `install.sh` without a compilation: the archive that cargo has built already, from a script in cargo's place.
//! Everything else is as installed. Included by the tests that compile programs against the installed files.
//!
//! These tests are several programs, which may run at once, and share one installation and its object files: each
//! source is compiled once for each set of options.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What all sources are compiled with. Failed checks name their lines without debug information.
const OPTIONS: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread"];

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

/// The prefix that `install.sh` filled. It is filled anew when the archive, a file to install or a compiler has
/// changed. This process keeps a shared lock on it until it ends, so that no other one replaces the files in use.
pub(crate) fn stage(dml: &Path) -> &'static Path {
    static STAGE: OnceLock<(PathBuf, File)> = OnceLock::new();
    let (stage, _) = STAGE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dml-installed");
        let (stage, complete) = (folder.join("prefix"), folder.join("complete"));
        std::fs::create_dir_all(&folder).expect("a folder");
        let lock = lock_file(&folder.join("lock"));
        let key = key(dml);
        let is_present = || std::fs::read_to_string(&complete).is_ok_and(|present| present == key);
        loop {
            lock.lock_shared().expect("a lock");
            if is_present() {
                return (stage, lock);
            }
            lock.unlock().expect("a lock");
            lock.lock().expect("a lock");
            if !is_present() {
                let _ = std::fs::remove_file(&complete);
                for old in [&stage, &folder.join("cargo"), &folder.join("objects")] {
                    let _ = std::fs::remove_dir_all(old);
                }
                succeed(install(dml, &folder.join("cargo")).arg(&stage));
                std::fs::create_dir(folder.join("objects")).expect("a folder");
                std::fs::write(&complete, &key).expect("a key");
            }
            lock.unlock().expect("a lock");
        }
    });
    stage
}

/// What the installed files and the object files depend on.
fn key(dml: &Path) -> String {
    let mut hash = DefaultHasher::new();
    let archive = archive(dml);
    let state = archive.metadata().expect("an archive");
    (archive, state.len(), state.modified().expect("a time")).hash(&mut hash);
    for compiler in ["cc", "c++"] {
        Command::new(compiler).arg("--version").output().expect("a compiler").stdout.hash(&mut hash);
    }
    for file in ["include", "hl", "cmake", "dml.map", "install.sh", "../library.sh"] {
        hash_files(&dml.join(file), &mut hash);
    }
    format!("{:016x}", hash.finish())
}

/// Names and contents of a file, or of all files below a folder.
fn hash_files(path: &Path, hash: &mut DefaultHasher) {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("a folder");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort_unstable();
        paths.iter().for_each(|path| hash_files(path, hash));
    } else {
        (path.file_name(), std::fs::read(path).expect("a file")).hash(hash);
    }
}

/// The object file of a source of this crate, compiled against the installed headers: as C++17 or C11, with these
/// options. If several threads or processes ask for it at once, the first one compiles it.
pub(crate) fn object(dml: &Path, source: &str, options: &[&str]) -> PathBuf {
    let stage = stage(dml);
    let is_c = source.ends_with(".c");
    let mut command = Command::new(if is_c { "cc" } else { "c++" });
    command.args(OPTIONS).arg(if is_c { "-std=c11" } else { "-std=c++17" });
    if is_c && source.starts_with("tests/") {
        command.args(["-D_DEFAULT_SOURCE", "-O1"]);
    }
    command.args(options).arg("-I").arg(stage.join("include")).arg("-c").arg(dml.join(source)).arg("-o");
    let mut hash = DefaultHasher::new();
    command.get_args().for_each(|argument| argument.hash(&mut hash));
    for file in [source, "tests/programs/check.h", "tests/programs/check.hpp"] {
        hash_files(&dml.join(file), &mut hash);
    }
    let name = Path::new(source).file_name().expect("a file").to_string_lossy();
    let object = stage.with_file_name("objects").join(format!("{name}-{:016x}.o", hash.finish()));
    // Dropped, and so unlocked, at the end.
    let lock = lock_file(&object.with_extension("lock"));
    lock.lock().expect("a lock");
    if !object.exists() {
        // Renamed when it is complete: a compiler may be killed.
        let part = object.with_extension("part");
        succeed(command.arg(&part));
        std::fs::rename(&part, &object).expect("a new name");
    }
    object
}

fn lock_file(path: &Path) -> File {
    File::options().write(true).create(true).truncate(false).open(path).expect("a lock file")
}

/// Runs a command, which must succeed.
pub(crate) fn succeed(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
}
