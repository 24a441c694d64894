//! `telpher nvmf` as a program: a host connects, writes and reads; the control socket; signals.

#[path = "../../../hosts/nvmf-run/tests/server/client.rs"]
#[allow(dead_code, reason = "tests of telpher-nvmf-run use the rest of it")]
mod client;
mod schemas;

use client::Client;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use telpher_nvmf::command::io;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::{Transfer, requests};

const NQN: &str = "nqn.2026-01.io.telpher:disk";
const BOTH: Digests = Digests { header: true, data: true };

/// A folder for the sockets and files of one test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new() -> TestFolder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("telpher-cli-nvmf-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        TestFolder(folder)
    }

    fn word(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn telpher(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_telpher")).args(words).output().expect("telpher runs")
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// A running server.
struct Serving {
    child: Child,
    output: BufReader<ChildStdout>,
    greeting: String,
    address: SocketAddr,
}

impl Serving {
    /// Starts a server; without `--listen` at a free port of the loopback address.
    fn start(folder: &TestFolder, words: &[&str]) -> Serving {
        let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
        command.args(["nvmf", "--control", &folder.word("control")]).args(words);
        if !words.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("telpher starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut greeting = String::new();
        while !greeting.ends_with("Ctrl-C stops.\n") {
            assert_ne!(output.read_line(&mut greeting).expect("text"), 0, "the server ended: {greeting}");
        }
        let (_, rest) = greeting.split_once("Listening at ").expect("an address");
        let address = rest.split(". On Linux").next().and_then(|text| text.parse().ok()).expect("an address");
        Serving { child, output, greeting, address }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, signal).expect("the server runs");
    }

    /// Waits for the end; returns the exit code and standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let mut errors = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("text");
        let status = self.child.wait().expect("an end");
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        assert_eq!(rest, "", "after the greeting");
        (status.code().or_else(|| status.signal().map(|signal| -signal)), errors)
    }

    /// Kibibytes of memory that the process has.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_host_connects_writes_and_reads_and_the_statistics_say_so() {
    let folder = TestFolder::new();
    let serving = Serving::start(&folder, &["--memory", "8m", "--loops", "2", "--device", "model:spr"]);
    let line = format!("  nvme connect -t tcp -a 127.0.0.1 -s {} -n {NQN}\n", serving.address.port());
    assert!(serving.greeting.contains(&line), "{}", serving.greeting);
    assert!(serving.greeting.contains("There is no TLS and no authentication."), "{}", serving.greeting);
    let (_admin, controller) = Client::admin(serving.address, NQN, BOTH);
    let mut queue = Client::queue(serving.address, NQN, BOTH, controller, 1);
    let data: Vec<u8> = (0..131_072_u32).map(|at| (at / 5).to_le_bytes()[0]).collect();
    queue.write(1, 64, 32, &data);
    assert!(queue.read(1, 64, 32, 131_072) == data);
    let ctl = |words: &[&str]| {
        let control = folder.word("control");
        telpher(&[&["nvmf", "ctl", "--control", control.as_str()], words].concat())
    };
    assert_eq!(printed(&ctl(&["add-namespace", "null:1m", "--block-bytes", "512"])), "namespace 2 was added\n");
    assert_eq!(queue.read(2, 2047, 1, 512), [0; 512]);
    printed(&ctl(&["resize-namespace", "2", "2m"]));
    assert_eq!(queue.read(2, 4095, 1, 512), [0; 512]);
    printed(&ctl(&["remove-namespace", "2", "--subsystem", NQN]));
    let statistics = schemas::parse(printed(&ctl(&["statistics", "--format", "json"])));
    let total = &statistics["subsystems"][0]["total"];
    assert_eq!((&total["writes"], &total["reads"]), (&1.into(), &3.into()));
    assert_eq!(total["digests"]["by_device"], 2);
    assert!(printed(&ctl(&["statistics"])).contains("  3 reads, 129 KiB to hosts; 1 writes, 129 KiB from hosts\n"));
    let csv = printed(&ctl(&["statistics", "--format", "csv"]));
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let twice = printed(&ctl(&["top", "--count", "2", "--every", "0.05", "--format", "json"]));
    assert_eq!(twice.lines().map(|line| schemas::list(line, "servers").len()).sum::<usize>(), 2, "{twice}");
    let shown = schemas::parse(printed(&ctl(&["show"])));
    assert_eq!(shown["subsystems"][0]["namespaces"][0]["backend"], "memory:8m");
    let refused = ctl(&["remove-namespace", "7"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&refused.stderr), "telpher: there is no namespace 7\n");
    serving.signal(rustix::process::Signal::TERM);
    let (code, errors) = serving.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("Stopping: completing commands for at most 5 s"), "{errors}");
    let gone = ctl(&["show"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no server answers at"), "{gone:?}");
}

#[test]
fn a_killed_server_comes_back_at_its_port_with_its_data() {
    let folder = TestFolder::new();
    let disk = format!("{},size=8m", folder.word("disk"));
    let serving = Serving::start(&folder, &["--file", &disk]);
    let (_admin, controller) = Client::admin(serving.address, NQN, BOTH);
    let mut queue = Client::queue(serving.address, NQN, BOTH, controller, 1);
    queue.write(1, 5, 1, &[5; 4096]);
    let address = serving.address.to_string();
    serving.signal(rustix::process::Signal::KILL);
    assert_eq!(serving.end().0, Some(-9));
    // The old connections are not closed by this host before the new server starts.
    let again = Serving::start(&folder, &["--file", &disk, "--listen", &address]);
    let (_admin, controller) = Client::admin(again.address, NQN, BOTH);
    let mut second = Client::queue(again.address, NQN, BOTH, controller, 1);
    assert_eq!(second.read(1, 5, 1, 4096), [5; 4096]);
    drop(queue);
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let folder = TestFolder::new();
    let serving = Serving::start(&folder, &["--memory", "8m"]);
    let (_admin, controller) = Client::admin(serving.address, NQN, Digests::default());
    let mut queue = Client::queue(serving.address, NQN, Digests::default(), controller, 1);
    // The host never sends the data that the server asks for.
    queue.host.send(requests::blocks(io::WRITE, 5, 1, 0, 32), Transfer::OnRequest(vec![8; 131_072]));
    queue.flush();
    queue.socket.read_exact(&mut [0; 24]).expect("an R2T");
    serving.signal(rustix::process::Signal::INT);
    // It takes no more connections when it has seen the first signal.
    while std::net::TcpStream::connect(serving.address).is_ok() {}
    serving.signal(rustix::process::Signal::TERM);
    let (code, errors) = serving.end();
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.ends_with("telpher: not flushed at the end: a second signal came\n"), "{errors}");
    queue.wait_for_close();
}

/// The sockets' buffers are the kernel's, and not in the process' memory.
#[test]
fn an_idle_connection_takes_at_most_64_kib() {
    const CONNECTIONS: u16 = 256;
    let folder = TestFolder::new();
    let serving = Serving::start(&folder, &["--memory", "8m"]);
    let connect = |count: u16| -> Vec<(Client, Vec<Client>)> {
        let controllers = (0..count / 64).map(|_| {
            let (admin, controller) = Client::admin(serving.address, NQN, BOTH);
            let queue = |qid| {
                let mut queue = Client::queue(serving.address, NQN, BOTH, controller, qid);
                // After some work: buffers that stay count, too.
                queue.write(1, 0, 32, &[1; 131_072]);
                queue.read(1, 0, 32, 131_072);
                queue
            };
            (admin, (1..64).map(queue).collect())
        });
        controllers.collect()
    };
    // The first connections also allocate what all share.
    let first = connect(64);
    let before = serving.resident();
    let more = connect(CONNECTIONS);
    let grown = serving.resident().saturating_sub(before);
    assert!(grown <= u64::from(CONNECTIONS) * 64, "{grown} KiB for {CONNECTIONS} connections");
    drop((first, more));
}

#[test]
fn a_configuration_is_printed_checked_and_served() {
    let folder = TestFolder::new();
    let config = folder.word("nvmf.json");
    let written = printed(&telpher(&["nvmf", "--null", "1g", "--memory", "8m", "--print-config"]));
    std::fs::write(&config, &written).expect("a file");
    let checked = printed(&telpher(&["nvmf", "check", &config]));
    assert!(checked.contains("namespace 1: memory:8m, blocks of 4096 bytes\n"), "{checked}");
    assert!(checked.ends_with(&format!("{config} is valid.\n")), "{checked}");
    let serving = Serving::start(&folder, &["--config", &config]);
    let (_admin, controller) = Client::admin(serving.address, NQN, BOTH);
    let mut queue = Client::queue(serving.address, NQN, BOTH, controller, 1);
    assert_eq!(queue.read(2, 0, 1, 4096), [0; 4096]);
    std::fs::write(&config, written.replace("\"loops\"", "\"loop\"")).expect("a file");
    let refused = telpher(&["nvmf", "check", &config]);
    assert_eq!(refused.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("unknown key 'loop'; the nearest known key is 'loops'"), "{errors}");
    let line = 1 + written.lines().position(|line| line.contains("\"loops\"")).expect("the key");
    assert!(errors.starts_with(&format!("telpher: {config}:{line}:")), "{errors}");
}

#[test]
fn an_address_that_others_reach_is_warned_of() {
    let folder = TestFolder::new();
    let serving = Serving::start(&folder, &["--memory", "8m", "--listen", "0.0.0.0:0"]);
    assert!(serving.greeting.contains("nvme connect -t tcp -a ADDRESS"), "{}", serving.greeting);
    serving.signal(rustix::process::Signal::TERM);
    let (code, errors) = serving.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("is not a loopback address. Without TLS and authentication"), "{errors}");
}

