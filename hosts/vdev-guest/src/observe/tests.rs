//! Tests of observers with a running replica, in mocked memory.
#![allow(unsafe_code, reason = "submits descriptors that access only mocked memory")]

use super::check::Memory;
use super::*;
use crate::sync::AtomicU32;
use std::time::{Duration, Instant};
use telpher_abi::registers::{GenCfg, GrpCfg, PortalKind, WqCfg};
use telpher_abi::{Flags, OpFlags, Status};
use telpher_device::{DeviceCounts, ModelDevice, ModelOptions, Preset, QueueImage, Runner};
use telpher_mem::{MockSpace, Protection, WriteHint};
use telpher_model::{Identity, Write};
use telpher_portal::Submission;
use telpher_vdev_wire::event::{Finding, Misuse};
use telpher_vdev_wire::file_memory::{FileMemory, Statistics, TRACE_ENTRIES, TraceEntry, TraceKind, TraceRing};
use telpher_vdev_wire::message::Inject;

const PASID: u32 = 1;
const PORTAL: u64 = 0x7000_0000;
const ALWAYS: u32 = u32::MAX;

/// Start of the tests' memory: 64 pages.
const BASE: u64 = 0x10_0000;
const RECORDS: u64 = BASE;
const LISTS: u64 = BASE + 0x1000;
const SRC: u64 = BASE + 0x4000;
const DST: u64 = BASE + 0x2_0000;

fn record(n: u64) -> u64 {
    RECORDS + n * 32
}

/// The tests' memory, which device and check share, and the number of bytes that the check has read.
#[derive(Clone, Debug)]
struct Shared(Arc<MockSpace>, Arc<AtomicU64>);

impl Space for Shared {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        Space::read(&*self.0, address, into)
    }
    fn write(&self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), Fault> {
        self.0.write(address, from, hint)
    }
    fn move_forward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.0.move_forward(dst, src, len, hint)
    }
    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.0.move_backward(dst, src, len, hint)
    }
    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.0.fill(dst, pattern, len, hint)
    }
    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.0.compare(a, b, len)
    }
    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.0.compare_pattern(a, pattern, len)
    }
    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        self.0.flush(address, len)
    }
    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        self.0.write_record(address, record)
    }
    fn page_request(&self, address: u64, write: bool) -> bool {
        self.0.page_request(address, write)
    }
}

impl Memory for Shared {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.1.fetch_add(into.len() as u64, Ordering::Relaxed);
        Space::read(&*self.0, address, into)
    }
    fn is_mapped(&self, address: u64) -> bool {
        self.0.page_request(address, false)
    }
}

struct BoxedLease(Box<FileMemory>);

impl AsRef<FileMemory> for BoxedLease {
    fn as_ref(&self) -> &FileMemory {
        &self.0
    }
}

/// A megabyte that is built on the stack first, so it needs a larger stack than a test's thread has.
fn lease() -> Arc<BoxedLease> {
    let make = || {
        let zeros = || std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        let zero = || AtomicU64::new(0);
        let statistics = Statistics {
            outcomes: zeros(),
            sizes: std::array::from_fn(|_| std::array::from_fn(|_| zero())),
            bytes: std::array::from_fn(|_| zero()),
            retries: zero(),
            dropped: zero(),
            faults: zero(),
            traps: zero(),
            calls: zero(),
            lost: zero(),
        };
        BoxedLease(Box::new(FileMemory { counts: DeviceCounts::default(), statistics, ring: TraceRing::default() }))
    };
    Arc::new(std::thread::Builder::new().stack_size(32 << 20).spawn(make).unwrap().join().unwrap())
}

/// A replica with an observer.
struct Fixture {
    observer: Arc<Observer>,
    device: ModelDevice,
    space: Shared,
    lease: Arc<BoxedLease>,
    /// 1 once the observer has made the device halt.
    halted: AtomicU32,
}

impl Queue for Fixture {
    fn submit(&self, how: SubmitInstruction, descriptor: &Descriptor) -> Offer {
        let write = match how {
            SubmitInstruction::Movdir64b => Write::Posted,
            SubmitInstruction::Enqcmd | SubmitInstruction::Write => {
                Write::Deferrable(Identity { pasid: PASID, privileged: false })
            }
        };
        // SAFETY: the replica accesses only mocked memory.
        let submission = unsafe { Submission::vouch(*descriptor) };
        self.device.submit(0, PortalKind::LimitedMsix, write, &submission)
    }

