//! The live view on screens of several sizes, without a terminal.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use telpher_telemetry::sections::{Since, sections};
use telpher_telemetry::snapshot::Work;
use telpher_telemetry::view::{Reaction, View};
use telpher_telemetry::{DeviceRow, EngineRow, ProcessRow, QueueRow, Snapshot, Value, tables};

fn work(descriptors: u64) -> Work {
    Work {
        descriptors: descriptors.into(),
        members: 0.into(),
        read_bytes: (4096 * descriptors).into(),
        written_bytes: (4096 * descriptors).into(),
        faults: 1.into(),
    }
}

fn queue(source: &str, number: u64, descriptors: u64) -> QueueRow {
    QueueRow {
        source: source.into(),
        queue: format!("wq0.{number}"),
        state: "enabled".into(),
        mode: if number == 0 { "shared" } else { "dedicated" }.into(),
        size: 16.into(),
        threshold: 12.into(),
        priority: 10.into(),
        group: 0.into(),
        clients: 2.into(),
        occupancy: number.into(),
        work: work(descriptors),
        retries: (10 * number).into(),
        lost: 0.into(),
    }
}

/// A device that has executed descriptors in three queues, for two processes.
fn snapshot(source: &str, done: u64) -> Snapshot {
    let process = |pid: Value, name: &str, descriptors| ProcessRow {
        source: source.into(),
        queue: "wq0.0".into(),
        pid,
        command: name.into(),
        pasid: 1.into(),
        work: work(descriptors),
        retries: 0.into(),
        lost: 0.into(),
        record_faults: Value::unknown("not counted"),
        numa_distance: Value::unknown("not counted"),
    };
    Snapshot {
        devices: vec![DeviceRow {
            source: source.into(),
            device: "dsa0".into(),
            state: "enabled".into(),
            clients: 2.into(),
            work: work(6 * done),
            retries: 30.into(),
            lost: 0.into(),
            errors: 0.into(),
            shared_requests: done.into(),
            dedicated_requests: (5 * done).into(),
            operations: Vec::new(),
            statuses: Vec::new(),
            logged: 0.into(),
            logged_codes: Vec::new(),
        }],
        queues: vec![queue(source, 0, done), queue(source, 2, 2 * done), queue(source, 10, 3 * done)],
        engines: vec![EngineRow {
            source: source.into(),
            engine: "engine0.0".into(),
            group: 0.into(),
            work: work(6 * done),
            timed: done.into(),
            busy_ns: (2_000 * done).into(),
            times: Vec::new(),
        }],
        processes: vec![
            process(4711.into(), "writer", done),
            process(4712.into(), "reader", 5 * done),
            process(Value::unknown("the sum of closed files"), "3 closed", 7),
        ],
        ..Snapshot::default()
    }
}

/// Ten thousand descriptors a second in the first queue.
fn view(sort: Option<&str>, has_color: bool) -> View {
    let mut view = View::new(snapshot("run-1", 1000), sort.map(Into::into), has_color);
    view.update(snapshot("run-1", 11_000), 1.0);
    view
}

