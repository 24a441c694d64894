//! `dsa_test` and `dsa_user_test_runner.sh` of Debian's accel-config-test.

use crate::harness::{Done, Run, View, in_both_views, lacking, test_folder};
use std::path::Path;

const FOLDER: &str = "/usr/libexec/accel-config/test";
const DSA_TEST: &str = "/usr/libexec/accel-config/test/dsa_test";
/// Invocations of `dsa_test`: twice (block on fault set and clear), each ten operations in two modes and five sizes,
/// singly and, except Drain, in batches; and four DIF operations in two modes and three sizes, singly and in batches.
const RUNS: usize = 2 * (10 * 2 * 5 + 9 * 2 * 5 + 4 * 2 * 3 * 2);

fn ready(test: &str) -> bool {
    !lacking(test, &[("accel-config", "accel-config"), (DSA_TEST, "accel-config-test")])
}

/// Runs the script with stand-ins for the commands that load the driver: the emulated driver needs no module.
fn run_script(name: &str, view: View, options: &[&str]) -> Done {
    let room = test_folder(name);
    let commands = room.join("commands");
    std::fs::create_dir(&commands).expect("a folder");
    for command in ["modprobe", "rmmod", "lsmod"] {
        let path = commands.join(command);
        std::fs::write(&path, "#!/bin/sh\nexit 0\n").expect("a stand-in");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("executable");
    }
    let path = format!("{}:{}", commands.display(), std::env::var("PATH").expect("a PATH"));
    let run = options.iter().fold(Run::new(view), |run, option| run.with(option));
    let script = Path::new(FOLDER).join("dsa_user_test_runner.sh");
    run.variable("PATH", path).in_folder(&room).within(300).program(&[script])
}

fn all_runs_pass(name: &str, view: View, options: &[&str]) -> Option<Done> {
    if !ready(name) {
        return None;
    }
    let done = run_script(name, view, options);
    done.expect_success();
    // The script traces its commands, and ends at the first that fails.
    let started = done.stderr.lines().filter(|line| line.starts_with('+') && line.contains("/dsa_test -w ")).count();
    assert_eq!(started, RUNS, "runs of dsa_test");
    Some(done)
}

#[test]
fn there_are_476_runs() {
    assert_eq!(RUNS, 476);
}

#[test]
fn the_476_runs_pass_under_strict_residency() {
    all_runs_pass("the_476_runs_pass_under_strict_residency", View::Preload, &[]);
}

#[test]
fn the_476_runs_pass_under_lenient_residency() {
    all_runs_pass("the_476_runs_pass_under_lenient_residency", View::Preload, &["--residency", "lenient"]);
}

#[test]
fn the_476_runs_pass_in_a_namespace_and_nothing_is_reported() {
    let name = "the_476_runs_pass_in_a_namespace_and_nothing_is_reported";
    if let Some(reason) = View::Namespace.missing() {
        return crate::skip::skip(name, reason);
    }
    if let Some(done) = all_runs_pass(name, View::Namespace, &["--check"]) {
        crate::check::expect_no_report(&done);
    }
}

in_both_views! {
    fn dsa_test_passes_the_delta_operations_the_runner_leaves_out(view: View) {
        if !ready("dsa_test_passes_the_delta_operations_the_runner_leaves_out") {
            return;
        }
        // With block on fault clear, a delta operation may end half-way with a page fault. The program then continues
        // with its
        // buffers moved, but with the offsets and the record's position of a new operation. No device can make that
        // right, so
        // the operation must meet no fault.
        for (flags, residency) in [("0x1", "strict"), ("0x0", "lenient")] {
            let mut script = format!("accel-config load-config -c {FOLDER}/configs/2g2q_user_1.conf -e\n");
            let mut runs = 0;
            for (opcode, mode) in [("0x7", "0"), ("0x7", "1"), ("0x8", "0"), ("0x8", "1")] {
                for size in ["64", "4096", "65536", "524288"] {
                    script += &format!("{DSA_TEST} -w {mode} -l {size} -o {opcode} -f {flags} -t 5000\n");
                    script += &format!("{DSA_TEST} -w {mode} -l {size} -o 0x1 -b {opcode} -c 16 -f {flags} -t 5000\n");
                    runs += 2;
                }
            }
            script += &format!("echo {runs} runs\n");
            let output = Run::new(view).with("--residency").with(residency).within(120).shell(&script);
            assert!(output.ends_with("32 runs\n"), "{output}");
        }
    }

    fn dsa_test_passes_with_rewriting_off_and_with_an_engine_thread(view: View) {
        if !ready("dsa_test_passes_with_rewriting_off_and_with_an_engine_thread") {
            return;
        }
        let script = format!(
            "accel-config load-config -c {FOLDER}/configs/2g2q_user_1.conf -e\n\
             for mode in 0 1; do for flags in 0x0 0x1; do for op in 0x0 0x3 0x4 0x5 0x9 0x10 0x11 0x13; do\n\
             {DSA_TEST} -w $mode -l 4096 -o $op -f $flags -t 5000\n\
             {DSA_TEST} -w $mode -l 4096 -o 0x1 -b $op -c 16 -f $flags -n 8 -t 5000\n\
             done; done; done"
        );
        Run::new(view).with("--no-rewrite").within(120).shell(&script);
        Run::new(view).with("--runner").with("threaded").within(120).shell(&script);
    }
}
