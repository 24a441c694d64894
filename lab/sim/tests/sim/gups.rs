//! Random updates on two tiers, with pages placed by `telpher-tier`'s own policy: its result, and those of other
//! placements.

use telpher_device::{Config, WqMode};
use telpher_sim::{App, Gups, Machine, Measure, PagePlacement, Picos, QueueId, Scenario, Workload};

/// A memory for which half a minute is enough; its page tables are still assumed to be cached.
fn small() -> Gups {
    Gups { bytes: 512 << 20, lasts: Picos::from_nanos(20_000_000_000), queues: vec![LANE], ..Gups::default() }
}

const LANE: QueueId = QueueId { device: 0, wq: 0, shared: false };

fn measures(app: Gups) -> Vec<Measure> {
    let machine = Machine::built_in("gold-6430").unwrap();
    let scenario = Scenario::on(machine, Config::single(WqMode::Dedicated, 128, 1));
    let mut outcome = scenario.with("gups", 1, Workload::App(App::Gups(app))).simulate().unwrap();
    outcome.loads.remove(0).measures
}

fn of(measures: &[Measure], name: &str) -> f64 {
    measures.iter().find(|measure| measure.name == name).unwrap().value
}

/// Per cent of the updates with all pages in fast memory, after the warm-up.
fn reached(app: Gups) -> f64 {
    of(&measures(app), "of all in fast memory")
}

#[test]
fn a_fifth_of_fast_memory_gives_nine_tenths_of_the_updates() {
    let app = Gups { queues: vec![LANE], ..Gups::default() };
    let seen = measures(app);
    let share = of(&seen, "of all in fast memory");
    assert!(share >= 90.0 && of(&seen, "hot pages in fast memory") > 99.0, "{share:.2} %");
    let core: f64 = ["tracking", "deciding", "moving"].map(|what| of(&seen, what)).iter().sum();
    assert!(of(&seen, "tracking") > 0.1 && core < 2.0, "{core:.2} % of a core");
    let taken = of(&seen, "taken by tracking");
    assert!(taken > 0.01 && taken < 1.0, "{taken:.3} % of the threads");
}

#[test]
fn other_placements_do_not_reach_the_policy() {
    for placing in [PagePlacement::NotPlaced, PagePlacement::Chance { runs: 32 }] {
        for fast_first in [true, false] {
            let share = reached(Gups { placing, fast_first, ..small() });
            assert!(share < 60.0, "{placing:?}: {share:.2} %");
        }
    }
}

/// An update takes 70 ns to look its page up and 125 for a line of fast memory, three times that for slow memory. 9 of
/// 10 updates go to the hot tenth; the share of the others in fast memory is its share of all pages.
#[test]
fn the_oracle_matches_a_formula_and_the_policy_is_within_one_per_cent() {
    for (fast_percent, looks_up) in [(20, true), (20, false), (50, false)] {
        let lookup = if looks_up { 70.0 } else { 0.0 };
        let slow = 0.1 * (1.0 - f64::from(fast_percent) / 100.0);
        let formula = (lookup + 125.0) / (lookup + 125.0 + 250.0 * slow) * 100.0;
        let app = Gups { fast_percent, looks_up, ..small() };
        let knowing = reached(Gups { placing: PagePlacement::Knowing, ..app.clone() });
        assert!((knowing / formula - 1.0).abs() < 1e-4, "{knowing:.3} for {formula:.3} %");
        let policy = reached(app);
        assert!(policy < knowing && policy > 0.99 * knowing, "{policy:.2} of {knowing:.2} %");
    }
}

/// Only hot pages are moved: the rest of fast memory stays empty.
#[test]
fn only_hot_pages_are_promoted_from_slow_memory() {
    let seen = measures(Gups { fast_first: false, ..small() });
    let promoted = of(&seen, "promoted");
    assert!(of(&seen, "hot pages in fast memory") > 99.0 && promoted < 1.2 * 13_107.0, "{promoted} pages");
    // 1 of 10 updates go to all pages, 1 of 10 of these to a hot page.
    let (share, formula) = (of(&seen, "of all in fast memory"), 195.0 / (195.0 + 250.0 * 0.09) * 100.0);
    assert!(share > 0.99 * formula, "{share:.2} for {formula:.2} %");
}

/// Among equally hot pages differences are random, and decrease with the observation time.
#[test]
fn with_equally_hot_pages_moves_end_and_cost_little() {
    let alike = |placing, seconds: u64| {
        let lasts = Picos::from_nanos(seconds * 1_000_000_000);
        measures(Gups { to_hot_percent: 0, lasts, placing, ..small() })
    };
    let moved = |seen: &[Measure]| of(seen, "promoted") + of(seen, "demoted");
    let [soon, later] = [20, 40].map(|seconds| alike(PagePlacement::Policy, seconds));
    let rate = (moved(&later) - moved(&soon)) / 20.0;
    assert!(rate < 0.002 * 131_072.0, "{rate} pages a second");
    let lost =
        1.0 - of(&later, "of all in fast memory") / of(&alike(PagePlacement::NotPlaced, 40), "of all in fast memory");
    assert!(lost < 0.01, "{:.2} %", lost * 100.0);
}

#[test]
fn copies_by_the_core_take_longer() {
    let [device, core] = [vec![LANE], Vec::new()].map(|queues| measures(Gups { queues, ..small() }));
    let moving = |seen: &[Measure]| of(seen, "moving") / (of(seen, "promoted") + of(seen, "demoted"));
    assert!(moving(&core) > moving(&device), "{} and {}", moving(&core), moving(&device));
    assert!(of(&core, "of all in fast memory") > 90.0);
}

#[test]
fn random_placing_is_reproducible() {
    let app = || Gups { lasts: Picos::from_nanos(12_000_000_000), ..small() };
    assert_eq!(measures(app()), measures(app()));
    assert_ne!(measures(app()), measures(Gups { seed: 2, ..app() }));
}