    fn refuses(&self, descriptor: &Descriptor, member: bool) -> bool {
        self.device.refuses(0, PASID, descriptor, member)
    }

    fn halt(&self) {
        self.halted.store(1, Ordering::SeqCst);
        self.device.halt();
    }
}

impl Fixture {
    fn new(flags: u32, inject: Inject) -> Self {
        Self::with_engines(flags, inject, 0b11)
    }

    fn with_engines(flags: u32, inject: Inject, engines: u64) -> Self {
        let wq_cfg = WqCfg::default()
            .with_size(16)
            .with_threshold(16)
            .with_priority(1)
            .with_pasid_enable(true)
            .with_block_on_fault(true)
            .with_max_batch_shift(6)
            .with_max_transfer_shift(20)
            .with_op_config(Preset::Full.capabilities().op_cap);
        let grp_cfg =
            GrpCfg::default().with_wqs(1).with_engines(engines).with_tc_a(1).with_tc_b(1).with_read_buffers_allowed(96);
        let gen_cfg = GenCfg::default().with_global_read_buffer_limit(96).0[0];
        let image = QueueImage { wq: 0, group: 0, gen_cfg, grp_cfg, wq_cfg, event_log_entries: 0 };
        let opened = Opened { open: 9, flags, inject, grp_cfg: grp_cfg.0, ..Opened::default() };
        let space = Shared(Arc::new(MockSpace::new()), Arc::new(AtomicU64::new(0)));
        space.0.map(BASE, 64, Protection::ReadWrite);
        let lease = lease();
        let check = (flags & CHECK != 0).then(|| Arc::new(Checker::new(Box::new(space.clone()))));
        let observer = Arc::new(Observer::assemble(&opened, Arc::clone(&lease) as SharedLease, check));
        let runner = if needs_thread(&opened) { Runner::Threaded } else { Runner::Inline };
        let options = ModelOptions { lanes: lanes(&opened), ..ModelOptions::of(Preset::Full).with_runner(runner) };
        let options = options.with_observer(Arc::clone(&observer) as _);
        let device = ModelDevice::replica(options, &image, PASID, Box::new(space.clone())).unwrap();
        Fixture { observer, device, space, lease, halted: AtomicU32::new(0) }
    }

    fn offer(&self, descriptor: Descriptor) -> Offer {
        self.observer.offer(SubmitInstruction::Enqcmd, PORTAL, &descriptor.0, self)
    }

    /// The status byte of a record, once it is written.
    fn wait(&self, n: u64) -> u8 {
        let start = Instant::now();
        loop {
            let status = self.space.0.peek(record(n), 1)[0];
            if status != 0 {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "record {n} is not written");
            std::thread::yield_now();
        }
    }

    /// Submits and waits, as a correct program does.
    fn run(&self, descriptor: Descriptor, n: u64) -> u8 {
        self.space.0.poke(record(n), &[0]);
        assert_eq!(self.offer(descriptor.with_record(record(n))), Offer::Taken);
        self.wait(n)
    }

    /// Runs `act` while no engine runs: the program is fast, whatever the machine's load.
    fn at_once(&self, act: impl FnOnce()) {
        self.device.hold(true);
        act();
        self.device.hold(false);
    }

    fn list(&self, members: &[Descriptor]) -> Descriptor {
        for (member, n) in members.iter().zip(0_u64..) {
            self.space.0.poke(LISTS + n * 64, &member.to_bytes());
        }
        Descriptor::batch(LISTS, u32::try_from(members.len()).unwrap())
    }

    /// All entries of the trace, once the device is idle.
    fn entries(&self) -> Vec<TraceEntry> {
        assert!(self.device.drain(|| false));
        std::iter::from_fn(|| self.lease.0.take(false)).collect()
    }

    fn findings(&self) -> Vec<Finding> {
        self.entries().iter().filter_map(Finding::from_entry).collect()
    }

    fn misuses(&self) -> Vec<Misuse> {
        self.findings().iter().map(|finding| finding.misuse).collect()
    }

    fn kinds(&self, kind: TraceKind) -> Vec<TraceEntry> {
        self.entries().into_iter().filter(|entry| entry.kind == kind as u32).collect()
    }
}

