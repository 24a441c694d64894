//! One input on one cache: after any calls and any behaviour of the device, every byte read is the source's, and
//! nothing leaks.
//!
//! An input is a list of steps, each a byte and its operands: request a block, prefetch, cancel, poll, wait,
//! invalidate, change data through [`Versioned`], use a [`WriteBack`] block. On the other side the device executes some
//! descriptors, faults, refuses, answers with an error, or stops. Used by the libFuzzer target and by the bounded test
//! `uses/cache/tests/fuzz_cache.rs`.

#[allow(dead_code, clippy::cast_possible_truncation, reason = "only a part is used; tests truncate small numbers")]
#[path = "../path/mover/tests/common/device.rs"]
mod device;
#[allow(dead_code, clippy::cast_possible_truncation, reason = "only a part is used; tests truncate small numbers")]
#[path = "../path/mover/tests/common/naive.rs"]
mod naive;

use device::TestDevice;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use telpher_abi::Status;
use telpher_cache::{Cache, Config, Eviction, Find, Handle, Placement, Prefetch, Priority, Versioned, WriteBack};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::{ManualClock, Mover, OnFault, Policy, Threshold};
use telpher_portal::{Portal, QueueMode};

type Source = Arc<Vec<u8>>;

/// Bytes of the column; ranges begin and end at any byte.
const COLUMN: usize = 1 << 16;
/// Bytes of data that changes.
const CHANGING: usize = 1 << 13;
/// Bytes of the written-back block.
const BLOCK: usize = 3 * 4096 + 100;
/// Handles and prefetches kept at a time.
const KEPT: usize = 12;
/// Most steps of an input: longer inputs find nothing new.
const STEPS: usize = 400;

/// The rest of an input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % n
    }

    /// A range within `len` bytes; long ranges are rarer. Sometimes it is empty, reversed or outside.
    fn range(&mut self, len: usize) -> Range<usize> {
        let (start, shape) = (self.below(len), self.byte());
        match shape {
            0 => start..start,
            1 => start..start.saturating_sub(9),
            2 => start..len + 1 + start,
            3 => usize::MAX..usize::MAX,
            _ => start..(start + 1 + self.below(1 << (4 + shape % 11))).min(len),
        }
    }
}

/// A handle, its range, and the events since its creation.
struct Kept {
    handle: Handle<Source>,
    range: Range<usize>,
    /// A byte of it was invalidated since.
    invalidated: bool,
    /// Address of its copy.
    fast: Option<u64>,
}

struct Fixture {
    device: Arc<TestDevice>,
    mover: Mover,
    /// None once it was dropped.
    cache: Option<Cache<Source>>,
    pools: Vec<Pool>,
    column: Source,
    kept: Vec<Kept>,
    ahead: Vec<Prefetch<Source>>,
    changing: Option<(Versioned<Vec<u8>>, Vec<u8>)>,
    block: Option<(WriteBack<Vec<u8>>, Vec<u8>)>,
    /// Accesses, including weak ones, that were not refused.
    asked: u64,
}

/// Runs one input; panics if a promise is broken.
pub(crate) fn play(input: &[u8]) {
    let mut input = Input(input);
    let mut scene = Fixture::new(&mut input);
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        scene.step(&mut input);
        scene.check();
    }
    scene.end();
}

impl Fixture {
    fn new(input: &mut Input<'_>) -> Self {
        let device = Arc::new(TestDevice::new(QueueMode::Shared, 1 + u32::from(input.byte() % 32)));
        device.state().manual = true;
        let on_fault = [OnFault::FinishOnCpu, OnFault::TouchAndResubmit { limit: 3 }, OnFault::Block];
        let policy = Policy {
            threshold: Threshold::DEVICE,
            on_fault: on_fault[usize::from(input.byte()) % 3],
            ..Policy::default()
        };
        let clock = Arc::new(ManualClock::new(Duration::from_micros(1)));
        let mover = Mover::with_clock(vec![Arc::clone(&device) as Arc<dyn Portal>], policy, clock);
        let column: Source = Arc::new((0..COLUMN).map(right).collect());
        let shape = usize::from(input.byte());
        let tiers = 1 + shape % 2;
        let pools: Vec<Pool> = (0..tiers)
            .map(|tier| Pool::new(PoolOptions::new((1 << 12) << (shape / 2 % 4 + tier))).expect("some pages"))
            .collect();
        let mut config = Config::new(pools.iter().cloned());
        config.in_flight = usize::from(input.byte() % 5);
        config.eviction = match input.byte() % 4 {
            0 => Eviction::LeastRecentlyUsed,
            1 => Eviction::FirstCome,
            2 => Eviction::Largest,
            _ => Eviction::Worth(Arc::new(|resident| resident.address ^ resident.len)),
        };
        config.placement = match input.byte() % 3 {
            0 => Placement::Near,
            1 => Placement::Fixed(tiers - 1),
            _ => Placement::Interleaved { bytes: u64::from(input.byte()) << 8 },
        };
        let cache = Cache::new(mover.clone(), config).expect("both tiers exist");
        let changing = (Versioned::new(&cache, vec![0; CHANGING]), vec![0; CHANGING]);
        let home: Vec<u8> = (0..BLOCK).map(right).collect();
        let pool = Pool::new(PoolOptions::new(1 << 14)).expect("some pages");
        device.state().manual = false;
        let block = WriteBack::fetch(&mover, &pool, home.clone()).expect("the device copies it");
        device.state().manual = true;
        Fixture {
            device,
            mover,
            cache: Some(cache),
            pools,
            column,
            kept: Vec::new(),
            ahead: Vec::new(),
            changing: Some(changing),
            block: Some((block, home)),
            asked: 0,
        }
    }

