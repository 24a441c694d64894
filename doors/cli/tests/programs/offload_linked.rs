//! Programs that have the library of `telpher offload` without that command: linked with it, linked with Intel's DTO,
//! or with the file in LD_PRELOAD. They run on a virtual device (`telpher run`), whose trace shows what was submitted.

use crate::harness::{Done, Run, Runtime, TELPHER, View, client, client_with, finish, source, test_folder};
use crate::offload::{ALWAYS, offload, sum};
use crate::skip::skip;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Every call of 4 KiB and more goes to the device.
const ALL_CALLS: [&str; 2] = ["DTO_AUTO_ADJUST_KNOBS=0", "DTO_MIN_BYTES=4096"];

fn word(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Installs the library to a new folder, and returns the folder.
fn installed(name: &str, options: &[&str]) -> PathBuf {
    let folder = test_folder(name);
    let mut command = Command::new(TELPHER);
    command.args(["offload", "install", "--folder"]).arg(&folder).args(options);
    let done = finish(&mut command, None, Duration::from_secs(120));
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""), "{done}");
    let files: Vec<&str> = done.stdout.lines().collect();
    assert!(files.iter().all(|file| Path::new(file).is_file()), "{done}");
    assert_eq!((files[0], files.len()), (word(&folder.join("libtelpher-offload.so")), 1 + 2 * options.len()), "{done}");
    folder
}

/// Builds a program that is linked with a library of this folder, and finds it in another one when it starts.
fn linked(name: &str, output: &str, library: &str, folder: &Path, at_start: &Path) -> Option<PathBuf> {
    let (search, found) = (format!("-L{}", word(folder)), format!("-Wl,-rpath,{}", word(at_start)));
    client_with(name, output, &["-Wl,--no-as-needed", &search, &found, library])
}

/// Runs a program with these variables and no others. Returns its result, and how many operations of this kind the
/// device has ended.
fn with_only(test: &str, variables: &[&str], program: &[&str], operation: &str) -> (Done, usize) {
    let trace = test_folder(&format!("{test}-trace")).join("trace");
    let run = Run::new(View::Preload).with("--hardware").with(source("dto_defects.json"));
    let words = [&["env", "-i"], variables, program].concat();
    let done = run.with("--trace").with(&trace).program(&words);
    let text = std::fs::read_to_string(&trace).unwrap_or_default();
    let ended = text.lines().filter(|line| line.contains(operation) && line.contains("success")).count();
    (done, ended)
}

/// With an empty environment, the library opens the device before `main` and executes each operation once; learning
/// leaves cached data to the CPU. With DTO's variables, every call goes to the device.
fn check(test: &str, calls: &Path, counts: &Path) {
    let (done, copies) = with_only(test, &[], &[word(counts), "20", "30"], "memory-move");
    assert_eq!((done.code(), done.stdout.as_str(), done.stderr.as_str()), (0, "ok\n", ""), "{done}");
    assert!(copies >= 1, "no copy was submitted: {done}");
    let (done, copies) = with_only(test, &ALL_CALLS, &[word(counts), "20", "30"], "memory-move");
    assert_eq!((done.code(), done.stdout.as_str(), done.stderr.as_str()), (0, "ok\n", ""), "{done}");
    assert!((51..60).contains(&copies), "{copies} copies: {done}");
    let (done, copies) = with_only(test, &ALL_CALLS, &[word(calls), "brief"], "memory-move");
    assert_eq!((done.code(), done.stdout.trim(), done.stderr.as_str()), (0, "ok", ""), "{done}");
    assert!(copies > 1000, "{copies} copies: {done}");
    // Without a device, the CPU executes everything.
    let mut command = Command::new("env");
    command.arg("-i").args(ALL_CALLS).arg(calls).arg("brief");
    let done = finish(&mut command, None, Duration::from_secs(120));
    assert_eq!((done.code(), done.stdout.trim(), done.stderr.as_str()), (0, "ok", ""), "{done}");
    // Under the command, its settings and its counters are used, by one copy of the library.
    let (done, processes) = offload(test, &ALWAYS, &[word(counts), "20", "30"]);
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""), "{done}");
    assert_eq!((processes.len(), sum(&processes, "device_calls")), (1, 50), "{processes:?}");
}

#[test]
fn a_program_linked_with_the_library_is_offloaded_with_any_environment() {
    let folder = installed("offload_linked", &[]);
    let program = |name: &str| linked(name, &format!("{name}_linked"), "-ltelpher-offload", &folder, &folder);
    let (Some(calls), Some(counts)) = (program("offload_calls"), program("offload_counts")) else { return };
    check("offload_linked_run", &calls, &counts);
}

