//! write(2) of programs without the preloaded part: descriptors that the host executes in another process' memory.

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
use telpher_vdev_wire::event::{How, Told};
use telpher_vdev_wire::lease::{Statistics, TraceEntry, TraceKind};

const SHARED: &str = "/dev/dsa/wq0.0";
const DEDICATED: &str = "/dev/dsa/wq0.1";
const PAGE: u64 = 4096;
/// Pages of the child, so many that they are a mapping of their own: the first eight are touched.
const PAGES: u64 = 256;
/// Tells the child that it is one.
const CHILD: &str = "TELPHER_HOST_TEST_CHILD";

/// A process with some memory and nothing to do.
#[derive(Debug)]
struct Stranger {
    child: Child,
    base: u64,
    memory: File,
}

/// No test of its own: what the child runs.
#[test]
fn the_child_waits() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let room = vec![0_u8; usize::try_from((PAGES + 1) * PAGE).unwrap()].leak();
    let base = (room.as_ptr() as u64).next_multiple_of(PAGE);
    let start = usize::try_from(base - room.as_ptr() as u64).unwrap();
    room[start..start + usize::try_from(8 * PAGE).unwrap()].fill(1);
    // On the error output: the harness has the other.
    eprintln!("{base}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    std::process::exit(0);
}

impl Stranger {
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
        Stranger { child, base: line.trim().parse().unwrap(), memory }
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

    /// The record on the last touched page.
    fn record_address(&self) -> u64 {
        self.page(7) + 64
    }

