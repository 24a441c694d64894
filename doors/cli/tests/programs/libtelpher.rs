//! Programs in C and C++ on hardware queues: compiled against the files that `doors/capi/install.sh` installs, and run
//! on
//! `hw:` queues. They check every byte themselves. `doors/capi/tests/programs` runs them on the model.

use crate::harness::{Run, View, in_both_views, lacking};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

fn capi() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi")
}

/// Compiles a program against the staged library; skips and returns `None` without a compiler.
fn program(source: &str) -> Option<PathBuf> {
    static STAGE: OnceLock<PathBuf> = OnceLock::new();
    static COMPILING: Mutex<()> = Mutex::new(());
    if lacking(source, &[("cc", "gcc"), ("c++", "g++")]) {
        return None;
    }
    let _one = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    let stage = STAGE.get_or_init(|| {
        let stage = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs/libtelpher");
        let _ = std::fs::remove_dir_all(&stage);
        let mut install = Command::new(capi().join("install.sh"));
        install.arg("--prefix").arg(&stage).args(["--profile", "dev"]).env("CARGO", env!("CARGO"));
        succeed(&mut install);
        stage
    });
    let built = stage.join(Path::new(source).file_name()?);
    if !built.exists() {
        let (compiler, standard) = if source.ends_with(".c") { ("cc", "-std=c11") } else { ("c++", "-std=c++20") };
        let mut command = Command::new(compiler);
        command.args([standard, "-O1", "-g", "-pthread"]).arg(capi().join(source));
        command.arg("-I").arg(stage.join("include")).arg("-L").arg(stage.join("lib")).arg("-ltelpher");
        command.arg(format!("-Wl,-rpath,{}", stage.join("lib").display())).arg("-o").arg(&built);
        succeed(&mut command);
    }
    Some(built)
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a program on a queue, under `telpher run` with these options.
fn passes(view: View, source: &str, queue: &str, options: &[&str]) {
    let Some(program) = program(source) else { return };
    let run = options.iter().fold(Run::on_two_queues(view), |run, option| run.with(option));
    run.program(&[program.into_os_string(), queue.into()]).expect_success();
}

const EVERY_OPERATION: &str = "tests/programs/operations.c";
const LIFETIMES: &str = "tests/programs/lifetimes.c";
const COROUTINES: &str = "tests/programs/coroutines.cpp";
const UNANSWERED: &str = "tests/programs/unanswered.c";
const CACHE: &str = "tests/programs/cache.c";
const CPP_CACHE: &str = "tests/programs/cache.cpp";
/// Kernels since INTEL-SA-01084 refuse the mapping, so the driver submits.
const BY_WRITE: [&str; 3] = ["--abi", "6.12", "--no-rawio"];

in_both_views! {
    fn every_operation_of_libtelpher_works_on_hardware(view: View) {
        passes(view, EVERY_OPERATION, "hw:wq0.0", &[]);
        passes(view, EVERY_OPERATION, "hw:wq0.0", &BY_WRITE);
    }

    fn jobs_and_channels_of_libtelpher_have_the_documented_lifetimes_on_hardware(view: View) {
        passes(view, LIFETIMES, "hw:wq0.0", &[]);
        passes(view, LIFETIMES, "hw:wq0.1", &["--runner", "threaded"]);
        passes(view, LIFETIMES, "hw:wq0.0", &BY_WRITE);
    }

    fn a_queue_that_never_answers_keeps_its_memory_and_its_handles(view: View) {
        passes(view, UNANSWERED, "hw:wq0.0", &["--inject", "op=memory-move,lose=100%"]);
    }

    fn libtelpher_recovers_from_device_faults(view: View) {
        passes(view, EVERY_OPERATION, "hw:wq0.0", &["--inject", "fault=30%"]);
        passes(view, LIFETIMES, "hw:wq0.0", &["--inject", "retry=30%/burst:5"]);
        passes(view, EVERY_OPERATION, "hw:wq0.0", &["--inject", "retry=30%/burst:5,seed=3"]);
        passes(view, EVERY_OPERATION, "hw:wq0.0", &["--inject", "delay=50us:20%,reorder=20%,seed=5"]);
        passes(view, EVERY_OPERATION, "hw:wq0.0", &["--inject", "status=0x13:5%,seed=9"]);
    }

    fn a_cache_of_libtelpher_has_its_blocks_copied_by_hardware(view: View) {
        passes(view, CACHE, "hw:wq0.0", &[]);
        passes(view, CACHE, "hw:wq0.0", &["--inject", "fault=30%"]);
        passes(view, CACHE, "hw:wq0.0", &["--inject", "status=0x13:5%,seed=9"]);
        passes(view, CPP_CACHE, "hw:wq0.0", &[]);
    }

    fn coroutines_await_jobs_of_a_dedicated_hardware_queue(view: View) {
        passes(view, COROUTINES, "hw:wq0.1", &[]);
        passes(view, COROUTINES, "hw:wq0.1", &BY_WRITE);
    }
}
