//! What recordings with known times would gain.

#[path = "recording/common.rs"]
mod common;

use common::{COLD, CURVE, Copy, FRESH, File, HOT, options, program, record};
use proptest::prelude::*;
use telpher_predict::recording::{PredictOptions, compare, predict};
use telpher_recording::{Call, Operation, Recording};
use telpher_report::prediction::{Prediction, SitePolicy, csv, html, text};

fn predicted(recording: &Recording) -> Prediction {
    predict(recording, &options()).unwrap()
}

fn by(prediction: &Prediction, offset: u64) -> &SitePolicy {
    prediction.sites.iter().find(|site| site.offset == offset).unwrap()
}

const fn copy(site: usize, kib: usize, ps: u64) -> Copy {
    Copy { site, bytes: kib << 10, ps }
}

#[test]
fn hot_copies_stay_on_the_cpu_and_gain_nothing() {
    let recording = program(1, 4, |number| copy(if number.is_multiple_of(2) { 1 } else { 2 }, 64, HOT), 600);
    let prediction = predicted(&recording);
    assert!(prediction.sites.len() == 2 && prediction.sites.iter().all(|site| site.by == "cpu"), "{prediction:?}");
    assert_eq!((prediction.gain_of_calls, prediction.gain_of_program), (Some(1.0), Some(1.0)));
    assert_eq!((prediction.best_threshold, prediction.devices.share_of_calls), (None, Some(0.0)));
    assert!(prediction.thresholds.iter().all(|threshold| threshold.gain_of_calls.unwrap() <= 1.0));
    assert_eq!((prediction.recorded.hot_share, prediction.recorded.cold_share), (Some(1.0), Some(0.0)));
}

#[test]
fn cold_copies_of_64_kib_gain() {
    let recording = program(1, 4, |_| copy(1, 64, COLD), 600);
    let prediction = predicted(&recording);
    let gain = prediction.gain_of_calls.unwrap();
    // A core of spr-asplos takes 7.1 µs, a device 3.7 µs.
    assert!((1.7..2.3).contains(&gain), "{gain}");
    assert_eq!((by(&prediction, 1).by, prediction.devices.share_of_bytes), ("device", Some(1.0)));
    assert!(by(&prediction, 1).cpu_ns.unwrap() > 7000.0, "{:?}", by(&prediction, 1));
    // Amdahl's law with the recorded work of 10 µs for each copy, and the copy scaled to the profile's machine.
    let (cpu, device) = (prediction.by_cpu.mean_ns.unwrap(), prediction.offloaded.mean_ns.unwrap());
    let amdahl = (10_000.0 + cpu) / (10_000.0 + device);
    assert!((prediction.gain_of_program.unwrap() / amdahl - 1.0).abs() < 0.01, "{amdahl} {prediction:?}");
    // All sizes up to 64 KiB are the same policy here; the largest is the best.
    assert_eq!(prediction.best_threshold, Some(64 << 10));
    let from = |bytes| prediction.thresholds.iter().find(|threshold| threshold.bytes == bytes).unwrap();
    assert_eq!((from(128 << 10).gain_of_calls, from(2048).partly_estimated), (Some(1.0), false));
    // All data is cold, so the share can only fall.
    let points: Vec<i32> = prediction.cold_shares.iter().map(|share| share.points).collect();
    assert_eq!(points, [-25, -10, 0]);
    assert!((from(64 << 10).gain_of_calls.unwrap() / gain - 1.0).abs() < 0.01);
}

#[test]
fn a_hot_and_a_cold_site_get_different_policies() {
    let both = |number: u64| if number.is_multiple_of(2) { copy(1, 64, COLD) } else { copy(2, 64, HOT) };
    let prediction = predicted(&program(2, 8, both, 500));
    assert_eq!((by(&prediction, 1).by, by(&prediction, 2).by), ("device", "cpu"));
    assert!(by(&prediction, 1).gain.unwrap() > 1.5 && by(&prediction, 2).gain.unwrap() < 1.0, "{prediction:?}");
    assert!(by(&prediction, 1).saved_ns > 0.0 && by(&prediction, 2).saved_ns == 0.0);
    assert_eq!((by(&prediction, 1).cold_share, by(&prediction, 2).cold_share), (Some(1.0), Some(0.0)));
    assert_eq!(prediction.sites[0].offset, 1, "sites that save more come first");
    assert_eq!(prediction.sites[0].module.as_deref(), Some("/usr/bin/program"));
    // One threshold for both gains less than a policy for each.
    let best = prediction.thresholds.iter().filter_map(|it| it.gain_of_calls).fold(0.0, f64::max);
    assert!(prediction.gain_of_calls.unwrap() > best, "{best}");
}

