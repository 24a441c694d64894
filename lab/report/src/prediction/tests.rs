//! A prediction as text, CSV and a page.

use super::*;

fn site(offset: u64, by: &'static str, saved_ns: f64) -> SitePolicy {
    SitePolicy {
        module: Some("/usr/lib/x86_64-linux-gnu/a-library-with-a-long-name.so.1.2.3".into()),
        build_id: "ab".into(),
        offset,
        function: None,
        calls: 1000,
        bytes: 65_536_000,
        replayed_calls: 500,
        cold_share: Some(0.75),
        cpu_ns: Some(7000.0),
        device_ns: Some(3500.0),
        by,
        gain: Some(2.0),
        saved_ns,
    }
}

fn sample() -> Prediction {
    let times = |mean: f64| CallTimes {
        total_ns: Some(mean * 1e6),
        mean_ns: Some(mean),
        p50_ns: Some(mean),
        p99_ns: Some(mean * 2.0),
        p99_999_ns: None,
    };
    let threshold = |bytes: u64, gain| ThresholdGain {
        bytes,
        gain_of_calls: Some(gain),
        gain_of_program: Some(gain.sqrt()),
        partly_estimated: bytes < 16384,
    };
    let share = |points, cold_share, saved_ns: f64| ColdShareGain {
        points,
        cold_share,
        by_cpu_ns: 1e9,
        offloaded_ns: 1e9 - saved_ns,
        saved_ns,
        gain_of_calls: Some(1e9 / (1e9 - saved_ns)),
        gain_of_program: Some(1.05),
    };
    Prediction {
        kind: "record predict",
        about: About::of_all(&[("a-profile".into(), 1)]),
        recorded: Recorded {
            program: "/usr/bin/redis-server \u{1b}[31m<b>".into(),
            processes: 1,
            cpu: "A processor".into(),
            calls: 4_000_000,
            bytes: 5 << 30,
            calls_ns: 3e9,
            long_from: 16384,
            long_calls: 1_000_000,
            long_bytes: 4 << 30,
            long_ns: 2.5e9,
            interrupted_ns: 1e6,
            wall_ns: 20e9,
            threads: 1,
            program_ns: 20e9,
            long_share: Some(0.125),
            hot_share: Some(0.2),
            cold_share: Some(0.7),
            fresh_share: Some(0.1),
        },
        check: ReplayCheck {
            replayed_calls: 262_144,
            sections: 12,
            replayed_ns: Some(2.51e9),
            error: Some(0.004),
            section_error: Some(0.0),
            curve_error: Some(-0.021),
        },
        as_recorded: times(2500.0),
        by_cpu: times(2700.0),
        offloaded: times(1800.0),
        gain_of_calls: Some(1.5),
        gain_of_program: Some(1.05),
        devices: DeviceWork {
            devices: 4,
            calls: Some(6e5),
            bytes: Some(4e10),
            calls_ns: Some(1.1e9),
            share_of_calls: Some(0.6),
            share_of_bytes: Some(0.7),
            queue_full: Some(0.0),
            faults: Some(0.001),
        },
        thresholds: vec![threshold(8192, 0.9), threshold(16384, 1.3), threshold(32768, 1.2)],
        best_threshold: Some(16384),
        sites: vec![site(0x1234, "device", 5e8), SitePolicy { gain: Some(0.4), ..site(0x5678, "cpu", 0.0) }],
        cold_shares: vec![share(-10, 0.6, 1e8), share(0, 0.7, 2e8), share(10, 0.8, 3e8)],
        scaled: vec!["The time of calls was scaled.".into()],
        assumptions: vec!["Each thread has a core of its own.".into()],
        remarks: vec!["The replay has 262144 of 1000000 long calls.".into()],
        against: Some(Comparison {
            program: "other".into(),
            rows: vec![
                ComparedValue {
                    name: "cold share of bytes",
                    unit: "%",
                    predicted: Some(0.7),
                    other: Some(0.6),
                    deviation: Some(0.1),
                },
                ComparedValue {
                    name: "mean time by CPU",
                    unit: "ns",
                    predicted: Some(2700.0),
                    other: None,
                    deviation: None,
                },
                ComparedValue {
                    name: "mean size of a long call",
                    unit: "B",
                    predicted: Some(65536.0),
                    other: Some(32768.0),
                    deviation: Some(1.0),
                },
                ComparedValue {
                    name: "gain of the long calls",
                    unit: "",
                    predicted: Some(1.5),
                    other: Some(1.2),
                    deviation: Some(0.25),
                },
            ],
            unknown_sites: 1,
            how: "Its calls were replayed.".into(),
        }),
    }
}

