//! The host, tested with guests and with hostile clients.

#[path = "host/guest.rs"]
mod guest;

use guest::{Guest, Scratch, packet, receive};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use telpher_abi::SwError;
use telpher_vdev::hardware::Hardware;
use telpher_vdev::host::{Behaviour, FileInfo, Host, Listener, Server};
use telpher_vdev::kernel::{Abi, Kernel};
use telpher_vdev::tree::{Caller, Entry, Errno};
use telpher_vdev::view::shadow::Shadow;
use telpher_vdev_wire::file_memory::{FileMemory, Statistics, TraceEntry};
use telpher_vdev_wire::message::{
    DEDICATED, EVENT_SECRET, FIRST_PMU_TYPE, Kind, MAX_PAYLOAD, PERF_ATTRIBUTES, PerfControl, PerfOpen, Report,
    ReportKind, Request, STRICT, TRACE,
};
use telpher_vdev_wire::name::NodeName;
use zerocopy::IntoBytes;

const SHARED: &str = "/dev/dsa/wq0.0";
const DEDICATED_QUEUE: &str = "/dev/dsa/wq0.1";

/// Records the calls of the listener.
#[derive(Debug, Default)]
struct Recorder {
    opened: Mutex<Vec<FileInfo>>,
    entries: Mutex<BTreeMap<u64, Vec<u64>>>,
    retries: Mutex<BTreeMap<u64, u64>>,
}

impl Listener for Recorder {
    fn opened(&self, file: &FileInfo) {
        self.opened.lock().unwrap().push(*file);
    }
    fn entry(&self, file: &FileInfo, entry: &TraceEntry) {
        self.entries.lock().unwrap().entry(file.open).or_default().push(entry.submission);
    }
    fn released(&self, file: &FileInfo, statistics: &Statistics) {
        self.retries.lock().unwrap().insert(file.open, statistics.retries.load(Ordering::Relaxed));
    }
}

/// A host with a running server, with two queues configured and enabled.
struct Running {
    host: Arc<Host>,
    recorder: Arc<Recorder>,
    guest: Guest,
    scratch: Scratch,
    _server: Server,
}

fn running(name: &str, behaviour: Behaviour) -> Running {
    let scratch = Scratch::new(name);
    let kernel = Kernel::new(&Hardware::from_name("spr-1").unwrap(), Abi::V6_6, true).unwrap();
    let recorder = Arc::new(Recorder::default());
    let run_name = format!("test-telpher-{name}-{}", std::process::id());
    let host = Host::new(kernel, behaviour, recorder.clone(), &run_name).unwrap();
    let socket = scratch.0.join("socket");
    let server = host.serve(&socket).unwrap();
    Running { host, recorder, guest: Guest { socket, space: 1 }, scratch, _server: server }
}

/// The path of an entry of queue 0.N.
fn of_queue(wq: u32, name: &str) -> String {
    format!("/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.{wq}/{name}")
}

fn is_readable(file: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(file, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())) == Ok(1)
}

/// The arguments of perf_event_open() for the No-ops of dsa0, as the leader of a group or in one.
fn noops(leader: u64, leader_secret: [u8; EVENT_SECRET]) -> PerfOpen {
    let mut attributes = [0; PERF_ATTRIBUTES];
    // Source: UAPI `linux/perf_event.h`: type; config, with category 3 and its event 1.
    attributes[..4].copy_from_slice(&FIRST_PMU_TYPE.to_ne_bytes());
    attributes[8..16].copy_from_slice(&(3 | 1_u64 << 4).to_ne_bytes());
    PerfOpen { process: -1, cpu: 0, flags: 0, leader, leader_secret, attributes }
}

/// Waits for an effect of another process or thread.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn attributes_are_shown_and_stored_with_the_drivers_results() {
    let run = running("attributes", Behaviour::default());
    let Running { guest, .. } = &run;
    assert_eq!(guest.show(&of_queue(0, "state")).unwrap(), "enabled\n");
    assert_eq!(guest.show("/sys/bus/dsa/nothing"), Err(Errno::NOENT));
    assert_eq!(guest.show("relative"), Err(Errno::NOENT));
    assert_eq!(guest.store(&of_queue(0, "priority"), "3\n"), Err(Errno::PERM));
    assert_eq!(guest.store("/sys/bus/dsa/drivers/user/unbind", "wq0.0\n"), Ok(6));
    assert_eq!(guest.show(&of_queue(0, "state")).unwrap(), "disabled\n");
    assert_eq!(guest.open(SHARED).map(drop), Err(Errno::NOENT));
}

