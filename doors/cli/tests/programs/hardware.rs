//! The hardware path on the virtual device: this test binary runs again as a program under `telpher run`, and opens
//! queues
//! as on silicon, by the same instructions and system calls.
#![allow(unsafe_code, reason = "vouches for No-ops that name their own records; forks")]

use crate::harness::{Run, View, in_both_views, in_view, test_folder};
use crate::{disturbed, endings};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_abi::{Descriptor, Opcode, Status};
use telpher_hw::{Instructions, Live, Machine, OpenError, QueueType, State, discover};
use telpher_mover::{Mover, Outcome, Policy, Threshold, Via};
use telpher_portal::{Health, Offer, Portal, QueueMode, RecordCell, Submission, Watch};

/// Environment variable with the name of the case to run.
const CASE: &str = "TELPHER_TEST_HARDWARE_CASE";
/// The two queues of sources/two-queues.json.
pub(crate) const SHARED: &str = "wq0.0";
pub(crate) const DEDICATED: &str = "wq0.1";

/// Limit of every wait; far longer than needed.
const PATIENCE: Duration = Duration::from_secs(30);

const CASES: &[(&str, fn())] = &[
    ("mapped", mapped),
    ("written", written),
    ("dedicated_only", dedicated_only),
    ("threads", threads),
    ("waits", waits),
    ("unannounced", unannounced),
    ("unattended", unattended),
    ("busy", busy),
    ("unbound", unbound),
    ("enabled_anew", enabled_anew),
    ("halted", halted),
    ("forked", forked),
    ("unconfigured", unconfigured),
    ("discovered", discovered),
    ("lost", endings::lost),
    ("halted_at_work", endings::halted_at_work),
    ("waits_of_a_mover", endings::waits_of_a_mover),
    ("forked_at_work", endings::forked_at_work),
    ("signalled", endings::signalled),
    ("exits_at_work", endings::exits_at_work),
    ("overfilled", endings::overfilled),
    ("disturbed", disturbed::disturbed),
    ("disturbed_until_it_stops", disturbed::disturbed_until_it_stops),
];

/// Also the entry point of the program: with a case in its environment it runs that case.
#[test]
fn cases_have_distinct_names() {
    if let Ok(name) = std::env::var(CASE) {
        let (_, act) = CASES.iter().find(|(case, _)| *case == name).expect("a case");
        act();
        println!("\n{name} holds");
        return;
    }
    for (index, (name, _)) in CASES.iter().enumerate() {
        assert!(CASES[..index].iter().all(|(other, _)| other != name), "{name}");
    }
}

/// Runs a case under `telpher run`; `before` are words in front of the program.
fn acts(run: Run, before: &[&str], case: &str) {
    let program = std::env::current_exe().expect("the test's own file");
    let program = program.to_str().expect("UTF-8");
    let own = [program, "--exact", "hardware::cases_have_distinct_names", "--nocapture", "--test-threads=1"];
    let output = run.variable(CASE, case).success(&[before, &own].concat());
    assert!(output.contains(&format!("\n{case} holds\n")), "{output}");
}

fn on_two_queues(view: View, options: &[&str], case: &str) {
    let run = options.iter().fold(Run::on_two_queues(view), |run, option| run.with(option));
    acts(run, &[], case);
}

