//! Programs that cannot be preloaded: linked statically, or written in Go. In the namespace view they see and configure
//! the device's tree and submit by write(); unsupported uses give a one-sentence error.

use crate::harness::{Run, TELPHER, View, client, client_with, finish, lacking, source, test_folder};
use crate::skip::skip;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn static_client(test: &str) -> Option<PathBuf> {
    if let Some(reason) = View::Namespace.missing() {
        skip(test, reason);
        return None;
    }
    client_with("static", "static", &["-static"])
}

#[test]
fn a_static_program_configures_and_submits_by_write() {
    let Some(program) = static_client("a_static_program_configures_and_submits_by_write") else { return };
    for abi in ["6.1", "6.6", "6.12"] {
        Run::new(View::Namespace).with("--abi").with(abi).program(&[&program]).expect_success();
    }
    // The namespace view is chosen automatically, since nothing can be preloaded.
    let mut auto = Command::new(TELPHER);
    finish(auto.args(["run", "--"]).arg(&program), None, Duration::from_secs(60)).expect_success();
}

/// What broke: with 64 GiB of work submitted by one write(), the process could not be killed before the last byte.
#[test]
fn submissions_of_a_killed_process_end_with_it() {
    let test = "submissions_of_a_killed_process_end_with_it";
    if let Some(reason) = View::Namespace.missing() {
        return skip(test, reason);
    }
    let Some(program) = client_with("killed_writer", "killed_writer", &["-static"]) else { return };
    Run::new(View::Namespace).with("--hardware").with("spr-1").within(300).program(&[&program]).expect_success();
}

#[test]
fn a_static_program_that_uses_the_instructions_gets_a_message() {
    let test = "a_static_program_that_uses_the_instructions_gets_a_message";
    let Some(program) = static_client(test) else { return };
    if std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default().contains("enqcmd") {
        return skip(test, "this CPU has ENQCMD");
    }
    let done = Run::new(View::Namespace).program(&[program.as_os_str(), "submit".as_ref()]);
    // SIGILL, or SIGSEGV if the CPU has ENQCMD and hides it.
    assert!([128 + 4, 128 + 11].contains(&done.code()), "{done}");
    let sentences: Vec<&str> = done.stderr.lines().collect();
    assert!(sentences.len() == 1 && sentences[0].contains("static") && sentences[0].contains("write()"), "{done}");
}

#[test]
fn a_static_program_that_maps_a_portal_is_advised_to_write() {
    let test = "a_static_program_that_maps_a_portal_is_advised_to_write";
    if let Some(reason) = View::Namespace.missing() {
        return skip(test, reason);
    }
    let Some(program) = client_with("mapping", "mapping-static", &["-static"]) else { return };
    let run = |what: &str| Run::on_two_queues(View::Namespace).program(&[program.as_os_str(), what.as_ref()]);
    for (what, code) in [("fails", 1), ("goes-on", 0)] {
        let done = run(what);
        assert_eq!(done.code(), code, "{done}");
        let sentences: Vec<&str> = done.stderr.lines().collect();
        let expected = format!("telpher run: {} is statically linked, and had /dev/dsa/wq0.0 open", program.display());
        assert!(sentences.len() == 1 && sentences[0].starts_with(&expected), "{done}");
        assert!(sentences[0].contains("mmap answers ENODEV") && sentences[0].contains("write()"), "{done}");
    }
    let done = run("writes");
    done.expect_success();
    assert_eq!(done.stderr, "", "{done}");
    // After a program has submitted by write() once, it gets no more advice.
    let script = format!("'{0}' writes; '{0}' goes-on", program.display());
    let done = Run::on_two_queues(View::Namespace).program(&["/bin/sh", "-ec", &script]);
    done.expect_success();
    assert_eq!(done.stderr, "", "{done}");
    // The advice appears once for each program, however often it runs.
    let script = format!("for i in 1 2 3; do '{}' goes-on; done", program.display());
    let done = Run::on_two_queues(View::Namespace).program(&["/bin/sh", "-ec", &script]);
    done.expect_success();
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    // A program with the preloaded library gets no advice, whether it maps the portal or not.
    let done = Run::on_two_queues(View::Namespace).program(&["/bin/sh", "-ec", "exec 3<>/dev/dsa/wq0.0"]);
    done.expect_success();
    assert_eq!(done.stderr, "", "{done}");
}

#[test]
fn a_go_program_configures_and_submits_by_write() {
    let test = "a_go_program_configures_and_submits_by_write";
    if let Some(reason) = View::Namespace.missing() {
        return skip(test, reason);
    }
    if lacking(test, &[("go", "golang-go")]) {
        return;
    }
    let room = test_folder("go");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs-go-cache");
    let program = room.join("client");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&program).arg(source("client.go")).current_dir(&room);
    go.env("CGO_ENABLED", "0").env("GO111MODULE", "off").env("GOCACHE", cache).env("GOPATH", room.join("path"));
    let built = go.output().expect("go runs");
    assert!(built.status.success(), "client.go: {}", String::from_utf8_lossy(&built.stderr));
    for abi in ["6.1", "6.12"] {
        let output = Run::new(View::Namespace).with("--abi").with(abi).success(&[&program]);
        assert_eq!(output, "done\n");
    }
}

#[test]
fn a_static_program_cannot_be_preloaded_and_is_reported() {
    let Some(program) = client_with("static", "static", &["-static"]) else { return };
    let done = Run::new(View::Preload).program(&[program]);
    assert_eq!(done.code(), 126, "{done}");
    assert!(done.stderr.lines().count() == 1 && done.stderr.contains("static"), "{done}");
}

#[test]
fn a_32_bit_program_is_refused_with_a_message() {
    // The header of an ELF file for i386 is enough, since nothing of it is executed.
    let path = test_folder("elf32").join("program");
    let mut head = vec![0; 84];
    head[..20].copy_from_slice(b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0");
    std::fs::write(&path, head).expect("a file");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    let done = Run::new(View::Preload).program(&[path]);
    assert_eq!(done.code(), 126, "{done}");
    assert!(done.stderr.lines().count() == 1 && done.stderr.contains("32-bit"), "{done}");
}

#[test]
fn a_setuid_program_is_refused_with_a_message() {
    let test = "a_setuid_program_is_refused_with_a_message";
    if !rustix::process::getuid().is_root() {
        return skip(test, "only root can make a program that is setuid to another user");
    }
    let Some(program) = client("rotating") else { return };
    let path = test_folder("setuid").join("program");
    std::fs::copy(program, &path).expect("a copy");
    std::os::unix::fs::chown(&path, Some(65534), None).expect("another owner");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).expect("setuid");
    let done = Run::on_two_queues(View::Preload).program(&[path]);
    assert_eq!(done.code(), 126, "{done}");
    assert!(done.stderr.lines().count() == 1 && done.stderr.contains("setuid"), "{done}");
}