fn copy(n: u64) -> Descriptor {
    Descriptor::memory_move(SRC + n * 256, DST + n * 256, 256)
}

#[test]
fn the_trace_has_every_descriptor_with_its_record_and_member_number() {
    let fixture = Fixture::new(TRACE, Inject::default());
    fixture.space.0.poke(SRC, &[5; 256]);
    assert_eq!(fixture.run(copy(0), 0), 1);
    let list = fixture.list(&[copy(1), Descriptor::nop().with_record(record(2))]);
    assert_eq!(fixture.run(list, 1), 1);
    let entries = fixture.entries();
    let summary = |entry: &TraceEntry| (entry.kind, entry.submission, entry.member, entry.answer);
    let (submitted, ended) = (TraceKind::Submitted as u32, TraceKind::Ended as u32);
    let mut got: Vec<_> = entries.iter().map(summary).collect();
    got.sort_unstable();
    assert_eq!(
        got,
        [
            (submitted, 1, 0, 0),
            (submitted, 2, 0, 0),
            (ended, 1, 0, 1),
            (ended, 2, 0, 1),
            (ended, 2, 1, 0),
            (ended, 2, 2, 1)
        ]
    );
    let first = entries.iter().find(|entry| entry.kind == ended && entry.submission == 1).unwrap();
    // As the program wrote it, without the internal number.
    assert_eq!(first.descriptor, copy(0).with_record(record(0)).0);
    assert_eq!(first.record[0] & 0xff, 1);
    assert!(entries.iter().all(|entry| entry.process == std::process::id() && entry.time_ns > 0 && entry.thread > 0));
    assert_eq!(fixture.space.0.peek(DST, 256), [5; 256]);
}

#[test]
fn counters_count_without_a_trace() {
    let fixture = Fixture::new(0, Inject::default());
    for n in 0..3 {
        assert_eq!(fixture.run(copy(n), n), 1);
    }
    assert_eq!(fixture.run(Descriptor::memory_move(0x10, DST, 64), 3), 0x03);
    assert_eq!(fixture.offer(copy(0)), Offer::Taken);
    let statistics = &fixture.lease.0.statistics;
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!([0, 1, 3].map(|status| value(&statistics.outcomes[3][status])), [1, 3, 1]);
    assert_eq!((value(&statistics.sizes[3][9]), value(&statistics.sizes[3][7])), (4, 1));
    assert_eq!((value(&statistics.bytes[3]), value(&statistics.faults)), (1024, 1));
    assert_eq!(fixture.observer.offer(SubmitInstruction::Movdir64b, PORTAL, &copy(0).0, &fixture), Offer::Lost);
    assert_eq!(value(&statistics.dropped), 1);
    assert!(fixture.entries().is_empty());
}

#[test]
fn a_full_ring_waits_for_the_host_and_then_counts_lost_entries() {
    let fixture = Fixture::new(TRACE, Inject::default());
    let fill = TRACE_ENTRIES / 2;
    for _ in 0..fill + 10 {
        let _ = fixture.offer(Descriptor::nop());
    }
    assert_eq!(fixture.lease.0.statistics.lost.load(Ordering::Relaxed), 20);
    assert_eq!(fixture.entries().len(), TRACE_ENTRIES);
    let _ = fixture.offer(Descriptor::nop());
    assert_eq!(fixture.entries().len(), 2);
    assert_eq!(fixture.lease.0.statistics.lost.load(Ordering::Relaxed), 20);
}

#[test]
fn injected_faults_are_partial_completions_that_can_be_resumed() {
    let fixture = Fixture::new(TRACE, Inject { fault_rate: u32::MAX / 4, seed: 3, ..Inject::default() });
    let (len, mut done, mut faults) = (0x8000_u64, 0_u64, 0);
    fixture.space.0.poke(SRC, &[9; 0x8000]);
    while done < len {
        let rest = Descriptor::memory_move(SRC + done, DST + done, u32::try_from(len - done).unwrap());
        let status = fixture.run(rest, 0);
        let completed: [u8; 4] = fixture.space.0.peek(record(0) + 4, 4).try_into().unwrap();
        if status == 1 {
            break;
        }
        assert_eq!(status & 0x3f, 3);
        done += u64::from(u32::from_le_bytes(completed));
        faults += 1;
    }
    assert!(faults > 0, "the seed gives none");
    assert_eq!(fixture.space.0.peek(DST, 0x8000), [9; 0x8000]);
    assert_eq!(fixture.kinds(TraceKind::Injected).len(), faults);
    // With block on fault the device waits for the pages.
    let waits = Descriptor::memory_move(SRC, DST, 0x8000).and_flags(Flags::BLOCK_ON_FAULT);
    assert_eq!(fixture.run(waits, 0), 1);
    assert!(!fixture.kinds(TraceKind::Injected).is_empty());
}

