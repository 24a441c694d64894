//! Programs written for Intel's Data Mover Library on hardware queues: compiled against the files that
//! `doors/dml/install.sh` installs, and run on the queues of a virtual device. They check every byte themselves.
//! `doors/dml/tests/dml.rs` and `tests/cpp.rs` run them on the CPU and on the model.

#[path = "../../../dml/tests/common/installed.rs"]
mod installed;

use crate::harness::{Run, TELPHER, View, finish, in_both_views, lacking, source, test_folder};
use crate::schemas;
use installed::succeed;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

fn dml() -> PathBuf {
    // As the tests of that crate name it, so that all share the object files.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dml").canonicalize().expect("it is there")
}

fn stage() -> &'static Path {
    installed::stage(&dml())
}

/// Compiles a program against the staged library; skips and returns `None` without a compiler.
fn program(source: &str) -> Option<PathBuf> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    static LINKING: Mutex<()> = Mutex::new(());
    if lacking(source, &[("cc", "gcc"), ("c++", "g++"), ("ar", "binutils")]) {
        return None;
    }
    let object = installed::object(&dml(), source, &[]);
    let _one = LINKING.lock().unwrap_or_else(PoisonError::into_inner);
    let built = FOLDER.get_or_init(|| test_folder("libdml")).join(Path::new(source).file_name()?);
    if !built.exists() {
        let lib = stage().join("lib");
        let mut command = Command::new(if source.ends_with(".c") { "cc" } else { "c++" });
        command.arg("-pthread").arg(object).arg("-L").arg(&lib).args(["-ldmlhl", "-ldml"]);
        succeed(command.arg(format!("-Wl,-rpath,{}", lib.display())).arg("-o").arg(&built));
    }
    Some(built)
}

/// Runs a program with this argument; its output is returned. Empty if it could not be compiled.
fn passes(run: &Run, source: &str, path: &str) -> Option<String> {
    let program = program(source)?;
    Some(run.success(&[program.into_os_string(), path.into()]))
}

const OPERATIONS: &str = "tests/programs/operations.cpp";
const HANDLERS: &str = "tests/programs/handlers.cpp";
const RELINKED: &str = "tests/programs/relinked.cpp";
/// Programs in C: every operation, batches, programs in the manner of known users, the interface below `dml.hpp`.
const C_OPERATIONS: &str = "tests/programs/operations.c";
const C_BATCHES: &str = "tests/programs/batches.c";
const C_USERS: &str = "tests/programs/users.c";
const C_TASKS: &str = "tests/programs/tasks.c";
const C_LOST: &str = "tests/programs/lost.c";
const PAGES: &str = "examples/pages.c";
const OVERLAP: &str = "examples/overlap.cpp";
/// Kernels since INTEL-SA-01084 refuse the mapping, so the driver submits.
const BY_WRITE: [&str; 3] = ["--abi", "6.12", "--no-rawio"];

/// Runs programs with one argument each, one after the other in one run, whose start takes longer than theirs. Returns
/// what they print; nothing if they could not be compiled.
fn all_pass(run: &Run, programs: &[(&str, &str)]) -> Option<String> {
    let script = r#"while [ $# -gt 0 ]; do "$1" "$2" || { echo "$1 $2: $?"; exit 1; }; shift 2; done"#;
    let mut words = ["/bin/sh", "-c", script, "sh"].map(std::ffi::OsString::from).to_vec();
    for (source, path) in programs {
        words.extend([program(source)?.into_os_string(), path.into()]);
    }
    Some(run.success(&words))
}

/// The configuration of two queues, changed, as a file for this view.
fn changed_queues(view: View, name: &str, changes: &[(&str, &str)]) -> PathBuf {
    let config = std::fs::read_to_string(source("two-queues.json")).expect("the configuration");
    let config = changes.iter().fold(config, |config, (from, to)| config.replace(from, to));
    let file = test_folder(&format!("libdml-{name}-{}", view.name())).join("queues.json");
    std::fs::write(&file, config).expect("a configuration");
    file
}

/// A run with options.
fn on(view: View, hardware: impl AsRef<std::ffi::OsStr>, options: &[&str]) -> Run {
    let run = Run::new(view).with("--hardware").with(hardware);
    options.iter().fold(run, |run, option| run.with(option))
}