    /// Calls `wait` with a device that works whenever a thread waits, since no other thread does.
    fn waiting<T>(&mut self, wait: impl FnOnce(&mut Self) -> T) -> T {
        self.device.state().manual = false;
        let result = wait(self);
        self.device.state().manual = true;
        result
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 26 {
            0..=4 => self.access(input),
            5 | 6 => self.prefetch(input),
            7 => {
                if let Some(at) = pick(&self.ahead, input) {
                    let _ = self.ahead.swap_remove(at).cancel();
                }
            }
            8 => {
                if let Some(at) = pick(&self.ahead, input) {
                    let _ = self.ahead[at].is_there();
                }
            }
            9 | 10 => {
                if let Some(at) = pick(&self.kept, input) {
                    drop(self.kept.swap_remove(at));
                }
            }
            11 => self.look(input),
            12 => {
                if let Some(at) = pick(&self.kept, input) {
                    let fast = self.waiting(|scene| scene.kept[at].handle.wait_copy());
                    let handle = &self.kept[at].handle;
                    assert!(handle.copy_has_ended() && handle.is_fast() == fast);
                }
            }
            13 => self.invalidate(input),
            14 => {
                let cache = self.cache.as_ref();
                let _ = cache.map(|cache| if input.byte().is_multiple_of(2) { cache.flush() } else { cache.clear() });
            }
            15 => self.mover.drive(),
            16 | 17 => {
                let _ = self.device.run(usize::from(input.byte() % 8));
            }
            18..=21 => self.misbehave(input),
            22 | 23 => self.change(input),
            24 => self.write_back(input),
            // Everything else continues without its cache.
            _ if input.byte() == 7 => {
                self.ahead.clear();
                self.changing = None;
                self.cache = None;
            }
            _ => {
                if let Some(cache) = &self.cache {
                    cache.drive();
                }
            }
        }
    }

    fn access(&mut self, input: &mut Input<'_>) {
        let Some(cache) = &self.cache else { return };
        let range = input.range(COLUMN);
        let found = match input.byte() % 8 {
            0 => cache.peek(&self.column, range.clone()),
            1 => cache.access_in(usize::from(input.byte() % 3), &self.column, range.clone()).map(Some),
            _ => cache.access(&self.column, range.clone()).map(Some),
        };
        let Ok(found) = found else { return };
        self.asked += 1;
        let Some(handle) = found else { return };
        assert!(!handle.is_stale(), "no access returns data known to be stale");
        assert_eq!(handle.len(), range.len());
        if self.kept.len() == KEPT {
            drop(self.kept.remove(0));
        }
        self.kept.push(Kept { handle, range, invalidated: false, fast: None });
    }

    fn prefetch(&mut self, input: &mut Input<'_>) {
        let Some(cache) = &self.cache else { return };
        let (range, priority) = (input.range(COLUMN), Priority(input.byte()));
        if self.ahead.len() == KEPT {
            drop(self.ahead.remove(0));
        }
        self.ahead.extend(cache.prefetch(&self.column, range, priority));
    }

    fn look(&mut self, input: &mut Input<'_>) {
        let Some(at) = pick(&self.kept, input) else { return };
        let kept = &self.kept[at];
        match input.byte() % 3 {
            0 => {
                let _ = kept.handle.copy_has_ended();
            }
            1 => {
                let future = pin!(kept.handle.wait_copy_async());
                let _ = future.poll(&mut Context::from_waker(Waker::noop()));
            }
            _ => {
                let copy = Kept { handle: kept.handle.clone(), range: kept.range.clone(), ..*kept };
                self.kept[at] = copy;
            }
        }
    }

    fn invalidate(&mut self, input: &mut Input<'_>) {
        let Some(cache) = &self.cache else { return };
        let range = input.range(COLUMN);
        if cache.invalidate(&self.column, range.clone()).is_ok() {
            for kept in &mut self.kept {
                kept.invalidated |= kept.range.start < range.end && range.start < kept.range.end;
            }
        }
    }