/// Runs `telpher nvmf bench` in an environment whose temporary folder is that of the test.
fn bench(folder: &TestFolder, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
    command.args(["nvmf", "bench"]).args(words).env("TMPDIR", &folder.0);
    command
}

/// Checks that no server of a bench runs any more, and that it left no file.
fn assert_nothing_left(folder: &TestFolder) {
    let mark = folder.0.display().to_string();
    for process in std::fs::read_dir("/proc").expect("/proc").flatten() {
        // A process may have ended since it was listed.
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        assert!(!words.contains(&mark), "still running: {words}");
    }
    assert_eq!(std::fs::read_dir(&folder.0).expect("the folder").count(), 0, "files are left in {mark}");
}

fn number(json: &Value) -> u64 {
    json.as_u64().unwrap_or_else(|| panic!("not a count: {json}"))
}

#[test]
fn a_bench_counts_the_commands_of_a_target_and_verifies_its_blocks() {
    let (server_folder, folder) = (TestFolder::new(), TestFolder::new());
    let serving = Serving::start(&server_folder, &["--memory", "16m"]);
    let address = serving.address.to_string();
    let words = ["--pattern", "write-verify", "--seconds", "0.2", "--connections", "2", "--in-flight", "4"];
    let more = [address.as_str(), "--header-digest", "--data-digest", "--idle", "3", "--format", "json"];
    let output = bench(&folder, &[&words[..], &more].concat()).output().expect("telpher runs");
    let result = schemas::parse(printed(&output));
    assert_eq!((&result["digests"], &result["errors"]), (&"header and data".into(), &Value::Array(Vec::new())));
    assert_eq!((number(&result["connections"]), number(&result["in_flight"])), (2, 4));
    assert!(number(&result["verified_blocks"]) > 0, "{result}");
    assert_eq!(number(&result["unknown_blocks"]), 0, "{result}");
    let control = server_folder.word("control");
    let statistics = printed(&telpher(&["nvmf", "ctl", "--control", &control, "statistics", "--format", "json"]));
    let statistics = schemas::parse(&statistics);
    let total = &statistics["subsystems"][0]["total"];
    let counted: u64 = ["reads", "writes"].iter().map(|name| number(&total[name])).sum();
    assert_eq!(number(&result["commands"]), counted, "{total}");
    // Filled, so that reads are verified, too.
    let words = [address.as_str(), "--fill", "--seconds", "0.2"];
    let text = printed(&bench(&folder, &words).output().expect("telpher runs"));
    assert!(text.contains(&format!("randread-16k on namespace 1 of {NQN}")), "{text}");
    assert!(!text.contains("blocks without a checksum"), "{text}");
    assert_nothing_left(&folder);
}

