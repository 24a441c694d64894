//! A snapshot as sections of rows: devices, queues, engines, processes, programs. The cells are totals, or what
//! happened per second between two snapshots.
//!
//! ```text
//! snapshot ──► Datum by column ──┬─ alone ──────────────► totals ┐
//! earlier snapshot ──────────────┴─ difference, seconds ► rates  ┴─► Cell: text and sort key ──► sort ──► fit
//! ```

use crate::snapshot::{DeviceRow, EngineRow, ProcessRow, ProgramRow, QueueRow, Snapshot, Value, Work};
use std::cmp::Ordering;
pub use telpher_report::table::Align;
use telpher_report::table::Align::{Left, Right};

/// A column of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name, also for sorting.
    pub name: &'static str,
    /// Words are left, numbers right.
    pub align: Align,
    /// Columns of a higher rank are left out first where there is no space. Those of rank 0 always stay.
    rank: u8,
    /// In rates, it is a number per second.
    per_second: bool,
}

const fn word(name: &'static str, rank: u8) -> Column {
    Column { name, align: Left, rank, per_second: false }
}

const fn gauge(name: &'static str, rank: u8) -> Column {
    Column { name, align: Right, rank, per_second: false }
}

const fn count(name: &'static str, rank: u8) -> Column {
    Column { name, align: Right, rank, per_second: true }
}

const DESCRIPTORS: Column = count("descriptors", 1);
const MEMBERS: Column = count("members", 9);
const READ: Column = count("read", 2);
const WRITTEN: Column = count("written", 2);
const FAULTS: Column = count("faults", 6);

/// The column with the run, or `hardware`. It is shown where rows of several sources stand together.
const SOURCE: Column = word("source", 1);

const DEVICES: &[Column] = &[
    word("device", 0),
    SOURCE,
    word("state", 4),
    gauge("clients", 7),
    DESCRIPTORS,
    MEMBERS,
    READ,
    WRITTEN,
    FAULTS,
    count("retries", 3),
    count("lost", 8),
    count("errors", 5),
    gauge("logged", 8),
];
const QUEUES: &[Column] = &[
    word("queue", 0),
    SOURCE,
    word("state", 10),
    word("mode", 5),
    gauge("clients", 7),
    gauge("waiting", 3),
    DESCRIPTORS,
    MEMBERS,
    READ,
    WRITTEN,
    FAULTS,
    count("retries", 4),
    count("lost", 8),
];
const ENGINES: &[Column] = &[
    word("engine", 0),
    SOURCE,
    gauge("group", 5),
    DESCRIPTORS,
    MEMBERS,
    READ,
    WRITTEN,
    FAULTS,
    gauge("time", 4),
    gauge("busy", 3),
];
const PROCESSES: &[Column] = &[
    gauge("pid", 0),
    word("program", 0),
    SOURCE,
    word("queue", 3),
    DESCRIPTORS,
    MEMBERS,
    READ,
    WRITTEN,
    FAULTS,
    count("retries", 4),
    count("lost", 8),
];

const PROGRAMS: &[Column] = &[
    gauge("pid", 0),
    word("program", 0),
    word("system", 0),
    count("operations", 1),
    count("bytes", 2),
    gauge("cpu", 3),
    count("fallbacks", 4),
    gauge("waited", 6),
    word("reason", 5),
];

/// The names of all columns, for sorting.
pub const NAMES: [&str; 29] = [
    "device",
    "queue",
    "engine",
    "pid",
    "program",
    "source",
    "state",
    "mode",
    "group",
    "clients",
    "waiting",
    "descriptors",
    "members",
    "read",
    "written",
    "faults",
    "retries",
    "lost",
    "errors",
    "time",
    "busy",
    "system",
    "operations",
    "bytes",
    "cpu",
    "fallbacks",
    "waited",
    "reason",
    "logged",
];