#[test]
fn configuration_space_is_read_and_written_at_offsets() {
    let run = running("config", Behaviour::default());
    let Running { guest, .. } = &run;
    let path = "/sys/devices/pci0000:6a/0000:6a:01.0/config";
    let (_, bytes, _) = guest.ask(Kind::Show, 0, 0, path, &[]).unwrap();
    assert_eq!((bytes.len(), &bytes[..4]), (4096, &[0x86, 0x80, 0x25, 0x0b][..]));
    let (_, rest, _) = guest.ask(Kind::Show, 0, 4000, path, &[]).unwrap();
    assert_eq!(rest, bytes[4000..]);
    let control = [0x02, 0x01, 0, 0];
    assert_eq!(guest.ask(Kind::Store, 0, 0x168, path, &control).unwrap().0, 4);
    assert_eq!(guest.ask(Kind::Show, 0, 0x168, path, &[]).unwrap().1[..4], control);
}

#[test]
fn invalid_requests_do_not_affect_the_next_guest() {
    let run = running("hostile", Behaviour::default());
    let Running { guest, .. } = &run;
    let valid = packet(1, Kind::Show, 0, 0, &of_queue(0, "state"), &[]);
    let errno = |bytes: &[u8]| guest.raw(bytes).map(|(reply, ..)| Errno::from_raw_os_error(reply.errno));
    // Every truncated request is invalid; an empty packet counts as hanging up.
    for len in 1..valid.len() {
        assert_eq!(errno(&valid[..len]), Some(Errno::INVAL), "{len} bytes");
    }
    assert_eq!(errno(&[]), None);
    // Wrong lengths, invalid versions and kinds, and all ones.
    let request = |change: fn(&mut Request)| {
        let mut head = Request { version: telpher_vdev_wire::VERSION, kind: 1, space: 1, ..Request::default() };
        change(&mut head);
        errno(head.as_bytes())
    };
    assert_eq!(request(|head| head.path_len = u32::MAX), Some(Errno::INVAL));
    assert_eq!(request(|head| (head.path_len, head.data_len) = (u32::MAX, 1)), Some(Errno::INVAL));
    assert_eq!(request(|head| head.version += 1), Some(Errno::PROTO));
    assert_eq!(request(|head| head.kind = 77), Some(Errno::INVAL));
    assert_eq!(request(|head| (head.kind, head.open) = (4, u64::MAX)), Some(Errno::BADF));
    assert_eq!(errno(&[0xff; 100]), Some(Errno::PROTO));
    // Longer than any request, and the longest possible one.
    assert_eq!(errno(&vec![1; 100_000]), Some(Errno::MSGSIZE));
    let long = packet(1, Kind::Show, 0, 0, &"x".repeat(MAX_PAYLOAD), &[]);
    assert_eq!(errno(&long), Some(Errno::NOENT));
    let name = format!("/sys/{}", "../".repeat(2000));
    assert!(guest.show(&name).is_err());
    // A report with a wrong length, and one without a file.
    assert_eq!(guest.ask(Kind::Report, 1, 0, "", &[0; 3]).map(drop), Err(Errno::INVAL));
    assert_eq!(guest.report(1, &Report::default()), Err(Errno::BADF));
    // A guest without a number would count as the same as every other one without a number.
    assert_eq!(Guest { space: 0, ..guest.clone() }.open(SHARED).map(drop), Err(Errno::INVAL));
    // Clients that send a request and do not wait for the reply.
    for _ in 0..50 {
        rustix::net::send(guest.connect(), &valid, SendFlags::NOSIGNAL).unwrap();
    }
    assert_eq!(guest.show(&of_queue(0, "state")).unwrap(), "enabled\n");
}

