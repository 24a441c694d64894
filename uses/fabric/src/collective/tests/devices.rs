//! Groups whose chunks a modelled device copies.

use super::*;
use crate::copier::{Copier, DEFAULT_SHORTEST};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};
use telpher_abi::Descriptor;
use telpher_device::{ModelDevice, ModelOptions};
use telpher_mover::{Channel, ChannelPolicy};
use telpher_portal::{Health, Offer, Portal, QueueInfo, RecordCell, Submission, Watch};

/// Around the shortest operation that a device may copy for, and the longest chunks.
const LENGTHS: [usize; 7] = [65_528, 65_536, 65_544, 131_072, 262_152, 700_000, 1 << 20];

fn copier(portal: Arc<dyn Portal>, capacity: u32) -> Copier {
    let policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
    Copier::device(Channel::new(portal, capacity, policy).unwrap(), DEFAULT_SHORTEST)
}

/// Calls each operation once, and checks the results.
fn check_operations(group: &mut Group, len: usize, seed: u64) {
    let (rank, ranks, count) = (group.rank(), group.ranks(), len / 8);
    let kind = (Reduction::Sum, Number::F64);
    let expected = expected(Reduction::Sum, Number::F64, ranks, count, seed);
    let own = contribution(Number::F64, rank, count, seed);
    let (mut from, mut to) = (own.clone(), vec![0; len]);
    group.forget_times();
    group.all_reduce(kind, buffer(&mut from), buffer(&mut to), &mut idle()).unwrap();
    assert!(to == expected && from == own, "AllReduce of {len} bytes");
    group.forget_times();
    let same = buffer(&mut from);
    group.all_reduce(kind, same, same, &mut idle()).unwrap();
    assert!(from == expected, "AllReduce of {len} bytes in place");
    let root = count % ranks;
    from.clone_from(&own);
    to.fill(0);
    group.forget_times();
    let receives = (rank == root).then(|| buffer(&mut to));
    group.reduce(kind, root, buffer(&mut from), receives, &mut idle()).unwrap();
    assert!(if rank == root { to == expected } else { to == vec![0; len] }, "Reduce of {len} bytes");
    group.forget_times();
    from.clone_from(&own);
    group.broadcast(root, buffer(&mut from), &mut idle()).unwrap();
    assert!(from == contribution(Number::F64, root, count, seed), "broadcast of {len} bytes");
    let mut all = vec![0; ranks * len];
    from.clone_from(&own);
    group.forget_times();
    group.all_gather(buffer(&mut from), buffer(&mut all), &mut idle()).unwrap();
    let gathered: Vec<u8> = (0..ranks).flat_map(|rank| contribution(Number::F64, rank, count, seed)).collect();
    assert!(all == gathered, "AllGather of {len} bytes");
}

#[test]
fn a_device_copies_chunks_and_the_results_stay_right() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    for ranks in [2, 3, 5] {
        // With room for one copy, the CPU makes most of them.
        for capacity in [1, 64] {
            let by_device = members(ranks, |mut group| {
                group.copy_with(copier(device.portal("wq0.0").unwrap(), capacity));
                for (seed, len) in (0..).zip(LENGTHS) {
                    check_operations(&mut group, len, seed);
                }
                group.copies_by_device()
            });
            assert!(by_device.iter().all(|copies| *copies > 0), "{by_device:?}");
        }
    }
}

#[test]
fn members_with_and_without_a_device_understand_each_other() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    members(3, |mut group| {
        if group.rank() == 1 {
            group.copy_with(copier(device.portal("wq0.0").unwrap(), 64));
        }
        for (seed, len) in (0..).zip(LENGTHS) {
            check_operations(&mut group, len, seed);
        }
        assert_eq!(group.copies_by_device() > 0, group.rank() == 1);
    });
}

#[test]
fn a_buffer_that_a_device_cannot_access_fails_for_all() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    for root in [0, 1] {
        let answers = members(2, |mut group| {
            group.copy_with(copier(device.portal("wq0.0").unwrap(), 64));
            if group.rank() == 1 {
                let mut bytes = vec![0; 1 << 20];
                return group.broadcast(root, buffer(&mut bytes), &mut idle()).err();
            }
            #[allow(unsafe_code, reason = "an address that is not mapped")]
            // SAFETY: no reference to the first page exists.
            let nothing = unsafe { Buffer::vouch(64, 1 << 20) };
            group.broadcast(root, nothing, &mut idle()).err()
        });
        assert_eq!(answers[0], Some(GroupError::BadBuffer { address: 64 }));
        assert!(matches!(answers[1], Some(GroupError::Failed)), "{answers:?}");
    }
}

#[test]
fn a_device_is_opened_by_the_first_long_operation() {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    fn open() -> Copier {
        OPENED.fetch_add(1, Ordering::Relaxed);
        let device = ModelDevice::start(ModelOptions::default()).unwrap();
        copier(device.portal("wq0.0").unwrap(), 64)
    }
    members(2, |mut group| {
        group.open_when_needed(open);
        let mut bytes = vec![7; 65_528];
        group.broadcast(0, buffer(&mut bytes), &mut idle()).unwrap();
        assert!(!group.has_device());
        check_operations(&mut group, 65_536, 1);
        check_operations(&mut group, 131_072, 1);
        assert!(group.has_device() && group.copies_by_device() > 0);
    });
    assert_eq!(OPENED.load(Ordering::Relaxed), 2, "once for each member");
}

