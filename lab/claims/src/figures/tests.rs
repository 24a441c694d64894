//! Figures that can be looked at.

use super::*;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// All of them, drawn once.
static FIGURES: LazyLock<Vec<Figure>> = LazyLock::new(|| draw(&sheets().collect::<Vec<_>>(), 2).unwrap());

#[test]
fn every_series_has_a_number_at_every_point() {
    for figure in FIGURES.iter() {
        assert!(!figure.panels.is_empty(), "{} shows nothing", figure.id);
        for panel in &figure.panels {
            assert!(!panel.series.is_empty(), "{} {}: empty", figure.id, panel.title);
            for series in &panel.series {
                let whose = format!("{} {} {}", figure.id, panel.title, series.name);
                assert!(series.points.len() > 1, "{whose}: {} points", series.points.len());
                assert!(
                    series.points.iter().all(|(x, y)| x.is_finite() && y.is_finite()),
                    "{whose}: {:?}",
                    series.points
                );
                assert!(series.points.windows(2).all(|pair| pair[0].0 < pair[1].0), "{whose}: {:?}", series.points);
            }
        }
    }
}

#[test]
fn every_figure_names_its_machine_and_what_was_published() {
    let mut ids = BTreeSet::new();
    for figure in FIGURES.iter() {
        assert!(ids.insert(figure.id), "{} twice", figure.id);
        assert!(figure.profiles.iter().all(|it| !it.name.is_empty() && it.hash != 0) && !figure.profiles.is_empty());
        assert!(!figure.facts.is_empty(), "{}: nothing was published about it", figure.id);
        for mark in figure.panels.iter().flat_map(|panel| &panel.marks) {
            assert!(mark.fact < figure.facts.len(), "{}: a mark of no fact", figure.id);
        }
    }
}

#[test]
fn the_figures_are_the_same_for_any_number_of_threads() {
    let some: Vec<&Sheet> =
        sheets().filter(|sheet| ["asplos-5", "asplos-8", "asplos-14"].contains(&sheet.id)).collect();
    assert_eq!(some.len(), 3);
    let alone = draw(&some, 1).unwrap();
    assert_eq!(alone, draw(&some, 3).unwrap());
    assert_eq!(
        alone.iter().map(|figure| figure.id).collect::<Vec<_>>(),
        some.iter().map(|it| it.id).collect::<Vec<_>>()
    );
}

#[test]
fn reaching_a_height_is_read_between_the_points() {
    let series =
        |points: &[(f64, f64)]| Series { name: String::new(), origin: Origin::Simulated, points: points.to_vec() };
    assert_eq!(series(&[(1.0, 0.5), (4.0, 1.5)]).reaches(1.0), Some(2.0));
    assert_eq!(series(&[(1.0, 2.0), (4.0, 1.5)]).reaches(1.0), Some(1.0));
    assert_eq!(series(&[(1.0, 2.0), (4.0, 0.5)]).reaches(1.0), None);
}
