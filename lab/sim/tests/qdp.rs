//! The query that has its second column fetched ahead does what its threads say.

use telpher_device::{Config, WqMode};
use telpher_sim::{App, Machine, Prefetch, Query, Scenario, What};

/// What came of a query on the thesis' machine: each of its eight devices with one shared queue before one engine (§3.1).
fn measured(query: Query) -> impl Fn(&str) -> f64 {
    let machine = Machine::built_in("xeon-max-9468").unwrap();
    let mut scenario = Scenario::on(machine, Config::single(WqMode::Shared, 128, 1));
    scenario.devices = vec![scenario.devices[0].clone(); 8];
    let mut outcome = scenario.with("query", 1, What::App(App::Query(query))).simulate().unwrap();
    let measures = outcome.loads.remove(0).measures;
    move |name| measures.iter().find(|measure| measure.name == name).unwrap().value
}

/// Milliseconds of reading both columns at so many GB/s.
fn both_at(gigabytes_per_second: f64) -> f64 {
    2.0 * (4u64 << 30) as f64 / gigabytes_per_second / 1e6
}

#[test]
fn a_query_takes_what_memory_or_its_threads_take_for_both_columns() {
    // 65.5 GB/s is what cores read from a node of DDR together, 24 times `most` what they can do themselves.
    let near = Query::of_two_columns();
    let threads = 24.0 * near.most as f64 / 1e9;
    for (query, rate) in [(near.clone(), 65.5), (Query { b: 8, ..near }, threads)] {
        let deviation = measured(query)("query") / both_at(rate) - 1.0;
        assert!(deviation.abs() < 0.02, "{:.1} % from the formula", deviation * 100.0);
    }
}

#[test]
fn scanning_is_faster_when_sums_do_not_take_its_memory() {
    let (slow, fast) = (measured(Query::of_two_columns()), measured(Query { b: 8, ..Query::of_two_columns() }));
    assert!(fast("SCAN_a") < 0.9 * slow("SCAN_a") && fast("AGGREGATE") < 0.9 * slow("AGGREGATE"));
}

#[test]
fn what_is_fetched_in_time_is_a_hit_and_nobody_waits_for_the_rest() {
    let (near, far) = (measured(Query::prefetching(0)), measured(Query::prefetching(1)));
    // Copies from the node that column a is scanned on take from the scan; from another, they gain more than they cost.
    let without = measured(Query::of_two_columns())("query");
    assert!(near("query") > without && far("query") < without, "{} and {} ms", near("query"), far("query"));
    assert!(near("SCAN_a") > 1.2 * far("SCAN_a") && near("AGGREGATE") > far("AGGREGATE"));
    for of in [&near, &far] {
        assert!((70.0..95.0).contains(&of("cache hits")) && of("sent back") == 0.0, "{} %", of("cache hits"));
        assert!(of("SCAN_b") < 0.01 * of("query"), "who asks does not wait: {} ms", of("SCAN_b"));
    }
    let one = Query::prefetching(1).prefetch.map(|it| Prefetch { lanes: it.lanes[..1].to_vec(), ..it });
    let late = measured(Query { prefetch: one, ..Query::prefetching(1) });
    assert!(late("cache hits") < far("cache hits") - 10.0, "{} %", late("cache hits"));
}

#[test]
fn a_burst_of_small_chunks_overflows_the_queues() {
    let small = measured(Query { chunk: 1 << 20, ..Query::prefetching(1) });
    assert!(
        small("sent back") > 0.0 && small("SCAN_b") > 1.0,
        "{} sent back, {} ms, hits {}",
        small("sent back"),
        small("SCAN_b"),
        small("cache hits")
    );
}

#[test]
fn pages_that_devices_have_to_wait_for_come_too_late() {
    let missing = Query::prefetching(1).prefetch.map(|it| Prefetch { mapped: false, ..it });
    let missing = measured(Query { prefetch: missing, ..Query::prefetching(1) });
    let without = measured(Query { b: 1, ..Query::of_two_columns() })("query");
    assert!(missing("cache hits") < 10.0, "{} %", missing("cache hits"));
    assert!((missing("query") / without - 1.0).abs() < 0.1, "{} of {without} ms", missing("query"));
}