fn draw(view: &View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

#[test]
fn all_tables_fit_into_a_usual_terminal() {
    let screen = draw(&view(None, true), 80, 24);
    let text = screen.join("\n");
    for part in
        ["per second, over 1.0 s", "dsa0", "wq0.10", "engine0.0", "writer", "reader", "q quit", "60k", "234 MiB"]
    {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    assert!(!text.contains("closed"), "the sum of closed files is no rate:\n{text}");
    // The time of a descriptor, and how many were in progress on the average: 20 ms of work in a second.
    let engine = screen.iter().find(|line| line.starts_with("engine0.0")).unwrap();
    assert!(engine.contains("2.0 µs") && engine.ends_with("0.02"), "{engine}");
}

#[test]
fn columns_leave_by_rank_where_the_screen_is_narrow() {
    let heading = |width| {
        let screen = draw(&view(None, false), width, 24);
        assert!(screen.iter().all(|line| line.chars().count() <= usize::from(width)));
        screen.into_iter().find(|line| line.starts_with("queue")).unwrap()
    };
    let wide = heading(160);
    for name in
        ["state", "mode", "clients", "waiting", "descr/s", "members/s", "read/s", "faults/s", "retries/s", "lost/s"]
    {
        assert!(wide.contains(name), "{name} in {wide}");
    }
    let usual = heading(80);
    assert!(usual.contains("retries/s") && usual.contains("waiting") && !usual.contains("members"), "{usual}");
    let narrow = heading(30);
    assert!(narrow.contains("descr/s") && !narrow.contains("retries"), "{narrow}");
    assert_eq!(heading(10), "queue");
}

#[test]
fn every_size_of_a_screen_is_drawn() {
    for (width, height) in [(1, 1), (2, 40), (200, 1), (20, 2), (20, 3), (80, 5), (80, 7), (300, 100)] {
        draw(&view(Some("read"), true), width, height);
    }
    let mut empty = View::new(Snapshot::default(), None, true);
    for code in [KeyCode::Tab, KeyCode::BackTab, KeyCode::Left, KeyCode::Right, KeyCode::Up, KeyCode::Down] {
        empty.key(key(code));
        draw(&empty, 80, 24);
    }
}

#[test]
fn a_table_that_is_cut_says_how_many_rows_are_hidden_and_scrolls() {
    let mut many = snapshot("run-1", 1000);
    many.queues = (0..50).map(|number| queue("run-1", number, number)).collect();
    let mut view = View::new(many, None, true);
    view.key(key(KeyCode::Char('t')));
    view.key(key(KeyCode::Tab));
    let text = draw(&view, 80, 24).join("\n");
    assert!(text.contains("wq0.0 ") && text.contains("more rows: Tab, then ↑↓"), "{text}");
    for name in ["dsa0", "engine0.0", "writer"] {
        assert!(text.contains(name), "another table has no space left for {name}:\n{text}");
    }
    for _ in 0..100 {
        view.key(key(KeyCode::Down));
        draw(&view, 80, 24);
    }
    let screen = draw(&view, 80, 24);
    let has = |screen: &[String], name: &str| screen.iter().any(|line| line.starts_with(name));
    assert!(has(&screen, "wq0.49 ") && !has(&screen, "wq0.0 "), "{screen:#?}");
    // One key back shows: the view has not gone beyond its end.
    view.key(key(KeyCode::Up));
    assert!(!has(&draw(&view, 80, 24), "wq0.49 "));
}

#[test]
fn keys_choose_the_column_and_the_order() {
    let queues = |view: &View| -> Vec<String> {
        let screen = draw(view, 120, 30);
        let names = screen.iter().filter_map(|line| line.split_whitespace().next());
        names.filter(|name| name.starts_with("wq")).map(Into::into).collect()
    };
    let mut view = view(Some("descriptors"), true);
    assert_eq!(queues(&view), ["wq0.10", "wq0.2", "wq0.0"]);
    assert_eq!(view.key(key(KeyCode::Char('r'))), Reaction::Draw);
    assert_eq!(queues(&view), ["wq0.0", "wq0.2", "wq0.10"]);
    view.key(key(KeyCode::Tab));
    // From descriptors to the left: waiting, of which wq0.10 has the most; numbers descend.
    view.key(key(KeyCode::Left));
    assert_eq!(queues(&view), ["wq0.10", "wq0.2", "wq0.0"]);
    assert!(draw(&view, 120, 30)[0].contains("by waiting"));
    for quit in [key(KeyCode::Char('q')), key(KeyCode::Esc), KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)] {
        assert_eq!(view.key(quit), Reaction::Quit);
    }
    assert_eq!(view.key(key(KeyCode::Char('x'))), Reaction::Ignore);
}

#[test]
fn names_are_sorted_by_their_numbers() {
    let mut mixed = snapshot("run-1", 1);
    mixed.queues.reverse();
    let mut sections = sections(&mixed, None);
    sections[1].sort("queue", false);
    let names: Vec<_> = sections[1].rows.iter().map(|row| row[0].text.as_str()).collect();
    assert_eq!(names, ["wq0.0", "wq0.2", "wq0.10"]);
}

#[test]
fn what_is_unknown_stays_last_and_is_no_rate() {
    let mut before = snapshot("hardware", 1);
    before.queues[0].work.descriptors = Value::unknown("no perf");
    let now = before.clone();
    let mut sections = sections(&now, Some(Since { before: &before, seconds: 1.0 }));
    for reversed in [false, true] {
        sections[1].sort("descriptors", reversed);
        let at = sections[1].columns.iter().position(|column| column.name == "descriptors").unwrap();
        let cells: Vec<_> = sections[1].rows.iter().map(|row| row[at].text.as_str()).collect();
        assert_eq!(cells, ["0", "0", "–"]);
    }
}

#[test]
fn a_new_process_of_a_known_run_began_with_nothing_and_an_unknown_run_has_no_rates() {
    let (before, now) = (snapshot("run-1", 100), snapshot("run-1", 100));
    let of = |before: &Snapshot, section: usize| {
        let sections = sections(&now, Some(Since { before, seconds: 2.0 }));
        let at = sections[section].columns.iter().position(|column| column.name == "descriptors").unwrap();
        sections[section].rows.iter().map(|row| row[at].text.clone()).collect::<Vec<_>>()
    };
    let without = Snapshot { processes: Vec::new(), ..before.clone() };
    assert_eq!(of(&without, 3), ["50", "250"]);
    assert_eq!(of(&Snapshot::default(), 0), ["–"]);
}

#[test]
fn the_energy_is_by_the_bytes_that_devices_have_written_or_has_a_reason() {
    let with = |done, energy| Snapshot { package_energy_uj: energy, ..snapshot("run-1", done) };
    let shown = |before, after| {
        let mut view = View::new(with(0, before), None, false);
        view.update(with(10_000, after), 2.0);
        draw(&view, 100, 24)[1].clone()
    };
    // 60,000 × 4096 bytes, and 24.576 J.
    assert_eq!(shown(Value::Known(1), Value::Known(24_576_001)), "packages: 12.3 W · 100.00 J/GB written by devices");
    let unknown = || Value::unknown("Linux shows no package energy");
    assert_eq!(shown(unknown(), unknown()), "packages: – (Linux shows no package energy)");
    let long = || Value::unknown(format!("Linux shows no package energy; {}", "x".repeat(60)));
    assert_eq!(shown(long(), long()), "packages: – (Linux shows no package energy)");
    let idle = with(5, Value::Known(3_000_000));
    assert_eq!(idle.energy_since(&with(5, Value::Known(1_000_000))), Ok((2_000_000, 0)));
}

#[test]
fn colors_are_used_only_when_wanted() {
    let has_color = |has_color| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let view = view(None, has_color);
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().buffer().content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(has_color(true));
    assert!(!has_color(false));
}

#[test]
fn rows_of_several_sources_say_their_source() {
    let mut both = snapshot("run-1", 1);
    both.append(snapshot("run-2", 1));
    let view = View::new(both.clone(), None, false);
    let text = draw(&view, 80, 40).join("\n");
    assert!(text.contains("2 sources") && text.contains("run-1") && text.contains("run-2"), "{text}");
    let text = tables::text(&both, 80, None);
    assert_eq!(text.lines().filter(|line| line.starts_with("run-")).collect::<Vec<_>>(), ["run-1", "run-2"]);
}

#[test]
fn tables_fit_and_say_which_columns_are_missing() {
    let numbers = snapshot("run-12345-abcdef12", u64::MAX / 100_000);
    for width in [40, 80, 200] {
        let text = tables::text(&numbers, width, None);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        let is_whole = width == 200;
        assert_eq!(text.contains(&format!("Not shown in {width} columns:")), !is_whole, "{text}");
    }
    let sorted = tables::text(&snapshot("run-1", 1), 80, Some("descriptors"));
    let queues: Vec<_> = sorted.lines().filter_map(|line| line.trim().split(' ').next()).collect();
    let queues: Vec<_> = queues.into_iter().filter(|name| name.starts_with("wq")).collect();
    assert_eq!(queues, ["wq0.10", "wq0.2", "wq0.0"]);
}