#[test]
fn a_chosen_page_is_absent_at_every_access() {
    let page = (DST + 0x1000) / 4096;
    let inject = Inject { absent_first: page, absent_end: page + 1, ..Inject::default() };
    let fixture = Fixture::new(0, inject);
    for _ in 0..2 {
        assert_eq!(fixture.run(Descriptor::fill(1, DST, 0x2000), 0), 0x83);
        assert_eq!(fixture.space.0.peek(record(0) + 8, 8), (DST + 0x1000).to_le_bytes());
    }
}

#[test]
fn a_burst_of_retries_ends() {
    let fixture = Fixture::new(TRACE, Inject { retry_rate: ALWAYS, retry_burst: 4, ..Inject::default() });
    for _ in 0..3 {
        let answers: Vec<Offer> = (0..5).map(|_| fixture.offer(Descriptor::nop())).collect();
        assert_eq!(answers[..4], [Offer::Retry; 4]);
        assert_eq!(answers[4], Offer::Taken);
    }
    let taken = fixture.kinds(TraceKind::Submitted).into_iter().filter(|entry| entry.answer == 0);
    assert_eq!(taken.map(|entry| entry.submission).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(fixture.lease.0.statistics.retries.load(Ordering::Relaxed), 12);
    // A posted write cannot get Retry, nor can write() to a dedicated queue.
    assert_eq!(
        fixture.observer.offer(SubmitInstruction::Movdir64b, PORTAL, &Descriptor::nop().0, &fixture),
        Offer::Lost
    );
    let fixture = Fixture::new(DEDICATED, Inject { retry_rate: ALWAYS, ..Inject::default() });
    assert_eq!(fixture.observer.offer(SubmitInstruction::Write, PORTAL, &Descriptor::nop().0, &fixture), Offer::Taken);
}

#[test]
fn an_injected_status_fails_the_batch_too() {
    let status = u32::from(Status::HardwareReadError.code());
    let inject = Inject { status_rate: ALWAYS, status, operations: 1 << 4, ..Inject::default() };
    let fixture = Fixture::new(0, inject);
    let list = fixture.list(&[copy(0), Descriptor::fill(0, DST, 64).with_record(record(1))]);
    assert_eq!((fixture.run(list, 0), fixture.wait(1)), (0x05, 0x20));
}

#[test]
fn a_lost_record_is_never_written() {
    let fixture = Fixture::new(TRACE, Inject { lose_rate: ALWAYS, operations: 1 << 3, ..Inject::default() });
    assert_eq!(fixture.offer(copy(0).with_record(record(0))), Offer::Taken);
    assert_eq!(fixture.run(Descriptor::nop(), 1), 1);
    let entries = fixture.entries();
    assert_eq!(fixture.space.0.peek(record(0), 1), [0]);
    assert!(entries.iter().any(|e| e.kind == TraceKind::Ended as u32 && e.answer == ReportedTo::Lost as u32));
}

#[test]
fn the_device_halts_at_its_descriptor() {
    let fixture = Fixture::new(0, Inject { halt_at: 3, ..Inject::default() });
    let answers: Vec<Offer> = (0..4).map(|_| fixture.offer(Descriptor::nop())).collect();
    assert_eq!(answers, [Offer::Taken, Offer::Taken, Offer::Retry, Offer::Retry]);
    assert_eq!(fixture.halted.load(Ordering::SeqCst), 1);
    assert!(fixture.device.is_halted() && fixture.device.take_sw_error().is_some());
}

#[test]
fn delayed_and_reordered_records_are_all_written_and_batches_after_their_members() {
    let inject = Inject {
        delay_rate: u32::MAX / 2,
        delay_ns: 300_000,
        reorder_rate: u32::MAX / 2,
        seed: 1,
        ..Inject::default()
    };
    let fixture = Fixture::new(TRACE, inject);
    let members: Vec<Descriptor> = (0..8).map(|n| copy(n).with_record(record(20 + n))).collect();
    let list = fixture.list(&members);
    for n in 0..12 {
        assert_eq!(fixture.offer(copy(16 + n).with_record(record(n))), Offer::Taken);
    }
    assert_eq!(fixture.run(list, 12), 1);
    assert!((20..28).all(|n| fixture.space.0.peek(record(n), 1) == [1]));
    assert!((0..12).all(|n| fixture.wait(n) == 1));
    let ended: Vec<u64> =
        fixture.kinds(TraceKind::Ended).iter().filter(|e| e.member == 0).map(|entry| entry.submission).collect();
    assert_eq!(ended.len(), 13);
    assert!(!ended.is_sorted(), "{ended:?}");
}

// ---- check

fn checked() -> Fixture {
    Fixture::new(CHECK, Inject::default())
}

#[test]
fn a_program_that_waits_gets_no_finding() {
    let fixture = checked();
    for round in 0..3_u8 {
        fixture.space.0.poke(SRC, &[round; 512]);
        assert_eq!(fixture.run(copy(0), 0), 1);
        assert_eq!(fixture.run(Descriptor::fill(round.into(), DST, 300), 0), 1);
        assert_eq!(fixture.run(Descriptor::memory_move(SRC, SRC + 100, 300), 0), 1);
        // The list is reused at once.
        let list = fixture.list(&[copy(0).with_record(record(2)), copy(1).with_record(record(3))]);
        fixture.space.0.poke(record(2), &[0; 64]);
        assert_eq!(fixture.run(list, 1), 1);
        assert_eq!(fixture.run(Descriptor::drain(), 0), 1);
    }
    assert_eq!(fixture.misuses(), []);
}

#[test]
fn members_may_have_their_records_in_their_own_list_entries_as_in_dpdk() {
    let fixture = checked();
    for _ in 0..3 {
        let place = |n: u64, d: Descriptor| {
            let mut d = d.with_record(LISTS + n * 64);
            d = d.with_flags(d.flags().difference(Flags::REQUEST_COMPLETION_RECORD));
            d
        };
        // The second one fails: its record overwrites its own list entry.
        let bad = Descriptor::memory_move(0, DST + 256, 256);
        let list = fixture.list(&[place(0, copy(0)), place(1, bad), place(2, copy(2))]);
        assert_eq!(fixture.run(list, 0), 0x05);
        assert_eq!(fixture.space.0.peek(LISTS + 64, 1), [0x03]);
    }
    assert_eq!(fixture.misuses(), []);
    // In another member's list entry it is misuse.
    let list = fixture.list(&[copy(0).with_record(LISTS + 64), copy(1)]);
    fixture.run(list, 0);
    assert!(fixture.misuses().contains(&Misuse::WriteAfterRead));
}

#[test]
fn a_fence_orders_members() {
    let fixture = checked();
    let chain = |fence: bool| {
        let next = Descriptor::memory_move(DST, DST + 0x1000, 256);
        [copy(0), if fence { next.and_flags(Flags::FENCE) } else { next }]
    };
    assert_eq!(fixture.run(fixture.list(&chain(true)), 0), 1);
    // A seed that is read from an earlier member's record.
    let sum = Descriptor::crc_generation(SRC, 64, 0).with_record(record(1));
    let mut more = Descriptor::crc_generation(SRC + 64, 64, 0).with_crc_seed_address(record(1) + 16);
    more = more.and_flags(OpFlags::READ_SEED).with_record(record(2));
    let list = fixture.list(&[sum, more.and_flags(Flags::FENCE)]);
    assert_eq!(fixture.run(list, 0), 1);
    assert_eq!(fixture.misuses(), []);
    fixture.run(fixture.list(&chain(false)), 0);
    let findings = fixture.findings();
    assert_eq!(findings.len(), 1);
    let Finding { misuse, latest, other, address, len } = findings[0];
    assert_eq!((misuse, address, len), (Misuse::ReadAfterWrite, DST, 256));
    assert_eq!((latest.member, other.unwrap().member), (2, 1));
    assert_eq!(other.unwrap().descriptor, copy(0).0);
}

#[test]
fn descriptors_in_flight_must_not_conflict() {
    let meet = |first: Descriptor, second: Descriptor| {
        let fixture = checked();
        fixture.at_once(|| {
            let _ = fixture.offer(first.with_record(record(0)));
            let _ = fixture.offer(second.with_record(record(1)));
        });
        fixture.wait(0);
        fixture.wait(1);
        fixture.misuses()
    };
    let fill = |address| Descriptor::fill(1, address, 256);
    assert_eq!(meet(copy(0), copy(1)), []);
    assert_eq!(meet(copy(0), Descriptor::memory_move(DST + 255, DST + 0x1000, 64)), [Misuse::ReadAfterWrite]);
    assert_eq!(meet(copy(0), fill(SRC + 1)), [Misuse::WriteAfterRead]);
    assert_eq!(meet(copy(0), fill(DST + 1)), [Misuse::WriteAfterWrite]);
    assert_eq!(meet(copy(0), Descriptor::compare(SRC, SRC + 8, 64)), []);
    // The same work twice is no hazard, unless it writes what it reads.
    assert_eq!(meet(copy(0), copy(0)), []);
    let shift = Descriptor::memory_move(SRC, SRC + 8, 64);
    assert!(meet(shift, shift).contains(&Misuse::WriteAfterWrite));
    assert_eq!(meet(fill(DST), Descriptor::fill(2, DST, 256)), [Misuse::WriteAfterWrite]);
}

#[test]
fn writes_on_a_single_engine_are_ordered_and_no_finding() {
    let fixture = Fixture::with_engines(CHECK, Inject::default(), 0b1);
    fixture.at_once(|| {
        for n in 0..8 {
            let _ = fixture.offer(Descriptor::fill(n * 0x0101_0101_0101_0101, DST, 256).with_record(record(n)));
        }
    });
    (0..8).for_each(|n| assert_eq!(fixture.wait(n), 1));
    assert_eq!(fixture.misuses(), []);
    assert_eq!(fixture.space.0.peek(DST, 256), [7; 256]);
}

#[test]
fn memory_changed_during_execution_is_reported_with_its_address() {
    let fixture = checked();
    fixture.at_once(|| {
        let _ = fixture.offer(copy(0).with_record(record(0)));
        fixture.space.0.poke(SRC + 200, &[1]);
    });
    fixture.wait(0);
    let findings = fixture.findings();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].misuse, Misuse::SourceChanged);
    assert!((findings[0].address..findings[0].address + findings[0].len).contains(&(SRC + 200)));
    fixture.at_once(|| {
        let _ = fixture.offer(copy(0).with_record(record(1)));
        fixture.space.0.poke(DST, &[77]);
    });
    fixture.wait(1);
    assert_eq!(fixture.misuses(), [Misuse::DestinationChanged]);
    // After the record the memory belongs to the program.
    fixture.space.0.poke(SRC, &[3; 256]);
    fixture.space.0.poke(DST, &[3; 256]);
    assert_eq!(fixture.misuses(), []);
}

