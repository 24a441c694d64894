//! Runs programs on the virtual device and collects their output; builds clients.

use crate::skip::skip;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// The command under test.
pub(crate) const TELPHER: &str = env!("CARGO_BIN_EXE_telpher");

/// How programs see the device's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum View {
    Preload,
    Namespace,
    /// The namespace in which static programs find character devices.
    Devices,
}

impl View {
    pub(crate) fn name(self) -> &'static str {
        match self {
            View::Preload => "preload",
            View::Namespace => "namespace",
            View::Devices => "devices",
        }
    }

    /// Returns why this machine lacks the view, determined without our own code.
    pub(crate) fn missing(self) -> Option<&'static str> {
        static NAMESPACE: OnceLock<Option<&'static str>> = OnceLock::new();
        match self {
            View::Preload => None,
            View::Namespace | View::Devices => *NAMESPACE.get_or_init(|| {
                if File::options().read(true).write(true).open("/dev/fuse").is_err() {
                    return Some("/dev/fuse cannot be opened");
                }
                let mut unshare = Command::new("unshare");
                unshare.args(["--map-root-user", "--mount", "true"]).stderr(Stdio::null());
                match unshare.status() {
                    Ok(status) if status.success() => None,
                    _ => Some("mount namespaces cannot be created"),
                }
            }),
        }
    }
}