/// True for a column that only the table of what programs publish has.
#[must_use]
pub fn is_of_programs(name: &str) -> bool {
    let has = |columns: &[Column]| columns.iter().any(|column| column.name == name);
    has(PROGRAMS) && ![DEVICES, QUEUES, ENGINES, PROCESSES].into_iter().any(has)
}

impl Column {
    /// The heading. `is_rate`: the cells are rates.
    #[must_use]
    pub fn heading(&self, is_rate: bool) -> String {
        match self.name {
            // The longest names would take the space of another column.
            "descriptors" if is_rate => "descr/s".into(),
            "operations" if is_rate => "ops/s".into(),
            name if is_rate && self.per_second => format!("{name}/s"),
            name => name.into(),
        }
    }
}

/// What a row has in a column.
enum Datum {
    Text(String),
    Gauge(Value),
    Count(Value),
    Bytes(Value),
    /// Descriptors that wait, and entries.
    Waiting(Value, Value),
    /// The mean time of a descriptor: the sum of the times in nanoseconds, and their number.
    Mean(Value, Value),
    /// The sum of the times in nanoseconds.
    Busy(Value),
    /// A part of a whole.
    Share(Value, Value),
    /// Numbers by reason, of which the most frequent one is shown.
    Reasons(Vec<(String, u64)>),
}

/// The value by which a row is sorted.
#[derive(Clone, PartialEq, Debug)]
enum Key {
    Unknown,
    Number(f64),
    Text(String),
}

impl Key {
    /// Numbers descend, texts ascend, and what is unknown is last.
    fn compare(&self, other: &Key) -> Ordering {
        match (self, other) {
            (Key::Number(a), Key::Number(b)) => b.total_cmp(a),
            (Key::Text(a), Key::Text(b)) => natural(a).cmp(&natural(b)),
            (Key::Unknown, Key::Unknown) => Ordering::Equal,
            (Key::Unknown, _) => Ordering::Greater,
            (_, Key::Unknown) => Ordering::Less,
            (Key::Number(_), Key::Text(_)) => Ordering::Less,
            (Key::Text(_), Key::Number(_)) => Ordering::Greater,
        }
    }
}

/// Splits a name, so that wq0.2 is before wq0.10.
fn natural(text: &str) -> Vec<(&str, u64)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let words = rest.len() - rest.trim_start_matches(|c: char| !c.is_ascii_digit()).len();
        let (name, after) = rest.split_at(words);
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = after.split_at(digits);
        parts.push((name, number.parse().unwrap_or(0)));
        rest = after;
    }
    parts
}

/// A cell: its text, and by what it is sorted.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    /// The text; a dash for what cannot be known.
    pub text: String,
    key: Key,
}

/// The text of a value that cannot be known.
const DASH: &str = "–";

impl Cell {
    fn unknown() -> Cell {
        Cell { text: DASH.into(), key: Key::Unknown }
    }

    fn number(number: Option<f64>, text: impl FnOnce(f64) -> String) -> Cell {
        number.map_or_else(Cell::unknown, |number| Cell { text: text(number), key: Key::Number(number) })
    }

    fn of_value(value: &Value, text: impl FnOnce(u64) -> String) -> Cell {
        let Some(known) = value.known() else { return Cell::unknown() };
        Cell { text: text(known), key: Key::Number(known as f64) }
    }
}

/// The rows of one kind.
#[derive(Clone, PartialEq, Debug)]
pub struct Section {
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows; each has a cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// The cells are rates.
    pub is_rate: bool,
    /// The names of columns that were left out, because there was no space.
    pub left_out: Vec<&'static str>,
}

/// An earlier snapshot, and the seconds since then.
#[derive(Clone, Copy, Debug)]
pub struct Since<'a> {
    /// The earlier snapshot.
    pub before: &'a Snapshot,
    /// Seconds from it to the present one.
    pub seconds: f64,
}