#[test]
fn memory_unmapped_during_execution_is_reported() {
    let fixture = checked();
    fixture.at_once(|| {
        let _ = fixture.offer(copy(0).with_record(record(0)));
        fixture.space.0.unmap(SRC);
    });
    assert_eq!(fixture.wait(0), 0x03);
    assert_eq!(fixture.misuses(), [Misuse::Unmapped]);
    // The same for the call that unmaps.
    let check = fixture.observer.check.as_ref().unwrap();
    check.unmapped(DST, 4096);
    assert_eq!(fixture.misuses(), []);
    fixture.at_once(|| {
        let _ = fixture.offer(Descriptor::fill(1, DST, 64).with_record(record(1)));
        check.unmapped(DST - 4096, 4096);
        check.unmapped(DST + 60, 4096);
    });
    fixture.wait(1);
    let findings = fixture.findings();
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].misuse, findings[0].address, findings[0].len), (Misuse::Unmapped, DST + 60, 4));
}

#[test]
fn a_changed_list_is_reported_with_its_new_entry() {
    let fixture = checked();
    let list = fixture.list(&[copy(0), copy(1), copy(2)]);
    fixture.at_once(|| {
        let _ = fixture.offer(list.with_record(record(0)));
        fixture.space.0.poke(LISTS + 64, &copy(5).to_bytes());
    });
    fixture.wait(0);
    let findings = fixture.findings();
    assert_eq!(findings.len(), 1);
    let Finding { misuse, latest, other, address, .. } = findings[0];
    assert_eq!((misuse, address, latest.member), (Misuse::ListChanged, LISTS + 64, 2));
    assert_eq!((latest.descriptor, other.unwrap().descriptor), (copy(1).0, copy(5).0));
}