#[test]
fn silent_connections_do_not_delay_others() {
    let run = running("silent", Behaviour::default());
    let Running { guest, .. } = &run;
    let silent: Vec<OwnedFd> = (0..400).map(|_| guest.connect()).collect();
    assert_eq!(guest.show(&of_queue(0, "state")).unwrap(), "enabled\n");
    // The oldest connections were closed to make room; the newest still works.
    let late = silent.last().unwrap();
    rustix::net::send(late, &packet(1, Kind::Show, 0, 0, &of_queue(0, "state"), &[]), SendFlags::NOSIGNAL).unwrap();
    assert_eq!(receive(late).unwrap().1, b"enabled\n");
    assert!(receive(&silent[0]).is_none());
}

#[test]
fn descriptors_sent_with_a_request_are_closed() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    use std::os::fd::AsFd;
    let run = running("strange", Behaviour::default());
    let Running { guest, .. } = &run;
    let (reader, writer) = std::io::pipe().unwrap();
    for _ in 0..20 {
        let socket = guest.connect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let along = [writer.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&along)));
        let bytes = packet(1, Kind::Show, 0, 0, &of_queue(0, "state"), &[]);
        sendmsg(&socket, &[std::io::IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(receive(&socket).unwrap().1, b"enabled\n");
    }
    drop(writer);
    // The end of the pipe is visible only when no process has the writing end.
    assert_eq!(std::io::read_to_string(reader).unwrap(), "");
}

#[test]
fn an_open_file_lasts_as_long_as_its_last_reference() {
    let run = running("lasting", Behaviour::default());
    let Running { guest, recorder, .. } = &run;
    let clients = || guest.show(&of_queue(0, "clients")).unwrap();
    let opening = guest.open(SHARED).unwrap();
    assert_eq!((opening.opened.device, opening.opened.wq, opening.opened.flags & DEDICATED), (0, 0, 0));
    assert_eq!(clients(), "1\n");
    let file = opening.file.unwrap();
    let copy = file.try_clone().unwrap();
    drop(file);
    assert_eq!(clients(), "1\n");
    drop(copy);
    assert_eq!(clients(), "0\n");
    assert_eq!(recorder.opened.lock().unwrap().len(), 1);
    assert_eq!(recorder.retries.lock().unwrap().get(&opening.opened.open), Some(&0));
}

#[test]
fn a_closed_dedicated_queue_can_be_opened_again_at_once() {
    let run = running("again", Behaviour::default());
    let Running { guest, .. } = &run;
    for _ in 0..300 {
        let opening = guest.open(DEDICATED_QUEUE).unwrap();
        assert_ne!(opening.opened.flags & DEDICATED, 0);
        assert_eq!(guest.open(DEDICATED_QUEUE).map(drop), Err(Errno::BUSY));
        drop(opening);
    }
}

#[test]
fn an_unread_reply_leaves_no_file_open() {
    let run = running("untaken", Behaviour::default());
    let Running { guest, .. } = &run;
    for _ in 0..50 {
        let request = packet(1, Kind::Open, 0, 2, DEDICATED_QUEUE, &[]);
        rustix::net::send(guest.connect(), &request, SendFlags::NOSIGNAL).unwrap();
    }
    eventually("the queue is free", || guest.open(DEDICATED_QUEUE).is_ok());
}

#[test]
fn a_file_has_a_name_that_identifies_it_after_exec() {
    let run = running("named", Behaviour::default());
    let opening = run.guest.open(SHARED).unwrap();
    let name = rustix::net::getsockname(opening.file.unwrap()).unwrap();
    let name = SocketAddrUnix::try_from(name).unwrap();
    let NodeName { open, device, wq } =
        NodeName::parse(format!("test-telpher-named-{}", std::process::id()).as_bytes(), name.abstract_name().unwrap())
            .unwrap();
    assert_eq!((open, device, wq), (opening.opened.open, 0, 0));
}

#[test]
fn only_the_openers_address_space_may_attach() {
    let run = running("joining", Behaviour::default());
    let Running { guest, .. } = &run;
    let opening = guest.open(SHARED).unwrap();
    let open = opening.opened.open;
    assert_eq!(guest.attach(open).unwrap().opened, opening.opened);
    let child = Guest { space: 2, ..guest.clone() };
    assert_eq!(child.attach(open).map(drop), Err(Errno::PERM));
    assert_eq!(guest.attach(open + 1000).map(drop), Err(Errno::BADF));
}

/// Reads the first words of the queue state from its file.
fn board_words(file: &OwnedFd) -> [u32; 3] {
    let mut bytes = [0; 12];
    rustix::io::pread(file, &mut bytes, 0).unwrap();
    let words = bytes.as_chunks::<4>().0;
    [0, 1, 2].map(|index: usize| u32::from_ne_bytes(words[index]))
}

