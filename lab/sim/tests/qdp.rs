//! The query that has its second column fetched ahead does what its threads say.

use telpher_device::{Config, WqMode};
use telpher_sim::{App, Machine, Query, Scenario, What};

/// What came of a query on the thesis' machine: each of its eight devices with one shared queue before one engine (§3.1).
fn measured(query: Query) -> impl Fn(&str) -> f64 {
    let machine = Machine::built_in("xeon-max-9468").unwrap();
    let mut scenario = Scenario::on(machine, Config::single(WqMode::Shared, 128, 1));
    scenario.devices = vec![scenario.devices[0].clone(); 8];
    let mut outcome = scenario.with("query", 1, What::App(App::Query(query))).simulate().unwrap();
    let measures = outcome.loads.remove(0).measures;
    move |name| measures.iter().find(|measure| measure.name == name).unwrap().value
}

#[test]
fn a_column_in_faster_memory_is_summed_in_less_time() {
    let (slow, fast) = (measured(Query::of_two_columns()), measured(Query { b: 8, ..Query::of_two_columns() }));
    assert!((fast("SCAN_a") / slow("SCAN_a") - 1.0).abs() < 0.02);
    assert!(fast("AGGREGATE") < 0.5 * slow("AGGREGATE"));
}

#[test]
fn what_is_fetched_in_time_is_a_hit_and_nobody_waits_for_the_rest() {
    let far = measured(Query::prefetching(1));
    assert!((90.0..=100.0).contains(&far("cache hits")), "{} %", far("cache hits"));
    let late = Query {
        prefetch: Query::prefetching(1)
            .prefetch
            .map(|it| telpher_sim::Prefetch { lanes: it.lanes[..1].to_vec(), ..it }),
        ..Query::prefetching(1)
    };
    let late = measured(late);
    assert!(late("cache hits") < far("cache hits") - 10.0 && late("query") > far("query"), "{} %", late("cache hits"));
}