/// Returns the sections of a snapshot that have rows: totals, or rates since an earlier snapshot. The sum of the closed
/// files is no rate.
#[must_use]
pub fn sections(now: &Snapshot, since: Option<Since<'_>>) -> Vec<Section> {
    let before = since.map(|since| since.before);
    let processes = |snapshot: &Snapshot| -> Vec<ProcessRow> {
        let open = |row: &&ProcessRow| since.is_none() || row.pid.known().is_some();
        snapshot.processes.iter().filter(open).cloned().collect()
    };
    let all = [
        section(DEVICES, &now.devices, before.map(|before| &before.devices[..]), since, &device, &known_source),
        section(QUEUES, &now.queues, before.map(|before| &before.queues[..]), since, &queue, &known_source),
        section(ENGINES, &now.engines, before.map(|before| &before.engines[..]), since, &engine, &known_source),
        section(PROCESSES, &processes(now), before.map(processes).as_deref(), since, &process, &known_source),
        section(PROGRAMS, &now.programs, before.map(|before| &before.programs[..]), since, &program, &known_programs),
    ];
    all.into_iter().filter(|section| !section.rows.is_empty()).collect()
}

/// True if an earlier snapshot has the source: what is new in it began with nothing.
fn known_source(before: &Snapshot, source: &str) -> bool {
    before.devices.iter().any(|row| row.source == source)
}

/// True if an earlier snapshot has programs or devices: a new program began with nothing.
fn known_programs(before: &Snapshot, _: &str) -> bool {
    !before.is_empty()
}

/// A row: its identity, and what it has in each column.
struct Described {
    identity: String,
    source: String,
    data: Vec<Datum>,
}

fn section<Row>(
    columns: &[Column],
    now: &[Row],
    before: Option<&[Row]>,
    since: Option<Since<'_>>,
    describe: &dyn Fn(&Row) -> Described,
    known: &dyn Fn(&Snapshot, &str) -> bool,
) -> Section {
    let mut earlier: Vec<Option<Described>> =
        before.unwrap_or_default().iter().map(|row| Some(describe(row))).collect();
    let row = |row: &Row| {
        let row = describe(row);
        let Some(since) = since else { return row.data.iter().map(total).collect() };
        // A process may have a queue open several times: each of its rows is taken once, in order.
        let same = |old: &&mut Option<Described>| old.as_ref().is_some_and(|old| old.identity == row.identity);
        let old = earlier.iter_mut().find(same).and_then(Option::take);
        let is_known = old.is_some() || known(since.before, &row.source);
        let datum = |(at, datum)| rate(datum, old.as_ref().and_then(|old| old.data.get(at)), is_known, since.seconds);
        row.data.iter().enumerate().map(datum).collect()
    };
    let rows = now.iter().map(row).collect();
    Section { columns: columns.to_vec(), rows, is_rate: since.is_some(), left_out: Vec::new() }
}

fn work(work: &Work) -> [Datum; 5] {
    let Work { descriptors, members, read_bytes, written_bytes, faults } = work.clone();
    [
        Datum::Count(descriptors),
        Datum::Count(members),
        Datum::Bytes(read_bytes),
        Datum::Bytes(written_bytes),
        Datum::Count(faults),
    ]
}

fn described(source: &str, identity: &[&str], before: Vec<Datum>, of: &Work, after: Vec<Datum>) -> Described {
    Described {
        identity: [&[source], identity].concat().join(" "),
        source: source.into(),
        data: before.into_iter().chain(work(of)).chain(after).collect(),
    }
}

fn text(text: &str) -> Datum {
    Datum::Text(text.into())
}

fn device(row: &DeviceRow) -> Described {
    let before = vec![text(&row.device), text(&row.source), text(&row.state), Datum::Gauge(row.clients.clone())];
    let counts = [&row.retries, &row.lost, &row.errors].map(|value| Datum::Count(value.clone()));
    let after = counts.into_iter().chain([Datum::Gauge(row.logged.clone())]).collect();
    described(&row.source, &[&row.device], before, &row.work, after)
}

