//! Devices that programs model in their own processes: `telpher top` and `telpher exporter` show what they did, while
//! they work, after they have closed the device, and as far as they were seen, after they have ended.
//!
//! The programs are this test binary, which runs again and does what lines on its standard input say.
#![allow(unsafe_code, reason = "vouches for descriptors whose buffers outlive the device's work")]

use crate::exporter::{Exporter, Sums};
use crate::harness::{Runtime, TELPHER, eventually, finish, test_folder};
use crate::schemas;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use telpher_abi::Descriptor;
use telpher_device::{OpenOptions, Opened, open};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

/// Environment variable with the device of the program.
const DEVICE: &str = "TELPHER_TEST_IN_PROCESS_DEVICE";

/// The entry point of the program: with a device in its environment, it is one.
#[test]
fn a_program_has_a_device_of_its_own() {
    let Ok(device) = std::env::var(DEVICE) else { return };
    let opened = || open(&device.parse().expect("a device's name"), OpenOptions::default()).expect("a device");
    let mut present: Option<Opened> = None;
    println!("\nready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u32>().expect("a number");
        match words[0] {
            "open" => present = Some(opened()),
            "close" => present = None,
            "nop" => (0..number(1)).for_each(|_| submit(&present, Descriptor::nop())),
            "copy" => {
                let len = number(2);
                let (src, mut dst) = (vec![7_u8; len as usize], vec![0_u8; len as usize]);
                let copy = Descriptor::memory_move(src.as_ptr() as u64, dst.as_mut_ptr() as u64, len);
                (0..number(1)).for_each(|_| submit(&present, copy));
            }
            other => panic!("{other}"),
        }
        println!("\ndone");
    }
}

/// Submits a descriptor to the second queue, and waits for its end.
fn submit(opened: &Option<Opened>, descriptor: Descriptor) {
    let portal: &dyn Portal = &*opened.as_ref().expect("an open device").portals[1];
    let record = RecordCell::new();
    // SAFETY: the buffers and the record outlive the device's work, which ends below.
    let submission = unsafe { Submission::vouch(descriptor.with_record(record.address())) };
    while portal.offer(&submission) != Offer::Taken {
        portal.drive();
    }
    while record.status().is_none() {
        portal.drive();
    }
}

/// A running program.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts a program whose device has two queues of a size.
    fn start(device: &Path) -> Program {
        let mut command = Command::new(std::env::current_exe().expect("the test's own file"));
        command.args(["--exact", "in_process::a_program_has_a_device_of_its_own", "--nocapture", "--test-threads=1"]);
        command.env(DEVICE, format!("model:{}", device.display())).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the test binary runs");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut program = Program { child, input, output: BufReader::new(output) };
        program.wait_for("ready");
        program
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("its output") > 0, "the program has ended");
        }
    }

    fn act(&mut self, what: &str) {
        writeln!(self.input, "{what}").expect("the program reads");
        self.wait_for("done");
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the program runs");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A queue of a test's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Queue {
    size: u32,
    threshold: u32,
    priority: u32,
}

/// The queues of a test's device. The exporter sums devices with the same queues, also those of test programs that run
/// beside this one: so they differ for each process of the machine, and for both tests of a process.
fn queues(process: u32, test: u32) -> [Queue; 2] {
    // The largest number of a process is 2^22. Source: Linux, PID_MAX_LIMIT.
    let mut rest = process * 2 + test;
    let mut digit = |values: u32| {
        let digit = rest % values;
        rest /= values;
        digit
    };
    let mut queue = || {
        let size = 8 + digit(48);
        Queue { size, threshold: size - digit(5), priority: 1 + digit(15) }
    };
    [queue(), queue()]
}

#[test]
fn no_two_tests_have_the_same_device() {
    // All values of both queues, 12,960,000, are more than there are processes, and no two numbers have the same.
    let number = |queues: [Queue; 2]| {
        let of_queue =
            |queue: Queue| (queue.size - 8) + 48 * ((queue.size - queue.threshold) + 5 * (queue.priority - 1));
        of_queue(queues[0]) + 48 * 5 * 15 * of_queue(queues[1])
    };
    for process in [0, 1, 2, 3599, 3600, 32_768, 1_000_003, (1 << 22) - 1, 1 << 22] {
        for test in [0, 1] {
            let queues = queues(process, test);
            assert_eq!(number(queues), process * 2 + test, "{queues:?}");
            assert!(queues.iter().map(|queue| queue.size).sum::<u32>() <= 128, "a device has 128 entries");
        }
    }
}

