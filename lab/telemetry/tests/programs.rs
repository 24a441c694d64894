//! What programs publish, as a table, in JSON and in CSV.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use telpher_metrics::metrics;
use telpher_telemetry::published::ProcessMetrics;
use telpher_telemetry::view::View;
use telpher_telemetry::{Snapshot, Value, programs, tables};

/// The help of operations, bytes and fallbacks.
const HELP: &str = "Work.";

metrics! {
    /// What a mover publishes.
    struct Mover {
        /// Work.
        by_device: u64 = counter "telpher_mover_operations_total" by executor ["device"] => HELP,
        /// Work.
        by_cpu: u64 = counter "telpher_mover_operations_total" by executor ["cpu"] => HELP,
        /// Work.
        device_bytes: u64 = counter(Bytes) "telpher_mover_bytes_total" by executor ["device"] => HELP,
        /// Work.
        cpu_bytes: u64 = counter(Bytes) "telpher_mover_bytes_total" by executor ["cpu"] => HELP,
        /// Work.
        full: u64 = counter "telpher_mover_fallbacks_total" by reason ["queues full"] => HELP,
        /// Work.
        fault: u64 = counter "telpher_mover_fallbacks_total" by reason ["page fault"] => HELP,
        /// Work.
        waiting: std::time::Duration = counter(Seconds) "telpher_mover_full_queue_seconds_total",
    }
}

metrics! {
    /// What a cache publishes.
    struct Cache {
        /// Work.
        hits: u64 = counter "telpher_cache_hits_total",
        /// Work.
        misses: u64 = counter "telpher_cache_misses_total",
    }
}

/// Two programs: a mover in each, and a cache in the first one. The first one did `done` of each.
fn snapshot(done: u64) -> Snapshot {
    let mover = Mover {
        by_device: 3 * done,
        by_cpu: done,
        device_bytes: 3000 * done,
        cpu_bytes: 1000 * done,
        full: done,
        fault: 2 * done,
        waiting: std::time::Duration::from_millis(done),
    };
    let idle = Mover::default();
    let processes = [
        ProcessMetrics::of(5_000_001, 1, &mover),
        ProcessMetrics::of(5_000_001, 2, &Cache { hits: 10 * done, misses: 0 }),
        // Two regions of one process, as after an exec, and numbers beyond the type.
        ProcessMetrics::of(5_000_001, 3, &idle),
        ProcessMetrics::of(5_000_002, 4, &Mover { by_cpu: u64::MAX, by_device: u64::MAX, ..idle }),
    ];
    Snapshot { programs: programs::rows(&processes), ..Snapshot::default() }
}

#[test]
fn a_row_has_what_its_system_publishes_and_says_what_it_does_not() {
    let programs = snapshot(100).programs;
    let [mover, cache, other] = &programs[..] else { panic!("{programs:?}") };
    assert_eq!((mover.pid, mover.system.as_str(), cache.system.as_str()), (5_000_001, "mover", "cache"));
    assert_eq!([&mover.operations, &mover.bytes, &mover.fallbacks].map(Value::known), [400, 400_000, 300].map(Some));
    assert_eq!([&mover.cpu_part, &mover.cpu_whole].map(Value::known), [Some(100_000), Some(400_000)]);
    assert_eq!(mover.waited_ns.known(), Some(100_000_000));
    assert_eq!(mover.reasons, [("queues full".to_owned(), 100), ("page fault".to_owned(), 200)]);
    assert_eq!(cache.operations.known(), Some(1000));
    // This cache publishes neither bytes nor fallbacks, and no cache knows what made its copies.
    let unknown = [&cache.bytes, &cache.fallbacks, &cache.cpu_part, &cache.waited_ns];
    assert!(unknown.iter().all(|value| value.known().is_none()), "{cache:?}");
    assert_eq!((other.pid, other.operations.known()), (5_000_002, Some(u64::MAX)));
}

#[test]
fn totals_are_printed_in_each_format_and_fit_into_a_usual_terminal() {
    let mut snapshot = snapshot(100);
    // Its numbers are wider than those of any program.
    snapshot.programs.pop();
    let text = tables::text(&snapshot, 80, None);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let line = text.lines().find(|line| line.contains("mover")).unwrap();
    for cell in ["5000001", "400", "390 KiB", "25 %", "300", "page fault"] {
        assert!(line.contains(cell), "no {cell} in\n{text}");
    }
    let cache = text.lines().find(|line| line.contains("cache")).unwrap();
    assert!(cache.contains('–') && !cache.contains(" 0 "), "{text}");
    let csv = tables::csv(&snapshot);
    let count = |line: &str| line.split(',').count();
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines.iter().all(|line| count(line) == count(lines[0])), "{csv}");
    assert!(lines[1].starts_with("program,,,5000001,,"), "{csv}");
    assert!(lines[1].ends_with(",mover,400,400000,100000,400000,300,100000000,,"), "{csv}");
    assert!(lines[2].ends_with(",cache,1000,unknown,unknown,unknown,unknown,unknown,,"), "{csv}");
    let json = serde_json::to_value(&snapshot).unwrap();
    assert_eq!(json["programs"][0]["reasons"][1], serde_json::json!(["page fault", 200]));
    assert_eq!(json["programs"][1]["bytes"]["unknown"], "not counted");
}

#[test]
fn the_live_view_shows_rates_and_the_reason_that_grew_most() {
    let mut before = snapshot(100);
    before.programs[0].reasons = vec![("page fault".into(), 200)];
    let mut view = View::new(before, None, false);
    view.update(snapshot(200), 2.0);
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..80).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    let screen: Vec<String> = (0..24).map(line).collect();
    assert!(screen[0].starts_with("telpher top · programs · per second, over 2.0 s"), "{screen:#?}");
    let mover = screen.iter().find(|line| line.contains("mover")).unwrap();
    // 400 operations, 400,000 bytes and 300 fallbacks in two seconds, and 100 ms of waiting.
    for cell in ["200", "195 KiB", "25 %", "150"] {
        assert!(mover.contains(cell), "no {cell} in {screen:#?}");
    }
    // The queue was full 200 times more than before, and pages were absent 200 times more: the last one of equals.
    assert!(mover.contains("page fault"), "{screen:#?}");
}