fn queue(row: &QueueRow) -> Described {
    let before = vec![
        text(&row.queue),
        text(&row.source),
        text(&row.state),
        text(&row.mode),
        Datum::Gauge(row.clients.clone()),
        Datum::Waiting(row.occupancy.clone(), row.size.clone()),
    ];
    let after = [&row.retries, &row.lost].map(|value| Datum::Count(value.clone()));
    described(&row.source, &[&row.queue], before, &row.work, after.into())
}

fn engine(row: &EngineRow) -> Described {
    let before = vec![text(&row.engine), text(&row.source), Datum::Gauge(row.group.clone())];
    let after = vec![Datum::Mean(row.busy_ns.clone(), row.timed.clone()), Datum::Busy(row.busy_ns.clone())];
    described(&row.source, &[&row.engine], before, &row.work, after)
}

fn process(row: &ProcessRow) -> Described {
    let pid = row.pid.to_string();
    let before = vec![Datum::Gauge(row.pid.clone()), text(&row.command), text(&row.source), text(&row.queue)];
    let after = [&row.retries, &row.lost].map(|value| Datum::Count(value.clone()));
    described(&row.source, &[&row.queue, &pid], before, &row.work, after.into())
}

fn program(row: &ProgramRow) -> Described {
    let pid = row.pid.to_string();
    let data = vec![
        Datum::Gauge(u64::from(row.pid).into()),
        text(&row.command),
        text(&row.system),
        Datum::Count(row.operations.clone()),
        Datum::Bytes(row.bytes.clone()),
        Datum::Share(row.cpu_part.clone(), row.cpu_whole.clone()),
        Datum::Count(row.fallbacks.clone()),
        Datum::Busy(row.waited_ns.clone()),
        Datum::Reasons(row.reasons.clone()),
    ];
    Described { identity: format!("{pid} {}", row.system), source: String::new(), data }
}

/// The cell of a datum that is no rate.
fn total(datum: &Datum) -> Cell {
    match datum {
        Datum::Text(text) => Cell { text: text.clone(), key: Key::Text(text.clone()) },
        Datum::Gauge(value) | Datum::Count(value) => Cell::of_value(value, |value| value.to_string()),
        Datum::Bytes(value) => Cell::of_value(value, |value| bytes(value as f64)),
        Datum::Waiting(waiting, size) => {
            Cell { text: format!("{waiting}/{size}"), key: Cell::of_value(waiting, |_| String::new()).key }
        }
        Datum::Mean(sum, number) => Cell::number(mean(sum.known(), number.known()), duration),
        Datum::Busy(value) => Cell::of_value(value, |ns| duration(ns as f64)),
        Datum::Share(part, whole) => Cell::number(mean(part.known(), whole.known()), percent),
        Datum::Reasons(reasons) => most_frequent(reasons.iter().map(|(reason, number)| (reason, *number))),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// The cell of the reason with the largest number. Without one there is no text.
fn most_frequent<'a>(reasons: impl Iterator<Item = (&'a String, u64)>) -> Cell {
    let most = reasons.filter(|(_, number)| *number > 0).max_by_key(|(_, number)| *number);
    let text = most.map(|(reason, _)| reason.clone()).unwrap_or_default();
    Cell { key: Key::Text(text.clone()), text }
}