/// Writes the device of a test. Returns the file and the queues.
fn device(name: &str, test: u32) -> (PathBuf, [Queue; 2]) {
    let queues = queues(std::process::id(), test);
    let [first, second] = [0, 1].map(|wq: usize| {
        let Queue { size, threshold, priority } = queues[wq];
        format!(
            r#"{{ "dev": "wq0.{wq}", "mode": "shared",
                  "size": {size}, "threshold": {threshold}, "priority": {priority} }}"#
        )
    });
    let file = test_folder(name).join("device.json");
    let text = format!(
        r#"[{{ "dev": "dsa0", "groups": [{{ "dev": "group0.0", "grouped_workqueues": [{first}, {second}],
            "grouped_engines": [{{ "dev": "engine0.0" }}, {{ "dev": "engine0.1" }}] }}] }}]"#
    );
    std::fs::write(&file, text).expect("room for a file");
    (file, queues)
}

/// What `telpher top` shows of a process: rows of a kind.
fn rows(snapshot: &Value, kind: &str, pid: u32) -> Vec<Value> {
    let source = format!("process-{pid}");
    let rows = snapshot[kind].as_array().expect("rows");
    rows.iter().filter(|row| row["source"] == source.as_str()).cloned().collect()
}

fn top(runtime: &Runtime) -> Value {
    let mut command = Command::new(TELPHER);
    command.args(["top", "--once", "--format", "json", "--show", "programs"]);
    let done = finish(command.env("TELPHER_RUNTIME_DIR", runtime.path()), None, Duration::from_secs(120));
    done.expect_success();
    schemas::list(&done.stdout, "snapshots").into_iter().next().expect("a snapshot")
}

/// Waits until the device rows of a program have so many descriptors: a record is written before its descriptor counts.
fn top_with(runtime: &Runtime, program: &Program, descriptors: u64) -> Value {
    let mut snapshot = Value::Null;
    eventually("all descriptors are counted", || {
        snapshot = top(runtime);
        sum(&rows(&snapshot, "devices", program.pid()), "descriptors") == descriptors
    });
    snapshot
}

fn sum(rows: &[Value], column: &str) -> u64 {
    rows.iter().map(|row| row[column].as_u64().unwrap_or_else(|| panic!("{column} of {row}"))).sum()
}

#[test]
fn top_shows_exactly_what_programs_did_with_their_own_devices_and_keeps_closed_ones() {
    let runtime = Runtime::new("in-process-top");
    let (file, configured) = device("in_process_top", 0);
    let mut programs = [(); 2].map(|()| Program::start(&file));
    for (program, (nops, copies, len)) in programs.iter_mut().zip([(20, 3, 1000), (0, 5, 70_000)]) {
        program.act("open");
        program.act(&format!("nop {nops}"));
        program.act(&format!("copy {copies} {len}"));
        let snapshot = top_with(&runtime, program, nops + copies);
        let expected = [nops + copies, 0, copies * len, copies * len, 0, 0, 0];
        let columns = ["descriptors", "members", "read_bytes", "written_bytes", "faults", "retries", "lost"];
        for kind in ["devices", "queues", "processes"] {
            let rows = rows(&snapshot, kind, program.pid());
            assert_eq!(columns.map(|column| sum(&rows, column)), expected, "{kind}: {rows:?}");
        }
        let engines = rows(&snapshot, "engines", program.pid());
        assert_eq!(columns.map(|column| engines[0].get(column).map_or(0, |_| sum(&engines, column))), expected);
        let queues = rows(&snapshot, "queues", program.pid());
        assert_eq!(
            (queues[1]["size"].as_u64(), queues[1]["clients"].as_u64()),
            (Some(configured[1].size.into()), Some(1))
        );
        assert!(queues[1]["occupancy"]["unknown"].as_str().is_some_and(|why| !why.is_empty()), "{queues:?}");
        let processes = rows(&snapshot, "processes", program.pid());
        let [process] = &processes[..] else { panic!("{processes:?}") };
        assert_eq!((process["pid"].as_u64(), process["queue"].as_str()), (Some(program.pid().into()), Some("wq0.1")));
    }
    // A device that is closed leaves its totals to the process; the next one begins with nothing.
    let [first, second] = &mut programs;
    first.act("close");
    first.act("open");
    first.act("nop 2");
    let snapshot = top_with(&runtime, first, 25);
    let processes = rows(&snapshot, "processes", first.pid());
    let seen: Vec<_> = processes.iter().map(|row| (row["command"].as_str(), row["descriptors"].as_u64())).collect();
    assert!(seen.contains(&(Some("1 closed"), Some(23))) && seen.len() == 2, "{seen:?}");
    assert_eq!(sum(&processes, "descriptors"), 25);
    first.act("close");
    let snapshot = top(&runtime);
    let devices = rows(&snapshot, "devices", first.pid());
    assert_eq!((devices[0]["state"].as_str(), sum(&devices, "descriptors")), (Some("closed"), 25));
    // A stopped process is read as any other one: it takes no part in it.
    second.signal(Signal::STOP);
    assert_eq!(sum(&rows(&top(&runtime), "devices", second.pid()), "descriptors"), 5);
    second.signal(Signal::CONT);
    let ended = second.pid();
    second.signal(Signal::KILL);
    let _ = second.child.wait();
    assert!(rows(&top(&runtime), "devices", ended).is_empty());
}