#[test]
fn the_queue_state_and_the_slots_follow_the_queue_and_its_files() {
    let run = running("board", Behaviour::default());
    let Running { guest, .. } = &run;
    let first = guest.open(SHARED).unwrap();
    let second = guest.open(SHARED).unwrap();
    assert_eq!((first.opened.row, second.opened.row), (0, 1));
    assert_eq!(board_words(&first.board), [1, 0, 2]);
    // The value in a guest's slot counts until its file is released.
    rustix::io::pwrite(&second.rows, &7_u32.to_ne_bytes(), 4).unwrap();
    assert_eq!(guest.show(&of_queue(0, "occupancy")).unwrap(), "7\n");
    drop(second);
    assert_eq!(guest.show(&of_queue(0, "occupancy")).unwrap(), "0\n");
    assert_eq!(guest.open(SHARED).unwrap().opened.row, 1);
    guest.store("/sys/bus/dsa/drivers/user/unbind", "wq0.0").unwrap();
    assert_eq!(board_words(&first.board), [0, 1, 2]);
    guest.store("/sys/bus/dsa/drivers/idxd/unbind", "dsa0").unwrap();
    assert_eq!(board_words(&first.board), [0, 1, 2]);
}

/// Regression: one process of a run could report a halt, and all others lost the device; or it could write that the
/// queue was disabled.
#[test]
fn a_process_can_only_stop_its_own_work() {
    let run = running("hostile", Behaviour::default());
    let Running { guest, .. } = &run;
    let (neighbour, hostile) = (guest.open(SHARED).unwrap(), Guest { space: 2, ..guest.clone() });
    let opening = hostile.open(SHARED).unwrap();
    let open = opening.opened.open;
    let halted = Report { kind: ReportKind::Halted as u32, reserved: 0, words: [0x5101, 0, 0, 0, 0, 0, 0, 0] };
    assert_eq!(hostile.report(open, &halted), Err(Errno::PERM));
    assert_eq!(hostile.report(neighbour.opened.open, &halted), Err(Errno::PERM), "another process's file");
    assert_eq!(guest.show("/sys/bus/dsa/devices/dsa0/state").unwrap(), "enabled\n");
    assert_eq!(guest.show(&of_queue(0, "state")).unwrap(), "enabled\n");
    // Only the host can write the state.
    assert_eq!(rustix::io::pwrite(&opening.board, &[0; 64], 0), Err(Errno::PERM));
    assert_eq!(board_words(&neighbour.board), [1, 0, 2]);
    // A reported error is attributed to the reporter's own queue, whichever queue the report names.
    let error = SwError::default().with_valid(true).with_error_code(0x1b).with_wq_index_valid(true);
    let errors = |queue: u8| {
        let mut report = Report { kind: ReportKind::SwError as u32, ..Report::default() };
        report.words[..4].copy_from_slice(&error.with_wq_index(queue).0);
        hostile.report(open, &report).unwrap();
        guest.show("/sys/bus/dsa/devices/dsa0/errors").unwrap()
    };
    assert_eq!(errors(1), errors(0));
}

#[test]
fn an_injected_halt_is_accepted() {
    let mut behaviour = Behaviour::default();
    behaviour.inject.halt_at = 1;
    let run = running("halt", behaviour);
    let opening = run.guest.open(SHARED).unwrap();
    let halted = Report { kind: ReportKind::Halted as u32, reserved: 0, words: [0x5101, 0, 0, 0, 0, 0, 0, 0] };
    run.guest.report(opening.opened.open, &halted).unwrap();
    assert_eq!(run.guest.show("/sys/bus/dsa/devices/dsa0/state").unwrap(), "halted\n");
}

#[test]
fn the_behaviour_applies_to_every_file() {
    let mut behaviour = Behaviour { strict: true, trace: true, ..Behaviour::default() };
    behaviour.inject.seed = 42;
    let run = running("behaviour", behaviour);
    let Running { guest, .. } = &run;
    let opened = guest.open(SHARED).unwrap().opened;
    let asked = opened.flags & (STRICT | TRACE | DEDICATED | telpher_vdev_wire::message::CHECK);
    assert_eq!((asked, opened.inject.seed), (STRICT | TRACE, 42));
}

