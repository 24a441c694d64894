//! Opens queues on trees in a directory. A named pipe replaces the queue's node: it cannot be mapped, and a thread at
//! its other end reads what is written and acts as the device.
#![allow(unsafe_code, reason = "acts as the device, which writes records by address; seals files; forks")]

use super::*;
use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use telpher_abi::{CompletionRecord, Descriptor, StatusByte};
use telpher_portal::{Health, Offer, RecordCell, Submission, Watch};

/// A machine with one device and two queues, in a directory that is deleted on drop.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static TREES: AtomicU32 = AtomicU32::new(0);
        let number = TREES.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("telpher-hw-{}-{number}", std::process::id()));
        let tree = Tree(root);
        for (name, text) in [
            ("dsa0/state", "enabled"),
            ("dsa0/errors", "00000000,00000000,00000000,00000000,00000000,00000000,00000000,00000000"),
            ("dsa0/op_cap", "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f027f"),
            ("dsa0/gen_cap", "0x40915f0107"),
            ("dsa0/pasid_enabled", "1"),
            ("dsa0/numa_node", "1"),
            ("dsa0/max_transfer_size", "2147483648"),
            ("wq0.0/mode", "shared"),
            ("wq0.0/threshold", "15"),
            ("wq0.1/mode", "dedicated"),
            ("wq0.1/threshold", "0"),
        ] {
            tree.set(name, text);
        }
        for queue in ["wq0.0", "wq0.1"] {
            for (name, text) in [
                ("state", "enabled"),
                ("size", "16"),
                ("type", "user"),
                ("clients", "1"),
                ("block_on_fault", "1"),
                ("max_batch_size", "32"),
                ("max_transfer_size", "2097152"),
            ] {
                tree.set(&format!("{queue}/{name}"), text);
            }
        }
        fs::create_dir_all(tree.0.join("dev/dsa")).unwrap();
        tree
    }

    fn attribute(&self, name: &str) -> PathBuf {
        self.0.join("sys/bus/dsa/devices").join(name)
    }

    /// Writes an attribute in place, so that code that has it open sees the change.
    fn set(&self, name: &str, text: &str) {
        let path = self.attribute(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn node(&self, queue: &str) -> PathBuf {
        self.0.join("dev/dsa").join(queue)
    }

    fn pipe(&self, queue: &str) -> PathBuf {
        let path = self.node(queue);
        let text = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a terminated path.
        assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
        path
    }

    fn open(&self, queue: &str) -> Result<Arc<dyn Portal>, OpenError> {
        open_on(&Live::under(&self.0), InstructionTokens::default(), queue)
    }

    /// Returns the error of an opening that must fail.
    fn refusal(&self, queue: &str) -> OpenError {
        self.open(queue).expect_err("an opening that fails")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Acts as the device behind a pipe: every descriptor ends with `status`. Ends with the last writer.
fn device(pipe: &Path, status: Status) -> JoinHandle<u32> {
    // Opened for both at first, so that neither end waits for the other.
    let held = File::options().read(true).write(true).open(pipe).unwrap();
    let mut reader = File::open(pipe).unwrap();
    std::thread::spawn(move || {
        let (mut bytes, mut done) = ([0; 64], 0);
        let mut held = Some(held);
        while reader.read_exact(&mut bytes).is_ok() {
            // The first descriptor proves that the queue is open.
            held.take();
            complete(&Descriptor::from_bytes(&bytes), status);
            done += 1;
        }
        done
    })
}

/// Acts as a device that completes the test descriptor and leaves the rest in the pipe, whose end it returns.
fn answers_once(pipe: &Path) -> JoinHandle<File> {
    let held = File::options().read(true).write(true).open(pipe).unwrap();
    let mut reader = File::open(pipe).unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        reader.read_exact(&mut bytes).unwrap();
        drop(held);
        complete(&Descriptor::from_bytes(&bytes), Status::Success);
        reader
    })
}

fn complete(descriptor: &Descriptor, status: Status) {
    let record = usize::try_from(descriptor.completion_address()).unwrap();
    // SAFETY: the code that vouched for the descriptor keeps its record until it is written, and reads it through
    // atomics.
    let record = unsafe { &*std::ptr::with_exposed_provenance::<RecordCell>(record) };
    record.complete(&CompletionRecord([StatusByte::new(status).0.into(), 0, 0, 0]));
}

/// Submits a No-op and waits for its record.
fn nop(portal: &dyn Portal) {
    let record = RecordCell::new();
    // SAFETY: a No-op accesses nothing but its record, which outlives the loop.
    let nop = unsafe { Submission::vouch(Descriptor::nop().with_record(record.address())) };
    assert_eq!(portal.offer(&nop), Offer::Taken);
    while record.status().is_none() {
        portal.watch(&record, Watch::Monitor, std::time::Duration::from_micros(10));
    }
    assert_eq!(record.read().unwrap().status(), Status::Success);
}

/// Makes a sealed file in memory the node of a queue.
fn sealed(tree: &Tree, queue: &str, len: u64, seals: i32) -> File {
    // SAFETY: a terminated name; the descriptor is new.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"node".as_ptr(), libc::MFD_ALLOW_SEALING)) };
    file.set_len(len).unwrap();
    // SAFETY: a command on an open descriptor.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    std::os::unix::fs::symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), tree.node(queue)).unwrap();
    file
}

#[test]
fn a_queue_that_cannot_be_mapped_is_written_to_and_offers_no_batches() {
    for (queue, mode, size) in [("wq0.0", QueueMode::Shared, 15), ("wq0.1", QueueMode::Dedicated, 16)] {
        let tree = Tree::new();
        let device = device(&tree.pipe(queue), Status::Success);
        let portal = tree.open(queue).unwrap();
        let info = portal.info();
        assert_eq!((info.mode, info.size, info.max_batch), (mode, size, 1));
        assert_eq!((info.max_transfer, info.numa_node, info.block_on_fault), (2_097_152, Some(1), true));
        assert!(info.operations.contains(Opcode::MemoryMove) && !info.operations.contains(Opcode::Batch));
        nop(portal.as_ref());
        assert_eq!(portal.health(), Health::Working);
        drop(portal);
        // The test's No-op and ours: nothing else was submitted, and the file is closed.
        assert_eq!(device.join().unwrap(), 2);
    }
}

#[test]
fn a_full_queue_by_write_answers_retry_and_takes_nothing() {
    let tree = Tree::new();
    let pipe = tree.pipe("wq0.0");
    let device = device(&pipe, Status::Success);
    let portal = tree.open("wq0.0").unwrap();
    drop(portal);
    device.join().unwrap();
    // Once more without a device behind it, until the pipe is full.
    let mut reader = File::options().read(true).write(true).open(&pipe).unwrap();
    let node = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
    let (found, queue) = find(&Live::under(&tree.0), "wq0.0").unwrap();
    let info = usable(&found, &queue).unwrap();
    let portal =
        HwPortal::new(info, SubmitMethod::DriverWrite, None, Some(Node::new(node)), HealthAttributes::default());
    // SAFETY: a No-op without a record accesses nothing.
    let nop = unsafe { Submission::vouch(Descriptor::nop()) };
    let taken = (0..100_000).take_while(|_| portal.offer(&nop) == Offer::Taken).count();
    assert!((64..100_000).contains(&taken), "{taken}");
    assert_eq!(portal.offer(&nop), Offer::Retry);
    let mut bytes = vec![0; taken * 64];
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!(portal.offer(&nop), Offer::Taken);
}

#[test]
fn a_permanent_refusal_of_the_driver_stops_the_queue() {
    let tree = Tree::new();
    let (device, queue) = find(&Live::under(&tree.0), "wq0.0").unwrap();
    let info = usable(&device, &queue).unwrap();
    let written_to = |node: File| {
        HwPortal::new(info.clone(), SubmitMethod::DriverWrite, None, Some(Node::new(node)), HealthAttributes::default())
    };
    let offer = |portal: &HwPortal, descriptor| {
        // SAFETY: nothing here executes a descriptor.
        portal.offer(&unsafe { Submission::vouch(descriptor) })
    };
    // A timer's file cannot be written: EINVAL, as the driver returns for descriptors it does not take.
    // SAFETY: a new descriptor.
    let timer = unsafe { File::from_raw_fd(libc::timerfd_create(libc::CLOCK_MONOTONIC, 0)) };
    let portal = written_to(timer);
    for own_fault in [Descriptor::batch(0, 2), Descriptor::nop().with_completion_address(8)] {
        assert_eq!((offer(&portal, own_fault), portal.health()), (Offer::Retry, Health::Working));
    }
    assert_eq!(offer(&portal, Descriptor::nop()), Offer::Retry);
    let Health::Stopped(why) = portal.health() else { panic!("a queue that takes nothing is said to work") };
    assert_eq!(why, "the driver refuses what is written to wq0.0: Invalid argument (os error 22)");
    // Any other errno is never caused by the descriptor.
    let portal = written_to(File::open("/dev/null").unwrap());
    assert_eq!(offer(&portal, Descriptor::batch(0, 2)), Offer::Retry);
    assert!(matches!(portal.health(), Health::Stopped(why) if why.contains("Bad file descriptor")));
}

/// Replaces the bus by a file, which cannot be listed, like a directory that may not be read.
fn forbid_the_bus(tree: &Tree) {
    fs::remove_dir_all(tree.0.join("sys/bus/dsa")).unwrap();
    fs::write(tree.0.join("sys/bus/dsa"), []).unwrap();
}

#[test]
fn every_reason_that_stops_an_opening_has_its_sentence() {
    type Case = (fn(&Tree), &'static str, &'static str);
    let cases: [Case; 16] = [
        (|_| {}, "wq0", "queues are named like wq0.1"),
        (|_| {}, "wq0.-1", "queues are named like wq0.1"),
        (|_| {}, "wq3.0", "no device dsa3; there is dsa0"),
        (|_| {}, "wq0.7", "dsa0 has no such queue; there are wq0.0, wq0.1"),
        (|tree| fs::remove_dir_all(tree.0.join("sys")).unwrap(), "wq0.0", "modprobe idxd"),
        (forbid_the_bus, "wq0.0", "/sys/bus/dsa cannot be listed; let this program read /sys"),
        (|tree| fs::remove_dir_all(tree.attribute("dsa0")).unwrap(), "wq0.0", "no device dsa0; it has none at all: "),
        (|tree| tree.set("dsa0/state", "disabled"), "wq0.0", "dsa0 is disabled; configure and enable it"),
        (|tree| tree.set("dsa0/state", "halted"), "wq0.0", "dsa0 is halted; it has to be reset"),
        (|tree| tree.set("dsa0/pasid_enabled", "0"), "wq0.0", "dsa0 works without PASIDs"),
        (|tree| tree.set("wq0.0/state", "disabled"), "wq0.0", "accel-config enable-wq dsa0/wq0.0"),
        (|tree| tree.set("wq0.0/type", "kernel"), "wq0.0", "its type is kernel"),
        (|tree| tree.set("wq0.0/mode", "both"), "wq0.0", "`mode` has no usable value"),
        (|tree| tree.set("wq0.0/threshold", "0"), "wq0.0", "`threshold` has no usable value"),
        (|tree| tree.set("wq0.1/size", "0"), "wq0.1", "`size` has no usable value"),
        (|_| {}, "wq0.0", "there is no such node, though the queue is enabled"),
    ];
    for (change, queue, part) in cases {
        let tree = Tree::new();
        change(&tree);
        let text = tree.refusal(queue).to_string();
        assert!(text.contains(part), "'{text}' has no '{part}'");
    }
}

#[test]
fn every_error_of_open_has_its_sentence() {
    let cases = [
        (libc::ENOENT, "no such node"),
        (libc::ENXIO, "no such node"),
        (libc::EACCES, "permission denied; give this user"),
        (libc::EBUSY, "dedicated and in use"),
        (libc::EOPNOTSUPP, "(PASID)"),
        (libc::ENODEV, "(PASID)"),
        (libc::ENOSPC, "(PASID)"),
        (libc::EMFILE, "cannot open /dev/dsa/wq0.0; `telpher doctor`"),
    ];
    for (errno, part) in cases {
        let error = opening("/dev/dsa/wq0.0".into(), io::Error::from_raw_os_error(errno));
        assert!(error.to_string().contains(part), "{error}");
        let source = std::error::Error::source(&error).expect("what the system said").to_string();
        assert_eq!(source, io::Error::from_raw_os_error(errno).to_string());
    }
}

#[test]
fn a_portal_without_mapping_and_write_is_refused_with_both_reasons() {
    let tree = Tree::new();
    // A file that cannot be written cannot be mapped for writing: EPERM, as the driver returns.
    let _node = sealed(&tree, "wq0.0", 4096, libc::F_SEAL_WRITE);
    let text = tree.refusal("wq0.0").to_string();
    assert!(text.contains("CAP_SYS_RAWIO") && text.contains("refuses write(): Operation not permitted"), "{text}");
}

#[test]
fn a_missing_instruction_is_reported_if_the_driver_does_not_submit() {
    for (queue, part) in [("wq0.0", "offers no ENQCMD"), ("wq0.1", "offers no MOVDIR64B")] {
        let tree = Tree::new();
        // The file can be mapped but not be written, since it would grow.
        let _node = sealed(&tree, queue, 0, libc::F_SEAL_GROW);
        let text = tree.refusal(queue).to_string();
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_queue_that_does_not_answer_is_not_handed_out() {
    let tree = Tree::new();
    fs::write(tree.node("wq0.1"), []).unwrap();
    let text = tree.refusal("wq0.1").to_string();
    assert!(text.contains("did not answer a No-op within 1000 ms"), "{text}");
    // The No-op was submitted by write(), the only way without the instruction.
    let written = fs::read(tree.node("wq0.1")).unwrap();
    assert_eq!(Descriptor::from_bytes(written[..64].try_into().unwrap()).opcode(), Opcode::Nop);
}

#[test]
fn a_queue_on_which_a_no_op_fails_is_not_handed_out() {
    let tree = Tree::new();
    let device = device(&tree.pipe("wq0.0"), Status::BadOpcode);
    let text = tree.refusal("wq0.0").to_string();
    assert!(text.contains("a No-op failed: ") && text.contains("(0x10)"), "{text}");
    device.join().unwrap();
}

#[test]
fn a_stopped_queue_is_closed_before_it_is_reported_and_stays_stopped() {
    let error = "00000000,00000000,00000000,00000000,00000000,00000000,00000000,00005101";
    let cases = [
        ("dsa0/state", "halted", "dsa0 has halted; its error register says: PCI configuration changed"),
        ("dsa0/state", "disabled", "dsa0 has been disabled; its error register says: PCI"),
        ("wq0.0/state", "disabled", "wq0.0 has been disabled"),
        ("wq0.0/clients", "0", "wq0.0 has been disabled and enabled again"),
    ];
    for (attribute, text, part) in cases {
        let tree = Tree::new();
        let device = device(&tree.pipe("wq0.0"), Status::Success);
        let portal = tree.open("wq0.0").unwrap();
        let before = fs::read_to_string(tree.attribute(attribute)).unwrap();
        assert_eq!(portal.health(), Health::Working);
        tree.set("dsa0/errors", error);
        tree.set(attribute, text);
        let Health::Stopped(why) = portal.health() else { panic!("{attribute} is {text}, and nothing was noticed") };
        assert!(why.contains(part), "'{why}' has no '{part}'");
        // The file is closed although the portal lives, so a driver would have drained the queue.
        device.join().unwrap();
        // Whatever happens later, this portal stays stopped.
        tree.set(attribute, before.trim());
        assert_eq!(portal.health(), Health::Stopped(why));
        // SAFETY: a No-op without a record accesses nothing.
        let nop = unsafe { Submission::vouch(Descriptor::nop()) };
        assert_eq!(portal.offer(&nop), Offer::Retry);
    }
}

/// Returns SWERROR with this low dword, as the driver shows it.
fn errors(low: u32) -> String {
    format!("{}{low:08x}", "00000000,".repeat(7))
}

#[test]
fn an_error_in_use_stops_the_queue_only_if_it_shows_a_lost_descriptor() {
    let cases = [
        // Full; another queue's; not valid.
        ("wq0.1", 0x0001_5309, Some("wq0.1 got more than the 16 descriptors that it can hold, and lost one")),
        ("wq0.1", 0x0000_5309, None),
        ("wq0.1", 0x0001_5308, None),
        // A record that cannot be written: of a descriptor; of a member, whose Batch reports it; of any client's on a
        // shared queue.
        (
            "wq0.1",
            0x0001_1a0d,
            Some("wq0.1 lost a descriptor; its device's error register says: page fault on the completion"),
        ),
        ("wq0.1", 0x0001_1b0d, Some("32-byte aligned")),
        ("wq0.1", 0x0001_1a1d, None),
        ("wq0.0", 0x0000_1a0d, None),
        // A descriptor that requested no record.
        ("wq0.1", 0x0001_120d, None),
        // The device was reset in between; a command of the driver failed.
        ("wq0.0", 0x0000_5101, Some("dsa0 has halted and was reset since wq0.0 was opened")),
        ("wq0.0", 0x0000_5201, None),
    ];
    for (queue, low, part) in cases {
        let tree = Tree::new();
        let device = answers_once(&tree.pipe(queue));
        // An earlier error stays readable and does not count, even if it is the same.
        tree.set("dsa0/errors", &errors(low));
        let portal = tree.open(queue).unwrap();
        let mut node = device.join().unwrap();
        assert_eq!(portal.health(), Health::Working, "{low:#x} was there before");
        // A pipe becomes readable once it was written to, as a node does once an error was reported.
        // SAFETY: a No-op without a record accesses nothing.
        let nop = unsafe { Submission::vouch(Descriptor::nop()) };
        assert_eq!(portal.offer(&nop), Offer::Taken);
        match (portal.health(), part) {
            (Health::Working, None) => {
                let Health::Stopped(why) = portal.retire() else { panic!("a pipe can be closed") };
                let tells = why.contains("given up; its device's error register says: ");
                assert_eq!(tells, low & 1 == 1, "{low:#x}: {why}");
            }
            (Health::Stopped(why), Some(part)) => assert!(why.contains(part), "{low:#x}: '{why}' has no '{part}'"),
            (answer, _) => panic!("{queue}, {low:#x}: {answer:?}"),
        }
        // In both cases the file is closed, so the driver would have drained the queue.
        assert_eq!(node.read_to_end(&mut Vec::new()).unwrap(), 64);
    }
}

#[test]
fn unreadable_attributes_stop_no_queue() {
    let tree = Tree::new();
    let device = device(&tree.pipe("wq0.0"), Status::Success);
    let portal = tree.open("wq0.0").unwrap();
    for attribute in ["dsa0/state", "wq0.0/state", "wq0.0/clients"] {
        tree.set(attribute, "");
        assert_eq!(portal.health(), Health::Working);
        tree.set(attribute, &"\u{fffd}x".repeat(300));
        assert_eq!(portal.health(), Health::Working);
    }
    drop(portal);
    device.join().unwrap();
}

#[test]
fn a_forked_child_submits_nothing_to_its_parents_queue() {
    let tree = Tree::new();
    let device = device(&tree.pipe("wq0.0"), Status::Success);
    let portal = tree.open("wq0.0").unwrap();
    // SAFETY: the child takes no lock that another thread could hold, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a No-op without a record accesses nothing.
        let nop = unsafe { Submission::vouch(Descriptor::nop()) };
        let refused = portal.offer(&nop) == Offer::Retry;
        let reported = matches!(portal.health(), Health::Stopped(why) if why.contains("forked"));
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(i32::from(!(refused && reported))) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    nop(portal.as_ref());
    drop(portal);
    assert_eq!(device.join().unwrap(), 2);
}