/// Tests that run in both views: each `fn name(view: View)` becomes `preloaded::name` and `mounted::name`.
macro_rules! in_both_views {
    ($($(#[$meta:meta])* fn $name:ident($view:ident: View) $body:block)+) => {
        $($(#[$meta])* fn $name($view: View) $body)+
        mod preloaded {
            $(#[test] fn $name() { crate::harness::in_view(crate::harness::View::Preload, stringify!($name), super::$name); })+
        }
        mod mounted {
            $(#[test] fn $name() { crate::harness::in_view(crate::harness::View::Namespace, stringify!($name), super::$name); })+
        }
    };
}
pub(crate) use in_both_views;

/// Runs a test in a view, or skips it if the machine lacks the view.
pub(crate) fn in_view(view: View, name: &str, test: fn(View)) {
    match view.missing() {
        None => test(view),
        Some(reason) => skip(&format!("{name} ({})", view.name()), reason),
    }
}

/// Returns an empty folder for a test.
pub(crate) fn test_folder(name: &str) -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs").join(name);
    let _ = std::fs::remove_dir_all(&room);
    std::fs::create_dir_all(&room).expect("a folder for what the tests write");
    room
}

/// A directory for TELPHER_RUNTIME_DIR, removed on drop. Its path must be short, which the build folder's need not be.
pub(crate) struct Runtime(PathBuf);

impl Runtime {
    pub(crate) fn new(test: &str) -> Runtime {
        let path = Path::new("/dev/shm").join(format!("test-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a directory in memory");
        Runtime(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns true if the directory contains only preloaded libraries, which stay.
    pub(crate) fn is_empty(&self) -> bool {
        self.of_runs("").is_empty()
    }

    /// Returns the directories of runs of one kind.
    pub(crate) fn of_runs(&self, kind: &str) -> Vec<PathBuf> {
        let paths = std::fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_of_run = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(kind) && !name.ends_with(".so")
        };
        paths.filter(is_of_run).collect()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the path of a file in `sources`.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/sources").join(name)
}

/// Returns true if PATH contains the program.
pub(crate) fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Skips the test and returns true if one of the programs is missing.
pub(crate) fn lacking(test: &str, programs: &[(&str, &str)]) -> bool {
    let missing = programs.iter().find(|(program, _)| !have(program) && !Path::new(program).is_file());
    if let Some((program, package)) = missing {
        skip(test, &format!("no {program} (Debian package {package})"));
    }
    missing.is_some()
}

/// Builds a client from its source in C; skips and returns `None` without a compiler.
pub(crate) fn client(name: &str) -> Option<PathBuf> {
    client_with(name, name, &[])
}

/// Builds a client with additional flags, under another name.
pub(crate) fn client_with(name: &str, output: &str, flags: &[&str]) -> Option<PathBuf> {
    static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    if lacking(output, &[("gcc", "gcc")]) {
        return None;
    }
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let built = built.get_or_insert_with(HashMap::new);
    if let Some(path) = built.get(output) {
        return Some(path.clone());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs/clients");
    std::fs::create_dir_all(&folder).expect("a folder for the clients");
    let path = folder.join(output);
    let mut gcc = Command::new("gcc");
    // The clients' own assembly pushes to the stack; it uses the red zone only where a comment says so.
    gcc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-mno-red-zone", "-fno-builtin", "-pthread"]);
    gcc.args(flags).arg("-o").arg(&path).arg(source(&format!("{name}.c"))).arg("-ldl");
    let output_of_gcc = gcc.output().expect("gcc runs");
    assert!(output_of_gcc.status.success(), "{name}.c: {}", String::from_utf8_lossy(&output_of_gcc.stderr));
    built.insert(output.to_owned(), path.clone());
    Some(path)
}

/// A `telpher run` command with options, which runs a given program.
#[derive(Debug)]
pub(crate) struct Run {
    options: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    folder: Option<PathBuf>,
    input: Option<String>,
    limit: Duration,
}

/// Maximum run time of a program; far longer than any needs.
const LIMIT: Duration = Duration::from_secs(120);

impl Run {
    /// Returns a run in a view, with one unconfigured device.
    pub(crate) fn new(view: View) -> Self {
        let options = ["--view", view.name()].map(OsString::from).to_vec();
        Run { options, environment: Vec::new(), folder: None, input: None, limit: LIMIT }
    }

    /// Returns a run with one shared queue, wq0.0, and one dedicated queue, wq0.1.
    pub(crate) fn on_two_queues(view: View) -> Self {
        Run::new(view).with("--hardware").with(source("two-queues.json"))
    }

    /// Adds an option.
    pub(crate) fn with(mut self, option: impl AsRef<OsStr>) -> Self {
        self.options.push(option.as_ref().to_owned());
        self
    }

    /// Sets a variable in the program's environment.
    pub(crate) fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Sets the working directory.
    pub(crate) fn in_folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    /// Sets the standard input.
    pub(crate) fn reading(mut self, input: &str) -> Self {
        self.input = Some(input.to_owned());
        self
    }

    /// Sets the time limit.
    pub(crate) fn within(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Returns the command, with its own process group, for tests that start it themselves.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, program: &[S]) -> Command {
        let mut command = Command::new(TELPHER);
        command.arg("run").args(&self.options).arg("--").args(program).process_group(0);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }

    /// Runs the program to its end.
    pub(crate) fn program<S: AsRef<OsStr>>(&self, program: &[S]) -> Done {
        let mut command = self.command(program);
        finish(&mut command, self.input.as_deref(), self.limit)
    }

    /// Runs the program, which must succeed, and returns its output.
    pub(crate) fn success<S: AsRef<OsStr>>(&self, program: &[S]) -> String {
        let done = self.program(program);
        done.expect_success();
        done.stdout
    }

    /// Runs a script for `sh -ec`, which must succeed.
    pub(crate) fn shell(&self, script: &str) -> String {
        self.success(&["/bin/sh", "-ec", script])
    }

    /// Runs a script with `attributes.py`; every line of it must hold.
    pub(crate) fn attributes(&self, script: &str) {
        let words = [OsString::from("/usr/bin/python3"), source("attributes.py").into()];
        let mut command = self.command(&words);
        finish(&mut command, Some(script), self.limit).expect_success();
    }
}

/// The output and exit status of a program.
pub(crate) struct Done {
    pub(crate) what: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    /// Fails the test unless the exit code is 0.
    pub(crate) fn expect_success(&self) {
        assert!(self.status.success(), "{self}");
    }

    /// Returns the exit code; fails the test if a signal ended the program.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by a signal: {self}"))
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tail = |text: &str| {
            let from = text.len().saturating_sub(4000);
            let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
            text[from..].to_owned()
        };
        let (out, err) = (tail(&self.stdout), tail(&self.stderr));
        write!(f, "{}: {}\n--- standard output\n{out}\n--- standard error\n{err}", self.what, self.status)
    }
}

/// Runs a command to its end; kills its process group and fails the test at the limit.
pub(crate) fn finish(command: &mut Command, input: Option<&str>, limit: Duration) -> Done {
    // Files instead of pipes: a remaining descendant would keep a pipe open, and its reader would wait.
    let (mut out, mut err) = (tempfile(), tempfile());
    command.stdout(out.try_clone().expect("a descriptor")).stderr(err.try_clone().expect("a descriptor"));
    command.stdin(match input {
        None => Stdio::null(),
        Some(text) => {
            use std::io::{Seek, Write};
            let mut file = tempfile();
            file.write_all(text.as_bytes()).expect("room for the input");
            file.rewind().expect("a file");
            file.into()
        }
    });
    let child = command.spawn().expect("the command starts");
    let status = wait(child, limit);
    let (stdout, stderr) = (contents(&mut out), contents(&mut err));
    let what = format!("{:?}", command);
    let late = status.is_none();
    let status = status.unwrap_or_else(|| ExitStatus::from_raw(9));
    let done = Done { what, status, stdout, stderr };
    assert!(!late, "not done after {} s, and killed: {done}", limit.as_secs());
    done
}

/// Waits for a child that leads a process group. At the limit, kills the group and returns `None`.
pub(crate) fn wait(mut child: Child, limit: Duration) -> Option<ExitStatus> {
    let group = Pid::from_child(&child);
    let (sender, ended) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let status = child.wait().expect("a child can be waited for");
        // The receiver is gone if the limit is over.
        let _ = sender.send(());
        status
    });
    let in_time = ended.recv_timeout(limit).is_ok();
    if !in_time {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = waiter.join().expect("the waiter does not panic");
    in_time.then_some(status)
}

fn tempfile() -> File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    rustix::fs::memfd_create("output", flags).expect("a memory file").into()
}

fn contents(file: &mut File) -> String {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind().expect("a file");
    file.read_to_end(&mut bytes).expect("readable");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until a condition holds; fails the test after a minute.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "not within 60 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
