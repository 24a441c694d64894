//! Programs that replace LD_PRELOAD, or start others with another environment, keep the device, and so do programs
//! built with a sanitizer.

use crate::harness::{Done, Run, TELPHER, View, client, client_with, finish, in_both_views, lacking, test_folder};
use crate::schemas;
use crate::skip::skip;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use telpher_os::{Scan, Userfault, UserfaultFeatures};

/// A file of the device, which exists only for programs of the run.
const SEEN: &str = "/sys/bus/dsa/devices/dsa0/state";

in_both_views! {
    fn every_function_that_executes_a_program_restores_the_run(view: View) {
        let Some(program) = client("followed") else { return };
        Run::new(view).program(&[program.as_os_str(), "TELPHER_RUN".as_ref()]).expect_success();
    }

    fn env_and_the_shell_keep_the_device(view: View) {
        let run = Run::new(view);
        let shows = |script: &str| assert_eq!(run.shell(script), "disabled\n", "{script}");
        shows(&format!("env -i /bin/cat {SEEN}"));
        shows(&format!("env LD_PRELOAD=libc.so.6 /bin/cat {SEEN}"));
        shows(&format!("env -u TELPHER_RUN -u LD_PRELOAD /bin/cat {SEEN}"));
        shows(&format!("export LD_PRELOAD=libc.so.6; cat {SEEN}"));
        shows(&format!("unset LD_PRELOAD TELPHER_RUN; sh -c 'exec env -i sh -c \"cat {SEEN}\"'"));
        let list = run.shell("export LD_PRELOAD=libc.so.6; env | grep ^LD_PRELOAD=");
        assert!(list.trim_end().ends_with(":libc.so.6"), "what the program has set stays: {list}");
    }

    fn programs_that_python_starts_with_another_environment_keep_the_device(view: View) {
        if lacking(
            "programs_that_python_starts_with_another_environment_keep_the_device",
            &[("/usr/bin/python3", "python3-minimal")],
        ) {
            return;
        }
        let script = format!(
            "import os, subprocess\n\
             cat = ['/bin/cat', '{SEEN}']\n\
             for options in [dict(), dict(close_fds=False), dict(start_new_session=True), \
             dict(preexec_fn=lambda: None)]:\n\
             \x20   out = subprocess.run(cat, env={{'A': 'b'}}, stdout=subprocess.PIPE, **options).stdout\n\
             \x20   assert out == b'disabled\\n', (options, out)\n\
             assert subprocess.run('exec ' + ' '.join(cat), shell=True, env={{}}, stdout=subprocess.PIPE).stdout \
             == b'disabled\\n'\n\
             child = os.posix_spawn(cat[0], cat, {{}})\n\
             assert os.waitpid(child, 0)[1] == 0\n\
             os.environ.clear()\n\
             assert os.system(' '.join(cat)) == 0\n"
        );
        let output = Run::new(view).success(&["/usr/bin/python3", "-c", &script]);
        assert_eq!(output, "disabled\ndisabled\n");
    }

    fn with_no_follow_a_program_can_leave_the_run(view: View) {
        let run = Run::new(view).with("--no-follow");
        assert_eq!(run.shell("env -i /usr/bin/env"), "");
        let list = run.shell("env LD_PRELOAD=libc.so.6 env | grep ^LD_PRELOAD=");
        assert_eq!(list, "LD_PRELOAD=libc.so.6\n");
        // Programs with an unchanged environment are part of the run as usual.
        assert_eq!(run.shell(&format!("cat {SEEN}")), "disabled\n");
    }

    fn a_program_built_with_address_sanitizer_has_the_device(view: View) {
        const NAME: &str = "a_program_built_with_address_sanitizer_has_the_device";
        for flags in [&[][..], &["-static-libasan"]] {
            let test = format!("{NAME}-{}", view.name());
            let Some(program) = sanitized(&test, "rotating", flags) else { return };
            Run::on_two_queues(view).program(&[&program]).expect_success();
            // The same if a program of the run starts it.
            let script = format!("env -i '{}'; env | grep ^LD_PRELOAD=", program.display());
            let list = Run::on_two_queues(view).shell(&script);
            assert!(!list.contains("asan"), "what comes after it does without its runtime: {list}");
        }
    }
}

#[test]
fn a_run_within_a_run_is_independent() {
    let inner = [TELPHER, "run", "--hardware", "spr-1", "--", "env", "-i", "/bin/cat", SEEN];
    assert_eq!(Run::new(View::Preload).success(&inner), "enabled\n");
}

#[test]
fn a_program_that_cannot_be_preloaded_is_reported_in_one_line() {
    let Some(program) = client_with("static", "static", &["-static"]) else { return };
    let path = program.to_str().expect("UTF-8");
    let script = format!("env -i {path} || true; {path} || true");
    let done = Run::new(View::Preload).program(&["/bin/sh", "-ec", &script]);
    let lines: Vec<&str> = done.stderr.lines().filter(|line| line.starts_with("telpher run: ")).collect();
    assert_eq!(lines.len(), 2, "{done}");
    for line in lines {
        let expected = format!(
            "telpher run: {path} is statically linked, so nothing can be preloaded into it, and it runs without"
        );
        assert!(line.starts_with(&expected) && line.contains("--view namespace"), "{done}");
    }
    // In a namespace a static program sees the device, so there is no report.
    if View::Namespace.missing().is_none() {
        let done = Run::new(View::Namespace).program(&["/bin/sh", "-ec", &format!("env -i {path}")]);
        done.expect_success();
        assert_eq!(done.stderr, "", "{done}");
    }
    let quiet = Run::new(View::Preload).with("--no-follow").program(&["/bin/sh", "-ec", &script]);
    assert!(!quiet.stderr.contains("telpher run:"), "{quiet}");
}

