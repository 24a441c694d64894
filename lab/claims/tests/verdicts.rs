//! The recorded verdict of every claim: any change is noticed.
//!
//! `TELPHER_WRITE_VERDICTS=1 cargo test -p telpher-claims --test verdicts` records them again; check the difference
//! before committing it.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;
use telpher_claims::experiments::series::compare;
use telpher_claims::lab::Lab;
use telpher_claims::published::{Use, claims, series};
use telpher_claims::verdict::{self, Row, Verdict};

/// All verdicts, computed once for all tests.
fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| verdict::all(&Lab::default(), |_| true))
}

#[test]
fn every_verdict_is_as_recorded() {
    let mut seen = String::new();
    for row in rows() {
        let off = row.deviation.filter(|off| off.is_finite());
        let off = off.map_or(String::new(), |off| format!(" {:+.0} %", off * 100.0));
        // Zero gets no sign, because the sign would change with the last digit of a cost.
        let off = if [" +0 %", " -0 %"].contains(&&*off) { " 0 %".to_owned() } else { off };
        let _ = writeln!(seen, "{} {}{off}", row.claim.id, row.verdict.name().to_lowercase());
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/verdicts.txt");
    if std::env::var_os("TELPHER_WRITE_VERDICTS").is_some() {
        std::fs::write(&path, &seen).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap();
    let changed: Vec<String> = known
        .lines()
        .zip(seen.lines())
        .filter(|(known, seen)| known != seen)
        .map(|(known, seen)| format!("{known} → {seen}"))
        .collect();
    assert!(changed.is_empty() && known.lines().count() == seen.lines().count(), "{changed:#?}");
}

#[test]
fn every_claim_that_does_not_hold_has_a_reason() {
    let dumb = rows().iter().filter(|row| row.verdict != Verdict::Holds && row.verdict.why() == verdict::UNKNOWN);
    assert_eq!(dumb.map(|row| row.claim.id.as_str()).collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn a_claim_that_holds_has_no_reason() {
    let excused = rows().iter().filter(|row| row.verdict == Verdict::Holds && verdict::has_reason(&row.claim.id));
    assert_eq!(excused.map(|row| row.claim.id.as_str()).collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(rows().iter().any(|row| verdict::has_reason(&row.claim.id)));
}

#[test]
fn what_is_lacking_is_recorded_for_failing_claims_and_for_series_that_are_far_off() {
    let fails = |row: &&Row| matches!(row.verdict, Verdict::Fails { .. });
    let failing: Vec<&str> = rows().iter().filter(fails).map(|row| row.claim.id.as_str()).collect();
    let recorded = claims().iter().filter(|claim| verdict::lacks(&claim.id).is_some());
    assert_eq!(failing, recorded.map(|claim| claim.id.as_str()).collect::<Vec<_>>());
    let lab = Lab::default();
    for series in series().iter().filter(|series| series.usage == Use::Validate) {
        let off = compare(&lab, series).unwrap().mean();
        assert_eq!(off > 0.03, !series.lacks.is_empty(), "{}: {:.2} %", series.id, off * 100.0);
    }
}

/// Appendix A of Kuper et al. does not print the number of devices. Every claim of it has the range from one to eight,
/// so that none holds, or fails, by the assumed number alone.
#[test]
fn claims_that_depend_on_the_number_of_devices_are_judged_by_one_rule() {
    let appendix =
        rows().iter().filter(|row| row.claim.document == "KUPER" && row.claim.place.starts_with("appendix A"));
    let appendix: Vec<&Row> = appendix.collect();
    assert_eq!(appendix.len(), 10);
    for row in appendix {
        assert!(row.simulated.contains(" as assumed; "), "{}: {}", row.claim.id, row.simulated);
        assert!(!matches!(row.verdict, Verdict::Fails { .. }), "{}: {:?}", row.claim.id, row.verdict);
    }
}

/// All claims but one: the source does not print the base of its ratio.
#[test]
fn every_calibrating_or_held_out_claim_has_an_experiment() {
    let checked = |row: &&Row| matches!(row.claim.usage, Use::Calibrate | Use::Validate);
    let without = rows().iter().filter(checked).filter(|row| matches!(row.verdict, Verdict::NotSimulated { .. }));
    let without: Vec<&Row> = without.collect();
    assert_eq!(without.iter().map(|row| row.claim.id.as_str()).collect::<Vec<_>>(), ["K-020"]);
    assert!(without.iter().all(|row| verdict::has_reason(&row.claim.id)));
}

/// The results of other readings are shown, and decide nothing.
#[test]
fn other_readings_are_shown() {
    let row = rows().iter().find(|row| row.claim.id == "K-044").unwrap();
    assert!(row.beside.starts_with("8 KB: ") && !row.simulated.contains("8 KB"), "{} | {}", row.simulated, row.beside);
}

/// A repetition gives the same numbers: nothing depends on earlier runs, or on the order of a hash map.
#[test]
fn an_experiment_is_reproducible() {
    let of = |id: &str| verdict::all(&Lab::default(), |claim| claim.id == id)[0].simulated.clone();
    for id in ["K-028", "K-035", "V-024", "T-066"] {
        assert_eq!(of(id), of(id), "{id}");
    }
}