    fn record(&self) -> CompletionRecord {
        CompletionRecord::from_bytes(&self.peek(self.record_address(), 32).try_into().unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, Default)]
struct Heard {
    entries: Mutex<Vec<TraceEntry>>,
    /// Successful moves, their bytes, faults.
    numbers: Mutex<Option<[u64; 3]>>,
}

impl Listener for Heard {
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

fn host_on(abi: Abi, behaviour: Behaviour) -> (Arc<Host>, Arc<Heard>) {
    static HOSTS: AtomicU32 = AtomicU32::new(0);
    let kernel = Kernel::new(&Hardware::from_name("spr-1").unwrap(), abi, false).unwrap();
    let heard = Arc::new(Heard::default());
    // Unique on the machine, where this test may run many times at once.
    let run = format!("test-telpher-write-{}-{}", std::process::id(), HOSTS.fetch_add(1, Ordering::Relaxed));
    (Host::new(kernel, behaviour, heard.clone(), &run).unwrap(), heard)
}

fn host() -> Arc<Host> {
    host_on(Abi::V6_12, Behaviour { strict: true, ..Behaviour::default() }).0
}

fn sent(host: &Host, open: u64, by: &Stranger, descriptors: &[Descriptor]) -> Result<usize, Errno> {
    let bytes: Vec<u8> = descriptors.iter().flat_map(Descriptor::to_bytes).collect();
    host.write(open, by.caller(), &bytes)
}

#[test]
fn a_stranger_s_descriptors_are_executed_in_its_memory() {
    for node in [SHARED, DEDICATED] {
        let (host, stranger) = (host(), Stranger::new());
        let open = host.open(node, stranger.caller()).unwrap().open;
        let text: Vec<u8> = (0..3000).map(|i: u32| i.to_le_bytes()[0]).collect();
        stranger.poke(stranger.page(0) + 100, &text);
        let copy = Descriptor::memory_move(stranger.page(0) + 100, stranger.page(3) + 7, 3000)
            .with_record(stranger.record_address());
        assert_eq!(sent(&host, open, &stranger, &[copy]), Ok(64));
        assert_eq!(stranger.record().status(), Status::Success);
        assert_eq!(stranger.peek(stranger.page(3) + 7, 3000), text);
        assert_eq!(stranger.peek(stranger.page(3) + 3007, 4), [1; 4]);
        // No-ops by the hundred, and what is no whole descriptor is passed over.
        let nops = vec![Descriptor::nop(); 100];
        assert_eq!(sent(&host, open, &stranger, &nops), Ok(6400));
        assert_eq!(host.write(open, stranger.caller(), &[0; 63]), Ok(0));
        host.release(open);
        assert_eq!(sent(&host, open, &stranger, &nops), Err(Errno::BADF));
    }
}

#[test]
fn faults_are_the_stranger_s_own() {
    let (host, stranger) = (host(), Stranger::new());
    let open = host.open(SHARED, stranger.caller()).unwrap().open;
    let send = |descriptor: Descriptor| {
        stranger.poke(stranger.record_address(), &[0; 32]);
        let descriptor = descriptor.with_record(stranger.record_address());
        assert_eq!(sent(&host, open, &stranger, &[descriptor]), Ok(64));
        stranger.record()
    };
    // Nothing is mapped at zero; of the destination the second page was never touched.
    let record = send(Descriptor::memory_move(0, stranger.page(0), 64));
    assert_eq!((record.status(), record.bytes_completed(), record.fault_address()), (Status::PageFault, 0, 0));
    let record = send(Descriptor::fill(7, stranger.page(8) - 100, 200));
    assert_eq!((record.status(), record.status_byte().is_write()), (Status::PageFault, true));
    assert_eq!((record.bytes_completed(), record.fault_address()), (100, stranger.page(8)));
    // With block on fault it is brought in.
    let record = send(Descriptor::fill(7, stranger.page(8) - 100, 200).and_flags(Flags::BLOCK_ON_FAULT));
    assert_eq!(record.status(), Status::Success);
    // This process' own memory is at an address too; it is not reached.
    let own = vec![5_u8; 64];
    let record = send(Descriptor::fill(0, own.as_ptr() as u64, 64));
    assert_ne!(record.status(), Status::Success);
    assert_eq!(own, [5; 64]);
}

#[test]
fn what_the_driver_refuses_is_refused_and_what_came_before_counts() {
    let (host, stranger) = (host(), Stranger::new());
    let open = host.open(SHARED, stranger.caller()).unwrap().open;
    let crooked = Descriptor::nop().with_record(stranger.record_address() + 8);
    let batch = Descriptor::batch(stranger.page(0), 2);
    for refused in [crooked, batch] {
        assert_eq!(sent(&host, open, &stranger, &[refused]), Err(Errno::INVAL));
        assert_eq!(sent(&host, open, &stranger, &[Descriptor::nop(), refused, Descriptor::nop()]), Ok(64));
    }
    let other = Stranger::new();
    assert_eq!(sent(&host, open, &other, &[Descriptor::nop()]), Err(Errno::PERM));
    assert_eq!(sent(&host, open + 1, &stranger, &[Descriptor::nop()]), Err(Errno::BADF));
}

#[test]
fn a_kernel_without_write_has_none() {
    let (host, _) = host_on(Abi::V5_15, Behaviour::default());
    let stranger = Stranger::new();
    if let Ok(opened) = host.open(DEDICATED, stranger.caller()) {
        assert_eq!(sent(&host, opened.open, &stranger, &[Descriptor::nop()]), Err(Errno::INVAL));
    } else {
        panic!("a dedicated queue opens on every kernel");
    }
}

#[test]
fn a_queue_that_others_claim_to_have_filled_takes_a_write_and_one_that_is_gone_does_not() {
    let (host, stranger) = (host(), Stranger::new());
    let scratch = Scratch::new("write");
    let _server = host.serve(&scratch.0.join("socket")).unwrap();
    let guest = Guest { socket: scratch.0.join("socket"), space: 1 };
    let open = host.open(SHARED, stranger.caller()).unwrap().open;
    let holder = guest.open(SHARED).unwrap();
    let threshold = u32::from(telpher_abi::registers::WqCfg(holder.opened.wq_cfg).threshold());
    for held in [threshold - 1, threshold, u32::MAX, 0] {
        rustix::io::pwrite(&holder.rows, &held.to_ne_bytes(), 4 * u64::from(holder.opened.row)).unwrap();
        assert_eq!(sent(&host, open, &stranger, &[Descriptor::nop()]), Ok(64), "{held}");
    }
    guest.store("/sys/bus/dsa/drivers/user/unbind", "wq0.0").unwrap();
    assert!(sent(&host, open, &stranger, &[Descriptor::nop()]).is_err());
}

#[test]
fn a_record_that_cannot_be_written_is_an_error_of_the_device() {
    let (host, stranger) = (host(), Stranger::new());
    let open = host.open(SHARED, stranger.caller()).unwrap().open;
    assert!(!host.poll_ready(open));
    let nowhere = Descriptor::nop().with_record(64);
    assert_eq!(sent(&host, open, &stranger, &[nowhere]), Ok(64));
    assert!(host.poll_ready(open));
    let errors = host.show("/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/errors").unwrap();
    assert!(errors.iter().any(|byte| (b'1'..=b'f').contains(byte)), "{}", String::from_utf8_lossy(&errors));
}

#[test]
fn a_stranger_that_ends_is_no_reason_to_wait_or_to_fall() {
    let (host, mut stranger) = (host(), Stranger::new());
    let open = host.open(DEDICATED, stranger.caller()).unwrap().open;
    let caller = stranger.caller();
    assert_eq!(sent(&host, open, &stranger, &[Descriptor::nop()]), Ok(64));
    stranger.child.kill().unwrap();
    stranger.child.wait().unwrap();
    assert_eq!(host.write(open, caller, &[0; 64]), Err(Errno::SRCH));
    host.release(open);
    let next = Stranger::new();
    assert!(host.open(DEDICATED, next.caller()).is_ok());
}

#[test]
fn a_guest_of_the_same_memory_may_join_and_no_other() {
    let (host, stranger) = (host(), Stranger::new());
    let scratch = Scratch::new("join");
    let _server = host.serve(&scratch.0.join("socket")).unwrap();
    let open = host.open(SHARED, stranger.caller()).unwrap().open;
    // This process is another than the one that opened it.
    let guest = Guest { socket: scratch.0.join("socket"), space: 9 };
    assert_eq!(guest.attach(open).map(drop), Err(Errno::PERM));
    // What this process itself has opened without a guest, its guest may join, and no second one.
    let own = host.open(SHARED, Caller { process: std::process::id(), space: 0 }).unwrap().open;
    assert!(guest.attach(own).is_ok());
    assert_eq!(Guest { space: 10, ..guest }.attach(own).map(drop), Err(Errno::PERM));
}

#[test]
fn numbers_and_traces_are_those_of_a_guest() {
    let (host, heard) = host_on(Abi::V6_12, Behaviour { trace: true, ..Behaviour::default() });
    let stranger = Stranger::new();
    let open = host.open(SHARED, stranger.caller()).unwrap().open;
    let good = Descriptor::memory_move(stranger.page(0), stranger.page(1), 500).with_record(stranger.record_address());
    let bad = Descriptor::memory_move(8, stranger.page(1), 500).with_record(stranger.record_address());
    assert_eq!(sent(&host, open, &stranger, &[good, bad, good]), Ok(192));
    host.release(open);
    assert_eq!(*heard.numbers.lock().unwrap(), Some([2, 1000, 1]));
    let entries = heard.entries.lock().unwrap();
    let seen: Vec<_> = entries.iter().map(|entry| (entry.kind, entry.submission, entry.answer)).collect();
    let (submitted, ended) = (TraceKind::Submitted as u32, TraceKind::Ended as u32);
    let told = Told::Record as u32;
    assert_eq!(seen, [1, 2, 3].map(|number| [(ended, number, told), (submitted, number, 0)]).concat());
    assert!(entries.iter().all(|entry| entry.process == stranger.child.id()));
    assert_eq!((entries[1].code, entries[1].descriptor), (How::Write as u32, good.0));
    assert_eq!(entries[0].record[0] & 0xff, 1);
    std::io::stderr().flush().unwrap();
}
