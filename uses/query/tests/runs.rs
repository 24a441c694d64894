//! Runs queries on threads of this machine: whether blocks are prefetched, arrive late or fail, and whether the device
//! stops, the answer is that of simple loops.
#![cfg(not(loom))]

#[path = "../../../path/mover/tests/common/mod.rs"]
mod common;

use common::device::TestDevice;
use common::{Chance, mover, policy};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_abi::Status;
use telpher_abi::registers::{Command, CommandCode};
use telpher_cache::{Cache, Config, Eviction};
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mem::{Pool, PoolOptions, Region};
use telpher_mover::{Mover, OnFault, Policy, Threshold};
use telpher_os::Nodes;
use telpher_portal::QueueMode;
use telpher_query::{
    Aggregate, Answer, Column, Filter, OnLate, Options, Plan, PrefetchWhen, Query, Role, RunError, Shape, Table, Value,
    column, run,
};

type Source = Arc<Region>;

/// Columns k, a and b with this many rows, the query `select k, sum(b), count(*), max(b) where a <= 49 group by k`, and
/// its answer.
struct Case {
    query: Query,
    answer: BTreeMap<u8, (i128, i128, i64)>,
}

fn case(rows: usize) -> Case {
    let mut chance = Chance::new(11);
    let mut below = |most: u64| i64::try_from(chance.below(most)).unwrap();
    let a: Vec<i64> = (0..rows).map(|_| below(100)).collect();
    let b: Vec<i64> = (0..rows).map(|_| below(1 << 40) - (1 << 39)).collect();
    let k: Vec<u8> = (0..rows).map(|_| b"ANR"[usize::try_from(below(3)).unwrap()]).collect();
    let mut answer = BTreeMap::new();
    for ((k, b), _) in k.iter().zip(&b).zip(&a).filter(|(_, a)| **a <= 49) {
        let (sum, count, max) = answer.entry(*k).or_insert((0, 0, i64::MIN));
        *sum += i128::from(*b);
        *count += 1;
        *max = (*max).max(*b);
    }
    let columns = [Column::of("k", &k), Column::of("a", &a), Column::of("b", &b)].map(Result::unwrap);
    let plan = Plan {
        filters: vec![Filter::at_most("a", 49)],
        group_by: vec!["k".into()],
        aggregates: vec![Aggregate::Sum(column("b")), Aggregate::Count, Aggregate::Max(column("b"))],
    };
    Case { query: plan.on(&Table::new(columns.into()).unwrap()).unwrap(), answer }
}

/// Repeats an attempt with an empty cache until it returns something, for up to a minute. An attempt returns nothing if
/// its threads read every row before one of them began to fetch, which is allowed.
fn until_fetched<T>(cache: &Cache<Source>, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let found = std::iter::from_fn(|| {
        (start.elapsed() < Duration::from_secs(60)).then(|| {
            cache.clear();
            attempt()
        })
    });
    found.flatten().next().expect("within a minute some thread fetches before all rows are read")
}

impl Case {
    fn is_answered_by(&self, answer: &Answer) -> bool {
        let row = |(k, (sum, count, max)): (&u8, &(i128, i128, i64))| {
            (vec![Value::from(i64::from(*k))], vec![Value::from(*sum), Value::from(*count), Value::from(*max)])
        };
        let expected: Vec<_> = self.answer.iter().map(row).collect();
        answer.rows.iter().map(|row| (row.keys.clone(), row.values.clone())).eq(expected)
    }
}

fn pool(len: usize) -> Pool {
    Pool::new(PoolOptions::new(len)).unwrap()
}

fn cache(mover: Mover, len: usize) -> Cache<Source> {
    Cache::new(mover, Config::new([pool(len)])).unwrap()
}

/// Chunks of 512 rows, everything prefetched.
fn always(groups: u32) -> Options {
    let mut options = Options { ahead: PrefetchWhen::Always, ..Options::new(groups) };
    options.shape.chunk = 512;
    options
}

const ROWS: usize = 10_000;
/// Two groups of [`always`] with ten chunks each, columns k and b.
const BLOCKS: u64 = 2 * 10 * 2;
const BYTES: u64 = ROWS as u64 * 9;