#[test]
fn a_bench_without_an_address_measures_servers_of_each_number_of_loops() {
    let folder = TestFolder::new();
    let words = ["--loops", "2", "--memory", "8m", "--seconds", "0.2", "--data-digest", "--device", "model:spr"];
    let run = |more: &[&str]| {
        let output = bench(&folder, &[&words[..], more].concat()).output().expect("telpher runs");
        assert_nothing_left(&folder);
        printed(&output)
    };
    let result = schemas::parse(run(&["--threshold", "4k", "--format", "json"]));
    let runs = result["runs"].as_array().expect("runs");
    assert_eq!(runs.iter().map(|run| number(&run["loops"])).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(
        (&result["servers"]["device"], number(&result["servers"]["threshold_bytes"])),
        (&"model:spr".into(), 4096)
    );
    for run in runs {
        assert_eq!((number(&run["connections"]), number(&run["unknown_blocks"])), (2, 0), "{run}");
        // Every read of 16 KiB is four blocks that were verified.
        assert!(number(&run["commands"]) > 0, "{run}");
        assert_eq!(number(&run["verified_blocks"]), 4 * number(&run["commands"]), "{run}");
        assert!(run["cpu_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{run}");
    }
    let csv = run(&["--format", "csv"]);
    let loops: Vec<&str> = csv.lines().filter_map(|line| line.split(',').next()).collect();
    assert_eq!(loops, ["loops", "1", "2"], "{csv}");
}

#[test]
fn a_bench_names_what_does_not_listen_and_what_does_not_start() {
    let folder = TestFolder::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let failed = |words: &[&str]| {
        let output = bench(&folder, words).output().expect("telpher runs");
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &[][..]), "{output:?}");
        assert_nothing_left(&folder);
        String::from_utf8(output.stderr).expect("text")
    };
    let errors = failed(&[&address, "--seconds", "0.2"]);
    let begin = format!("telpher: cannot connect to {address}: Connection refused");
    assert!(errors.starts_with(&begin) && errors.lines().count() == 1, "{errors}");
    let errors = failed(&["--device", "hw:wq99999.0", "--loops", "1"]);
    let begin = "telpher: the server with 1 loop failed: ";
    assert!(errors.starts_with(begin) && errors.contains("wq99999.0"), "{errors}");
    // Too few blocks for the connections: the load does not start, and the server ends.
    let errors = failed(&["--memory", "64k", "--loops", "1", "--connections", "8"]);
    assert!(errors.contains("8 connections need"), "{errors}");
}