/// Three times are compared: those of the calls, of the sections and by the curves. The last one deviates if calls take
/// other times than the calibration says.
#[test]
fn a_replay_without_devices_takes_the_recorded_time() {
    let mixed = |number: u64| match number % 5 {
        0 | 1 => copy(1, 16, HOT),
        2 => copy(2, 128, COLD),
        3 => copy(3, 64, FRESH),
        _ => copy(1, 24, HOT + 5),
    };
    for threads in [1, 4] {
        // Complete, and a sample of an eighth.
        for blocks in [threads * 2000 / 256 + 1, threads] {
            let prediction = predicted(&program(threads, blocks, mixed, 2000));
            let check = prediction.check;
            assert!(check.error.unwrap().abs() < 0.03, "{threads} threads, {blocks} blocks: {check:?}");
            assert!(check.section_error.unwrap().abs() < 0.001, "{check:?}");
            assert!(check.curve_error.unwrap().abs() < 0.03, "{check:?}");
            let whole = check.replayed_calls == u64::from(threads) * 2000;
            assert_eq!((whole, check.sections > 1), (blocks > threads, !whole && blocks > 1), "{check:?}");
        }
    }
}

#[test]
fn curves_that_do_not_fit_the_program_show_in_the_check() {
    // Between hot and cold: 41 is judged hot.
    let prediction = predicted(&program(1, 2, |_| copy(1, 64, 40), 300));
    assert!(prediction.check.error.unwrap().abs() < 1e-6);
    assert!((prediction.check.curve_error.unwrap() - (19.0 / 40.0 - 1.0)).abs() < 0.01, "{:?}", prediction.check);
}

#[test]
fn fresh_data_stays_on_the_cpu() {
    let prediction = predicted(&program(1, 2, |_| copy(1, 64, FRESH), 300));
    assert_eq!((by(&prediction, 1).by, prediction.recorded.fresh_share), ("cpu", Some(1.0)));
    // Both map sixteen pages, which takes longer than the copy.
    let gain = by(&prediction, 1).gain.unwrap();
    assert!((0.9..1.1).contains(&gain), "{gain}");
}

/// The kernel may run another thread in the middle of a copy. A device would not save that time.
#[test]
fn an_interrupted_call_gains_no_more_than_others() {
    let calls = |interrupted: bool| {
        move |number: u64| copy(1, 64, if interrupted && number.is_multiple_of(50) { 50_000 } else { COLD })
    };
    let (plain, interrupted) =
        (predicted(&program(1, 4, calls(false), 500)), predicted(&program(1, 4, calls(true), 500)));
    let figures = |prediction: &Prediction| (prediction.gain_of_calls.unwrap(), prediction.by_cpu.mean_ns.unwrap());
    let ((gain, mean), (same_gain, same_mean)) = (figures(&plain), figures(&interrupted));
    // With the interruptions of ten of 500 calls, the mean would be several times as long.
    assert!((same_gain / gain - 1.0).abs() < 0.1 && (same_mean / mean - 1.0).abs() < 0.1, "{plain:?}\n{interrupted:?}");
    // Their data is taken for that of the other calls, which have their pages.
    assert_eq!((interrupted.devices.share_of_calls, interrupted.devices.faults), (Some(1.0), Some(0.0)));
    // 32 ms of interruptions are part of the program's other work.
    assert!(interrupted.gain_of_program < plain.gain_of_program && interrupted.recorded.interrupted_ns > 32e6);
    assert!(interrupted.check.curve_error.unwrap().abs() < 0.01 && interrupted.check.error.unwrap().abs() < 1e-6);
    assert!(interrupted.remarks.iter().any(|remark| remark.starts_with("10 replayed calls took more than four times")));
}

#[test]
fn a_larger_cold_share_saves_more() {
    let half = |number: u64| copy(1, 64, if number.is_multiple_of(2) { COLD } else { HOT });
    for threads in [1, 4] {
        let prediction = predicted(&program(threads, 16, half, 500));
        let points: Vec<i32> = prediction.cold_shares.iter().map(|share| share.points).collect();
        assert_eq!(points, [-25, -10, 0, 10, 25]);
        for pair in prediction.cold_shares.windows(2) {
            let [less, more] = pair else { panic!() };
            assert!(less.saved_ns <= more.saved_ns && less.by_cpu_ns < more.by_cpu_ns, "{pair:?}");
            assert!(less.gain_of_calls.unwrap() <= more.gain_of_calls.unwrap() + 1e-9, "{pair:?}");
            assert!((more.cold_share - less.cold_share - f64::from(more.points - less.points) / 100.0).abs() < 0.01);
        }
        let recorded = prediction.cold_shares[2];
        assert!((recorded.gain_of_calls.unwrap() / prediction.gain_of_calls.unwrap() - 1.0).abs() < 1e-6);
    }
}