#[test]
fn records_must_be_cleared_aligned_and_unused() {
    let fixture = checked();
    fixture.run(copy(0), 0);
    assert_eq!(fixture.offer(copy(0).with_record(record(0))), Offer::Taken);
    assert_eq!(fixture.misuses(), [Misuse::RecordNotReset]);
    let _ = fixture.offer(copy(0).with_record(record(1) + 8));
    assert_eq!(fixture.misuses(), [Misuse::RecordMisaligned]);
    fixture.space.0.poke(record(2), &[0]);
    fixture.at_once(|| {
        let _ = fixture.offer(copy(1).with_record(record(2)));
        let _ = fixture.offer(copy(2).with_record(record(2)));
    });
    assert_eq!(fixture.misuses(), [Misuse::RecordInUse]);
}

/// Regression: a descriptor of 4 GiB that the device refuses took seconds, in which the process could submit nothing
/// else.
#[test]
fn only_the_record_of_a_refused_descriptor_is_checked() {
    let fixture = checked();
    let looked = || fixture.space.1.swap(0, Ordering::Relaxed);
    assert_eq!(fixture.run(Descriptor::memory_move(SRC, DST, u32::MAX), 0), 0x13);
    let long_list = Descriptor::batch(LISTS, u32::MAX);
    assert_eq!(fixture.run(long_list, 1), 0x14);
    let unknown = Descriptor::new(telpher_abi::Opcode::from_code(0x0b)).with_size(u32::MAX);
    assert_eq!(fixture.run(unknown, 2), 0x10);
    // The status bytes of three records.
    assert_eq!(looked(), 3);
    // The same for a member and its list.
    let list = fixture.list(&[copy(0), Descriptor::memory_move(SRC, DST, u32::MAX)]);
    assert_eq!(fixture.run(list, 3), 0x05);
    assert_eq!(looked(), 1 + 2 * 64 + 2 * 2 * 256);
    // A refused descriptor conflicts with no other one.
    fixture.at_once(|| {
        let _ = fixture.offer(Descriptor::memory_move(SRC, DST, u32::MAX).with_record(record(4)));
        let _ = fixture.offer(copy(0).with_record(record(5)));
    });
    assert_eq!((fixture.wait(4), fixture.wait(5)), (0x13, 1));
    assert_eq!(fixture.misuses(), []);
}

