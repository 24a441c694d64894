//! Programs run to their end, in different ways. `run()` is called in its own process: this test binary, restarted for
//! one test.
//!
//! `run()` needs a process with one thread, and the harness has two. So its first thread is started with all signals
//! blocked; then they wait for the thread that receives them.
#![allow(unsafe_code, reason = "signal masks, and a closure between fork and exec")]

#[path = "../../../ci/skip.rs"]
mod skip;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use telpher_device::{Residency, Runner};
use telpher_launch::{GRACE, VARIABLE};
use telpher_vdev::hardware::Hardware;
use telpher_vdev::kernel::Abi;
use telpher_vdev::run::{RunOptions, TraceFormat, ViewChoice, run};

/// Environment variable with the program and its arguments, separated by newlines.
const PROGRAM: &str = "TELPHER_RUN_TEST_PROGRAM";
/// Environment variable with the grace period after SIGTERM, in seconds.
const SECONDS: &str = "TELPHER_RUN_TEST_GRACE";
/// Environment variable with the view.
const VIEW: &str = "TELPHER_RUN_TEST_VIEW";
/// Environment variable with the device, whose queues then have the ioctls for windows.
const WINDOWS: &str = "TELPHER_RUN_TEST_WINDOWS";
/// Environment variable that is set if engines have a thread of their own.
const THREADED: &str = "TELPHER_RUN_TEST_THREADED";

/// Not a test: the process that acts as `telpher run`.
#[test]
fn the_runner_runs() {
    let Some(program) = std::env::var_os(PROGRAM) else { return };
    let mut words = program.to_str().unwrap().split('\n').map(Into::into);
    let view = match std::env::var(VIEW).as_deref() {
        Ok("preload") => ViewChoice::Preload,
        Ok("namespace") => ViewChoice::Namespace,
        _ => ViewChoice::Auto,
    };
    let grace = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).map_or(GRACE, Duration::from_secs_f64);
    let windows = std::env::var(WINDOWS).ok();
    let runner = if std::env::var_os(THREADED).is_some() { Runner::Threaded } else { Runner::Inline };
    // The program must not see these variables.
    for variable in [PROGRAM, VIEW, SECONDS, WINDOWS, THREADED] {
        // SAFETY: no other thread reads the environment now: the harness waits for this thread.
        unsafe { std::env::remove_var(variable) };
    }
    mask_all(libc::SIG_UNBLOCK);
    let options = RunOptions {
        program: words.next().unwrap(),
        args: words.collect(),
        hardware: Hardware::from_name(windows.as_deref().unwrap_or("spr-1")).unwrap(),
        abi: Abi::V6_6,
        rawio: true,
        idpt: windows.is_some(),
        view,
        runner,
        residency: Residency::Strict,
        rewrite: true,
        follow: true,
        trace: None,
        trace_format: TraceFormat::Text,
        inject: None,
        check: false,
        summary: false,
        grace,
    };
    let code = run(&options).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        error.exit_code()
    });
    std::process::exit(code.into());
}

/// Blocks all signals in this thread, or none.
fn mask_all(how: libc::c_int) {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call initialises the set, the second reads it.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(how, all.as_ptr(), std::ptr::null_mut());
    }
}