#[test]
fn devices_that_all_threads_share_gain_less() {
    let gain = |threads| {
        let one = PredictOptions { devices: Some(1), ..options() };
        predict(&program(threads, 32, |_| copy(1, 256, COLD), 200), &one).unwrap().gain_of_calls.unwrap()
    };
    let (one, sixteen) = (gain(1), gain(16));
    assert!(sixteen < 0.7 * one, "{one} and {sixteen}");
    let four = predict(&program(16, 32, |_| copy(1, 256, COLD), 200), &options()).unwrap();
    assert!(four.devices.devices == 4 && four.gain_of_calls.unwrap() > sixteen, "{four:?}");
}

/// With all call sites on one device, every copy waits longer than a core would copy.
#[test]
fn a_busy_device_gets_only_some_of_the_sites() {
    let recording = program(16, 64, |number| copy(1 + usize::from(number % 4 == 0), 256, COLD), 400);
    let prediction = predict(&recording, &PredictOptions { devices: Some(1), ..options() }).unwrap();
    let policies: Vec<&str> = prediction.sites.iter().map(|site| site.by).collect();
    let all = prediction.thresholds[0].gain_of_calls.unwrap();
    assert!(policies.contains(&"cpu") && policies.contains(&"device"), "{prediction:?}");
    assert!(all < 1.0 && prediction.gain_of_calls.unwrap() > 1.05, "{all} {:?}", prediction.gain_of_calls);
    let cpu = prediction.sites.iter().find(|site| site.by == "cpu").unwrap();
    assert!(cpu.gain.unwrap() > 1.5 && cpu.saved_ns == 0.0, "alone, it would gain: {cpu:?}");
}

#[test]
fn comparisons_and_string_functions_stay_on_the_cpu() {
    let file = File::new(1, 2);
    let writer = file.writer(&CURVE);
    let thread = writer.thread(1);
    for number in 0..200_u64 {
        let operation = if number.is_multiple_of(2) { Operation::Memcmp } else { Operation::StringCopy };
        let call =
            Call { operation, destination: 0x4000_0000, source: 0x7000_0000, len: 1 << 17, return_address: 0x40_0001 };
        let begun = thread.begin(&call, || number * 100_000);
        thread.end(&call, begun, || number * 100_000 + 11_800, None);
    }
    let recording = file.read();
    let prediction = predicted(&recording);
    assert_eq!((prediction.gain_of_calls, prediction.sites[0].device_ns), (Some(1.0), None));
    assert!(
        prediction.remarks.iter().any(|remark| remark.contains("String functions copied 12.5 MiB")),
        "{prediction:?}"
    );
    let all = predict(&recording, &PredictOptions { comparisons: true, ..options() }).unwrap();
    assert!(all.gain_of_calls.unwrap() > 1.1, "{all:?}");
}

/// A sweep below the size of long calls uses counts: 8 KiB cold copies gain nothing, 12 KiB ones a little.
#[test]
fn calls_that_are_too_short_for_the_trace_are_in_the_sweep() {
    let file = File::new(1, 2);
    let writer = file.writer(&CURVE);
    let thread = writer.thread(1);
    let mut end = 0;
    for _ in 0..640 {
        end = record(&thread, &copy(1, 4, COLD), end + 10_000);
        end = record(&thread, &copy(1, 12, COLD), end + 10_000);
    }
    let prediction = predicted(&file.read());
    let gain = |bytes| {
        let found = prediction.thresholds.iter().find(|threshold| threshold.bytes == bytes).unwrap();
        (found.gain_of_calls.unwrap(), found.partly_estimated)
    };
    assert!(gain(8192).0 > gain(2048).0, "4 KiB copies lose: {:?}", prediction.thresholds);
    assert_eq!((gain(8192).1, gain(16384)), (true, (1.0, false)));
    assert_eq!(prediction.gain_of_calls, None);
    assert!(prediction.remarks.iter().any(|remark| remark.contains("no long calls")));
}