#[test]
fn a_long_descriptor_is_compared_only_up_to_the_limit() {
    let fixture = checked();
    // Most of it is not mapped: the device ends early, and so must the check.
    let members = [Descriptor::memory_move(SRC, DST, 1 << 20); 64];
    assert_eq!(fixture.run(fixture.list(&members), 0), 0x05);
    let looked = fixture.space.1.swap(0, Ordering::Relaxed);
    // At submission, and again when the members start.
    assert!(looked <= 2 * check::COMPARED_BYTES + 64 * 64 + 1, "{looked} bytes");
    // Changes within the limit are still found. (The members overwrite each other.)
    let _ = fixture.misuses();
    fixture.at_once(|| {
        let _ = fixture.offer(Descriptor::memory_move(SRC, DST, 0x1000).with_record(record(1)));
        fixture.space.0.poke(SRC + 0xfff, &[1]);
    });
    assert_eq!(fixture.wait(1), 1);
    assert_eq!(fixture.misuses(), [Misuse::SourceChanged]);
}

#[test]
fn the_wrong_instruction_is_reported() {
    let fixture = checked();
    let d = copy(0).with_record(record(0));
    for _ in 0..3 {
        assert_eq!(fixture.observer.offer(SubmitInstruction::Movdir64b, PORTAL, &d.0, &fixture), Offer::Lost);
    }
    let findings = fixture.findings();
    assert_eq!(findings.len(), 1, "a retry gives no new finding");
    assert_eq!((findings[0].misuse, findings[0].address), (Misuse::WrongInstruction, PORTAL));
    assert_eq!(findings[0].latest.descriptor, d.0);
    assert_eq!(fixture.offer(d), Offer::Taken);
    assert_eq!((fixture.wait(0), fixture.misuses()), (1, vec![]));

    let fixture = Fixture::new(CHECK | DEDICATED, Inject::default());
    let expected = [
        (SubmitInstruction::Movdir64b, vec![]),
        (SubmitInstruction::Write, vec![]),
        (SubmitInstruction::Enqcmd, vec![Misuse::WrongInstruction]),
    ];
    for ((how, misuses), n) in expected.into_iter().zip(0..) {
        let _ = fixture.observer.offer(how, PORTAL, &copy(n).with_record(record(n)).0, &fixture);
        assert_eq!(fixture.misuses(), misuses, "{how:?}");
    }
}