/// A portal that keeps what it takes until it may pass it on.
#[derive(Debug)]
struct Keeping {
    inner: Arc<dyn Portal>,
    kept: Mutex<Vec<Descriptor>>,
    /// True once an operation has been left.
    may_end: AtomicBool,
    /// Times that the channel has asked since then.
    asked: AtomicU64,
    passed_on: AtomicU64,
}

/// Questions that are answered with nothing.
const UNANSWERED: u64 = 1000;

#[allow(unsafe_code, reason = "passes descriptors on")]
// SAFETY: the inner portal executes what the caller vouched for, while the record is not written.
unsafe impl Portal for Keeping {
    fn info(&self) -> &QueueInfo {
        self.inner.info()
    }

    fn offer(&self, submission: &Submission) -> Offer {
        self.kept.lock().unwrap().push(*submission.descriptor());
        Offer::Taken
    }

    fn drive(&self) {
        if self.may_end.load(Ordering::Relaxed) && self.asked.fetch_add(1, Ordering::Relaxed) >= UNANSWERED {
            for descriptor in self.kept.lock().unwrap().drain(..) {
                // SAFETY: the caller of `offer` has vouched for it.
                while !matches!(self.inner.offer(&unsafe { Submission::vouch(descriptor) }), Offer::Taken) {}
                self.passed_on.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.inner.drive();
    }

    fn watch(&self, record: &RecordCell, how: Watch, at_most: Duration) {
        self.inner.watch(record, how, at_most);
    }

    fn health(&self) -> Health {
        self.inner.health()
    }
}

fn keeping(device: &ModelDevice) -> Arc<Keeping> {
    Arc::new(Keeping {
        inner: device.portal("wq0.0").unwrap(),
        kept: Mutex::default(),
        may_end: AtomicBool::new(false),
        asked: AtomicU64::new(0),
        passed_on: AtomicU64::new(0),
    })
}

/// Far more than a member takes to notice that another one has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// The member that failed told the others only after its device had ended.
#[test]
fn the_others_learn_of_a_failure_before_the_device_of_the_failed_member_ends() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    let keeping = keeping(&device);
    members(2, |mut group| {
        let mut bytes = vec![7; 1 << 20];
        let same = buffer(&mut bytes);
        let reduces = (Reduction::Sum, Number::U8);
        if group.rank() == 1 {
            let start = Instant::now();
            // Lets the test end if it has failed.
            let mut idle = || keeping.may_end.store(start.elapsed() > LIMIT, Ordering::Relaxed);
            assert_eq!(group.all_reduce(reduces, same, same, &mut idle), Err(GroupError::Failed));
            assert_eq!(keeping.passed_on.load(Ordering::Relaxed), 0, "the device still has its copies");
            keeping.may_end.store(true, Ordering::Relaxed);
            return;
        }
        // The channel does not give the queue up meanwhile.
        let policy = ChannelPolicy { bursts: false, limit: 60 * LIMIT, ..ChannelPolicy::default() };
        let channel = Channel::new(Arc::clone(&keeping) as Arc<dyn Portal>, 64, policy).unwrap();
        group.copy_with(Copier::device(channel, DEFAULT_SHORTEST));
        let mut idle = || panic!("the caller's function fails");
        let left = catch_unwind(AssertUnwindSafe(|| group.all_reduce(reduces, same, same, &mut idle)));
        assert!(left.is_err());
        assert!(keeping.passed_on.load(Ordering::Relaxed) > 0, "the device was given copies");
    });
}

#[test]
fn no_operation_is_left_while_a_device_may_use_its_buffer() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    let keeping = keeping(&device);
    members(2, |mut group| {
        if group.rank() == 1 {
            // It never calls the operation.
            return;
        }
        group.copy_with(copier(Arc::clone(&keeping) as Arc<dyn Portal>, 64));
        let mut bytes = vec![7; 1 << 20];
        let mut idle = || {
            keeping.may_end.store(true, Ordering::Relaxed);
            panic!("the caller's function fails");
        };
        let same = buffer(&mut bytes);
        let reduces = (Reduction::Sum, Number::U8);
        let left = catch_unwind(AssertUnwindSafe(|| group.all_reduce(reduces, same, same, &mut idle)));
        assert!(left.is_err());
        assert!(keeping.passed_on.load(Ordering::Relaxed) > 0, "the device was given copies");
        assert!(keeping.kept.lock().unwrap().is_empty());
        // The model has executed them: its records were read before the operation was left.
        assert_eq!(group.copies_by_device(), keeping.passed_on.load(Ordering::Relaxed));
        assert_eq!(group.broadcast(0, buffer(&mut bytes), &mut || ()), Err(GroupError::Unusable));
    });
}