    /// The device's side.
    fn misbehave(&mut self, input: &mut Input<'_>) {
        let errors = [
            Status::PageFaultRefused,
            Status::BadOpcode,
            Status::InvalidFlags,
            Status::HardwareReadError,
            Status::HardwareWriteError,
            Status::TranslationFailure,
            Status::Overlap,
        ];
        let (what, operand) = (input.byte() % 8, input.byte());
        let page = self.column.as_ptr() as u64 + (u64::from(operand) << 12) % COLUMN as u64;
        let copy = self.kept.iter().find_map(|kept| kept.fast);
        match what {
            0 => self.device.fault(page, 1 + u32::from(operand % 4)),
            1 => self.device.refuse(page),
            2 => self.device.fault(copy.unwrap_or(page), 1),
            3 => self.device.state().answers.extend([errors[usize::from(operand) % errors.len()]]),
            4 => self.device.state().retries = u64::from(operand),
            // Permanent: to a mover a re-enabled queue is a new one.
            5 if operand % 8 == 0 => self.device.stop("as the input wants it"),
            _ => self.device.state().faults.clear(),
        }
    }

    fn change(&mut self, input: &mut Input<'_>) {
        let Some((data, expected)) = self.changing.take() else { return };
        let mut expected = expected;
        match input.byte() % 4 {
            0 => {
                let (range, byte) = (input.range(CHANGING), input.byte());
                self.waiting(|_| {
                    let mut writing = data.write();
                    if let (Some(bytes), Some(model)) = (writing.get_mut(range.clone()), expected.get_mut(range)) {
                        bytes.fill(byte);
                        model.fill(byte);
                    }
                });
            }
            waits => {
                let (range, reading) = (input.range(CHANGING), data.read());
                assert_eq!(reading.bytes(), expected);
                if let Ok(lent) = reading.access(range.clone()) {
                    self.asked += 1;
                    assert_eq!(lent.location().bytes(), &expected[range.clone()]);
                    if waits == 1 {
                        self.waiting(|_| assert_eq!(lent.wait().bytes(), &expected[range]));
                    }
                }
            }
        }
        self.changing = Some((data, expected));
    }

    fn write_back(&mut self, input: &mut Input<'_>) {
        let Some((mut block, mut expected)) = self.block.take() else { return };
        match input.byte() % 6 {
            what @ 0..3 => {
                let find = [Find::Written, Find::Differing, Find::Anywhere][usize::from(what)];
                let unsynced = block.unsynced();
                match self.waiting(|_| block.sync(find)) {
                    Ok(_) => assert!(block.home() == expected && block.unsynced() == 0),
                    Err(_) => assert!(block.unsynced() <= unsynced || find == Find::Anywhere),
                }
            }
            3 => {
                self.device.fault(block.home().as_ptr() as u64 + input.below(BLOCK) as u64, 1);
            }
            _ => {
                let (start, byte) = (input.below(BLOCK), input.byte());
                let range = start..(start + input.below(6000)).min(BLOCK);
                block.write(range.clone()).fill(byte);
                expected[range].fill(byte);
            }
        }
        assert_eq!(block.bytes(), expected);
        self.block = Some((block, expected));
    }

    /// Invariants after each step.
    fn check(&mut self) {
        for kept in &mut self.kept {
            let (handle, range) = (&kept.handle, kept.range.clone());
            let location = handle.location();
            assert!(location.bytes() == &self.column[range], "a byte differs from the source");
            assert!(kept.fast.is_none_or(|before| before == handle.address()), "a copy moved");
            if location.is_fast() {
                kept.fast = Some(handle.address());
            }
            assert!(!kept.invalidated || handle.is_stale() || !location.is_fast(), "stale data is not reported");
        }
        if let Some(cache) = &self.cache {
            let stats = cache.stats();
            assert_eq!(stats.hits + stats.misses, self.asked);
            let lent: usize = self.pools.iter().map(Pool::lent).sum();
            assert_eq!(stats.bytes, lent as u64);
            assert!(
                stats.in_flight + stats.waiting + stats.copies + stats.fallbacks() <= stats.misses + stats.prefetches
            );
        }
    }

    /// Drops everything, and the device does its remaining work.
    fn end(mut self) {
        *self.device.state() = device::State::default();
        // The descriptors in its queue are lost with its state, as after a reset: the device must report it.
        self.device.stop("the input has ended");
        if let Some((mut block, expected)) = self.block.take() {
            assert!(block.sync(Find::Written).is_ok(), "the CPU copies");
            assert_eq!(block.into_home().ok(), Some(expected));
        }
        if let Some((data, expected)) = self.changing.take() {
            assert_eq!(data.into_inner(), expected);
        }
        for kept in self.kept.drain(..) {
            assert!(kept.handle.wait().bytes() == &self.column[kept.range]);
        }
        self.ahead.clear();
        drop(self.cache.take());
        // The mover checks only some of its orphaned buffers at a time.
        for _ in 0..3000 {
            self.mover.drive();
        }
        assert_eq!(self.mover.orphaned(), 0, "buffers are still kept for a stopped device");
        assert!(self.pools.iter().all(|pool| pool.lent() == 0), "memory leaked");
        assert_eq!(Arc::strong_count(&self.column), 1, "a reference to the source leaked");
    }
}

/// The index of the element that the input selects; `None` if there are none.
fn pick<T>(of: &[T], input: &mut Input<'_>) -> Option<usize> {
    (!of.is_empty()).then(|| usize::from(input.byte()) % of.len())
}

/// A byte that depends on its position.
fn right(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13).to_le_bytes()[0]
}
