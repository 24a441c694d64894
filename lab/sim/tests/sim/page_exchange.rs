//! Pages that a program moves itself: the costs of the system calls, and the effect of a device.

use telpher_device::{Config, WqMode};
use telpher_sim::{App, Exchange, Machine, QueueId, Scenario, Workload};

fn queues(devices: u16) -> Vec<QueueId> {
    (0..devices).map(|device| QueueId { device, wq: 0, shared: false }).collect()
}

fn measured(profile: &str, app: Exchange) -> impl Fn(&str) -> f64 {
    let mut scenario = Scenario::on(Machine::built_in(profile).unwrap(), Config::single(WqMode::Dedicated, 128, 1));
    scenario.devices = vec![scenario.devices[0].clone(); app.queues.len().max(1)];
    let outcome = scenario.with("pages", 1, Workload::App(App::Exchange(app))).simulate().unwrap();
    assert_eq!(outcome.refused, 0);
    let measures = outcome.loads[0].measures.clone();
    move |name| measures.iter().find(|measure| measure.name == name).unwrap().value
}

/// Microseconds of a page without its copy.
#[test]
fn moving_out_and_in_takes_the_measured_time_for_every_copier() {
    for neighbours in [true, false] {
        for together in [1, 8, 20, 128, 512] {
            let app = Exchange { pages: 2048, neighbours, ..Exchange::promoting(together) };
            // The last call may have fewer pages.
            let (whole, rest) = (2048 / u64::from(together), 2048 % u64::from(together));
            let last = if rest > 0 { app.besides(rest).as_nanos_f64() } else { 0.0 };
            let expected_us = (app.besides(together.into()).as_nanos_f64() * whole as f64 + last) / 2048.0 / 1e3;
            for app in [app.clone(), app.clone().by(queues(1)), app.by(queues(2))] {
                let of = measured("gold-6430", app);
                let besides = of("a page") * (1.0 - of("copying") / 100.0);
                assert!((besides / expected_us - 1.0).abs() < 1e-6, "{together}: {besides} for {expected_us} us");
            }
        }
    }
}

/// A run is one descriptor, pages apart are one each. Building each takes 32.6 ns, and the engine loses 14 ns for each.
#[test]
fn a_batch_takes_the_time_of_its_bytes_and_descriptors() {
    for (neighbours, descriptors) in [(true, 1.0), (false, 512.0)] {
        let app = Exchange { neighbours, ..Exchange::promoting(512) }.by(queues(1));
        let copies = measured("gold-6430", app)("copies of a call");
        let least = 512.0 * 4096.0 / 31.64e3 + descriptors * 0.0466;
        assert!(copies > least && copies < least + 3.0, "{copies} for {least} us");
    }
}

#[test]
fn more_devices_move_a_huge_page_faster() {
    let page = |devices| measured("spr-asplos", Exchange::promoting_huge(1).by(queues(devices)))("a page");
    let (none, one, two, four) = (page(0), page(1), page(2), page(4));
    assert!(none > 2.0 * one && one > 1.7 * two && two > 1.6 * four, "{none}, {one}, {two} and {four} us");
    // Four devices copy a quarter each: the rest of a device's time is the system calls, and the fixed time of each
    // copy.
    let app = Exchange::promoting_huge(1);
    let way = app.besides(1).as_nanos_f64() / 1e3;
    let formula = way + (one - way) / 4.0;
    assert!(four >= formula && four < formula + 3.0, "{four} for {formula} us");
}

#[test]
fn all_requested_bytes_are_moved() {
    for (pages, together) in [(1, 512), (513, 512), (1000, 7)] {
        let app = Exchange { pages, ..Exchange::promoting(together) };
        let of = measured("gold-6430", app.by(queues(2)));
        let bytes = of("moved") * of("migration") * 1e6;
        assert!((bytes / (pages as f64 * 4096.0) - 1.0).abs() < 1e-9, "{pages} pages: {bytes} bytes");
    }
}