#[test]
fn the_first_run_finds_no_block_and_the_second_finds_all() {
    let case = case(ROWS);
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    device.state().manual = true;
    let cache = cache(mover(&device, policy()), 1 << 20);
    let mut options = always(2);
    options.shape.relaxed = false;
    let first = run(&case.query, Some(&cache), &options).unwrap();
    assert!(case.is_answered_by(&first.answer));
    let blocks = first.blocks;
    assert_eq!((blocks.requested, blocks.hits, blocks.late, blocks.absent), (BLOCKS, 0, BLOCKS, 0), "{blocks:?}");
    assert_eq!((blocks.hit_rate(), blocks.bytes_fast, blocks.bytes_source), (Some(0.0), 0, BYTES));
    device.run(usize::MAX);
    let second = run(&case.query, Some(&cache), &options).unwrap();
    assert!(case.is_answered_by(&second.answer));
    let blocks = second.blocks;
    assert_eq!((blocks.requested, blocks.hits, blocks.late, blocks.absent), (BLOCKS, BLOCKS, 0, 0), "{blocks:?}");
    assert_eq!((blocks.hit_rate(), blocks.bytes_fast, blocks.bytes_source), (Some(1.0), BYTES, 0));
    assert_eq!(device.state().taken.len() as u64, BLOCKS, "each was copied once");
}

#[test]
fn copies_not_begun_when_their_rows_are_read_are_cancelled() {
    let case = case(ROWS);
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    device.state().manual = true;
    let mut config = Config::new([pool(1 << 20)]);
    config.in_flight = 4;
    let cache = Cache::new(mover(&device, policy()), config).unwrap();
    let mut options = always(2);
    options.shape.relaxed = false;
    let report = run(&case.query, Some(&cache), &options).unwrap();
    assert!(case.is_answered_by(&report.answer));
    let blocks = report.blocks;
    assert_eq!((blocks.requested, blocks.called_off, blocks.late), (BLOCKS, BLOCKS - 4, 4), "{blocks:?}");
    assert_eq!((cache.stats().in_flight, cache.stats().waiting), (4, 0));
    assert_eq!(blocks.hit_rate(), Some(0.0));
    device.run(usize::MAX);
}

#[test]
fn late_copies_are_waited_for_if_the_options_say_so() {
    let case = case(ROWS);
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    // Strict, so that each block is requested before its rows are read; executed by the thread that checks it.
    let cache = cache(mover(&device, policy()), 1 << 20);
    let mut options = Options { late: OnLate::Wait, ..always(2) };
    options.shape.relaxed = false;
    let report = run(&case.query, Some(&cache), &options).unwrap();
    assert!(case.is_answered_by(&report.answer));
    assert_eq!((report.blocks.hits, report.blocks.hit_rate()), (BLOCKS, Some(1.0)));
}

#[test]
fn the_answer_is_right_after_a_device_stops_mid_query() {
    let case = case(ROWS);
    for late in [OnLate::Source, OnLate::Wait] {
        let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
        device.state().manual = true;
        let cache = cache(mover(&device, policy()), 1 << 20);
        let mut options = Options { late, ..always(2) };
        options.shape.relaxed = false;
        let report = std::thread::scope(|scope| {
            let query = scope.spawn(|| run(&case.query, Some(&cache), &options).unwrap());
            // Some copies are finished, and then some are in flight.
            let mut done = 0;
            while done < 3 {
                done += device.run(1);
            }
            device.stop("wq0.0 is disabled");
            query.join().unwrap()
        });
        assert!(case.is_answered_by(&report.answer), "{late:?}: {:?}", report.blocks);
        cache.clear();
    }
}