in_both_views! {
    fn mapped_portals_copy_also_in_batches_that_the_driver_hides(view: View) {
        on_two_queues(view, &["--abi", "6.12"], "mapped");
        on_two_queues(view, &["--abi", "6.1", "--runner", "threaded", "--no-rewrite"], "mapped");
    }

    fn without_a_mapping_the_driver_submits(view: View) {
        on_two_queues(view, &["--abi", "6.12", "--no-rawio"], "written");
        on_two_queues(view, &["--abi", "6.1", "--no-rawio", "--runner", "threaded"], "written");
    }

    fn a_kernel_without_shared_queues_and_write_offers_dedicated_queues(view: View) {
        let file = test_folder(&format!("hardware-{}", view.name())).join("dedicated.json");
        let queue = r#"{ "dev": "wq0.1", "mode": "dedicated", "size": 16, "group_id": 0, "priority": 10,
            "max_batch_size": 64, "max_transfer_size": 2097152, "type": "user", "name": "a" }"#;
        let engine = r#"{ "dev": "engine0.0", "group_id": 0 }"#;
        let text = format!(
            r#"[{{ "dev": "dsa0", "groups": [{{ "dev": "group0.0", "grouped_workqueues": [{queue}],
                "grouped_engines": [{engine}] }}] }}]"#
        );
        std::fs::write(&file, text).expect("room for a file");
        acts(Run::new(view).with("--abi").with("5.15").with("--hardware").with(file), &[], "dedicated_only");
    }

    fn threads_share_a_portal(view: View) {
        on_two_queues(view, &[], "threads");
        on_two_queues(view, &["--runner", "threaded"], "threads");
    }

    fn every_wait_for_a_record_returns(view: View) {
        on_two_queues(view, &["--runner", "threaded"], "waits");
        on_two_queues(view, &["--runner", "threaded", "--no-rewrite"], "waits");
    }

    fn an_unannounced_instruction_is_not_executed(view: View) {
        let run = Run::on_two_queues(view).with("--abi").with("6.12");
        acts(run, &["/usr/bin/env", "-u", telpher_hw::ANNOUNCEMENT], "unannounced");
    }

    fn a_dedicated_queue_in_use_is_a_one_sentence_error(view: View) {
        on_two_queues(view, &[], "busy");
    }

    fn a_queue_disabled_in_use_reports_that_it_stopped(view: View) {
        on_two_queues(view, &[], "unbound");
        on_two_queues(view, &["--no-rawio"], "unbound");
        on_two_queues(view, &["--runner", "threaded"], "unbound");
    }

    fn a_queue_enabled_again_is_a_new_queue(view: View) {
        on_two_queues(view, &[], "enabled_anew");
        on_two_queues(view, &["--no-rawio"], "enabled_anew");
    }

    fn a_halted_device_reports_that_it_stopped(view: View) {
        on_two_queues(view, &["--inject", "halt=100"], "halted");
    }

    fn a_forked_child_leaves_its_parents_queues_alone_and_opens_its_own(view: View) {
        on_two_queues(view, &[], "forked");
        on_two_queues(view, &["--no-rawio"], "forked");
    }

    fn an_unconfigured_device_is_a_one_sentence_error(view: View) {
        acts(Run::new(view), &[], "unconfigured");
    }

    fn the_cpu_redoes_work_without_a_record(view: View) {
        on_two_queues(view, &["--inject", "op=memory-move,lose=100%"], "lost");
        // In a namespace the host executes what is written, and nothing is injected there.
        if view == View::Preload {
            on_two_queues(view, &["--no-rawio", "--inject", "op=memory-move,lose=100%"], "lost");
        }
    }

    fn the_cpu_redoes_work_of_a_halted_device(view: View) {
        on_two_queues(view, &["--inject", "halt=150"], "halted_at_work");
        on_two_queues(view, &["--runner", "threaded", "--inject", "halt=150"], "halted_at_work");
    }

    fn every_operation_gives_the_cpus_bytes_under_any_injection(view: View) {
        for what in [
            "fault=20%,seed=1",
            "retry=30%/burst:5,delay=50us:20%,reorder=30%,seed=2",
            "fault=10%,status=0x13:5%,retry=10%/burst:100,reorder=20%,seed=3",
        ] {
            on_two_queues(view, &["--inject", what], "disturbed");
            on_two_queues(view, &["--runner", "threaded", "--inject", what], "disturbed");
        }
        for what in ["lose=1%,fault=5%,seed=4", "halt=200,fault=5%,seed=5"] {
            on_two_queues(view, &["--runner", "threaded", "--inject", what], "disturbed_until_it_stops");
        }
    }

    fn a_mover_supports_every_wait_mechanism(view: View) {
        on_two_queues(view, &["--runner", "threaded"], "waits_of_a_mover");
    }

    fn a_fork_with_work_in_flight_loses_nothing(view: View) {
        on_two_queues(view, &[], "forked_at_work");
        on_two_queues(view, &["--runner", "threaded"], "forked_at_work");
        on_two_queues(view, &["--no-rawio"], "forked_at_work");
    }

    fn a_signal_handler_copies_whatever_it_interrupts(view: View) {
        on_two_queues(view, &[], "signalled");
        on_two_queues(view, &["--runner", "threaded"], "signalled");
    }

    fn a_thread_panics_and_the_process_exits_with_work_in_flight(view: View) {
        on_two_queues(view, &[], "exits_at_work");
        on_two_queues(view, &["--runner", "threaded"], "exits_at_work");
    }

    fn the_cpu_redoes_what_an_overfull_dedicated_queue_drops(view: View) {
        on_two_queues(view, &["--runner", "threaded"], "overfilled");
        // In a namespace the host executes at once what is written.
        if view == View::Preload {
            on_two_queues(view, &["--runner", "threaded", "--no-rawio"], "overfilled");
        }
    }

    fn the_device_tree_of_every_kernel_is_read(view: View) {
        for abi in ["6.1", "6.6", "6.12"] {
            on_two_queues(view, &["--abi", abi], "discovered");
        }
    }
}