/// A directory for the run directories of one test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new("/dev/shm").join(format!("test-run-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn command(&self, program: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            // Quiet, so that the program's output is separate from the harness's lines.
            .args(["--exact", "the_runner_runs", "--nocapture", "--quiet"])
            .env(PROGRAM, program.join("\n"))
            .env(VARIABLE, &self.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // SAFETY: system calls only between fork and exec.
        unsafe {
            command.pre_exec(|| {
                mask_all(libc::SIG_BLOCK);
                // A shell cannot trap a signal that was ignored when it started, as SIGHUP is under nohup(1).
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGUSR1] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        command
    }

    fn run(&self, program: &[&str]) -> Output {
        self.command(program).output().unwrap()
    }

    fn code(&self, program: &[&str]) -> Option<i32> {
        self.run(program).status.code()
    }

    /// The files in the directory, without the preloaded library, which stays.
    fn left(&self) -> Vec<PathBuf> {
        let paths = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_none_or(|extension| extension != "so")).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// Waits for the line with which a program announces that it runs; skips the harness's own lines.
fn wait_for_line(from: &mut impl BufRead, line: &str) {
    let mut read = String::new();
    while read.trim() != line {
        read.clear();
        assert_ne!(from.read_line(&mut read).unwrap(), 0, "ended before it said {line}");
    }
}

#[test]
fn the_exit_code_is_the_programs() {
    let place = Scratch::new("codes");
    assert_eq!(place.code(&["true"]), Some(0));
    assert_eq!(place.code(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(place.code(&["sh", "-c", "kill -9 $$"]), Some(137));
    assert_eq!(place.code(&["sh", "-c", "kill -SEGV $$"]), Some(139));
    assert_eq!(place.code(&["telpher-no-such-program"]), Some(127));
    assert_eq!(place.code(&["/etc/passwd"]), Some(126));
    assert_eq!(place.left(), [] as [PathBuf; 0]);
}

#[test]
fn a_program_finds_its_environment_and_the_tree() {
    let place = Scratch::new("tree");
    let script = "echo $TELPHER_INSTRUCTIONS; d=${TELPHER_RUN##*,}; stat -c %a $d; ls $d; cat $d/view/dev/dsa/wq0.0; \
                  echo; readlink $d/view/sys/bus/dsa/devices/wq0.1; cd $d/view/sys/bus/dsa/devices/wq0.1 && pwd -P";
    let output = place.run(&["sh", "-c", script]);
    let lines = text(&output.stdout);
    let lines: Vec<&str> = lines.lines().filter(|line| !line.is_empty()).collect();
    let start = lines.iter().position(|line| line.starts_with("movdir64b")).unwrap();
    let physical = "sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.1";
    assert_eq!(lines[start], "movdir64b enqcmd waitpkg");
    assert_eq!(lines[start + 1..start + 5], ["700", "devices.json", "socket", "view"]);
    assert!(lines[start + 5].starts_with("511:"), "{lines:?}");
    assert_eq!(lines[start + 6], format!("../../../{}", &physical[4..]));
    assert!(lines[start + 7].ends_with(physical), "{lines:?}");
}

#[test]
fn other_preloaded_libraries_are_kept() {
    let place = Scratch::new("preload");
    let old = place.0.join("telpher-run-0123456789abcdef.so");
    let other = place.0.join("telpher-run-of-another.so");
    let mut command = place.command(&["sh", "-c", "echo $LD_PRELOAD"]);
    let present = format!("/nowhere/a.so {} {}", old.display(), other.display());
    let output = command.env("LD_PRELOAD", present).output().unwrap();
    let lines = text(&output.stdout);
    let line = lines.lines().find(|line| line.contains("telpher-run-")).unwrap();
    let (ours, rest) = line.split_once(':').unwrap();
    // A run within a run has only its own library.
    assert_eq!(rest, format!("/nowhere/a.so:{}", other.display()));
    assert!(ours.starts_with(place.0.to_str().unwrap()) && ours.ends_with(".so") && Path::new(ours).exists(), "{line}");
}

/// Regression: a program that outlived the run preloaded whatever file another process with the run's process number
/// had open.
#[test]
fn the_preloaded_file_stays_when_the_run_has_ended() {
    let place = Scratch::new("stays");
    for _ in 0..2 {
        assert_eq!(place.code(&["true"]), Some(0));
        let left: Vec<_> = std::fs::read_dir(&place.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left.len(), 1, "{left:?}");
        let status = std::fs::metadata(&left[0]).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&status) & 0o7777, 0o555);
    }
}

/// Damaged files are replaced (only the owner of the directory can have changed them), and links are not followed.
#[test]
fn a_damaged_library_file_is_replaced() {
    let place = Scratch::new("damaged");
    assert_eq!(place.code(&["true"]), Some(0));
    let image = std::fs::read_dir(&place.0).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&image).unwrap();
    let victim = place.0.join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let damages: [&dyn Fn(); 3] = [
        &|| std::fs::write(&image, &whole[1..]).unwrap(),
        &|| std::os::unix::fs::symlink(&victim, &image).unwrap(),
        &|| std::fs::write(&image, whole.iter().map(|byte| !byte).collect::<Vec<_>>()).unwrap(),
    ];
    for damage in damages {
        std::fs::remove_file(&image).unwrap();
        damage();
        assert_eq!(place.code(&["true"]), Some(0));
        assert!(std::fs::symlink_metadata(&image).unwrap().is_file() && std::fs::read(&image).unwrap() == whole);
    }
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn runs_that_start_and_end_at_the_same_time_do_not_disturb_each_other() {
    let place = Scratch::new("together");
    std::thread::scope(|scope| {
        let many = || (0..5).for_each(|_| assert_eq!(place.code(&["true"]), Some(0)));
        (0..4).for_each(|_| drop(scope.spawn(many)));
    });
    assert_eq!(place.left(), [] as [PathBuf; 0]);
}

#[test]
fn limits_and_signal_masks_are_restored_in_the_program() {
    let place = Scratch::new("inherit");
    let script = "ulimit -Sn; grep -E 'SigBlk' /proc/self/status; kill -TERM $$";
    let mut command = place.command(&["bash", "-c", script]);
    let limit = rustix::process::Rlimit { current: Some(300), maximum: Some(4000) };
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(move || Ok(rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?));
    }
    let output = command.output().unwrap();
    let lines = text(&output.stdout);
    assert!(lines.contains("\n300\n") || lines.starts_with("300\n"), "{lines}");
    assert!(lines.contains("SigBlk:\t0000000000000000"), "{lines}");
    assert_eq!(output.status.code(), Some(128 + 15));
}

#[test]
fn the_error_names_why_a_program_cannot_run() {
    let place = Scratch::new("refused");
    let elf = |name: &str, class: u8, machine: u8| {
        let mut bytes = vec![0; 64];
        bytes[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        (bytes[18], bytes[32], bytes[54]) = (machine, 64, 56);
        let path = place.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let refusal_of = |path: &str| {
        let output = place.command(&[path]).env(VIEW, "preload").output().unwrap();
        assert_eq!(output.status.code(), Some(126));
        text(&output.stderr)
    };
    assert!(refusal_of(&elf("i386", 1, 3)).contains("32-bit"));
    assert!(refusal_of(&elf("arm", 2, 183)).contains("another processor"));
    assert!(refusal_of(&elf("static", 2, 62)).contains("statically linked"));
}

#[test]
fn signals_to_the_host_reach_the_program() {
    let place = Scratch::new("signals");
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::USR1] {
        let script = "trap 'exit 9' TERM HUP INT USR1; echo ready; while :; do sleep 0.05; done";
        let mut child = place.command(&["sh", "-c", script]).spawn().unwrap();
        wait_for_line(&mut BufReader::new(child.stdout.take().unwrap()), "ready");
        kill_process(pid(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(9), "{signal:?}");
    }
}

#[test]
fn the_host_outlives_an_interrupt_of_the_whole_group() {
    let place = Scratch::new("group");
    let script = "trap 'sleep 0.2; exit 5' INT; echo ready; while :; do sleep 0.05; done";
    let mut child = place.command(&["sh", "-c", script]).process_group(0).spawn().unwrap();
    wait_for_line(&mut BufReader::new(child.stdout.take().unwrap()), "ready");
    kill_process_group(pid(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn descendants_keep_the_device_until_they_end() {
    let place = Scratch::new("orphans");
    let script = "(sleep 0.3; test -e ${TELPHER_RUN##*,}/socket && echo still there) & exit 4";
    let start = Instant::now();
    let output = place.run(&["sh", "-c", script]);
    assert_eq!(output.status.code(), Some(4));
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(text(&output.stdout).contains("still there"));
    assert_eq!(place.left(), [] as [PathBuf; 0]);
}

#[test]
fn waiting_for_descendants_is_reported_and_can_be_ended() {
    let place = Scratch::new("lingering");
    let mut child = place.command(&["sh", "-c", "sleep 1000 & echo $!; exit 6"]).spawn().unwrap();
    let mut error = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("still have the device") {
        line.clear();
        assert_ne!(error.read_line(&mut line).unwrap(), 0);
    }
    assert!(line.contains("(sleep)"), "{line}");
    kill_process(pid(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6));
    assert_eq!(place.left(), [] as [PathBuf; 0]);
    let left = line.split("device: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(left).unwrap(), Signal::KILL).unwrap();
}

/// Regression: a command with a time limit ran on as long as any descendant did.
#[test]
fn after_sigterm_the_host_waits_for_the_grace_period_and_lists_running_processes() {
    let place = Scratch::new("grace");
    // A grandchild is listed too. Both end when the pipe that they read from is closed.
    let script = "trap '' TERM; exec 3<&0; sh -c 'sh -c \"echo ready; read line; :\"; :' <&3 & wait $!";
    let mut command = place.command(&["sh", "-c", script]);
    let mut child = command.env(SECONDS, "0.1").stdin(Stdio::piped()).spawn().unwrap();
    let keeps_them_alive = child.stdin.take().unwrap();
    wait_for_line(&mut BufReader::new(child.stdout.take().unwrap()), "ready");
    kill_process(pid(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    drop(keeps_them_alive);
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    let line = error.lines().find(|line| line.contains("0.1 s after SIGTERM these processes still run")).unwrap();
    assert_eq!(line.matches("(sh)").count(), 3, "{line}");
    assert_eq!(place.left(), [] as [PathBuf; 0]);
}

#[test]
fn a_program_that_ends_within_the_grace_period_has_its_own_exit_code() {
    let place = Scratch::new("graceful");
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = place.command(&["sh", "-c", script]).env(SECONDS, "60").spawn().unwrap();
    wait_for_line(&mut BufReader::new(child.stdout.take().unwrap()), "ready");
    kill_process(pid(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(9));
    assert!(!text(&output.stderr).contains("still run"), "{}", text(&output.stderr));
}

/// Regression: `telpher run -- echo hi >&-` succeeded, because the output went to /dev/null.
#[test]
fn a_standard_descriptor_that_was_closed_is_closed_in_the_program() {
    let place = Scratch::new("closed");
    for descriptor in 0..3 {
        let script = format!("[ ! -e /proc/self/fd/{descriptor} ]");
        let mut command = place.command(&["sh", "-c", &script]);
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::close(descriptor);
                Ok(())
            });
        }
        assert_eq!(command.output().unwrap().status.code(), Some(0), "{descriptor}");
    }
}

#[test]
fn a_killed_host_leaves_nothing_behind() {
    let place = Scratch::new("killed");
    let mut child = place.command(&["sh", "-c", "echo ready; exec sleep 1000"]).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    wait_for_line(&mut output, "ready");
    assert_eq!(place.left().len(), 1);
    // The program is a child of the host and outlives it.
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let children = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap();
    let program: String = tasks.map(|task| children(task.unwrap())).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the directory is gone", || place.left().is_empty());
    for program in program.split_ascii_whitespace() {
        let _ = kill_process(Pid::from_raw(program.parse().unwrap()).unwrap(), Signal::KILL);
    }
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
}

#[test]
fn leftovers_of_earlier_runs_are_removed_and_directories_in_use_are_not() {
    let place = Scratch::new("stale");
    // The number of a process that has ended, and of one that is alive.
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let stale = place.0.join(format!("run-{}-0badcafe", gone.id()));
    std::fs::create_dir_all(stale.join("view/sys/deep/deeper")).unwrap();
    std::fs::write(stale.join("view/sys/file"), "x").unwrap();
    std::os::unix::fs::symlink("/", stale.join("view/root")).unwrap();
    let fresh = place.0.join(format!("tier-{}-00000000", std::process::id()));
    let foreign = place.0.join("other-1-2");
    let locked = place.0.join(format!("run-{}-11111111", gone.id()));
    for path in [&fresh, &foreign, &locked] {
        std::fs::create_dir(path).unwrap();
    }
    let lock = std::fs::File::open(&locked).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(place.code(&["true"]), Some(0));
    eventually("the old one is gone", || !stale.exists());
    assert!(fresh.exists() && foreign.exists() && locked.exists());
    assert!(Path::new("/etc").exists());
}

#[test]
fn an_unsuitable_named_directory_is_refused_with_the_reason() {
    let place = Scratch::new("named");
    let open = place.0.join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    for (name, reason) in [(place.0.join("x".repeat(100)), "longer than"), (open, "other users may write to")] {
        let output = place.command(&["true"]).env(VARIABLE, &name).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{error}");
        assert!(error.contains(VARIABLE) && error.contains(reason), "{error}");
    }
}

#[test]
fn the_umask_does_not_affect_the_tree() {
    let place = Scratch::new("umask");
    let script = "d=${TELPHER_RUN##*,}/view/sys/bus/dsa; stat -c 'modes %a' $d/drivers $d/drivers/user/bind \
                  $d/devices/wq0.0/state";
    let mut command = place.command(&["sh", "-c", script]);
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
            Ok(())
        });
    }
    let output = text(&command.output().unwrap().stdout);
    let modes: Vec<&str> = output.lines().filter(|line| line.starts_with("modes")).collect();
    assert_eq!(modes, ["modes 755", "modes 200", "modes 444"], "{output}");
}

/// Runs a case of the client in `files/windows.c` in both views: it uses the ioctls for windows between processes as
/// programs do that were written for Intel's driver outside of Linux.
fn windows(test: &str, case: &str, hardware: Option<&str>, threaded: bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = folder.join("../../doors/cli/tests/programs/sources");
    let client = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("windows-{test}"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-mno-red-zone", "-fno-builtin", "-pthread"]);
    let Ok(built) = gcc.arg("-I").arg(header).arg("-o").arg(&client).arg(folder.join("tests/files/windows.c")).output()
    else {
        return skip::skip(test, "no gcc (Debian package gcc)");
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    for view in ["preload", "namespace"] {
        let scratch = Scratch::new(&format!("windows-{case}-{view}-{threaded}"));
        let mut command = scratch.command(&[client.to_str().unwrap(), case]);
        command.env(VIEW, view);
        if let Some(hardware) = hardware {
            command.env(WINDOWS, hardware);
        }
        if threaded {
            command.env(THREADED, "1");
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        if view == "namespace" && output.status.code() == Some(126) {
            return skip::skip(test, "mount namespaces cannot be created");
        }
        assert!(output.status.success(), "{case} ({view}): {}: {text}", output.status);
    }
}

#[test]
fn without_the_option_queues_do_not_know_the_ioctls_of_windows() {
    windows("unknown", "unknown", None, false);
}

#[test]
fn a_device_without_windows_does_not_support_them() {
    windows("unsupported", "unsupported", Some("spr-1"), false);
}

#[test]
fn each_misuse_of_a_window_has_its_errno() {
    windows("errors", "errors", Some("v2-full-1"), false);
}

#[test]
fn every_operation_reaches_its_window_and_no_byte_beside_it() {
    windows("copies", "copies", Some("v2-full-1"), false);
    windows("copies", "copies", Some("v2-full-1"), true);
}

#[test]
fn a_window_is_fetched_by_the_number_of_its_descriptor() {
    windows("fetched", "fetched", Some("v2-full-1"), false);
}

/// Regression: a window ended with the queue that it was made with. DPDK's patches close that queue at once.
#[test]
fn a_window_outlives_its_queue_and_ends_with_the_owners_descriptor() {
    windows("outliving", "outliving", Some("v2-full-1"), false);
}

#[test]
fn a_guessed_handle_of_a_window_gives_nothing() {
    windows("guessed", "guessed", Some("v3-full-1"), false);
}

#[test]
fn nothing_is_written_where_a_window_was() {
    windows("moved", "moved", Some("v2-full-1"), false);
    windows("moved", "moved", Some("v2-full-1"), true);
}

#[test]
fn hostile_processes_reach_no_window_and_stop_none() {
    windows("beside", "beside", Some("v2-full-1"), false);
}

#[test]
fn pages_of_a_window_are_brought_in_for_writing() {
    windows("faulted", "faulted", Some("v2-full-1"), false);
}

#[test]
fn the_window_of_a_killed_owner_ends_with_it() {
    windows("died", "died", Some("v2-full-1"), false);
}

/// Regression: the window stayed as long as a child of the owner had the owner's descriptors.
#[test]
fn the_window_of_an_owner_ends_with_it_though_a_child_has_its_descriptors() {
    windows("orphaned", "orphaned", Some("v2-full-1"), false);
}

#[test]
fn a_program_that_an_owner_executes_is_not_reached() {
    windows("executed", "executed", Some("v2-full-1"), false);
}