in_both_views! {
    fn every_operation_of_dml_hpp_works_on_hardware(view: View) {
        all_pass(&Run::on_two_queues(view), &[(OPERATIONS, "hardware"), (OPERATIONS, "automatic")]);
        passes(&on(view, "spr-2", &BY_WRITE), OPERATIONS, "hardware");
    }

    fn page_faults_are_reported_on_hardware_and_repaired_on_automatic(view: View) {
        let faults = ["--inject", "fault=30%,seed=7"];
        let Some(output) = passes(&on(view, "full-1", &faults), OPERATIONS, "faults") else { return };
        assert!(!output.contains(" 0 ended by a page fault"), "{output}");
        passes(&on(view, "full-1", &faults), OPERATIONS, "automatic");
    }

    fn a_queue_without_block_on_fault_refuses_it(view: View) {
        let file = changed_queues(view, "no-block", &[("\"block_on_fault\": 1", "\"block_on_fault\": 0")]);
        let Some(output) = passes(&on(view, file, &[]), OPERATIONS, "hardware") else { return };
        assert!(output.contains(" 2 refused for Block On Fault"), "{output}");
    }

    fn handlers_of_dml_hpp_wait_for_hardware(view: View) {
        passes(&Run::on_two_queues(view), HANDLERS, "hardware");
        passes(&Run::on_two_queues(view).with("--runner").with("threaded"), HANDLERS, "hardware");
        for injected in ["retry=30%/burst:5,seed=3", "delay=50us:20%,reorder=20%,seed=5"] {
            passes(&Run::on_two_queues(view).with("--inject").with(injected), HANDLERS, "hardware");
        }
    }

    fn programs_in_c_work_on_a_shared_queue(view: View) {
        let on_hardware = [C_OPERATIONS, C_BATCHES, C_USERS, C_TASKS].map(|source| (source, "hw"));
        all_pass(&Run::on_two_queues(view), &[&on_hardware[..], &[(C_OPERATIONS, "auto")]].concat());
    }

    fn programs_in_c_work_where_the_driver_submits_and_takes_no_batches(view: View) {
        let programs = [(C_OPERATIONS, "hw"), (C_BATCHES, "hw"), (C_USERS, "auto")];
        all_pass(&on(view, "spr-1", &BY_WRITE), &programs);
    }

    fn programs_in_c_work_on_dedicated_queues_where_none_is_shared(view: View) {
        let changes = [("\"mode\": \"shared\"", "\"mode\": \"dedicated\""), (",\n            \"threshold\": 15", "")];
        let file = changed_queues(view, "dedicated", &changes);
        all_pass(&on(view, &file, &[]), &[(C_OPERATIONS, "hw"), (C_USERS, "hw"), (C_BATCHES, "auto")]);
    }

    fn the_automatic_path_hides_faults_and_full_queues_from_programs_in_c(view: View) {
        let faults = on(view, "full-1", &["--inject", "fault=30%,seed=7"]);
        all_pass(&faults, &[(C_OPERATIONS, "auto"), (C_BATCHES, "auto")]);
        passes(&on(view, "spr-1", &["--inject", "retry=30%/burst:5"]), C_USERS, "auto");
        passes(&on(view, "spr-1", &["--inject", "delay=50us:20%,reorder=20%,seed=5"]), C_USERS, "hw");
    }

    fn a_job_that_its_device_loses_ends(view: View) {
        let run = on(view, "spr-1", &["--inject", "op=memory-move,lose=100%"]).variable("TELPHER_DML_LIMIT", "200");
        let Some(program) = program(C_LOST) else { return };
        run.success(&[program]);
    }

    fn old_cpp_objects_run_on_hardware(view: View) {
        passes(&Run::on_two_queues(view), RELINKED, "hardware");
        passes(&Run::on_two_queues(view).with("--runner").with("threaded"), RELINKED, "automatic");
    }

    fn examples_print_the_same_on_every_path(view: View) {
        let paths = ["software", "hardware", "automatic"];
        let programs = [paths.map(|path| (PAGES, path)), paths.map(|path| (OVERLAP, path))].concat();
        let Some(output) = all_pass(&on(view, "spr-1", &[]), &programs) else { return };
        let pages = "16 pages, CRC-32C 1387d388, equal\n".repeat(3);
        assert_eq!(output, pages + &"32 rows, sum 8590000128, equal\n".repeat(3));
    }
}

/// As a user calls it, with the features of this package alone.
#[test]
#[ignore = "cargo compiles the library once more: `./soak` runs it"]
fn install_sh_has_cargo_build_the_library() {
    let test = "install_sh_has_cargo_build_the_library";
    if lacking(test, &[("cc", "gcc"), ("c++", "g++"), ("ar", "binutils")]) {
        return;
    }
    let stage = test_folder("libdml-built");
    succeed(Command::new(dml().join("install.sh")).arg(&stage).args(["--profile", "dev"]).env("CARGO", env!("CARGO")));
    for library in ["libdml.so.1", "libdml.a", "libdmlhl.a"] {
        assert!(stage.join("lib").join(library).exists(), "{library}");
    }
}