#[test]
fn on_the_recorded_machine_nothing_is_scaled() {
    let recording = program(1, 4, |_| copy(1, 64, COLD), 300);
    let here = predict(&recording, &PredictOptions { is_recorded_machine: true, ..options() }).unwrap();
    let recorded_ns = 65_536.0 * 0.090;
    assert!((here.by_cpu.mean_ns.unwrap() - recorded_ns).abs() < 1.0, "{:?}", here.by_cpu);
    assert!(here.scaled.len() == 1 && here.scaled[0].starts_with("Nothing"), "{:?}", here.scaled);
    assert!(
        predicted(&recording).scaled.iter().any(|line| line.contains("All other work of the program is not scaled"))
    );
}

#[test]
fn without_calibration_times_are_as_recorded() {
    let file = File::new(1, 2);
    let writer = file.writer(&[]);
    let thread = writer.thread(1);
    (0..300).fold(0, |end, _| record(&thread, &copy(1, 64, COLD), end + 10_000));
    let prediction = predicted(&file.read());
    assert!((prediction.by_cpu.mean_ns.unwrap() - 5898.0).abs() < 1.0, "{:?}", prediction.by_cpu);
    assert!(prediction.cold_shares.is_empty() && prediction.check.curve_error.is_none());
    assert!(prediction.gain_of_calls.unwrap() > 1.4);
}

#[test]
fn a_percentile_needs_enough_calls() {
    let few = predicted(&program(1, 1, |_| copy(1, 64, COLD), 99));
    assert_eq!((few.as_recorded.p99_ns, few.as_recorded.p50_ns.is_some()), (None, true));
    let more = predicted(&program(1, 1, |_| copy(1, 64, COLD), 100));
    assert_eq!((more.offloaded.p99_ns.is_some(), more.offloaded.p99_999_ns), (true, None));
}

#[test]
fn another_recording_with_other_sizes_is_compared() {
    let both = |kib| move |number: u64| if number.is_multiple_of(2) { copy(1, kib, COLD) } else { copy(2, kib, HOT) };
    let (small, large) = (program(1, 8, both(32), 500), program(1, 8, both(128), 500));
    let prediction = predicted(&small);
    let same = compare(&prediction, &small, &options()).unwrap();
    assert!(same.rows.iter().all(|row| row.deviation.is_none_or(|deviation| deviation.abs() < 1e-9)), "{same:?}");
    let other = compare(&prediction, &large, &options()).unwrap();
    let row = |name: &str| other.rows.iter().find(|row| row.name == name).unwrap();
    assert_eq!(
        (row("mean size of a long call").predicted, row("mean size of a long call").other),
        (Some(32768.0), Some(131_072.0))
    );
    assert!(row("gain of the long calls").other > row("gain of the long calls").predicted, "{other:?}");
    assert_eq!((other.unknown_sites, row("share of bytes by device").other), (0, Some(0.5)));
    let unknown = compare(&prediction, &program(1, 8, |_| copy(7, 64, COLD), 300), &options()).unwrap();
    assert_eq!((unknown.unknown_sites, unknown.rows.last().unwrap().other), (1, Some(1.0)));
}

#[test]
fn processes_that_ran_together_are_replayed_together() {
    let one = |site: usize| program(1, 4, move |_| copy(site, 256, COLD), 200);
    let merged = Recording::merge(vec![one(1), one(2)]).unwrap();
    let prediction = predicted(&merged);
    assert_eq!(
        (prediction.check.sections, prediction.check.replayed_calls, prediction.recorded.processes),
        (1, 400, 2)
    );
    assert!(prediction.check.section_error.unwrap().abs() < 1e-6, "{:?}", prediction.check);
    assert_eq!(prediction.sites.len(), 2);
}

/// Every number of a prediction that is not a count.
fn floats(prediction: &Prediction) -> Vec<f64> {
    let lines = csv(prediction);
    let value = |line: &str| line.rsplit(',').nth(1).and_then(|value| value.parse::<f64>().ok());
    let mut all: Vec<f64> = lines.lines().skip(1).filter_map(value).collect();
    // CSV leaves out what is no number, so look at the fields themselves.
    let recorded = &prediction.recorded;
    all.extend([recorded.calls_ns, recorded.long_ns, recorded.wall_ns, recorded.program_ns, recorded.interrupted_ns]);
    let check = &prediction.check;
    let mut some = vec![prediction.gain_of_calls, prediction.gain_of_program];
    some.extend([recorded.long_share, recorded.hot_share, recorded.cold_share, recorded.fresh_share]);
    some.extend([check.replayed_ns, check.error, check.section_error, check.curve_error]);
    for times in [&prediction.as_recorded, &prediction.by_cpu, &prediction.offloaded] {
        some.extend([times.total_ns, times.mean_ns, times.p50_ns, times.p99_ns, times.p99_999_ns]);
    }
    let devices = &prediction.devices;
    some.extend([devices.share_of_calls, devices.share_of_bytes, devices.queue_full, devices.faults]);
    some.extend(prediction.thresholds.iter().flat_map(|it| [it.gain_of_calls, it.gain_of_program]));
    for site in &prediction.sites {
        some.extend([site.cold_share, site.cpu_ns, site.device_ns, site.gain, Some(site.saved_ns)]);
    }
    for share in &prediction.cold_shares {
        all.extend([share.cold_share, share.by_cpu_ns, share.offloaded_ns, share.saved_ns]);
        some.extend([share.gain_of_calls, share.gain_of_program]);
    }
    all.extend(some.into_iter().flatten());
    all
}