/// A program without the preloaded library still sees the device in a namespace, as a static program does.
#[test]
fn an_announcement_without_an_emulator_is_ignored() {
    in_view(View::Namespace, "an_announcement_without_an_emulator_is_ignored", |view| {
        let run = Run::on_two_queues(view).with("--no-follow");
        acts(run, &["/usr/bin/env", "-u", "LD_PRELOAD"], "unattended");
    });
}

pub(crate) fn open(queue: &str) -> Arc<dyn Portal> {
    telpher_hw::open(queue).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(queue: &str) -> OpenError {
    telpher_hw::open(queue).expect_err("an opening that fails")
}

/// Executes a No-op; returns false if the queue refused it in many attempts.
fn nop(portal: &dyn Portal) -> bool {
    let record = RecordCell::new();
    // SAFETY: a No-op names nothing but its record, which outlives the wait below.
    let nop = unsafe { Submission::vouch(Descriptor::nop().with_record(record.address())) };
    if (0..1000).all(|_| portal.offer(&nop) == Offer::Retry) {
        return false;
    }
    let began = Instant::now();
    while record.status().is_none() {
        assert!(began.elapsed() < PATIENCE, "no record");
        portal.watch(&record, Watch::Pause, Duration::ZERO);
    }
    record.read().expect("a record").status() == Status::Success
}

/// Copies many sizes, singly and in batches; checks that the device did each copy, and compares every byte.
fn moves(portal: &Arc<dyn Portal>) {
    let mover = Mover::new([portal.clone()], Policy { threshold: Threshold::all(0), ..Policy::default() });
    let pattern = |len: usize, seed: usize| -> Vec<u8> {
        (0..len).map(|i| u8::try_from((i * 31 + seed * 17 + i / 251) % 256).expect("a byte")).collect()
    };
    for (seed, len) in [1, 63, 64, 4095, 4096, 100_000, 3 << 20].into_iter().enumerate() {
        let done = mover.copy(pattern(len, seed), vec![0; len]).wait();
        assert_eq!(done.via, Via::Device, "{len} bytes: {:?}", done.result);
        let (result, src, dst) = done.into_parts();
        assert_eq!(result.expect("a copy"), Outcome::Done);
        assert!(src == dst && src == pattern(len, seed), "{len} bytes");
    }
    for round in 0..10 {
        let mut batch = mover.batch();
        let keys: Vec<_> = (0..10).map(|i| batch.copy(pattern(3000, round * 10 + i), vec![0; 3000])).collect();
        let mut done = batch.submit().wait();
        for key in keys {
            let (result, src, dst) = done.take(key).into_parts();
            assert_eq!(result.expect("a copy"), Outcome::Done);
            assert_eq!(src, dst);
        }
    }
    assert_eq!((mover.quarantined(), mover.orphaned()), (0, 0));
}

/// Writes an attribute below /sys/bus/dsa.
fn write(attribute: &str, text: &str) {
    std::fs::write(Path::new("/sys/bus/dsa").join(attribute), text)
        .unwrap_or_else(|error| panic!("{attribute}: {error}"));
}

/// Returns the reason why a queue has stopped.
fn stopped(portal: &dyn Portal) -> String {
    match portal.health() {
        Health::Stopped(why) => why,
        Health::Working => panic!("{} is said to work", portal.info().name),
    }
}

fn mapped() {
    for (queue, mode, size) in [(SHARED, QueueMode::Shared, 15), (DEDICATED, QueueMode::Dedicated, 16)] {
        let portal = open(queue);
        let info = portal.info();
        assert_eq!((info.name.as_str(), info.mode, info.size), (queue, mode, size));
        assert_eq!((info.max_transfer, info.max_batch, info.block_on_fault), (1 << 31, 64, true));
        // The driver hides Batch from ordinary programs; a program that could map the portal can use it.
        assert!(info.operations.contains(Opcode::Batch) && info.operations.contains(Opcode::MemoryMove));
        moves(&portal);
        assert_eq!(portal.health(), Health::Working);
    }
}

fn written() {
    for queue in [SHARED, DEDICATED] {
        let portal = open(queue);
        assert_eq!(portal.info().max_batch, 1);
        assert!(!portal.info().operations.contains(Opcode::Batch));
        moves(&portal);
        assert_eq!(portal.health(), Health::Working);
        // A descriptor with an unaligned record cannot be submitted by write(), so it is refused.
        let records = [RecordCell::new(), RecordCell::new()];
        // SAFETY: both records outlive the offer, which is refused.
        let crooked = unsafe { Submission::vouch(Descriptor::nop().with_record(records[0].address() + 8)) };
        assert_eq!(portal.offer(&crooked), Offer::Retry);
        assert!(nop(portal.as_ref()));
    }
}

fn dedicated_only() {
    let portal = open(DEDICATED);
    assert_eq!((portal.info().mode, portal.info().size, portal.info().max_batch), (QueueMode::Dedicated, 16, 64));
    moves(&portal);
    let machine = discover(&Live::default());
    let (device, queue) = machine.queue(DEDICATED).expect("the queue");
    assert_eq!((device.max_read_buffers, queue.driver_name.as_deref()), (Some(96), None));
    assert!(device.op_cap.is_some_and(|operations| operations.contains(Opcode::MemoryMove)));
    assert_eq!(machine.oddities, []);
}

fn threads() {
    let portal = open(SHARED);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| assert!(nop(portal.as_ref()))));
        }
    });
    moves(&portal);
}

