//! Random updates on two tiers, pages placed by `telpher-tier`'s own policy: what it reaches, and what does not reach it.

use telpher_device::{Config, WqMode};
use telpher_sim::{App, Gups, Lane, Machine, Measure, Placing, Ps, Scenario, What};

/// Memory for which half a minute is enough; its page tables are in the caches all the same.
fn small() -> Gups {
    Gups { bytes: 512 << 20, lasts: Ps::from_nanos(20_000_000_000), lanes: vec![LANE], ..Gups::default() }
}

const LANE: Lane = Lane { device: 0, wq: 0, shared: false };

fn measures(app: Gups) -> Vec<Measure> {
    let machine = Machine::built_in("gold-6430").unwrap();
    let scenario = Scenario::on(machine, Config::single(WqMode::Dedicated, 128, 1));
    let mut outcome = scenario.with("gups", 1, What::App(App::Gups(app))).simulate().unwrap();
    outcome.loads.remove(0).measures
}

fn of(measures: &[Measure], name: &str) -> f64 {
    measures.iter().find(|measure| measure.name == name).unwrap().value
}

/// Per cent of what it were with all pages in fast memory, after the warm-up.
fn reached(app: Gups) -> f64 {
    of(&measures(app), "of all in fast memory")
}

#[test]
fn a_fifth_of_fast_memory_gives_nine_tenths_of_all_of_it_and_what_everything_costs_is_counted() {
    let app = Gups { lanes: vec![LANE], ..Gups::default() };
    let seen = measures(app);
    let share = of(&seen, "of all in fast memory");
    assert!(share >= 90.0 && of(&seen, "hot pages in fast memory") > 99.0, "{share:.2} %");
    let core: f64 = ["tracking", "deciding", "moving"].map(|what| of(&seen, what)).iter().sum();
    assert!(of(&seen, "tracking") > 0.1 && core < 2.0, "{core:.2} % of a core");
    let taken = of(&seen, "taken by tracking");
    assert!(taken > 0.01 && taken < 1.0, "{taken:.3} % of the threads");
}

#[test]
fn whoever_places_pages_otherwise_does_not_reach_it() {
    for placing in [Placing::Nobody, Placing::Chance { runs: 32 }] {
        for fast_first in [true, false] {
            let share = reached(Gups { placing, fast_first, ..small() });
            assert!(share < 60.0, "{placing:?}: {share:.2} %");
        }
    }
}

/// An update takes 70 ns to look its page up and 125 for a line of fast memory, three times that of slow; 9 of 10 go to the hot tenth,
/// of the others as many to fast memory as it has of all pages.
#[test]
fn who_knows_all_beforehand_has_what_a_formula_says_and_the_policy_a_hundredth_less_at_most() {
    for (fast_percent, looks_up) in [(20, true), (20, false), (50, false)] {
        let lookup = if looks_up { 70.0 } else { 0.0 };
        let slow = 0.1 * (1.0 - f64::from(fast_percent) / 100.0);
        let formula = (lookup + 125.0) / (lookup + 125.0 + 250.0 * slow) * 100.0;
        let app = Gups { fast_percent, looks_up, ..small() };
        let knowing = reached(Gups { placing: Placing::Knowing, ..app.clone() });
        assert!((knowing / formula - 1.0).abs() < 1e-4, "{knowing:.3} for {formula:.3} %");
        let policy = reached(app);
        assert!(policy < knowing && policy > 0.99 * knowing, "{policy:.2} of {knowing:.2} %");
    }
}

/// Nothing there is moved but what is hot: the rest of fast memory stays empty.
#[test]
fn from_slow_memory_the_hot_pages_come_and_no_others() {
    let seen = measures(Gups { fast_first: false, ..small() });
    let promoted = of(&seen, "promoted");
    assert!(of(&seen, "hot pages in fast memory") > 99.0 && promoted < 1.2 * 13_107.0, "{promoted} pages");
    // 1 of 10 updates go anywhere, 1 of 10 of these to a hot page.
    let (share, formula) = (of(&seen, "of all in fast memory"), 195.0 / (195.0 + 250.0 * 0.09) * 100.0);
    assert!(share > 0.99 * formula, "{share:.2} for {formula:.2} %");
}

/// What is found of pages that are all alike is chance, less so the longer one looks.
#[test]
fn where_nothing_is_hotter_than_the_rest_moves_end_and_cost_next_to_nothing() {
    let alike = |placing, seconds: u64| {
        let lasts = Ps::from_nanos(seconds * 1_000_000_000);
        measures(Gups { to_hot_percent: 0, lasts, placing, ..small() })
    };
    let moved = |seen: &[Measure]| of(seen, "promoted") + of(seen, "demoted");
    let [soon, later] = [20, 40].map(|seconds| alike(Placing::Policy, seconds));
    let rate = (moved(&later) - moved(&soon)) / 20.0;
    assert!(rate < 0.002 * 131_072.0, "{rate} pages a second");
    let lost = 1.0 - of(&later, "of all in fast memory") / of(&alike(Placing::Nobody, 40), "of all in fast memory");
    assert!(lost < 0.01, "{:.2} %", lost * 100.0);
}

#[test]
fn the_core_may_copy_and_takes_longer_for_it() {
    let [device, core] = [vec![LANE], Vec::new()].map(|lanes| measures(Gups { lanes, ..small() }));
    let moving = |seen: &[Measure]| of(seen, "moving") / (of(seen, "promoted") + of(seen, "demoted"));
    assert!(moving(&core) > moving(&device), "{} and {}", moving(&core), moving(&device));
    assert!(of(&core, "of all in fast memory") > 90.0);
}

#[test]
fn chance_is_the_same_again() {
    let app = || Gups { lasts: Ps::from_nanos(12_000_000_000), ..small() };
    assert_eq!(measures(app()), measures(app()));
    assert_ne!(measures(app()), measures(Gups { seed: 2, ..app() }));
}
