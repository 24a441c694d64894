//! The known defects of Intel's DTO (commit 87ffb96), each as a test that fails on DTO's behaviour. The program in
//! `sources/dto_defects.c` makes the calls and knows their results. It runs on a modelled device, and on queues of a
//! virtual device (`telpher run`), where absent pages fault and queues have files; both have a transfer limit of 2 MiB.
//! `hosts/offload/tests/defects.md` lists the defects with their tests.
//!
//! Two defects cannot be met by a program of ours, and have unit tests:
//! - B16: a record arrives between DTO's look and its UMONITOR, so it sleeps to the time-out. The moment cannot be
//!   chosen from outside. The test is `a_record_that_is_there_when_the_monitor_is_armed_ends_the_rest_at_once` of
//!   `telpher-hw`.
//! - B22: faults that the kernel serves for a device put fresh pages on the device's node instead of the program's. A
//!   machine with one node shows no difference. The test is
//!   `pages_are_populated_with_the_memory_policy_of_their_mapping` of `telpher-offload-guest`.

use crate::harness::{Done, TELPHER, client, finish, source, test_folder};
use crate::schemas;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Every call of 4 KiB and more goes to the device.
const ALWAYS: [&str; 5] = ["--always", "--threshold", "4k", "--function", "copy,fill,compare"];

/// The device of a run.
#[derive(Clone, Copy)]
enum Device {
    /// A modelled device in the program.
    Model,
    /// A queue of the virtual device, which interferes as this says.
    Virtual { queue: &'static str, inject: Option<&'static str> },
}

const SHARED: Device = Device::Virtual { queue: "hw:wq0.0", inject: None };
const DEDICATED: Device = Device::Virtual { queue: "hw:wq0.1", inject: None };
const ALL: [Device; 3] = [Device::Model, SHARED, DEDICATED];

/// A program that has ended, and the counters of its processes.
struct Ended {
    done: Done,
    processes: Vec<Value>,
}

impl Ended {
    /// Asserts that the program found nothing wrong, and that the device executed some of its calls.
    fn check(self) -> Ended {
        assert_eq!((self.done.code(), self.done.stdout.as_str()), (0, "ok\n"), "{}", self.done);
        assert!(self.sum("device_calls") > 0, "{:?}", self.processes);
        self
    }

    fn sum(&self, counter: &str) -> u64 {
        self.processes.iter().map(|process| process[counter].as_u64().expect(counter)).sum()
    }
}

/// Runs a case of the program under `telpher offload`, with a folder for its files.
fn run_in(folder: &Path, case: &str, device: Device, options: &[&str], variables: &[(&str, &str)]) -> Option<Ended> {
    let program = client("dto_defects")?;
    let (config, json) = (source("dto_defects.json"), folder.join("offload.json"));
    let mut command = Command::new(TELPHER);
    let name = match device {
        Device::Model => format!("model:{}", config.display()),
        Device::Virtual { queue, inject } => {
            command.args(["run", "--hardware"]).arg(config);
            command.args(inject.map(|faults| format!("--inject={faults}")));
            command.args(["--", TELPHER]);
            queue.into()
        }
    };
    command.args(["offload", "--format", "json", "--output"]).arg(&json).args(options);
    // The variable names the device, if there is one.
    if !variables.iter().any(|(name, _)| *name == "DTO_WQ_LIST") {
        command.args(["--device", &name]);
    }
    let files = folder.join("files");
    std::fs::create_dir_all(&files).expect("a folder for the program's files");
    command.arg("--").arg(program).arg(case).arg(files).envs(variables.iter().copied());
    let done = finish(&mut command, None, Duration::from_secs(200));
    let processes = std::fs::read(&json).map_or(Vec::new(), |json| schemas::list(json, "processes"));
    Some(Ended { done, processes })
}

/// Runs a case of the program on several devices; each has its effect.
fn check(test: &str, case: &str, devices: &[Device]) {
    for device in devices {
        if let Some(ended) = run_in(&test_folder(test), case, *device, &ALWAYS, &[]) {
            ended.check();
        }
    }
}

/// DTO reads the difference one byte behind the end, so different buffers may compare as equal.
#[test]
fn b1_a_comparison_has_the_sign_of_the_first_difference() {
    check("b1", "comparisons", &ALL);
}

/// DTO moves pieces from front to back whatever the direction, and so overwrites bytes that it has not moved yet.
#[test]
fn b2_a_move_of_several_pieces_goes_in_the_direction_of_memmove() {
    check("b2", "moves", &ALL);
}