#[test]
fn a_program_that_gains_rights_is_reported_in_one_line() {
    const NAME: &str = "a_program_that_gains_rights_is_reported_in_one_line";
    if !rustix::process::getuid().is_root() {
        return skip(NAME, "only root can make a program that is setuid to another user");
    }
    let path = test_folder("setuid-in-run").join("program");
    std::fs::copy("/bin/true", &path).expect("a copy");
    std::os::unix::fs::chown(&path, Some(65534), None).expect("another owner");
    let mode =
        |mode| std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("a mode");
    let run = || Run::new(View::Preload).program(&["/bin/sh", "-ec", path.to_str().expect("UTF-8")]);
    mode(0o4755);
    let done = run();
    done.expect_success();
    assert!(done.stderr.lines().count() == 1 && done.stderr.contains("gains rights when executed (setuid)"), "{done}");
    // Without the bit the program gains no rights, and nothing is reported.
    mode(0o755);
    let done = run();
    done.expect_success();
    assert_eq!(done.stderr, "", "{done}");
}

/// Returns a client built with AddressSanitizer; skips and returns `None` if that is not installed.
fn sanitized(test: &str, name: &str, flags: &[&str]) -> Option<PathBuf> {
    if lacking(test, &[("gcc", "gcc")]) {
        return None;
    }
    let folder = test_folder(&format!("asan-{test}-{}", flags.len()));
    let probe = folder.join("probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }\n").expect("a file");
    let mut gcc = Command::new("gcc");
    gcc.arg("-fsanitize=address").args(flags).arg("-o").arg(folder.join("probe")).arg(probe);
    if !gcc.output().expect("gcc runs").status.success() {
        skip(test, "no AddressSanitizer for gcc (Debian package libasan8 or libgcc-12-dev)");
        return None;
    }
    let flags: Vec<&str> = ["-fsanitize=address"].iter().chain(flags).copied().collect();
    client_with(name, &format!("{name}-{}", flags.join("").replace(['-', '='], "")), &flags)
}

/// Runs `telpher tier run` with two tiers of one node, in the test's own folder.
fn tier(test: &str, options: &[&str], program: &[&str]) -> Done {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs").join(format!("tier-{test}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = Command::new(TELPHER);
    command.process_group(0).env("XDG_RUNTIME_DIR", folder);
    command.args(["tier", "run", "--quiet", "--tier", "fast=64m", "--tier", "slow"]).args(options);
    command.arg("--").args(program);
    finish(&mut command, None, Duration::from_secs(120))
}

fn lacks_tiers(test: &str) -> bool {
    let lacks = Scan::open().is_err() || Userfault::open(UserfaultFeatures::MOVE).is_err();
    if lacks {
        skip(test, "the kernel has no userfaultfd that moves pages, or not for this user (Linux 6.8)");
    }
    lacks
}

#[test]
fn programs_of_a_tier_run_are_managed_in_any_environment() {
    const NAME: &str = "programs_of_a_tier_run_are_managed_in_any_environment";
    if lacks_tiers(NAME) {
        return;
    }
    let Some(program) = client("followed") else { return };
    tier(NAME, &[], &[program.to_str().expect("UTF-8"), "TELPHER_TIER"]).expect_success();
    let done = tier(NAME, &[], &["sh", "-ec", "env -i /usr/bin/env; LD_PRELOAD=libc.so.6 env | grep ^LD_PRELOAD="]);
    done.expect_success();
    assert!(done.stdout.contains("TELPHER_TIER=") && done.stdout.trim_end().ends_with(":libc.so.6"), "{done}");
    assert_eq!(tier(NAME, &["--no-follow"], &["env", "-i", "/usr/bin/env"]).stdout, "");
    let Some(program) = client_with("static", "static", &["-static"]) else { return };
    let done = tier(NAME, &[], &["sh", "-c", program.to_str().expect("UTF-8")]);
    let lines = done.stderr.lines().filter(|line| line.contains("its memory is not managed"));
    assert_eq!(lines.count(), 1, "{done}");
}

#[test]
fn a_program_built_with_address_sanitizer_has_its_memory_managed() {
    const NAME: &str = "a_program_built_with_address_sanitizer_has_its_memory_managed";
    if lacks_tiers(NAME) {
        return;
    }
    let Some(program) = sanitized(NAME, "sanitized", &[]) else { return };
    let json = test_folder(NAME).join("tiers.json");
    let path = json.to_str().expect("UTF-8");
    for options in [&["--format", "json", "--output", path][..], &["--format", "json", "--output", path, "--shuffle"]] {
        let done = tier(NAME, options, &[program.to_str().expect("UTF-8")]);
        done.expect_success();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("done\n", ""));
        let reported = schemas::list(std::fs::read(&json).expect("a report"), "processes");
        // The shadow memory, 14 TiB of addresses, is not managed.
        let managed = reported[0]["mapped_bytes"].as_u64().expect("a process told of itself");
        assert!((1..1 << 40).contains(&managed), "{reported:?}");
    }
    let Some(program) = sanitized(NAME, "sanitized", &["-static-libasan"]) else { return };
    let done = tier(NAME, &["--format", "json", "--output", path, "--shuffle"], &[program.to_str().expect("UTF-8")]);
    assert!(done.stderr.contains("set ASAN_OPTIONS=detect_leaks=0"), "{done}");
    let words = ["env", "ASAN_OPTIONS=detect_leaks=0", program.to_str().expect("UTF-8")];
    let done = tier(NAME, &["--format", "json", "--output", path, "--shuffle"], &words);
    done.expect_success();
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("done\n", ""));
}