#[test]
fn a_descriptor_without_a_reported_end_is_a_finding() {
    let fixture = checked();
    let d = copy(0).with_record(record(0));
    let without = |flags: Flags| d.with_flags(d.flags().difference(flags));
    for silent in [
        copy(0),
        without(Flags::REQUEST_COMPLETION_RECORD),
        // The device refuses it, without a record.
        without(Flags::COMPLETION_RECORD_ADDRESS_VALID),
    ] {
        let _ = fixture.offer(silent);
        let findings = fixture.findings();
        assert_eq!(findings.iter().map(|finding| finding.misuse).collect::<Vec<_>>(), [Misuse::NoRecordRequested]);
        assert_eq!(findings[0].latest.descriptor, silent.0);
    }
    // The batch's record reports a member's end.
    assert_eq!(fixture.run(fixture.list(&[copy(0), copy(1)]), 0), 1);
    assert_eq!(fixture.misuses(), []);
}

#[test]
fn a_refused_descriptor_is_reported_once_and_removed() {
    let fixture = Fixture::new(CHECK, Inject::default());
    fixture.device.hold(true);
    for n in 0..16 {
        assert_eq!(fixture.offer(copy(n).with_record(record(n))), Offer::Taken);
    }
    let delayed = Descriptor::fill(1, DST, 64).with_record(record(16));
    for _ in 0..5 {
        assert_eq!(fixture.offer(delayed), Offer::Retry);
    }
    fixture.device.hold(false);
    (0..16).for_each(|n| assert_eq!(fixture.wait(n), 1));
    assert_eq!(fixture.misuses(), [Misuse::WriteAfterWrite]);
    // It is no longer in flight.
    assert_eq!(fixture.run(delayed, 16), 1);
    assert_eq!(fixture.misuses(), []);
}

#[test]
fn a_descriptor_is_held_for_a_time_and_until_older_ones_have_ended() {
    let fixture = checked();
    let check = fixture.observer.check.as_ref().unwrap();
    let arrive = |submission, descriptor: &Descriptor| {
        let log = &fixture.observer.log;
        check.submitted(&NewSubmission {
            file: 5,
            submission,
            descriptor,
            destination: 0,
            single_engine: false,
            is_wrong_instruction: false,
            now_ns: 1000,
            log,
            queue: &fixture,
        });
    };
    arrive(1, &copy(0));
    arrive(2, &copy(1));
    arrive(3, &Descriptor::nop().with_record(record(0)));
    let (hold, limit) = (check::HOLD_NS, check::WAIT_LIMIT_NS);
    let wait = |submission, now_ns| check.must_wait(5, submission, now_ns);
    let end = |submission| check.concluded(5, DescriptorId { submission, member: 0 });
    // The third is not held itself, but waits for the two before it.
    assert_eq!([wait(3, 1000), wait(2, 1000 + hold), wait(1, 999 + hold)], [Some(0), Some(0), Some(1)]);
    assert_eq!([wait(1, 1000 + hold), wait(2, 1000 + hold)], [None, Some(0)]);
    end(1);
    assert_eq!([wait(2, 1000 + hold), wait(3, 1000 + hold)], [None, Some(0)]);
    // The wait for a missing older submission ends at the time limit.
    assert_eq!([wait(3, 999 + limit), wait(3, 1000 + limit)], [Some(0), None]);
    // Submissions that are not in the table, or of another file, are not held.
    assert_eq!([wait(77, 0), check.must_wait(6, 9, 0)], [None, None]);
}
