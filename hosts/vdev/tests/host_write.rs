//! write(2) of programs without a guest: the host executes their descriptors in another process's memory.

#[path = "host/guest.rs"]
mod guest;

use guest::{Guest, Scratch};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use telpher_abi::{CompletionRecord, Descriptor, Flags, Opcode, Status};
use telpher_vdev::hardware::Hardware;
use telpher_vdev::host::{Behaviour, FileInfo, Host, Listener};
use telpher_vdev::kernel::{Abi, Kernel};
use telpher_vdev::tree::{Caller, Errno};
use telpher_vdev_wire::event::{ReportedTo, SubmitInstruction};
use telpher_vdev_wire::file_memory::{Statistics, TraceEntry, TraceKind};

const SHARED: &str = "/dev/dsa/wq0.0";
const DEDICATED: &str = "/dev/dsa/wq0.1";
const PAGE: u64 = 4096;
/// Pages of the child's memory; enough that they are a separate mapping. The first eight are touched.
const PAGES: u64 = 256;
/// Environment variable that makes the test binary act as the child.
const CHILD: &str = "TELPHER_HOST_TEST_CHILD";

/// A process with some memory, which only waits.
#[derive(Debug)]
struct OtherProcess {
    child: Child,
    base: u64,
    memory: File,
}

/// Not a test: the code of the child.
#[test]
fn the_child_waits() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let room = vec![0_u8; usize::try_from((PAGES + 1) * PAGE).unwrap()].leak();
    let base = (room.as_ptr() as u64).next_multiple_of(PAGE);
    let start = usize::try_from(base - room.as_ptr() as u64).unwrap();
    room[start..start + usize::try_from(8 * PAGE).unwrap()].fill(1);
    // On standard error, because the harness uses standard output.
    eprintln!("{base}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    std::process::exit(0);
}

impl OtherProcess {
    fn new() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_child_waits", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", child.id())).unwrap();
        OtherProcess { child, base: line.trim().parse().unwrap(), memory }
    }

    fn caller(&self) -> Caller {
        Caller { process: self.child.id(), space: 0 }
    }

    fn page(&self, index: u64) -> u64 {
        self.base + index * PAGE
    }

    fn poke(&self, address: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, address).unwrap();
    }

    fn peek(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, address).unwrap();
        bytes
    }

    /// Address of the record, on the last touched page.
    fn record_address(&self) -> u64 {
        self.page(7) + 64
    }

    fn record(&self) -> CompletionRecord {
        CompletionRecord::from_bytes(&self.peek(self.record_address(), 32).try_into().unwrap())
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, Default)]
struct Recorder {
    entries: Mutex<Vec<TraceEntry>>,
    /// Successful moves, their bytes, and faults.
    numbers: Mutex<Option<[u64; 3]>>,
}

impl Listener for Recorder {
    fn opened(&self, _: &FileInfo) {}
    fn entry(&self, _: &FileInfo, entry: &TraceEntry) {
        self.entries.lock().unwrap().push(*entry);
    }
    fn released(&self, _: &FileInfo, statistics: &Statistics) {
        let operation = usize::from(Opcode::MemoryMove.code());
        let words = [&statistics.outcomes[operation][1], &statistics.bytes[operation], &statistics.faults];
        *self.numbers.lock().unwrap() = Some(words.map(|word| word.load(Ordering::Relaxed)));
    }
}

fn host_on(abi: Abi, behaviour: Behaviour) -> (Arc<Host>, Arc<Recorder>) {
    static HOSTS: AtomicU32 = AtomicU32::new(0);
    let kernel = Kernel::new(&Hardware::from_name("spr-1").unwrap(), abi, false).unwrap();
    let recorder = Arc::new(Recorder::default());
    // Unique on the machine, where this test may run many times at once.
    let run = format!("test-telpher-write-{}-{}", std::process::id(), HOSTS.fetch_add(1, Ordering::Relaxed));
    (Host::new(kernel, behaviour, recorder.clone(), &run).unwrap(), recorder)
}

fn host() -> Arc<Host> {
    host_on(Abi::V6_12, Behaviour { strict: true, ..Behaviour::default() }).0
}

fn sent(host: &Host, open: u64, by: &OtherProcess, descriptors: &[Descriptor]) -> Result<usize, Errno> {
    let bytes: Vec<u8> = descriptors.iter().flat_map(Descriptor::to_bytes).collect();
    host.write(open, by.caller(), &bytes)
}