/// The cell of a datum per second. `is_known`: without an earlier datum, it began with zero.
fn rate(now: &Datum, before: Option<&Datum>, is_known: bool, seconds: f64) -> Cell {
    let grown = |now: &Value, before: Option<&Value>| {
        let before = match before {
            Some(before) => before.known()?,
            None if is_known => 0,
            None => return None,
        };
        Some(now.known()?.saturating_sub(before))
    };
    let per_second = |grown: Option<u64>| grown.map(|grown| grown as f64 / seconds.max(1e-9));
    match (now, before) {
        (Datum::Count(now), Some(Datum::Count(old))) => Cell::number(per_second(grown(now, Some(old))), short),
        (Datum::Count(now), _) => Cell::number(per_second(grown(now, None)), short),
        (Datum::Bytes(now), Some(Datum::Bytes(old))) => Cell::number(per_second(grown(now, Some(old))), bytes),
        (Datum::Bytes(now), _) => Cell::number(per_second(grown(now, None)), bytes),
        (Datum::Mean(sum, number), Some(Datum::Mean(old_sum, old_number))) => {
            // Before the first reading with a subscription nothing was recorded.
            let since = |now: &Value, old: &Value| Some(now.known()?.saturating_sub(old.known().unwrap_or(0)));
            Cell::number(mean(since(sum, old_sum), since(number, old_number)), duration)
        }
        (Datum::Mean(sum, number), _) => Cell::number(mean(sum.known(), number.known()), duration),
        (Datum::Busy(now), Some(Datum::Busy(old))) if old.known().is_some() => {
            // Nanoseconds per nanosecond: how many descriptors the engine had in progress, on the average.
            Cell::number(per_second(grown(now, Some(old))), |rate| format!("{:.2}", rate / 1e9))
        }
        (Datum::Busy(_), _) => Cell::unknown(),
        (Datum::Share(part, whole), Some(Datum::Share(old_part, old_whole))) => {
            Cell::number(mean(grown(part, Some(old_part)), grown(whole, Some(old_whole))), percent)
        }
        (Datum::Reasons(reasons), Some(Datum::Reasons(old))) => {
            let before = |reason| old.iter().find(|(other, _)| other == reason).map_or(0, |(_, number)| *number);
            most_frequent(reasons.iter().map(|(reason, number)| (reason, number.saturating_sub(before(reason)))))
        }
        (other, _) => total(other),
    }
}

fn mean(sum: Option<u64>, number: Option<u64>) -> Option<f64> {
    Some(sum? as f64 / number.filter(|number| *number > 0)? as f64)
}

/// A number of at most five characters.
fn short(number: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match UNITS.iter().find(|(unit, _)| number >= 10.0 * unit) {
        Some((unit, name)) => format!("{:.0}{name}", number / unit),
        None if number == 0.0 => "0".into(),
        None if number < 10.0 => format!("{number:.1}"),
        None => format!("{number:.0}"),
    }
}

/// Bytes, as a whole number of at most five digits.
fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut whole, mut unit) = (bytes, 0);
    while whole >= 10_240.0 && unit + 1 < UNITS.len() {
        whole /= 1024.0;
        unit += 1;
    }
    format!("{:.0} {}", whole.floor(), UNITS[unit])
}

/// A time of nanoseconds in a unit that leaves few digits.
fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

impl Section {
    /// Sorts the rows by a column; leaves them as they are if the section has none of this name.
    pub fn sort(&mut self, column: &str, reversed: bool) {
        let Some(at) = self.columns.iter().position(|of| of.name == column) else { return };
        self.rows.sort_by(|a, b| {
            let order = a[at].key.compare(&b[at].key);
            // What is unknown stays last.
            let is_known = a[at].key != Key::Unknown && b[at].key != Key::Unknown;
            if reversed && is_known { order.reverse() } else { order }
        });
    }

    /// Removes a column.
    pub fn remove(&mut self, column: &str) {
        let Some(at) = self.columns.iter().position(|of| of.name == column) else { return };
        self.columns.remove(at);
        for row in &mut self.rows {
            row.remove(at);
        }
    }

    /// The width of each column in characters.
    #[must_use]
    pub fn widths(&self) -> Vec<usize> {
        let width = |(at, column): (usize, &Column)| {
            let cells = self.rows.iter().map(|row| row[at].text.chars().count());
            cells.chain([column.heading(self.is_rate).chars().count()]).max().unwrap_or(0)
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    /// Leaves columns out until a row with `gap` characters before each column fits into `width` characters.
    pub fn fit(&mut self, width: usize, gap: usize) {
        while self.widths().iter().map(|column| column + gap).sum::<usize>() > width {
            // Of columns of the same rank, the last one is left out.
            let Some(column) = self.columns.iter().filter(|column| column.rank > 0).max_by_key(|column| column.rank)
            else {
                return;
            };
            let name = column.name;
            self.left_out.push(name);
            self.remove(name);
        }
    }
}