#[test]
fn a_latched_error_makes_every_file_of_the_device_readable() {
    let run = running("error", Behaviour::default());
    let Running { guest, host, .. } = &run;
    let (first, second) = (guest.open(SHARED).unwrap(), guest.open(SHARED).unwrap());
    let rung = Arc::new(AtomicU64::new(0));
    let bell = Arc::clone(&rung);
    host.on_report(move || bell.store(bell.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
    assert!(!is_readable(first.file.as_ref().unwrap()) && !host.poll_ready(first.opened.open));
    // Valid, with a queue that was full. Source: SPEC §9.2.14.
    let report = Report { kind: ReportKind::SwError as u32, reserved: 0, words: [0x5309, 0, 0, 0, 0, 0, 0, 0] };
    guest.report(first.opened.open, &report).unwrap();
    for opening in [&first, &second] {
        assert!(is_readable(opening.file.as_ref().unwrap()) && host.poll_ready(opening.opened.open));
    }
    assert_eq!(rung.load(Ordering::Relaxed), 1);
    // An edge-triggered poller sees the same error again; an error of another queue wakes no poller of this one.
    let edges = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let interest = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&edges, first.file.as_ref().unwrap(), epoll::EventData::new_u64(0), interest).unwrap();
    let edges_seen = || {
        let mut events = Vec::with_capacity(1);
        epoll::wait(&edges, rustix::buffer::spare_capacity(&mut events), Some(&Timespec::default())).unwrap()
    };
    assert_eq!((edges_seen(), edges_seen()), (1, 0), "what was there before");
    let other_queue = guest.open(DEDICATED_QUEUE).unwrap();
    for (word, file, events) in [(0x5309, &first, 1), (0x1_5309, &other_queue, 0), (0x5201, &first, 1)] {
        let report = Report { words: [word, 0, 0, 0, 0, 0, 0, 0], ..report };
        guest.report(file.opened.open, &report).unwrap();
        assert_eq!((edges_seen(), edges_seen()), (events, 0), "{word:#x}");
    }
    // Another address space may not report for this file.
    let stranger = Guest { space: 2, ..guest.clone() };
    assert_eq!(stranger.report(first.opened.open, &report), Err(Errno::PERM));
}

#[test]
fn a_connection_without_a_request_times_out() {
    let run = running("patience", Behaviour::default());
    let start = Instant::now();
    let silent = run.guest.connect();
    // The server closes the connection; it is not the test's own timeout.
    assert_eq!(rustix::net::recv(&silent, &mut [0; 1], RecvFlags::empty()).map(|(_, bytes)| bytes), Ok(0));
    assert!(start.elapsed() >= Duration::from_secs(4), "{:?}", start.elapsed());
}

/// Requests with changed bytes, truncated and lengthened; the seed is printed if one of them ends the host.
#[test]
fn mangled_requests_do_not_end_the_host() {
    let run = running("mangled", Behaviour::default());
    let guest = &run.guest;
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut generator = telpher_os::Random::new(seed);
    let mut random = move |below: usize| usize::try_from(generator.below(below as u64)).unwrap();
    let kinds = [Kind::Show, Kind::Store, Kind::Open, Kind::Attach, Kind::Report];
    let paths = [of_queue(0, "state"), of_queue(0, "priority"), SHARED.into(), "/sys/bus/dsa/drivers/user/bind".into()];
    for round in 0..3000 {
        let kind = kinds[random(kinds.len())];
        let mut bytes = packet(1, kind, random(4) as u64, random(8) as u64, &paths[random(paths.len())], &[0; 72]);
        for _ in 0..random(6) {
            let at = random(bytes.len());
            bytes[at] = u8::try_from(random(256)).unwrap();
        }
        bytes.truncate(1 + random(bytes.len()));
        bytes.resize(bytes.len() + random(40) * random(2), 0xa5);
        assert!(guest.raw(&bytes).is_some(), "no answer in round {round}, seed {seed:#x}");
    }
    assert!(guest.show(&of_queue(0, "state")).is_ok());
}

#[test]
fn bytes_written_to_the_socket_affect_nothing() {
    let run = running("scribbler", Behaviour::default());
    let Running { guest, .. } = &run;
    let opening = guest.open(SHARED).unwrap();
    let file = opening.file.as_ref().unwrap();
    // More than a socket's buffer holds, so the host must read it.
    for _ in 0..2000 {
        assert_eq!(rustix::io::write(file, &[7; 1024]), Ok(1024));
    }
    assert_eq!(guest.show(&of_queue(0, "clients")).unwrap(), "1\n");
    drop(opening);
    assert_eq!(guest.show(&of_queue(0, "clients")).unwrap(), "0\n");
}

#[test]
fn a_socket_shut_down_by_the_guest_does_not_block_the_host() {
    let run = running("shut", Behaviour::default());
    let Running { guest, .. } = &run;
    let opening = guest.open(DEDICATED_QUEUE).unwrap();
    rustix::net::shutdown(opening.file.as_ref().unwrap(), rustix::net::Shutdown::Write).unwrap();
    for _ in 0..3 {
        assert_eq!(guest.open(DEDICATED_QUEUE).map(drop), Err(Errno::BUSY));
    }
    drop(opening);
    eventually("the queue is free", || guest.open(DEDICATED_QUEUE).is_ok());
}

#[test]
fn file_memory_full_of_ones_is_released_with_its_file() {
    let run = running("ones", Behaviour::default());
    let Running { guest, .. } = &run;
    let opening = guest.open(DEDICATED_QUEUE).unwrap();
    let ones = vec![0xff; size_of::<FileMemory>()];
    assert_eq!(rustix::io::pwrite(&opening.lease, &ones, 0), Ok(ones.len()));
    drop(opening);
    assert_eq!(guest.show(&of_queue(1, "clients")).unwrap(), "0\n");
}

#[test]
fn traces_and_counters_are_complete() {
    let behaviour = Behaviour { trace: true, ..Behaviour::default() };
    let run = running("trace", behaviour);
    let Running { guest, recorder, .. } = &run;
    let opening = guest.open(SHARED).unwrap();
    let open = opening.opened.open;
    let lease = guest::map::<FileMemory>(&opening.lease);
    let count = 3 * telpher_vdev_wire::file_memory::TRACE_ENTRIES as u64;
    for number in 1..=count {
        let entry = TraceEntry { submission: number, ..TraceEntry::EMPTY };
        eventually("the host takes entries", || lease.append(&entry));
    }
    lease.statistics.retries.store(5, Ordering::Relaxed);
    drop(opening);
    eventually("the file is released", || recorder.retries.lock().unwrap().contains_key(&open));
    assert_eq!(recorder.retries.lock().unwrap()[&open], 5);
    assert_eq!(recorder.entries.lock().unwrap()[&open], (1..=count).collect::<Vec<_>>());
}

#[test]
fn at_the_end_of_a_run_all_files_are_released() {
    let run = running("end", Behaviour::default());
    let Running { guest, host, recorder, .. } = &run;
    let openings: Vec<_> = (0..5).map(|_| guest.open(SHARED).unwrap()).collect();
    host.release_all();
    assert_eq!(recorder.retries.lock().unwrap().len(), openings.len());
    assert_eq!(guest.show(&of_queue(0, "clients")).unwrap(), "0\n");
}

/// A listener that blocks in `released` until the test allows it to continue.
#[derive(Debug)]
struct Slow {
    begins: Mutex<Sender<()>>,
    may_end: Mutex<Receiver<()>>,
    ended: AtomicBool,
}

impl Listener for Slow {
    fn opened(&self, _: &FileInfo) {}
    fn entry(&self, _: &FileInfo, _: &TraceEntry) {}
    fn released(&self, _: &FileInfo, _: &Statistics) {
        self.begins.lock().unwrap().send(()).unwrap();
        // An error here means that the test has failed.
        let _ = self.may_end.lock().unwrap().recv();
        self.ended.store(true, Ordering::SeqCst);
    }
}

#[test]
fn the_end_of_a_run_waits_for_files_that_other_threads_are_releasing() {
    let (begins, begun) = channel();
    let (end, may_end) = channel();
    let slow = Slow { begins: Mutex::new(begins), may_end: Mutex::new(may_end), ended: AtomicBool::new(false) };
    let listener = Arc::new(slow);
    let kernel = Kernel::new(&Hardware::from_name("spr-1").unwrap(), Abi::V6_6, true).unwrap();
    let host = Host::new(kernel, Behaviour::default(), listener.clone(), "test-telpher-leaving").unwrap();
    let caller = Caller { process: std::process::id(), space: 0 };
    let open = host.open(SHARED, caller).unwrap().open;
    let (host, listener) = (&host, &listener);
    std::thread::scope(move |scope| {
        scope.spawn(move || host.release(open));
        begun.recv().unwrap();
        let (tell, told) = channel();
        scope.spawn(move || {
            host.release_all();
            tell.send(listener.ended.load(Ordering::SeqCst)).unwrap();
        });
        // It waits for the release; otherwise the result would arrive within a moment.
        assert_eq!(told.recv_timeout(Duration::from_millis(200)), Err(RecvTimeoutError::Timeout));
        end.send(()).unwrap();
        assert_eq!(told.recv(), Ok(true), "the listener has returned");
    });
}

/// Checks that the shadow contains exactly the entries in a directory of the host's tree.
fn assert_shadowed(host: &Host, shadow: &std::path::Path, path: &str) {
    let place = shadow.join(path.trim_start_matches('/'));
    let mut expected = Vec::new();
    for (name, entry) in host.list(path).unwrap() {
        let (path, place) = (format!("{path}/{name}"), place.join(&name));
        let found = std::fs::symlink_metadata(&place).unwrap_or_else(|error| panic!("{path}: {error}"));
        match entry {
            Entry::Directory => assert_shadowed(host, shadow, &path),
            Entry::Link(text) => assert_eq!(std::fs::read_link(&place).unwrap().to_str(), Some(text.as_str())),
            Entry::Attribute { mode } => {
                let is = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o777;
                assert_eq!((is, found.len()), (mode.into(), 4096), "{path}");
            }
            Entry::Binary { size, .. } => assert_eq!(found.len(), size, "{path}"),
            Entry::Node { major, minor } => {
                assert_eq!(std::fs::read_to_string(&place).unwrap(), format!("{major}:{minor}"));
            }
        }
        expected.push(name);
    }
    let found = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = found.filter(|name| !name.starts_with('.')).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "{path}");
}