/// The commands of the project's README, in the home folder of the test, with the archive that cargo has built already.
#[test]
fn the_commands_of_the_readme_relink_a_dml_program() {
    let test = "the_commands_of_the_readme_relink_a_dml_program";
    if lacking(test, &[("cc", "gcc"), ("c++", "g++"), ("pkg-config", "pkg-config")]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = std::fs::read_to_string(root.join("README.md")).expect("README.md");
    let (_, section) = readme.split_once("## Programs written for Intel's DML").expect("the section");
    let commands = section.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("its commands");
    let expected = commands.trim_end().rsplit("# ").next().expect("what the last command prints");

    let home = test_folder("libdml-readme");
    let cargo = installed::cargo(&dml(), &home.join("cargo"), "release");
    let folder_of_telpher = Path::new(TELPHER).parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell.arg("-ec").arg(commands.replace("doors/dml", &format!("{}/doors/dml", root.display()))).current_dir(&home);
    shell.env("HOME", &home).env("CARGO", cargo);
    shell.env("PATH", format!("{folder_of_telpher}:{path}"));
    let output = shell.output().expect("sh runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(stdout.lines().last(), Some(expected));
}

/// A folder in which a library stands in for Intel's.
fn stand_in() -> PathBuf {
    let folder = test_folder("libdml-original");
    let (object, lib) = (folder.join("dml.o"), folder.join("lib"));
    std::fs::create_dir(&lib).expect("a folder");
    std::os::unix::fs::symlink(stage().join("include"), folder.join("include")).expect("a new name");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-O2", "-c"]).arg(source("stand_in_dml.c")).arg("-I").arg(folder.join("include"));
    succeed(compile.arg("-o").arg(&object));
    succeed(Command::new("ar").arg("rcs").arg(lib.join("libdml.a")).arg(&object));
    folder
}

/// Every goal has a row with what Intel's library was measured with. Whether it is reached depends on the machine;
/// that programs run on every kind of queue does not.
#[test]
fn bench_dml_has_a_row_for_every_goal_and_compares_with_another_library() {
    let test = "bench_dml_has_a_row_for_every_goal_and_compares_with_another_library";
    if lacking(test, &[("cc", "gcc"), ("c++", "g++"), ("ar", "binutils"), ("pkg-config", "pkg-config")]) {
        return;
    }
    let original = stand_in();
    let mark = original.join("mark");
    let mut command = Command::new(TELPHER);
    command.args(["bench", "dml", "--seconds", "1", "--no-html", "--format", "json", "--original"]).arg(&original);
    command.env("PKG_CONFIG_PATH", stage().join("lib/pkgconfig")).env("STAND_IN_MARK", &mark);
    let done = finish(command.current_dir(&original), None, Duration::from_secs(300));
    done.expect_success();
    let result = schemas::parse(&done.stdout);
    let row = |experiment: &str, what: &str| {
        let experiments = result["contests"].as_array().expect("experiments");
        let named = experiments.iter().find(|one| one["name"] == experiment).expect("the experiment");
        let rows = named["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("{what}: {rows:?}"));
        assert!(row["measured"].as_f64().is_some_and(|number| number > 0.0), "{row}");
        row.clone()
    };
    let jobs = [
        ("no-op", 0.5, "33 ns on another machine"),
        ("move, 4096 bytes", 1.05, "Intel's 44 on another machine"),
        ("move, 65536 bytes", 1.05, "Intel's 55 "),
        ("move, 67108864 bytes", 1.05, "Intel's 13.4 "),
        ("crc, 4096 bytes", 1.05, "Intel's 11.8 "),
        ("crc, 1048576 bytes", 1.05, "Intel's 14.6 "),
        ("dif-check, 4096 bytes", 1.05, "Intel's 0.12 to 0.16 "),
        ("dif-insert, 65536 bytes", 1.05, "Intel's 0.12 to 0.16 "),
        ("dif-strip, 4096 bytes", 1.05, "Intel's 0.12 to 0.16 "),
        ("dif-update, 65536 bytes", 1.05, "Intel's 0.12 to 0.16 "),
    ];
    for (what, goal, published) in jobs {
        let software = row("software", what);
        assert_eq!(software["goal"]["at_most"], goal, "{software}");
        assert!(software["how"].as_str().is_some_and(|how| how.contains(published)), "{software}");
        let beside = row("original", what);
        assert_eq!(beside["goal"]["at_most"], if what == "no-op" { 0.5 } else { 1.0 }, "{beside}");
    }
    for bytes in [4096, 65536, 1 << 20] {
        let hardware = row("hardware", &format!("copy, {bytes} bytes, model:spr"));
        assert_eq!(hardware["goal"]["at_most"], 1.3, "{hardware}");
    }
    for what in ["a device without a NUMA node", "no shared queue"] {
        let machine = row("machines", what);
        assert_eq!((&machine["goal"]["at_least"], &machine["measured"]), (&1.0.into(), &1.0.into()), "{machine}");
    }
    assert_eq!(std::fs::read_to_string(&mark).expect("the other library was used"), "used");
}