#[test]
fn the_answer_is_right_after_model_queues_are_disabled_mid_query() {
    let case = case(1 << 17);
    for runner in [Runner::Inline, Runner::Threaded] {
        let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(runner)).unwrap();
        let queues = device.enabled_queues();
        let portals: Vec<_> = queues.iter().map(|n| device.portal(&format!("wq0.{n}")).unwrap()).collect();
        let mover = Mover::new(portals, Policy { threshold: Threshold::DEVICE, ..Policy::default() });
        let cache = cache(mover, 2 << 20);
        std::thread::scope(|scope| {
            let queries = scope.spawn(|| {
                for _ in 0..5 {
                    let report = run(&case.query, Some(&cache), &always(3)).unwrap();
                    assert!(case.is_answered_by(&report.answer), "{:?}", report.blocks);
                    cache.clear();
                }
            });
            while cache.stats().copies < 20 && !queries.is_finished() {
                std::thread::yield_now();
            }
            device.command(Command::new(CommandCode::ResetDevice, 0)).unwrap();
            queries.join().unwrap();
        });
        assert!(cache.stats().copies >= 20, "{runner:?}: it was stopped in the middle");
    }
}

#[test]
fn blocks_that_cannot_be_copied_are_read_from_the_source() {
    let case = case(ROWS);
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    let b = case.query.table().find("b").unwrap();
    let source = case.query.table().columns()[b].source().as_ptr() as u64;
    (0..20).for_each(|page| device.refuse(source + page * 4096));
    let cache = cache(mover(&device, Policy { on_fault: OnFault::Block, ..policy() }), 1 << 20);
    let options = Options { late: OnLate::Wait, ..always(2) };
    until_fetched(&cache, || {
        let report = run(&case.query, Some(&cache), &options).unwrap();
        assert!(case.is_answered_by(&report.answer));
        assert!(report.blocks.absent >= 20 && report.blocks.hits <= 20, "{:?}", report.blocks);
        (device.state().faulted > 0).then_some(())
    });
}

#[test]
fn a_device_that_reports_copies_it_did_not_make_is_detected_by_impossible_values() {
    let case = case(ROWS);
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    device.state().answers.extend((0..BLOCKS).map(|_| Status::Success));
    let cache = cache(mover(&device, policy()), 1 << 20);
    let mut options = Options { late: OnLate::Wait, ..always(2) };
    options.shape.relaxed = false;
    // The pool's memory is still zero, and no value of k is zero.
    let caught = run(&case.query, Some(&cache), &options).unwrap_err();
    assert!(matches!(caught, RunError::Altered { .. }), "{caught}");
    let without = run(&case.query, None, &options).unwrap();
    assert!(case.is_answered_by(&without.answer));
}

#[test]
fn blocks_already_on_the_tier_s_node_are_not_prefetched() {
    let case = case(ROWS);
    let cache = cache(Mover::cpu(), 1 << 20);
    let options = Options { ahead: PrefetchWhen::WhereApart, ..always(2) };
    let apart = |column: &usize| {
        let source = case.query.table().columns()[*column].source();
        cache.is_apart(source, 0..1).unwrap() != Some(false)
    };
    let report = run(&case.query, Some(&cache), &options).unwrap();
    let blocks = report.blocks;
    let columns_apart = case.query.fetched().iter().filter(|column| apart(column)).count() as u64;
    if Nodes::of_this_machine().count() == 1 {
        assert_eq!((columns_apart, blocks.spared, blocks.hit_rate(), cache.stats().copies), (0, BLOCKS, None, 0));
        // No thread is started that would have nothing to do.
        assert_eq!(report.stage(Role::Fetch).threads, 0);
    }
    assert_eq!(blocks.spared + blocks.requested + blocks.passed, BLOCKS);
}

#[test]
fn impossible_options_are_refused_with_a_remedy() {
    let case = case(10);
    let mut options = Options::new(u32::MAX);
    let refused = run(&case.query, None, &options).unwrap_err();
    assert!(matches!(refused, RunError::Threads { asked, .. } if asked == 2 * u64::from(u32::MAX)), "{refused}");
    options = Options { node: Some(u32::MAX), ..Options::new(2) };
    let refused = run(&case.query, None, &options).unwrap_err();
    assert!(matches!(refused, RunError::Pin { node: u32::MAX, .. }), "{refused}");
    let home = Nodes::of_this_machine().of_this_thread();
    assert!(case.is_answered_by(&run(&case.query, None, &Options { node: home, ..Options::new(2) }).unwrap().answer));
}