#[test]
fn the_shadow_tree_matches_the_driver_before_and_after_every_change() {
    let run = running("shadow", Behaviour::default());
    let Running { guest, host, scratch, .. } = &run;
    let directory = scratch.0.join("view");
    host.watch(Box::new(Shadow::create(&directory, host).unwrap()));
    let check = || {
        for root in ["/sys/bus/dsa", "/sys/devices/pci0000:6a"] {
            assert_shadowed(host, &directory, root);
        }
        let node = directory.join("dev/dsa/wq0.0").exists();
        assert_eq!(node, host.entry(SHARED).is_ok());
    };
    check();
    let drivers = "/sys/bus/dsa/drivers";
    // Links lead to the same targets as in sysfs.
    let link = directory.join("sys/bus/dsa/devices/wq0.0");
    let leads_to = directory.join("sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0").canonicalize().unwrap();
    assert_eq!(link.canonicalize().unwrap(), leads_to);
    assert!(link.join("driver/unbind").exists());
    let opening = guest.open(SHARED).unwrap();
    check();
    drop(opening);
    // The host detects the close; a guest that reads the new count finds the tree already changed.
    eventually("the file is released", || guest.show(&of_queue(0, "clients")).unwrap() == "0\n");
    check();
    guest.store(&format!("{drivers}/user/unbind"), "wq0.0").unwrap();
    check();
    assert!(!link.join("driver").exists());
    guest.store(&format!("{drivers}/idxd/unbind"), "dsa0").unwrap();
    check();
    // Merged directories contain the marker, the driver's do not.
    assert!(directory.join("sys/bus/.telpher-merged").exists() && directory.join("sys/.telpher-merged").exists());
    assert!(!directory.join("sys/bus/dsa/.telpher-merged").exists());
    let text = std::fs::read_to_string(directory.join("proc/cpuinfo"));
    assert!(host.entry("/proc/cpuinfo").is_err() || text.is_ok());
}