#[test]
fn descriptors_are_executed_in_the_other_processs_memory() {
    for node in [SHARED, DEDICATED] {
        let (host, other) = (host(), OtherProcess::new());
        let open = host.open(node, other.caller()).unwrap().open;
        let text: Vec<u8> = (0..3000).map(|i: u32| i.to_le_bytes()[0]).collect();
        other.poke(other.page(0) + 100, &text);
        let copy =
            Descriptor::memory_move(other.page(0) + 100, other.page(3) + 7, 3000).with_record(other.record_address());
        assert_eq!(sent(&host, open, &other, &[copy]), Ok(64));
        assert_eq!(other.record().status(), Status::Success);
        assert_eq!(other.peek(other.page(3) + 7, 3000), text);
        assert_eq!(other.peek(other.page(3) + 3007, 4), [1; 4]);
        // Many no-ops in one write; an incomplete descriptor is ignored.
        let nops = vec![Descriptor::nop(); 100];
        assert_eq!(sent(&host, open, &other, &nops), Ok(6400));
        assert_eq!(host.write(open, other.caller(), &[0; 63]), Ok(0));
        host.release(open);
        assert_eq!(sent(&host, open, &other, &nops), Err(Errno::BADF));
    }
}

#[test]
fn faults_are_those_of_the_other_process() {
    let (host, other) = (host(), OtherProcess::new());
    let open = host.open(SHARED, other.caller()).unwrap().open;
    let send = |descriptor: Descriptor| {
        other.poke(other.record_address(), &[0; 32]);
        let descriptor = descriptor.with_record(other.record_address());
        assert_eq!(sent(&host, open, &other, &[descriptor]), Ok(64));
        other.record()
    };
    // Nothing is mapped at zero; the second page of the destination was never touched.
    let record = send(Descriptor::memory_move(0, other.page(0), 64));
    assert_eq!((record.status(), record.bytes_completed(), record.fault_address()), (Status::PageFault, 0, 0));
    let record = send(Descriptor::fill(7, other.page(8) - 100, 200));
    assert_eq!((record.status(), record.status_byte().is_write()), (Status::PageFault, true));
    assert_eq!((record.bytes_completed(), record.fault_address()), (100, other.page(8)));
    // With block on fault the page is populated.
    let record = send(Descriptor::fill(7, other.page(8) - 100, 200).and_flags(Flags::BLOCK_ON_FAULT));
    assert_eq!(record.status(), Status::Success);
    // This process has memory at an address too; it is not accessed.
    let own = vec![5_u8; 64];
    let record = send(Descriptor::fill(0, own.as_ptr() as u64, 64));
    assert_ne!(record.status(), Status::Success);
    assert_eq!(own, [5; 64]);
}

#[test]
fn a_refused_descriptor_ends_the_write_after_the_earlier_ones() {
    let (host, other) = (host(), OtherProcess::new());
    let open = host.open(SHARED, other.caller()).unwrap().open;
    let crooked = Descriptor::nop().with_record(other.record_address() + 8);
    let batch = Descriptor::batch(other.page(0), 2);
    for refused in [crooked, batch] {
        assert_eq!(sent(&host, open, &other, &[refused]), Err(Errno::INVAL));
        assert_eq!(sent(&host, open, &other, &[Descriptor::nop(), refused, Descriptor::nop()]), Ok(64));
    }
    let third = OtherProcess::new();
    assert_eq!(sent(&host, open, &third, &[Descriptor::nop()]), Err(Errno::PERM));
    assert_eq!(sent(&host, open + 1, &other, &[Descriptor::nop()]), Err(Errno::BADF));
}

#[test]
fn a_kernel_without_write_has_none() {
    let (host, _) = host_on(Abi::V5_15, Behaviour::default());
    let other = OtherProcess::new();
    if let Ok(opened) = host.open(DEDICATED, other.caller()) {
        assert_eq!(sent(&host, opened.open, &other, &[Descriptor::nop()]), Err(Errno::INVAL));
    } else {
        panic!("a dedicated queue opens on every kernel");
    }
}