/// Predicts, compares and shows a recording.
fn check_any(recording: &Recording) {
    let mut prediction = predicted(recording);
    let against = compare(&prediction, recording, &options()).unwrap();
    let values = against.rows.iter().flat_map(|row| [row.predicted, row.other, row.deviation]).flatten();
    assert!(values.clone().all(f64::is_finite), "{against:?}");
    prediction.against = Some(against);
    assert!(floats(&prediction).iter().all(|value| value.is_finite()), "{prediction:?}");
    for shown in [text(&prediction), html(&prediction), csv(&prediction)] {
        assert!(!shown.contains("NaN") && !shown.contains("inf "), "{shown}");
    }
}

#[test]
fn an_empty_recording_has_a_prediction() {
    let file = File::new(1, 0);
    file.writer(&[]);
    let recording = file.read();
    check_any(&recording);
    let prediction = predicted(&recording);
    assert_eq!((prediction.gain_of_calls, prediction.gain_of_program, prediction.best_threshold), (None, None, None));
    // Long calls, but no room for a trace.
    let file = File::new(1, 0);
    record(&file.writer(&CURVE).thread(1), &copy(1, 64, COLD), 100);
    let recording = file.read();
    check_any(&recording);
    assert!(predicted(&recording).remarks.iter().any(|remark| remark.contains("no trace")));
}

#[test]
fn absurd_times_and_sizes_have_a_prediction() {
    for (len, begin, end) in [
        (usize::MAX, 0, u64::MAX),
        (1 << 40, u64::MAX - 1, u64::MAX),
        (16 << 10, 5, 4),
        (16 << 10, u64::MAX / 2, u64::MAX),
    ] {
        let file = File::new(2, 2);
        let writer = file.writer(&CURVE);
        for thread in 1..=2 {
            let thread = writer.thread(thread);
            for operation in Operation::ALL {
                let call = Call { operation, destination: 1, source: 0, len, return_address: 0x40_0001 };
                let begun = thread.begin(&call, || begin);
                thread.end(&call, begun, || end, Some(u64::MAX));
            }
        }
        check_any(&file.read());
    }
}

/// A recording with all tables in use.
fn any_base() -> Vec<u8> {
    let file = File::new(2, 2);
    let writer = file.writer(&CURVE);
    for thread in 1..=3 {
        let thread = writer.thread(thread);
        let mut end = 0;
        for number in 0..40 {
            let _ = thread.count(Operation::ALL[number % 6], number);
            let ps = [HOT, COLD, FRESH][number % 3];
            end = record(&thread, &Copy { site: number % 5, bytes: 3000 * number, ps }, end + 5000);
        }
    }
    file.bytes()
}

/// Whatever the reader accepts has a prediction of finite numbers.
#[test]
fn any_readable_recording_has_a_prediction() {
    let base = any_base();
    let trace = base.len() - 2 * 256 * 32;
    // Seldom in the header, because the reader refuses most files with another one.
    let places = prop_oneof![1 => 0..5304_usize, 6 => 5304..trace, 6 => trace..base.len(), 3 => 5304..40_000_usize];
    let changes = proptest::collection::vec((places, any::<u8>()), 0..60);
    let accepted = std::cell::Cell::new(0);
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    let checked = proptest::test_runner::TestRunner::new(config).run(&changes, |changes| {
        let mut file = base.clone();
        for (at, value) in changes {
            file[at] = value;
        }
        if let Ok(recording) = Recording::read(&file) {
            accepted.set(accepted.get() + 1);
            check_any(&recording);
        }
        Ok(())
    });
    checked.unwrap();
    assert!(accepted.get() > 100, "the reader accepted only {} of 300 files", accepted.get());
}