/// The numbers of events are consecutive. Regression: a number was enough to read, stop and reset another process's
/// event, and to join its group, whose leader then reads more values than it has room for.
#[test]
fn a_guessed_number_gives_nothing_of_anothers_event() {
    let run = running("events", Behaviour::default());
    let Running { guest, .. } = &run;
    let opened = |open: PerfOpen| {
        let (_, _, descriptors) = guest.ask(Kind::PerfOpen, 0, 0, "", open.as_bytes())?;
        Ok::<_, Errno>(descriptors.into_iter().next().unwrap())
    };
    let event = opened(noops(0, [0; EVENT_SECRET])).unwrap();
    let mut secret = [0; EVENT_SECRET];
    rustix::net::recv(&event, &mut secret, RecvFlags::PEEK).unwrap();
    let read = |number, secret: &[u8]| guest.ask(Kind::PerfRead, number, 0, "", secret).map(|(_, data, _)| data);
    // Source: UAPI, PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_RESET, PERF_EVENT_IOC_ID.
    const REQUESTS: [u64; 3] = [0x2401, 0x2403, 0x8008_2407];
    let control = |number, request, secret| {
        let control = PerfControl { secret, argument: 0 };
        guest.ask(Kind::PerfControl, number, request, "", control.as_bytes()).map(|(value, ..)| value)
    };
    let mut one_bit = secret;
    one_bit[EVENT_SECRET - 1] ^= 1;
    for number in 0..20 {
        for guess in [&[][..], &[0; EVENT_SECRET], &one_bit, &secret[1..], &[&secret[..], &[0]].concat()] {
            assert_eq!(read(number, guess), Err(Errno::BADF), "{number}");
        }
        for (request, guess) in REQUESTS.into_iter().flat_map(|of| [(of, [0; EVENT_SECRET]), (of, one_bit)]) {
            assert_eq!(control(number, request, guess), Err(Errno::BADF), "{number} {request:#x}");
        }
        // Event 0 is that of a group of its own.
        if number != 0 {
            assert_eq!(opened(noops(number, one_bit)).map(drop), Err(Errno::BADF), "{number}");
        }
    }
    // A process that holds the descriptor has the event, and a group has the events of its leader's descriptor.
    let number = (1..20).find(|number| read(*number, &secret).is_ok()).expect("the event");
    assert_eq!(read(number, &secret).unwrap(), 0_u64.to_ne_bytes());
    assert_eq!(control(number, REQUESTS[2], secret), Ok(number));
    let sibling = opened(noops(number, secret)).unwrap();
    let mut siblings = [0; EVENT_SECRET];
    rustix::net::recv(&sibling, &mut siblings, RecvFlags::PEEK).unwrap();
    assert_ne!(siblings, secret);
}