#[test]
fn a_write_succeeds_on_a_queue_claimed_to_be_full_and_fails_on_a_disabled_one() {
    let (host, other) = (host(), OtherProcess::new());
    let scratch = Scratch::new("write");
    let _server = host.serve(&scratch.0.join("socket")).unwrap();
    let guest = Guest { socket: scratch.0.join("socket"), space: 1 };
    let open = host.open(SHARED, other.caller()).unwrap().open;
    let holder = guest.open(SHARED).unwrap();
    let threshold = u32::from(telpher_abi::registers::WqCfg(holder.opened.wq_cfg).threshold());
    for held in [threshold - 1, threshold, u32::MAX, 0] {
        rustix::io::pwrite(&holder.rows, &held.to_ne_bytes(), 4 * u64::from(holder.opened.row)).unwrap();
        assert_eq!(sent(&host, open, &other, &[Descriptor::nop()]), Ok(64), "{held}");
    }
    guest.store("/sys/bus/dsa/drivers/user/unbind", "wq0.0").unwrap();
    assert!(sent(&host, open, &other, &[Descriptor::nop()]).is_err());
}

#[test]
fn a_record_that_cannot_be_written_is_an_error_of_the_device() {
    let (host, other) = (host(), OtherProcess::new());
    let open = host.open(SHARED, other.caller()).unwrap().open;
    assert!(!host.poll_ready(open));
    let nowhere = Descriptor::nop().with_record(64);
    assert_eq!(sent(&host, open, &other, &[nowhere]), Ok(64));
    assert!(host.poll_ready(open));
    let errors = host.show("/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/errors").unwrap();
    assert!(errors.iter().any(|byte| (b'1'..=b'f').contains(byte)), "{}", String::from_utf8_lossy(&errors));
}

#[test]
fn a_process_that_ends_does_not_block_the_host() {
    let (host, mut other) = (host(), OtherProcess::new());
    let open = host.open(DEDICATED, other.caller()).unwrap().open;
    let caller = other.caller();
    assert_eq!(sent(&host, open, &other, &[Descriptor::nop()]), Ok(64));
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    assert_eq!(host.write(open, caller, &[0; 64]), Err(Errno::SRCH));
    host.release(open);
    let next = OtherProcess::new();
    assert!(host.open(DEDICATED, next.caller()).is_ok());
}

#[test]
fn only_a_guest_of_the_same_address_space_may_attach() {
    let (host, other) = (host(), OtherProcess::new());
    let scratch = Scratch::new("join");
    let _server = host.serve(&scratch.0.join("socket")).unwrap();
    let open = host.open(SHARED, other.caller()).unwrap().open;
    // This process is not the one that opened the file.
    let guest = Guest { socket: scratch.0.join("socket"), space: 9 };
    assert_eq!(guest.attach(open).map(drop), Err(Errno::PERM));
    // A file that this process opened without a guest can be attached by its first guest, and by no second one.
    let own = host.open(SHARED, Caller { process: std::process::id(), space: 0 }).unwrap().open;
    assert!(guest.attach(own).is_ok());
    assert_eq!(Guest { space: 10, ..guest }.attach(own).map(drop), Err(Errno::PERM));
}

#[test]
fn counters_and_traces_are_like_those_of_a_guest() {
    let (host, recorder) = host_on(Abi::V6_12, Behaviour { trace: true, ..Behaviour::default() });
    let other = OtherProcess::new();
    let open = host.open(SHARED, other.caller()).unwrap().open;
    let good = Descriptor::memory_move(other.page(0), other.page(1), 500).with_record(other.record_address());
    let bad = Descriptor::memory_move(8, other.page(1), 500).with_record(other.record_address());
    assert_eq!(sent(&host, open, &other, &[good, bad, good]), Ok(192));
    host.release(open);
    assert_eq!(*recorder.numbers.lock().unwrap(), Some([2, 1000, 1]));
    let entries = recorder.entries.lock().unwrap();
    let seen: Vec<_> = entries.iter().map(|entry| (entry.kind, entry.submission, entry.answer)).collect();
    let (submitted, ended) = (TraceKind::Submitted as u32, TraceKind::Ended as u32);
    let reported_to = ReportedTo::Record as u32;
    assert_eq!(seen, [1, 2, 3].map(|number| [(ended, number, reported_to), (submitted, number, 0)]).concat());
    assert!(entries.iter().all(|entry| entry.process == other.child.id()));
    assert_eq!((entries[1].code, entries[1].descriptor), (SubmitInstruction::Write as u32, good.0));
    assert_eq!(entries[0].record[0] & 0xff, 1);
    std::io::stderr().flush().unwrap();
}