/// After a fault in a later piece, DTO's CPU begins at the start of the whole range again.
#[test]
fn b3_a_fault_in_any_piece_of_a_move_loses_no_byte() {
    check("b3", "moves-with-faults", &[Device::Model]);
    check("b3", "moves", &[Device::Virtual { queue: "hw:wq0.0", inject: Some("fault=20%,seed=3") }]);
}

/// DTO closes its queue's number twice, the second time before the last buffers of the program's files are written.
#[test]
fn b4_unflushed_files_are_complete_after_the_end() {
    for device in ALL {
        let folder = test_folder("b4");
        let Some(ended) = run_in(&folder, "files", device, &ALWAYS, &[]) else { return };
        ended.check();
        for at in 0..64 {
            let text = std::fs::read_to_string(folder.join(format!("files/{at}"))).expect("the program's file");
            assert_eq!(text, "fourteen bytes", "file {at}");
        }
    }
}

/// DTO has one record for each thread, so a handler takes the record of the copy that it interrupts for its own.
#[test]
fn b5_a_copy_in_a_handler_is_complete_when_it_returns() {
    check("b5", "handlers", &ALL);
}

/// DTO does not look for overlap in memcpy, and its CPU and device race in the common range.
#[test]
fn b6_memcpy_between_overlapping_ranges_is_memmove() {
    check("b6", "overlapping-copies", &ALL);
}

/// In an optimised build of DTO the byte loop for early calls becomes a call of itself.
#[test]
fn b7_calls_before_constructors_and_in_fork_handlers_have_their_effect() {
    check("b7", "early-calls", &ALL);
}

/// After its destructor DTO writes descriptors into whatever file has got its queue's number, and changes errno.
#[test]
fn b8_calls_after_the_destructors_write_into_no_file_and_keep_errno() {
    for device in ALL {
        let folder = test_folder("b8");
        let Some(ended) = run_in(&folder, "late-calls", device, &ALWAYS, &[]) else { return };
        ended.check();
        for at in 0..64 {
            let len = std::fs::metadata(folder.join(format!("files/{at}"))).expect("the program's file").len();
            assert_eq!(len, 0, "file {at}");
        }
    }
}

/// DTO's self-tuning tests a shared number and then subtracts from it, so that several threads make it wrap.
#[test]
fn b9_threads_that_learn_at_the_same_time_copy_what_they_should() {
    check("b9", "threads", &ALL);
    // Here the threads learn, and the CPU executes what is in the caches.
    let learns = ["--threshold", "4k"];
    let Some(ended) = run_in(&test_folder("b9"), "threads", Device::Model, &learns, &[]) else { return };
    assert_eq!((ended.done.code(), ended.done.stdout.as_str()), (0, "ok\n"), "{}", ended.done);
    assert!(ended.sum("timed_calls") > 0, "{:?}", ended.processes);
}

/// DTO takes the node -1 of a device in a virtual machine as an index.
#[test]
fn b10_node_awareness_on_a_machine_without_nodes_does_no_harm() {
    for node in ["1", "2", "-1"] {
        let variables = [("DTO_IS_NUMA_AWARE", node)];
        let Some(ended) = run_in(&test_folder("b10"), "comparisons", SHARED, &ALWAYS, &variables) else { return };
        let ended = ended.check();
        // The node of the CPU, 2, means the same to both.
        let is_remarked = ended.done.stderr.contains(&format!("DTO_IS_NUMA_AWARE={node} "));
        assert_eq!(is_remarked, node != "2", "{}", ended.done);
    }
}

/// DTO ends a script whose interpreter is a script with SIGSEGV, for a reason that its authors do not know.
#[test]
fn b11_a_script_whose_interpreter_is_a_script_runs() {
    let folder = test_folder("b11");
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("an executable script");
        path
    };
    let inner = write("inner", "#!/bin/sh\necho inner $(basename \"$1\")\n".into());
    let outer = write("outer", format!("#!{}\n", inner.display()));
    for program in ["dash", "bash"] {
        let mut command = Command::new(TELPHER);
        command.args(["offload", "--quiet", "--device", "model:spr"]).args(ALWAYS).arg("--");
        command.args([program, "-c", &format!("exec {}", outer.display())]);
        let done = finish(&mut command, None, Duration::from_secs(100));
        assert_eq!((done.code(), done.stdout.as_str(), done.stderr.as_str()), (0, "inner outer\n", ""), "{done}");
    }
}

/// DTO opens a dedicated queue of its list again and again, until the program has no descriptors left.
#[test]
fn b12_a_dedicated_queue_of_the_list_is_used_and_takes_few_descriptors() {
    let variables = [("DTO_WQ_LIST", "wq0.1")];
    let Some(ended) = run_in(&test_folder("b12"), "descriptors", DEDICATED, &ALWAYS, &variables) else { return };
    ended.check();
}