#[test]
fn a_killed_process_releases_everything() {
    let run = running("killed", Behaviour::default());
    let Running { guest, .. } = &run;
    let opening = guest.open(DEDICATED_QUEUE).unwrap();
    // A child that only has the file as its standard input.
    let mut child = std::process::Command::new("sleep").arg("1000").stdin(opening.file.unwrap()).spawn().unwrap();
    assert_eq!(guest.open(DEDICATED_QUEUE).map(drop), Err(Errno::BUSY));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(guest.open(DEDICATED_QUEUE).is_ok());
}

#[test]
fn concurrent_guests_each_get_their_own_reply() {
    let run = running("crowd", Behaviour::default());
    let Running { guest, .. } = &run;
    std::thread::scope(|scope| {
        for space in 1..=8 {
            let guest = Guest { space, ..guest.clone() };
            scope.spawn(move || {
                let mut pasids = Vec::new();
                for _ in 0..50 {
                    let opening = guest.open(SHARED).unwrap();
                    pasids.push(opening.opened.pasid);
                    assert_eq!(guest.show(&of_queue(1, "state")).unwrap(), "enabled\n");
                    assert!(guest.attach(opening.opened.open).is_ok());
                }
                pasids
            });
        }
    });
    assert_eq!(guest.show(&of_queue(0, "clients")).unwrap(), "0\n");
}

#[test]
fn an_invisible_caller_opens_nothing() {
    let run = running("unseen", Behaviour::default());
    let Running { host, .. } = &run;
    for process in [0, u32::MAX] {
        assert_eq!(host.open(SHARED, Caller { process, space: 0 }).map(drop), Err(Errno::SRCH));
    }
    assert_eq!(host.write(1, Caller { process: 0, space: 0 }, &[0; 64]), Err(Errno::BADF));
}