/// The program was linked when only DTO was there.
#[test]
fn a_program_linked_with_dto_finds_the_library_under_its_name() {
    let folder = test_folder("offload_dto_at_build");
    let stand_in = ["-shared", "-fPIC", "-Wl,-soname,libdto.so"];
    let Some(library) = client_with("stand_in_dto", "libdto.so", &stand_in) else { return };
    std::fs::copy(library, folder.join("libdto.so")).expect("room for the library");
    let installed = installed("offload_as_dto", &["--as-dto"]);
    let program = |name: &str| linked(name, &format!("{name}_dto"), "-ldto", &folder, &installed);
    let (Some(calls), Some(counts)) = (program("offload_calls"), program("offload_counts")) else { return };
    check("offload_as_dto_run", &calls, &counts);
}

#[test]
fn a_preloaded_file_needs_no_other_variable_and_reports_what_has_no_effect() {
    let folder = installed("offload_by_hand", &[]);
    let Some(counts) = client("offload_counts") else { return };
    let preload = format!("LD_PRELOAD={}", word(&folder.join("libtelpher-offload.so")));
    let variables = [&preload, ALL_CALLS[0], "DTO_MIN_BYTES=150K", "DTO_COLLECT_STATS=1", "DTO_LOG_FILE=/no/such/file"];
    let (done, copies) = with_only("offload_by_hand_run", &variables, &[word(&counts), "20", "30"], "memory-move");
    assert_eq!((done.code(), done.stdout.as_str(), done.stderr.lines().count()), (0, "ok\n", 1), "{done}");
    assert!((31..40).contains(&copies), "{copies} copies: {done}");
    let ineffective = ["DTO_COLLECT_STATS has no effect here", "DTO_LOG_FILE has no effect here"];
    for part in ineffective.into_iter().chain(["DTO_MIN_BYTES=150K is read as 153600 bytes"]) {
        assert!(done.stderr.contains(part), "{done}");
    }
}

#[test]
fn a_library_that_is_opened_late_refuses_and_leaves_the_program_alone() {
    let folder = installed("offload_late", &[]);
    let Some(program) = client("opens_library") else { return };
    for scope in ["local", "global"] {
        let mut command = Command::new(&program);
        command.arg(folder.join("libtelpher-offload.so")).arg(scope);
        let done = finish(&mut command, None, Duration::from_secs(120));
        assert_eq!((done.code(), done.stdout.as_str()), (0, "ok\n"), "{scope}: {done}");
        let refusal = "runs without offload: this library comes behind the C library";
        assert!(done.stderr.lines().count() == 1 && done.stderr.contains(refusal), "{scope}: {done}");
    }
}

/// Its user's environment must not choose what it does.
#[test]
fn a_linked_setuid_program_runs_without_offload() {
    const NAME: &str = "a_linked_setuid_program_runs_without_offload";
    if !rustix::process::getuid().is_root() {
        return skip(NAME, "only root can make a program that is setuid to another user");
    }
    // Below a directory that every user may read.
    let runtime = Runtime::new("offload-setuid");
    let mount = rustix::fs::statvfs(runtime.path()).expect("it exists").f_flag;
    if mount.contains(rustix::fs::StatVfsMountFlags::NOSUID) || rustix::thread::no_new_privs() == Ok(true) {
        return skip(NAME, "setuid programs get no rights here (nosuid, or no_new_privs)");
    }
    let library = runtime.path().join("libtelpher-offload.so");
    std::fs::copy(installed("offload_setuid_library", &[]).join("libtelpher-offload.so"), &library).expect("room");
    let (folder, name) = (runtime.path(), "offload_counts");
    let Some(counts) = linked(name, "offload_counts_setuid", "-ltelpher-offload", folder, folder) else { return };
    let program = folder.join("program");
    std::fs::copy(counts, &program).expect("room for a program");
    std::os::unix::fs::chown(&program, Some(1), None).expect("root changes the owner");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).expect("setuid");
    let mut command = Command::new(&program);
    command.args(["20", "30"]).env("DTO_MIN_BYTES", "64K");
    let done = finish(&mut command, None, Duration::from_secs(120));
    assert_eq!((done.code(), done.stdout.as_str()), (0, "ok\n"), "{done}");
    let refusal = "runs without offload: it has rights that its user does not have";
    assert!(done.stderr.lines().count() == 1 && done.stderr.contains(refusal), "{done}");
}

#[test]
fn a_file_of_intels_dto_is_not_replaced() {
    let folder = test_folder("offload_keeps_dto");
    std::fs::write(folder.join("libdto.so"), "another library").expect("a file");
    let mut command = Command::new(TELPHER);
    command.args(["offload", "install", "--as-dto", "--folder"]).arg(&folder);
    let done = finish(&mut command, None, Duration::from_secs(120));
    assert!(done.code() == 1 && done.stderr.contains("libdto.so"), "{done}");
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 1);
}
