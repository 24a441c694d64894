//! The query with a prefetched second column: times and hits.

use telpher_device::{Config, WqMode};
use telpher_query::{Options, Plan, generate, run};
use telpher_sim::{
    App, HbmCacheMode, LateCopy, Machine, Pages, Picos, PlanTraffic, Prefetch, Query, QueueId, Scenario, Workload,
};

/// The results of a query on the thesis' machine: each of its eight devices with one shared queue before one engine
/// (§3.1).
fn measured(query: Query) -> impl Fn(&str) -> f64 {
    let machine = Machine::built_in("xeon-max-9468").unwrap();
    let mut scenario = Scenario::on(machine, Config::single(WqMode::Shared, 128, 1));
    scenario.devices = vec![scenario.devices[0].clone(); 8];
    let mut outcome = scenario.with("query", 1, Workload::App(App::Query(query))).simulate().unwrap();
    let measures = outcome.loads.remove(0).measures;
    move |name| measures.iter().find(|measure| measure.name == name).unwrap().value
}

/// The query with prefetching and a change to it.
fn fetched(b: usize, change: impl FnMut(&mut Prefetch)) -> Query {
    let mut query = Query::prefetching(b);
    query.prefetch.iter_mut().for_each(change);
    query
}

/// Milliseconds of reading both columns at a rate in GB/s.
fn both_at(gigabytes_per_second: f64) -> f64 {
    2.0 * (4u64 << 30) as f64 / gigabytes_per_second / 1e6
}

#[test]
fn a_query_takes_the_time_of_memory_or_threads_for_both_columns() {
    // Twelve times `most` is the limit of the threads. Cores read 68.0 GB/s of a DDR node together. Twelve cores have
    // 3072 B in flight each, for 125 ns and the queueing latency 18 ns · u/(1-u): of that they get the share u.
    let near = Query::of_two_columns();
    let threads = 12.0 * near.most as f64 / 1e9;
    let outstanding = |share: f64| 12.0 * 3072.0 / (125.0 + 18.0 * share / (1.0 - share));
    let (mut low, mut high) = (0.0, 31.0 / 32.0);
    for _ in 0..60 {
        let share: f64 = (low + high) / 2.0;
        *(if outstanding(share) > share * 68.0 { &mut low } else { &mut high }) = share;
    }
    for (query, rate) in [(near.clone(), low * 68.0), (Query { b: 8, ..near }, threads)] {
        let deviation = measured(query)("query") / both_at(rate) - 1.0;
        assert!(deviation.abs() < 0.02, "{:.1} % from the formula, {rate} GB/s", deviation * 100.0);
    }
}

/// Twice as many hardware threads of the same cores have no more requests in flight: devices get as much beside them.
/// As separate cores they would get twice as much as before.
#[test]
fn hardware_threads_of_a_core_share_its_bytes_in_flight() {
    let twice = |cores| {
        let most = Query::of_two_columns().most / 2;
        Query { cores, hardware_threads: 24, most, ..Query::prefetching(0) }
    };
    let (shared, own, single) = (measured(twice(12)), measured(twice(24)), measured(Query::prefetching(0)));
    assert!(
        (shared("cache hits") - single("cache hits")).abs() < 5.0,
        "{} and {} %",
        shared("cache hits"),
        single("cache hits")
    );
    assert!(own("cache hits") < shared("cache hits") - 5.0, "{} %", own("cache hits"));
    assert!(own("SCAN_a") < shared("SCAN_a"), "{} and {} ms", own("SCAN_a"), shared("SCAN_a"));
}

/// By the clock, a stage takes the time with a hardware thread and the waits for other turns: longer with short turns,
/// and no longer if no thread has to wait.
#[test]
fn time_by_the_clock_includes_other_threads_turns() {
    let with = |hardware_threads, turn| {
        measured(Query { hardware_threads, turn: Picos::from_nanos(turn), ..Query::prefetching(0) })
    };
    let (short, long, alone) = (with(24, 3_000_000), with(24, 9_000_000), with(96, 3_000_000));
    for stage in ["SCAN_a", "AGGREGATE"] {
        let clock = format!("{stage} by the clock");
        assert!(short(&clock) > 1.2 * short(stage), "{stage}: {} of {} ms", short(&clock), short(stage));
        assert!(short(&clock) > long(&clock) && long(&clock) >= long(stage), "{stage}: {} ms", long(&clock));
        assert!((alone(&clock) / alone(stage) - 1.0).abs() < 1e-9, "{stage}: {} of {} ms", alone(&clock), alone(stage));
    }
}