#[test]
fn a_bench_fails_if_its_target_goes_away() {
    let (server_folder, folder) = (TestFolder::new(), TestFolder::new());
    let serving = Serving::start(&server_folder, &["--memory", "16m"]);
    let words = [&serving.address.to_string(), "--seconds", "600", "--format", "json"];
    let mut command = bench(&folder, &words);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("telpher starts");
    let control = server_folder.word("control");
    let reads = || {
        let statistics = printed(&telpher(&["nvmf", "ctl", "--control", &control, "statistics", "--format", "json"]));
        let statistics = schemas::parse(&statistics);
        // Without a connection, there are no counts yet.
        statistics["subsystems"][0]["total"]["reads"].as_u64().unwrap_or_default()
    };
    while reads() == 0 {}
    serving.signal(rustix::process::Signal::KILL);
    let output = child.wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(1));
    // The result has the commands until then.
    let result = schemas::parse(&output.stdout);
    assert!(number(&result["commands"]) > 0 && !result["errors"].as_array().expect("errors").is_empty(), "{result}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("connections ended early, the first: "), "{errors}");
}

#[test]
fn a_signal_ends_a_bench_and_its_server() {
    let folder = TestFolder::new();
    let mut command = bench(&folder, &["--loops", "1", "--memory", "8m", "--seconds", "600"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("telpher starts");
    let has_socket = || {
        let folders = std::fs::read_dir(&folder.0).expect("the folder").flatten();
        folders.map(|entry| entry.path().join("control")).any(|path| path.exists())
    };
    while !has_socket() {}
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .expect("the bench runs");
    let output = child.wait_with_output().expect("an end");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &[][..]));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors, "telpher: the measurement failed: a signal ended it\n");
    assert_nothing_left(&folder);
}
