//! All figures can be drawn.

use super::*;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// All figures, drawn once by two threads.
static FIGURES: LazyLock<Vec<Figure>> = LazyLock::new(|| {
    let half = |first| -> Vec<Figure> {
        sheets().skip(first).step_by(2).map(|sheet| sheet.figure(&Lab::default()).unwrap()).collect()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let mut figures = half(0);
        figures.extend(other.join().unwrap());
        figures
    })
});

#[test]
fn every_series_has_a_number_at_every_point() {
    for figure in FIGURES.iter() {
        let id = figure.sheet.id;
        assert!(!figure.panels.is_empty(), "{id} shows nothing");
        for panel in &figure.panels {
            assert!(!panel.series.is_empty(), "{id} {}: empty", panel.title);
            for series in &panel.series {
                let whose = format!("{id} {} {}", panel.title, series.name);
                let points = &series.points;
                assert!(
                    !points.is_empty() && points.iter().all(|(x, y)| x.is_finite() && y.is_finite()),
                    "{whose}: {points:?}"
                );
                assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0), "{whose}: {points:?}");
            }
        }
    }
}

#[test]
fn every_figure_names_its_machine_and_what_was_published() {
    let mut ids = BTreeSet::new();
    for figure in FIGURES.iter() {
        let id = figure.sheet.id;
        assert!(ids.insert(id), "{id} twice");
        assert!(figure.profiles.iter().all(|it| !it.0.is_empty() && it.1 != 0) && !figure.profiles.is_empty());
        let published = !figure.facts.is_empty() || !figure.distances.is_empty();
        assert!(published || figure.sheet.source.is_empty(), "{id}: nothing was published about it");
        for mark in figure.panels.iter().flat_map(|panel| &panel.marks) {
            assert!(figure.sheet.claims.contains(&mark.claim), "{id}: {} is marked but not in the sheet", mark.claim);
            let (At::Level(a) | At::Place(a) | At::Levels(a, _) | At::Places(a, _)) = mark.at;
            assert!(a.is_finite(), "{id}: {} has no number", mark.claim);
        }
    }
}

#[test]
fn texts_of_a_figure_are_single_paragraphs() {
    for sheet in sheets() {
        assert!(![sheet.source, sheet.title, sheet.how].iter().any(|text| text.contains("  ")), "{}", sheet.id);
    }
}

#[test]
fn the_figures_are_the_same_for_any_number_of_threads() {
    let some: Vec<&Sheet> =
        sheets().filter(|sheet| ["asplos-5", "asplos-8", "asplos-14"].contains(&sheet.id)).collect();
    assert_eq!(some.len(), 3);
    let drawn = |threads| format!("{:?}", draw(&some, threads, None).unwrap());
    let alone = drawn(1);
    assert_eq!(alone, drawn(3));
}

#[test]
fn deviations_from_published_series_are_reported() {
    let series = |origin, points: &[(f64, f64)]| Series { name: "copy".into(), origin, points: points.to_vec() };
    let mut panel = FIGURES[0].panels[0].clone();
    panel.title.clear();
    panel.series = vec![
        series(Origin::Simulated, &[(64.0, 1.1), (4096.0, 8.0)]),
        series(Origin::Published, &[(64.0, 1.0), (4096.0, 10.0)]),
    ];
    assert_eq!(distances(&panel), ["copy: 15.0 % from the published numbers on average, -20.0 % at 4 KiB"]);
}

#[test]
fn coinciding_lines_are_reported() {
    let series = |name: &str, high| Series {
        name: name.into(),
        origin: Origin::Simulated,
        points: vec![(64.0, 1.0), (4096.0, high)],
    };
    let mut panel = FIGURES[0].panels[0].clone();
    panel.title = "one".into();
    panel.series = vec![series("a", 10.0), series("b", 12.0), series("c", 10.05)];
    assert_eq!(coincide(&panel).unwrap(), "one, these lines lie on each other: a, c");
    panel.series.pop();
    assert_eq!(coincide(&panel), None);
}

#[test]
fn on_another_machine_a_figure_is_drawn_or_says_why_not() {
    let some: Vec<_> = sheets().filter(|it| ["asplos-5", "asplos-6"].contains(&it.id)).collect();
    let machine = telpher_sim::Machine::built_in("ice-lake-cbdma").unwrap();
    let [parts, placement] = &draw(&some, 2, Some(&machine)).unwrap()[..] else { panic!("two figures") };
    assert!(parts.cannot.is_none() && !parts.panels.is_empty());
    assert!(placement.cannot.as_ref().is_some_and(|why| why.contains("node")), "{:?}", placement.cannot);
    for figure in [parts, placement] {
        assert_eq!(figure.profiles, [(machine.name.clone(), machine.hash)]);
        let whys = figure.facts.iter().map(|row| row.verdict.why()).collect::<Vec<_>>();
        assert!(
            whys.iter().all(|why| why.is_empty() || why == verdict::ELSEWHERE || why.starts_with("not on this")),
            "{whys:?}"
        );
    }
}