fn waits() {
    let portal = open(SHARED);
    assert!(Instructions::here().waitpkg);
    let long = Duration::from_millis(50);
    for how in [Watch::Pause, Watch::Timed, Watch::Monitor] {
        // No record arrives: the wait ends when the time is over, or earlier if the system's limit is shorter.
        let (record, began) = (RecordCell::new(), Instant::now());
        portal.watch(&record, how, Duration::from_millis(1));
        assert!(began.elapsed() < PATIENCE, "{how:?}");
        for _ in 0..100 {
            let record = RecordCell::new();
            // SAFETY: a No-op names nothing but its record, which outlives the loop below.
            let nop = unsafe { Submission::vouch(Descriptor::nop().with_record(record.address())) };
            while portal.offer(&nop) == Offer::Retry {}
            let began = Instant::now();
            while record.status().is_none() {
                portal.watch(&record, how, long);
                assert!(began.elapsed() < PATIENCE, "{how:?}");
            }
        }
        // A wait for a written record returns at once.
        let (record, began) = (RecordCell::new(), Instant::now());
        record.complete(&telpher_abi::CompletionRecord([1, 0, 0, 0]));
        for _ in 0..20 {
            portal.watch(&record, Watch::Monitor, Duration::from_secs(1));
        }
        assert!(began.elapsed() < PATIENCE, "{how:?}");
    }
}