/// A prediction from a recording without calls.
fn empty() -> Prediction {
    let none = CallTimes::default();
    Prediction {
        recorded: Recorded::default(),
        check: ReplayCheck::default(),
        as_recorded: none,
        by_cpu: none,
        offloaded: none,
        gain_of_calls: None,
        gain_of_program: None,
        devices: DeviceWork::default(),
        thresholds: Vec::new(),
        best_threshold: None,
        sites: Vec::new(),
        cold_shares: Vec::new(),
        against: None,
        ..sample()
    }
}

#[test]
fn text_has_the_results_within_a_terminal_s_width() {
    let mut wide = sample();
    wide.sites.extend((0..30).map(|_| SitePolicy {
        cold_share: Some(1.0),
        gain: Some(12.34),
        ..site(7, "device", 0.0)
    }));
    let text = text(&wide);
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "Simulated · profile a-profile",
        "1.50 times as fast, and the program 1.05 times",
        "4 devices of a-profile",
        "1000000 of 4000000 calls are long (16 KiB or more)",
        "+0.4 %",
        "-2.1 %",
        "The best is 16 KiB.",
        ".so.1.2.3+0x1234",
        "+10 points",
        "1 of its call sites is unknown",
        "+10.0 points",
        "2.70 µs",
        "+25.0 %",
        "64.0 KiB",
        "- Each thread has a core of its own.",
    ] {
        assert!(one_line.contains(words), "{words:?} is missing in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(!text.contains('\u{1b}'), "control characters of the recording");
    assert!(!text.contains("A site with a gain stays") && text.contains("the time without other calls"), "{text}");
    wide.sites[1].gain = Some(1.2);
    assert!(super::text(&wide).contains("A site with a gain stays on the CPU"));
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("device") && line.contains("0x1234")).collect();
    assert_eq!(rows.len(), 1, "{text}");
}

#[test]
fn the_page_has_a_chart_for_thresholds_sites_and_shares() {
    let html = html(&sample());
    for caption in ["Gain by threshold", "Mean time of a call", "Gain by share of cold data"] {
        assert!(html.contains(&format!("<figcaption>{caption}")), "{caption} is missing in {html}");
    }
    assert_eq!(html.matches("<svg ").count(), 3);
    assert!(html.contains("&lt;b&gt;") && !html.contains("<b>") && !html.contains('\u{1b}'));
    assert!(html.contains("a-library-with-a-long-name.so.1.2.3+0x1234"));
}

#[test]
fn csv_has_one_number_a_line() {
    let csv = csv(&sample());
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "simulated,profile,profile_hash,part,name,quantity,value,unit");
    assert!(lines[1..].iter().all(|line| line.starts_with("yes,a-profile,0000000000000001,")), "{csv}");
    for line in [
        "threshold,16384,gain of calls,1.3,",
        "cold share,-10,saved,100000000,ns",
        "best policy,/usr/bin/redis-server",
        "+0x1234,by device,1,",
        "against,cold share of bytes,deviation,0.1,",
        "long calls,best policy,p99.999,,ns",
    ] {
        assert!(csv.contains(line), "{line} is missing in {csv}");
    }
}

#[test]
fn a_recording_without_calls_has_a_text_and_a_page_without_charts() {
    let (text, html) = (text(&empty()), html(&empty()));
    assert!(text.contains("Unknown: no long call was replayed") && text.contains("No threshold gains"), "{text}");
    assert_eq!(html.matches("<svg ").count(), 0);
    assert!(!text.contains("were cold") && !html.contains("Compared with"));
}

#[test]
fn json_has_the_header_and_no_empty_comparison() {
    let value = serde_json::to_value(empty()).unwrap();
    assert_eq!((value["simulated"].as_bool(), value["profile"].as_str()), (Some(true), Some("a-profile")));
    assert!(value.get("against").is_none() && value["gain_of_calls"].is_null(), "{value}");
}