#[test]
fn the_exporter_sums_programs_with_the_same_device_and_keeps_those_that_ended() {
    let runtime = Runtime::new("in-process-exporter");
    let (file, configured) = device("in_process_exporter", 1);
    let exporter = Exporter::start(&runtime, &[]);
    let mut programs = [(); 2].map(|()| Program::start(&file));
    for (program, nops) in programs.iter_mut().zip([30, 12]) {
        program.act("open");
        program.act(&format!("nop {nops}"));
        program.act("copy 4 500");
    }
    // The samples of the device that has these queues.
    let samples = |text: &str| -> Sums {
        let has = |name: &str, device: &str, wq: usize, value: u32| {
            let queue = device.replace("dsa", "wq");
            let labels = format!("source=\"programs\",device=\"{device}\",wq=\"{queue}.{wq}\"");
            text.lines().any(|line| line == format!("dsa_wq_{name}{{{labels}}} {value}"))
        };
        let is_it = |device: &&str| {
            configured.iter().enumerate().all(|(wq, Queue { size, threshold, priority })| {
                let values = [("size", size), ("threshold", threshold), ("priority", priority)];
                values.into_iter().all(|(name, value)| has(name, device, wq, *value))
            })
        };
        let sizes = text.lines().filter(|line| line.starts_with("dsa_wq_size{source=\"programs\""));
        let device = sizes.filter_map(|line| line.split('"').nth(3)).find(is_it).unwrap_or("none");
        Sums::of(text, &format!("source=\"programs\",device=\"{device}\""))
    };
    let mut seen = Sums::default();
    eventually("all descriptors are counted", || {
        seen = samples(&exporter.text());
        seen.get("dsa_device_descriptors_total") == 50.0
    });
    for of in ["device", "wq", "engine", "client"] {
        let sum = |what: &str| seen.get(&format!("dsa_{of}_{what}_total"));
        assert_eq!(["descriptors", "read_bytes", "written_bytes", "page_faults"].map(sum), [50.0, 4000.0, 4000.0, 0.0]);
    }
    assert_eq!(["dsa_operations_total", "dsa_completions_total"].map(|name| seen.get(name)), [50.0; 2]);
    assert_eq!((seen.get("dsa_device_enabled"), seen.get("dsa_wq_clients")), (1.0, 4.0));
    // No sum shrinks when one ends, and what its process had done is still its owner's.
    drop(programs);
    let after = samples(&exporter.text());
    for name in ["dsa_device_descriptors_total", "dsa_wq_descriptors_total", "dsa_client_descriptors_total"] {
        assert_eq!(after.get(name), 50.0, "{name}");
    }
    assert_eq!((after.get("dsa_device_enabled"), after.get("dsa_wq_clients")), (0.0, 0.0));
    let mut third = Program::start(&file);
    third.act("open");
    third.act("nop 1");
    eventually("the next program is added", || samples(&exporter.text()).get("dsa_engine_descriptors_total") == 51.0);
}