fn unannounced() {
    let here = Instructions::here();
    // ENQCMD is found by /proc/cpuinfo, which still lists it.
    assert!(here.enqcmd);
    let portal = open(DEDICATED);
    // Without MOVDIR64B the driver submits.
    assert_eq!(portal.info().max_batch == 1, !here.movdir64b);
    moves(&portal);
    moves(&open(SHARED));
}

fn unattended() {
    assert!(std::env::var(telpher_hw::ANNOUNCEMENT).is_ok_and(|words| words.contains("waitpkg")));
    for queue in [SHARED, DEDICATED] {
        let portal = open(queue);
        // The namespace's node is there, and accepts submissions by write().
        assert_eq!(portal.info().max_batch, 1);
        moves(&portal);
        for how in [Watch::Pause, Watch::Timed, Watch::Monitor] {
            portal.watch(&RecordCell::new(), how, Duration::from_millis(1));
        }
    }
}

fn busy() {
    let first = open(DEDICATED);
    let text = refusal(DEDICATED).to_string();
    assert!(text.contains("/dev/dsa/wq0.1") && text.contains("dedicated and in use"), "{text}");
    // A shared queue can be opened more than once.
    let shared = [open(SHARED), open(SHARED)];
    assert!(shared.iter().all(|portal| nop(portal.as_ref())));
    drop(first);
    assert!(nop(open(DEDICATED).as_ref()));
}

fn unbound() {
    for queue in [SHARED, DEDICATED] {
        let portal = open(queue);
        assert!(nop(portal.as_ref()));
        write("drivers/user/unbind", queue);
        let why = stopped(portal.as_ref());
        assert_eq!(why, format!("{queue} has been disabled"));
        assert!(!nop(portal.as_ref()), "a stopped queue took a descriptor");
        assert_eq!(stopped(portal.as_ref()), why);
        let text = refusal(queue).to_string();
        assert!(text.contains("it is disabled") || text.contains("its type is none"), "{text}");
    }
}

fn enabled_anew() {
    for (queue, mode) in [(SHARED, "shared"), (DEDICATED, "dedicated")] {
        let portal = open(queue);
        write("drivers/user/unbind", queue);
        // Unbinding resets these attributes; size and group stay.
        let attributes = [("mode", mode), ("priority", "10"), ("type", "user"), ("name", "a")];
        for (name, value) in attributes.into_iter().chain((mode == "shared").then_some(("threshold", "15"))) {
            write(&format!("devices/{queue}/{name}"), value);
        }
        write("drivers/user/bind", queue);
        let why = stopped(portal.as_ref());
        assert_eq!(why, format!("{queue} has been disabled and enabled again since it was opened"));
        assert!(!nop(portal.as_ref()), "a stopped queue took a descriptor");
        assert!(nop(open(queue).as_ref()), "the new queue works");
    }
}

fn halted() {
    let portal = open(DEDICATED);
    let mut records: Vec<RecordCell> = Vec::new();
    records.resize_with(200, RecordCell::new);
    let unanswered = records.iter().position(|record| {
        // SAFETY: a No-op names nothing but its record. The record outlives the portal's use of it, because the device
        // stops, as
        // asserted below.
        let nop = unsafe { Submission::vouch(Descriptor::nop().with_record(record.address())) };
        assert_eq!(portal.offer(&nop), Offer::Taken);
        let began = Instant::now();
        // The health is read before the record: work that completed before the halt has its record by then.
        while portal.health() == Health::Working && record.status().is_none() {
            assert!(began.elapsed() < PATIENCE, "neither a record nor a halt");
        }
        record.status().is_none()
    });
    assert!(unanswered.is_some_and(|number| number > 80), "{unanswered:?}");
    let why = stopped(portal.as_ref());
    assert!(why.starts_with("dsa0 has halted; its error register says: "), "{why}");
    let text = refusal(SHARED).to_string();
    assert!(text.contains("dsa0 is halted; it has to be reset"), "{text}");
}