/// DTO has room for 32 queues, and tests the number only after each device.
#[test]
fn b13_forty_queues_of_five_devices_are_used() {
    let Some(program) = client("dto_defects") else { return };
    let mut command = Command::new(TELPHER);
    command.args(["offload", "--quiet"]).args(ALWAYS).args(["--device", "model:full"].repeat(5));
    command.arg("--").arg(program).arg("threads");
    let done = finish(&mut command, None, Duration::from_secs(200));
    assert_eq!((done.code(), done.stdout.as_str()), (0, "ok\n"), "{done}");
}

/// DTO multiplies the transfer limit by 100 in 32 bits: with a limit of 2 GiB its pieces have no bytes.
#[test]
fn b14_a_transfer_limit_of_2_gib_leaves_nothing_to_the_cpu() {
    let Some(program) = client("dto_defects") else { return };
    let json = test_folder("b14").join("offload.json");
    let mut command = Command::new(TELPHER);
    command.args(["offload", "--device", "model:spr", "--always", "--format", "json", "--output"]).arg(&json);
    let done = finish(command.arg("--").arg(program).arg("64-mib"), None, Duration::from_secs(200));
    let processes = schemas::list(std::fs::read(&json).expect("counters"), "processes");
    let ended = Ended { done, processes }.check();
    assert!(ended.sum("device_bytes") >= 64 << 20 && ended.sum("cpu_bytes") == 0, "{:?}", ended.processes);
}

/// DTO waits without end and without asking the device: if that halts, memcpy never returns. The mover's tests of
/// memory calls have queues that never answer: one that can be stopped, and one that cannot.
#[test]
fn b15_a_device_that_halts_leaves_the_rest_to_the_cpu() {
    let device = Device::Virtual { queue: "hw:wq0.0", inject: Some("halt=500") };
    let Some(ended) = run_in(&test_folder("b15"), "threads", device, &ALWAYS, &[]) else { return };
    let ended = ended.check();
    assert!(ended.sum("cpu_bytes") > 1 << 20, "{:?}", ended.processes);
}

/// DTO divides by the frequency in CPUID's leaf 15h, which virtual machines report as zero, and in each forked child it
/// converts its delay again.
#[test]
fn b17_light_sleep_works_whatever_cpuid_says_about_the_clock() {
    for (method, delay) in [("tpause", "0"), ("umwait", "100000"), ("umwait", "0"), ("busypoll", "1")] {
        let variables = [("DTO_WAIT_METHOD", method), ("DTO_UMWAIT_DELAY", delay)];
        for case in ["comparisons", "early-calls"] {
            let Some(ended) = run_in(&test_folder("b17"), case, SHARED, &ALWAYS, &variables) else { return };
            ended.check();
        }
    }
}

/// DTO opens its queues in a fork handler, by malloc, getenv and opendir; children without handlers use the parent's
/// portal, which they do not have. See also `forked_children_open_a_device_of_their_own`.
#[test]
fn b18_children_of_a_program_with_threads_copy_and_call_no_allocator() {
    let Some(program) = client("offload_children") else { return };
    let mut command = Command::new(TELPHER);
    command.args(["offload", "--quiet", "--device", "model:spr"]).args(ALWAYS).arg("--").arg(program);
    let done = finish(&mut command, None, Duration::from_secs(200));
    assert_eq!((done.code(), done.stdout.lines().last()), (0, Some("ok")), "{done}");
}

/// DTO's node query and its submission by write() change errno.
#[test]
fn b19_errno_is_as_before_each_call() {
    let injected = |faults| Device::Virtual { queue: "hw:wq0.0", inject: Some(faults) };
    // With full queues, faults and errors, too.
    check("b19", "threads", &[Device::Model, SHARED, injected("retry=20%,fault=5%,status=0x13:5%,seed=4")]);
}

/// DTO prints messages by printf, inside memcpy and into the program's output.
#[test]
fn b20_a_program_s_output_has_its_own_text_only() {
    let variables = [("DTO_LOG_LEVEL", "2"), ("DTO_COLLECT_STATS", "1")];
    let faults = Device::Virtual { queue: "hw:wq0.0", inject: Some("fault=20%,seed=5") };
    let Some(ended) = run_in(&test_folder("b20"), "comparisons", faults, &ALWAYS, &variables) else { return };
    ended.check();
    let mut command = Command::new(TELPHER);
    command.args(["offload", "--device", "model:spr"]).args(ALWAYS).args(["--", "bash", "-c", "x=$(pwd); echo \"$x\""]);
    let done = finish(command.envs(variables).current_dir("/"), None, Duration::from_secs(100));
    assert_eq!((done.code(), done.stdout.as_str()), (0, "/\n"), "{done}");
}