#[test]
fn scanning_is_faster_when_sums_use_other_memory() {
    let (slow, fast) = (measured(Query::of_two_columns()), measured(Query { b: 8, ..Query::of_two_columns() }));
    assert!(fast("SCAN_a") < 0.9 * slow("SCAN_a") && fast("AGGREGATE") < 0.9 * slow("AGGREGATE"));
}

#[test]
fn copies_done_in_time_are_hits_and_late_copies_are_not_awaited() {
    let (near, far) = (measured(Query::prefetching(0)), measured(Query::prefetching(1)));
    // Copies from the node of column a slow the scan down; from another node they gain more than they cost.
    let without = measured(Query::of_two_columns())("query");
    assert!(near("query") > without && far("query") < without, "{} and {} ms", near("query"), far("query"));
    assert!(near("SCAN_a") > 1.2 * far("SCAN_a"));
    for of in [&near, &far] {
        assert!((70.0..95.0).contains(&of("cache hits")) && of("refused") == 0.0, "{} %", of("cache hits"));
        assert!(of("SCAN_b") < 0.01 * of("query"), "submitting threads do not wait: {} ms", of("SCAN_b"));
    }
    let late = measured(fetched(1, |it| it.queues.truncate(1)));
    assert!(late("cache hits") < far("cache hits") - 10.0, "{} %", late("cache hits"));
}

#[test]
fn a_burst_of_small_chunks_overflows_the_queues() {
    let small = measured(Query { chunk: 1 << 20, ..Query::prefetching(1) });
    assert!(
        small("refused") > 0.0 && small("SCAN_b") > 1.0,
        "{} refused, {} ms, hits {}",
        small("refused"),
        small("SCAN_b"),
        small("cache hits")
    );
}

#[test]
fn copies_that_wait_for_pages_are_too_late() {
    let missing = measured(fetched(1, |it| it.mapped = false));
    let without = measured(Query { b: 1, ..Query::of_two_columns() })("query");
    assert!(missing("cache hits") < 10.0, "{} %", missing("cache hits"));
    assert!((missing("query") / without - 1.0).abs() < 0.1, "{} of {without} ms", missing("query"));
}

#[test]
fn late_copies_can_be_awaited_and_polling_keeps_the_hardware_thread() {
    let late = |late| measured(fetched(0, move |it| it.late = late));
    let (missed, polled, slept) = (late(LateCopy::Miss), late(LateCopy::Poll), late(LateCopy::Interrupt));
    assert!(missed("cache hits") < 100.0 && polled("cache hits") == 100.0 && slept("cache hits") == 100.0);
    // All of b from HBM: the limit of the threads.
    let reading = both_at(12.0 * Query::of_two_columns().most as f64 / 1e9) / 2.0;
    let off = slept("AGGREGATE") / reading - 1.0;
    assert!(off.abs() < 0.02, "{:.1} % from the formula", off * 100.0);
    assert!(polled("AGGREGATE") > 1.1 * reading, "{} ms, {reading} of them reading", polled("AGGREGATE"));
    assert!(slept("query") < missed("query"), "nothing is read from the busy node twice");
}

#[test]
fn keeping_step_copies_the_next_chunk_first() {
    for b in [0, 1] {
        let (relaxed, strict) = (measured(Query::prefetching(b)), measured(fetched(b, |it| it.relaxed = false)));
        assert!(strict("cache hits") > relaxed("cache hits"), "{} %", strict("cache hits"));
        assert!(strict("query") < relaxed("query"), "{} and {} ms", strict("query"), relaxed("query"));
    }
}

#[test]
fn sequential_stages_read_as_much_and_idle_more() {
    let near = Query::of_two_columns();
    let apart = |overlapping| measured(Query { overlapping, ..Query::prefetching(1) });
    let (both, one) = (apart(true), apart(false));
    assert!(one("query") > 1.05 * both("query"), "{} and {} ms", one("query"), both("query"));
    // Where memory is the limit, the schedule does not matter.
    let off = measured(Query { overlapping: false, ..near.clone() })("query") / measured(near)("query") - 1.0;
    assert!(off.abs() < 0.02, "{:.1} %", off * 100.0);
}

#[test]
fn split_copies_use_all_queues_equally() {
    let pair = |split| {
        fetched(1, move |it| {
            it.queues = [1, 0].map(|device| QueueId { device, wq: 0, shared: true }).to_vec();
            it.split = split;
        })
    };
    // Twice as many descriptors overflow queues that half of them fit in.
    let (whole, parts) = (measured(pair(false)), measured(pair(true)));
    assert!(whole("refused") == 0.0 && parts("refused") > 0.0);
    assert!(parts("cache hits") > 50.0);
}

