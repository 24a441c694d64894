//! `telpher vfio` as a program: sockets for several machines, what it prints, and its end while clients are connected.

#[allow(dead_code, clippy::cast_possible_truncation, reason = "the test uses a part of it, and its numbers are small")]
#[path = "../../../hosts/vfio/tests/server/client.rs"]
mod client;

use client::{CONFIG, Client};
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn telpher(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
    command.arg("vfio").args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A folder for the sockets of one test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> TestFolder {
        let folder = std::env::temp_dir().join(format!("telpher-cli-vfio-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        TestFolder(folder)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn each_machine_has_a_socket_and_a_line_and_a_signal_ends_all_of_them() {
    let folder = TestFolder::new("machines");
    let path = folder.0.join("vm").display().to_string();
    let server = telpher(&["--socket", &path, "--vm", "2"]).spawn().unwrap();
    let start = std::time::Instant::now();
    let sockets = [format!("{path}.0"), format!("{path}.1")].map(PathBuf::from);
    while !sockets.iter().all(|socket| socket.exists()) {
        assert!(start.elapsed() < client::LIMIT, "no sockets");
        std::thread::yield_now();
    }
    let mut clients = sockets.each_ref().map(|socket| Client::new(socket));
    for client in &mut clients {
        assert_eq!(client.read(CONFIG, 0), [0x86, 0x80, 0x25, 0x0b]);
    }
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    let output = server.wait_with_output().unwrap();
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stdout.lines().filter(|line| line.contains(": 0 descriptors")).count(), 2, "{stdout}");
    assert!(stderr.contains("machine 1: a client has connected"), "{stderr}");
    assert!(clients.iter_mut().all(|client| client.receive().is_none()), "both sessions have ended");
    assert!(!sockets.iter().any(|socket| socket.exists()), "the sockets were removed");
}

#[test]
fn what_machine_monitors_need_is_printed_without_a_socket() {
    for (option, part) in [("--print-qemu", "share=on"), ("--print-libvirt", "<qemu:commandline>")] {
        let output = telpher(&["--socket", "/nowhere/vm.sock", option]).output().unwrap();
        let (stdout, stderr) = texts(&output);
        assert!(output.status.success() && stderr.is_empty(), "{stderr}");
        assert!(stdout.contains("/nowhere/vm.sock") && stdout.contains(part), "{stdout}");
    }
}

#[test]
fn wrong_options_and_paths_are_errors_that_say_what_to_do() {
    for (words, code, part) in [
        (&["--socket", "/nowhere/vm.sock"][..], 1, "another path with --socket"),
        (&[], 2, "--socket"),
        (&["--socket", "a,weight=0"], 2, "weight is 1 to 1000"),
        (&["--socket", "a", "--vm", "0"], 2, "1..=64"),
    ] {
        let output = telpher(words).output().unwrap();
        let (_, stderr) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(part), "{words:?}: {stderr}");
    }
}