#[test]
fn a_panicking_policy_ends_all_threads_of_the_query() {
    let case = case(ROWS);
    let mut config = Config::new([pool(16 << 10)]);
    config.eviction = Eviction::Worth(Arc::new(|_| panic!("injected by the test")));
    let cache = Cache::new(Mover::cpu(), config).unwrap();
    for relaxed in [true, false] {
        let mut options = always(2);
        options.shape.relaxed = relaxed;
        let panic = until_fetched(&cache, || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&case.query, Some(&cache), &options))).err()
        });
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"injected by the test"));
    }
}

#[test]
fn stage_times_are_within_the_query_s_time() {
    let case = case(1 << 17);
    let cache = cache(Mover::cpu(), 4 << 20);
    let mut options = always(2);
    options.shape.scanners = 2;
    let report = run(&case.query, Some(&cache), &options).unwrap();
    for (role, threads) in [(Role::Scan, 4), (Role::Fetch, 2), (Role::Aggregate, 2)] {
        let stage = report.stage(role);
        assert_eq!((stage.role, stage.threads), (role, threads));
        assert!(
            stage.longest > Duration::ZERO && stage.longest <= report.time && stage.busy <= stage.longest * threads
        );
        assert!(stage.busy + stage.waited <= report.time * threads, "{stage:?} of {:?}", report.time);
    }
    // A thread that is alone in its group has not waited.
    assert!(report.stage(Role::Scan).waited + report.stage(Role::Aggregate).waited > Duration::ZERO);
    assert_eq!(report.stage(Role::Fetch).waited, Duration::ZERO, "relaxed");
    let without = run(&case.query, None, &options).unwrap();
    assert_eq!((without.stage(Role::Fetch).threads, without.blocks.hit_rate()), (0, None));
}

fn shapes() -> impl Strategy<Value = Shape> {
    let threads = || 0_u32..4;
    (threads(), 1_u64..3000, threads(), threads(), threads(), any::<bool>(), any::<bool>()).prop_map(
        |(groups, chunk, scanners, fetchers, aggregators, relaxed, overlapping)| Shape {
            rows: 0,
            groups,
            chunk,
            scanners,
            fetchers,
            aggregators,
            relaxed,
            overlapping,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn the_answer_is_independent_of_how_the_work_is_divided(
        rows in prop_oneof![0_usize..3, 0_usize..9000], shape in shapes(), waits in any::<bool>(), apart in any::<bool>(),
        room in prop_oneof![Just(0_usize), 100_usize..40_000, Just(1 << 20)], device in any::<bool>(),
    ) {
        let case = case(rows);
        let device = device.then(|| Arc::new(TestDevice::new(QueueMode::Shared, 8)));
        let mover = device.as_ref().map_or_else(Mover::cpu, |device| mover(device, policy()));
        let cache = cache(mover, room);
        let late = if waits { OnLate::Wait } else { OnLate::Source };
        let ahead = if apart { PrefetchWhen::WhereApart } else { PrefetchWhen::Always };
        let options = Options { shape, ahead, late, node: None, traffic: true };
        for cache in [None, Some(&cache), Some(&cache)] {
            let report = run(&case.query, cache, &options).unwrap();
            prop_assert!(case.is_answered_by(&report.answer), "{:?}", report);
            prop_assert_eq!(&report.answer, &case.query.alone(1));
            let traffic = report.traffic.unwrap();
            // Column a is scanned, k and b are aggregated where a row of a line is selected; lines begin with parts.
            prop_assert_eq!(traffic.scanned, if case.query.scanned().is_empty() { 0 } else { rows as u64 * 8 });
            prop_assert!(traffic.again == 0 && traffic.fetched <= rows as u64 * 9);
            prop_assert_eq!(traffic.fetched == 0, case.answer.is_empty());
            let blocks = report.blocks;
            let columns = if cache.is_some() && shape.fetchers > 0 { case.query.fetched().len() as u64 } else { 0 };
            let shape = Shape { rows: rows as u64, ..shape };
            let chunks = (0..shape.groups.max(1)).flat_map(|group| (0..shape.chunks()).map(move |n| shape.chunk(group, n)));
            let chunks = chunks.filter(|chunk| !chunk.rows.is_empty()).count() as u64;
            prop_assert_eq!(blocks.requested + blocks.spared + blocks.passed, chunks * columns);
            prop_assert!(blocks.called_off <= blocks.requested);
        }
        cache.clear();
    }
}