#[test]
fn cache_mode_is_as_fast_as_its_hits() {
    let side = HbmCacheMode { a: 8, b: 8, bytes: 16 << 30, pages: Pages::InARow, warm: true };
    let with = |side| measured(Query { memory_side: Some(side), ..Query::of_two_columns() });
    let (warm, cold) = (with(side), with(HbmCacheMode { warm: false, ..side }));
    assert_eq!((warm("fast memory hits"), cold("fast memory hits")), (100.0, 0.0));
    let reading = both_at(12.0 * Query::of_two_columns().most as f64 / 1e9);
    assert!((warm("query") / reading - 1.0).abs() < 0.02, "{} ms", warm("query"));
    assert_eq!(cold("query"), measured(Query::of_two_columns())("query"));
    // Half as many random pages as slots: e^-½ of them are alone in their slot.
    let shuffled = with(HbmCacheMode { pages: Pages::Anywhere(1), ..side });
    assert!((shuffled("fast memory hits") - 60.65).abs() < 1.0, "{} %", shuffled("fast memory hits"));
    assert!(shuffled("query") > warm("query"));
}

#[test]
fn unusual_queries_end() {
    let small = Query { column: 3 << 20, chunk: 1, ..Query::prefetching(1) };
    let odd = [
        Query { groups: 0, ..small.clone() },
        Query { groups: 7, scanners: 3, summers: 0, hardware_threads: 0, ..small.clone() },
        Query { column: 0, ..small.clone() },
        Query { column: 12_345, groups: 1000, ..small.clone() },
        Query { chunk: u64::MAX, ..small.clone() },
        Query { prefetch: fetched(1, |it| it.queues.clear()).prefetch, ..small.clone() },
        Query { prefetch: fetched(1, |it| (it.threads, it.relaxed) = (0, false)).prefetch, ..small },
    ];
    for query in odd {
        let what = measured(query.clone());
        assert!((what("query") > 0.0) == (query.column > 0) && what("cache hits") <= 100.0, "{query:?}");
    }
}

/// The bytes of a real run of TPC-H's queries are those of their simulation, whatever the number of chunks.
#[test]
fn a_plan_s_stages_have_the_bytes_of_a_real_run() {
    let rows = 1 << 20;
    let table = generate::lineitem(rows, 3, &mut generate::anywhere).unwrap();
    for plan in [Plan::tpch_q1(), Plan::tpch_q6()] {
        let query = plan.on(&table).unwrap();
        let real = run(&query, None, &Options { traffic: true, ..Options::new(2) }).unwrap().traffic.unwrap();
        let width = |column: &usize| table.columns()[*column].kind().width() as u64;
        let traffic = PlanTraffic {
            scanned: real.scanned,
            again: real.again,
            fetched: real.fetched,
            copied: query.fetched().iter().map(width).sum::<u64>() * rows,
            columns: u32::try_from(query.fetched().len()).unwrap(),
        };
        for (simulated, chunk) in [(Query::of_two_columns(), 1_000), (Query::prefetching(1), 4_099)] {
            let copied = if simulated.prefetch.is_some() { traffic.copied } else { 0 };
            let measured = measured(simulated.of_plan(rows, chunk, traffic));
            assert_eq!(measured("SCAN bytes"), real.scanned as f64);
            assert_eq!(measured("AGGREGATE bytes"), (real.again + real.fetched) as f64);
            assert_eq!(measured("copied bytes"), copied as f64);
        }
    }
}

/// The thesis' query as a plan takes the time of the thesis' query, which the tables hold.
#[test]
fn the_thesis_query_as_a_plan_has_its_numbers() {
    let column = Query::of_two_columns().column;
    let traffic = PlanTraffic { scanned: column, again: 0, fetched: column, copied: column, columns: 1 };
    for query in [Query::of_two_columns(), Query::prefetching(0), Query::prefetching(1)] {
        let plan = query.clone().of_plan(column / 8, query.chunk / 8, traffic);
        let (named, plan, fetches) = (measured(query.clone()), measured(plan), query.prefetch.is_some());
        for name in ["query", "SCAN_a", "AGGREGATE"].into_iter().chain(fetches.then_some("cache hits")) {
            assert_eq!(named(name), plan(name), "{name}");
        }
    }
    let expected = [131.2, 155.7, 107.7];
    let queries = [Query::of_two_columns(), Query::prefetching(0), Query::prefetching(1)];
    for (query, ms) in queries.into_iter().zip(expected) {
        let found = measured(query)("query");
        assert!((found - ms).abs() < 0.05, "{found} ms instead of {ms}");
    }
}