/// DTO's device ends at the first page that is absent, and its CPU does all the rest of a copy into fresh memory.
#[test]
fn b21_fresh_pages_are_made_present_and_the_device_goes_on() {
    let Some(ended) = run_in(&test_folder("b21"), "fresh", SHARED, &ALWAYS, &[]) else { return };
    let ended = ended.check();
    let (by_device, by_cpu) = (ended.sum("device_bytes"), ended.sum("cpu_bytes"));
    assert!(ended.sum("faults") >= 20 && by_device > 20 * by_cpu, "{:?}", ended.processes);
}

/// A handler that leaves DTO's wait by siglongjmp leaves a device that still writes.
#[test]
fn b23_nothing_is_written_after_a_handler_has_left_a_copy() {
    check("b23", "left-copies", &ALL);
}

/// A thread that is cancelled in DTO's wait leaves a device that still writes, also into the thread's record.
///
/// Seen to fail when the library could be unwound within its own functions: the first cancellation ended the process.
#[test]
fn b23_threads_that_are_cancelled_in_a_copy_end_alone_and_nothing_is_written_afterwards() {
    let Some(program) = client("cancelled_copies") else { return };
    let config = source("dto_defects.json");
    let config = config.display();
    // Each of six hundred threads would keep one of the 256 records, if it left its descriptor in flight. Then the CPU
    // would execute the last 300 copies.
    for (device, options, count) in [
        (format!("model:{config}"), &ALWAYS[..], "600"),
        (format!("model:{config}"), &["--threshold", "4k", "--function", "copy,fill,compare"], "100"),
        (format!("model:{config}"), &[&ALWAYS[..], &["--stats", "dto"]].concat(), "100"),
        ("hw:wq0.0".into(), &ALWAYS, "100"),
        ("hw:wq0.1".into(), &ALWAYS, "100"),
    ] {
        let json = test_folder("b23-cancelled").join("offload.json");
        let is_table = options.contains(&"dto");
        let mut command = Command::new(TELPHER);
        if device.starts_with("hw:") {
            command.args(["run", "--hardware"]).arg(source("dto_defects.json")).args(["--", TELPHER]);
        }
        command.args(["offload", "--device", &device, "--output"]).arg(&json).args(options);
        command.args(if is_table { &[][..] } else { &["--format", "json"] });
        let done = finish(command.arg("--").arg(&program).arg(count), None, Duration::from_secs(300));
        assert_eq!((done.code(), done.stdout.as_str()), (0, "ok\n"), "{device} {options:?}: {done}");
        if options.contains(&"--always") && !is_table {
            let processes = schemas::list(std::fs::read(&json).expect("counters"), "processes");
            let ended = Ended { done, processes };
            // The pages are present, so devices do all of it, except what a handler has left.
            let (by_device, by_cpu) = (ended.sum("device_bytes"), ended.sum("cpu_bytes"));
            assert!(by_device > 300 * (2 << 20) && by_cpu < by_device / 4, "{device}: {:?}", ended.processes);
        }
    }
    // A recording has these calls, too.
    let folder = test_folder("b23-cancelled").join("recording");
    let _ = std::fs::remove_dir_all(&folder);
    let mut command = Command::new(TELPHER);
    command.args(["record", "--quiet", "--folder"]).arg(&folder).arg("--").arg(&program);
    let done = finish(&mut command, None, Duration::from_secs(300));
    assert_eq!((done.code(), done.stdout.as_str()), (0, "ok\n"), "{done}");
}

/// DTO reads `64K` as 64 and submits descriptors of no bytes for `0`.
#[test]
fn b24_a_threshold_with_a_unit_is_read_as_it_is_meant() {
    let by_device = |bytes: &str| {
        let variables = [("DTO_MIN_BYTES", bytes), ("DTO_AUTO_ADJUST_KNOBS", "0")];
        let ended = run_in(&test_folder("b24"), "short-copies", Device::Model, &[], &variables)?.check();
        assert!(ended.done.stderr.contains(&format!("DTO_MIN_BYTES={bytes} is read as")), "{}", ended.done);
        Some(ended.sum("device_calls"))
    };
    let Some(long) = by_device("64K") else { return };
    // Ten long copies, and none of the thousand short ones; then those, too, but no copy of nothing.
    assert!((10..100).contains(&long), "{long}");
    assert!((1010..2000).contains(&by_device("0").expect("a compiler")), "copies of nothing have no descriptors");
}

/// DTO's thread-local variables are allocated at their first use in a thread, which may be inside memcpy.
#[test]
fn b25_the_first_copy_of_a_thread_allocates_nothing() {
    check("b25", "first-copies", &ALL);
}
