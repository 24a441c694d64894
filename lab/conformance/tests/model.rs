//! The modelled device passes every case, under every runner and with every preset.

#[path = "subjects/model.rs"]
mod model;

use model::Model;
use telpher_conformance::{Filter, Guarantees, Report, run};
use telpher_device::{Preset, Runner};

fn judge(preset: Preset, runner: Runner) -> Report {
    let mut filter = Filter::all();
    if let Ok(text) = std::env::var("TELPHER_CONFORMANCE") {
        filter = filter.containing(&text);
    }
    let report = run(&Model::new(preset, runner), &filter);
    println!("{report}");
    report
}

/// Cases that the model does not support: it has no devices with a fixed configuration (GENCAP[31] = 0).
const EXPECTED_SKIPS: [&str; 1] = ["a device without configuration support locks its groups and sizes"];

fn assert_green(report: &Report) {
    assert!(report.is_green(), "{} cases failed; the report is above", report.failed.len());
    let unexpected: Vec<_> =
        report.skipped.iter().filter(|(name, _)| !EXPECTED_SKIPS.contains(&name.as_str())).collect();
    assert!(unexpected.is_empty(), "skipped without need: {unexpected:?}");
}

#[test]
fn the_inline_model_of_a_sapphire_rapids_conforms() {
    assert_green(&judge(Preset::Spr, Runner::Inline));
}

#[test]
fn the_inline_model_of_current_firmware_conforms() {
    assert_green(&judge(Preset::SprFw2, Runner::Inline));
}

#[test]
fn the_inline_model_of_everything_conforms() {
    assert_green(&judge(Preset::Full, Runner::Inline));
}

#[test]
fn the_threaded_model_of_a_sapphire_rapids_conforms() {
    assert_green(&judge(Preset::Spr, Runner::Threaded));
}

#[test]
fn the_threaded_model_of_current_firmware_conforms() {
    assert_green(&judge(Preset::SprFw2, Runner::Threaded));
}

#[test]
fn the_threaded_model_of_everything_conforms() {
    assert_green(&judge(Preset::Full, Runner::Threaded));
}

#[test]
fn the_automatic_model_of_a_sapphire_rapids_conforms() {
    assert_green(&judge(Preset::Spr, Runner::Auto));
}

#[test]
fn the_automatic_model_of_current_firmware_conforms() {
    assert_green(&judge(Preset::SprFw2, Runner::Auto));
}

#[test]
fn the_automatic_model_of_everything_conforms() {
    assert_green(&judge(Preset::Full, Runner::Auto));
}

#[test]
fn without_promises_only_fixed_rules_are_tested() {
    let subject = Model { promises: Guarantees::default(), ..Model::new(Preset::Full, Runner::Inline) };
    let report = run(&subject, &Filter::all());
    assert!(report.is_green(), "{report}");
    assert!(report.reasons().contains_key("reserved fields are not all checked"));
}

#[test]
fn the_inline_model_of_a_sierra_forest_conforms() {
    assert_green(&judge(Preset::Srf, Runner::Inline));
}

#[test]
fn the_inline_model_of_everything_of_2_x_conforms() {
    assert_green(&judge(Preset::V2Full, Runner::Inline));
}

#[test]
fn the_threaded_model_of_everything_of_2_x_conforms() {
    assert_green(&judge(Preset::V2Full, Runner::Threaded));
}

#[test]
fn the_inline_model_of_everything_of_3_0_conforms() {
    assert_green(&judge(Preset::V3Full, Runner::Inline));
}