fn forked() {
    let (shared, dedicated) = (open(SHARED), open(DEDICATED));
    // SAFETY: the child has one thread and exits itself; no other thread of this process could hold a lock.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let refuses = |portal: &dyn Portal| !nop(portal) && stopped(portal).contains("before this process was forked");
        let mut holds = refuses(shared.as_ref()) && refuses(dedicated.as_ref());
        // The child's memory at the addresses of the parent's portals is its own, and stays when they are dropped.
        let pages: Vec<Vec<u8>> = (0..64).map(|i| vec![i; 4096 * 64]).collect();
        drop((shared, dedicated));
        holds &= pages.iter().zip(0..).all(|(page, byte)| page.iter().all(|found| *found == byte));
        let own = open(SHARED);
        holds &= nop(own.as_ref()) && own.health() == Health::Working;
        drop(own);
        // SAFETY: ends the child without running the test harness's exit handlers a second time.
        unsafe { libc::_exit(i32::from(!holds)) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child found otherwise");
    assert!(nop(shared.as_ref()) && nop(dedicated.as_ref()));
    assert_eq!((shared.health(), dedicated.health()), (Health::Working, Health::Working));
    // After the parent closes the queue, it is free, even if a forked child is still alive.
    let (mut told, tell) = std::io::pipe().expect("a pipe");
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        drop(tell);
        let ended = told.read(&mut [0]).is_ok_and(|read| read == 0);
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!ended)) };
    }
    drop(dedicated);
    assert!(nop(open(DEDICATED).as_ref()));
    drop(tell);
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn unconfigured() {
    let text = refusal(SHARED).to_string();
    assert!(text.contains("dsa0 is disabled; configure and enable it"), "{text}");
    let text = refusal("wq7.0").to_string();
    assert!(text.contains("no device dsa7; there is dsa0"), "{text}");
}

fn discovered() {
    let machine: Machine = discover(&Live::default());
    assert_eq!(machine.oddities, []);
    assert!(["idxd", "user", "dmaengine"].iter().all(|name| machine.drivers.iter().any(|driver| driver == name)));
    let [device] = machine.devices.as_slice() else { panic!("{:?}", machine.devices) };
    assert_eq!((device.name.as_str(), device.state, device.numa_node), ("dsa0", Some(State::Enabled), Some(0)));
    assert_eq!((device.driver.as_deref(), device.version), (Some("idxd"), Some(0x100)));
    let address = device.pci_address.as_deref().expect("an address");
    assert!(Path::new("/sys/bus/pci/devices").join(address).exists(), "{address}");
    assert_eq!((device.max_work_queues, device.max_engines, device.max_groups), (Some(8), Some(4), Some(4)));
    assert_eq!((device.queues.len(), device.engines.len(), device.groups.len()), (8, 4, 4));
    assert_eq!(device.groups[1].work_queues, [DEDICATED]);
    assert_eq!(device.groups[1].engines, ["engine0.2", "engine0.3"]);
    assert_eq!((device.pasid_enabled, device.errors), (Some(true), Some([0; 4])));
    let (_, queue) = machine.queue(SHARED).expect("the queue");
    assert_eq!((queue.state, queue.mode), (Some(State::Enabled), Some(QueueMode::Shared)));
    assert_eq!((queue.size, queue.threshold, queue.priority), (Some(16), Some(15), Some(10)));
    assert_eq!((queue.queue_type, queue.label.as_deref()), (Some(QueueType::User), Some("shared")));
    assert_eq!((queue.driver.as_deref(), queue.group, queue.clients), (Some("user"), Some(0), Some(0)));
    assert!(queue.cdev_minor.is_some() && queue.node(device.kind).exists());
    let held = open(SHARED);
    assert_eq!(discover(&Live::default()).queue(SHARED).expect("the queue").1.clients, Some(1));
    drop(held);
}
