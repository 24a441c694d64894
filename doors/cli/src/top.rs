//! `telpher top`: what devices do, of runs, of hardware and in programs.

use crate::args::{Format, Top, TopKind, Updates};
use crate::exit::Usage;
use crate::{live, published};
use clap::ValueEnum as _;
use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use telpher_launch::{RunDirectory, RunKind};
use telpher_os::{PackageEnergy, chain};
use telpher_report::deliver::{DeliverError, write_update};
use telpher_report::schema;
use telpher_report::table::WIDTH;
use telpher_telemetry::in_process::DeviceRegion;
use telpher_telemetry::live::{LiveError, show};
use telpher_telemetry::pmu::{Pmus, SystemCounters};
use telpher_telemetry::published::Unread;
use telpher_telemetry::sections::{NAMES, is_of_programs};
use telpher_telemetry::view::View;
use telpher_telemetry::{Snapshot, Value, in_process, programs, run, subscribe, sysfs, tables};

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DevicesError {
    /// There is no device, and no program publishes anything, as far as these were looked at.
    #[error("no DSA device is in use: {}", nothing(.0))]
    None(Vec<TopKind>),
    /// The columns of pcm-accel cannot show programs.
    #[error(
        "--pcm cannot show programs, whose devices come and go; leave out --show, or let it have runs, hardware, or \
         both"
    )]
    PcmOfPrograms,
    /// No table that is shown has the column.
    #[error(
        "--sort {column} has no effect: only the table of programs has this column, and --show leaves it out; add \
         programs to --show, or sort by one of {}",
        columns_of_devices()
    )]
    NoSuchColumn {
        /// The column.
        column: String,
    },
    /// Only tables are sorted.
    #[error("--sort orders the rows of tables; leave it out, or use --format table")]
    NotSorted,
    /// Standard output is closed.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
    /// The live view fails.
    #[error(transparent)]
    Live(#[from] LiveError),
}

impl Usage for DevicesError {
    fn is_usage(&self) -> bool {
        use DevicesError as E;
        matches!(self, E::PcmOfPrograms | E::NoSuchColumn { .. } | E::NotSorted)
    }
}

/// What `--show` accepts.
const KINDS: [TopKind; 3] = [TopKind::Runs, TopKind::Hardware, TopKind::Programs];

/// Returns what was looked for and not found, and what to do next.
fn nothing(looked_for: &[TopKind]) -> String {
    let names = |kinds: &[TopKind]| -> String {
        kinds
            .iter()
            .filter_map(TopKind::to_possible_value)
            .map(|kind| kind.get_name().to_owned())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let absent = looked_for.iter().map(|kind| match kind {
        TopKind::Runs => "this user has no `telpher run`",
        TopKind::Hardware => "Linux shows no hardware",
        TopKind::Programs => "no program of this user counts",
    });
    let absent = absent.collect::<Vec<_>>().join(", ");
    let rest: Vec<TopKind> = KINDS.into_iter().filter(|kind| !looked_for.contains(kind)).collect();
    if rest.is_empty() {
        format!("{absent}; start a program with `telpher run`, or see `telpher doctor`")
    } else {
        format!(
            "{absent}; not looked for: {}; `telpher top --show {}` shows everything",
            names(&rest),
            names(&KINDS).replace(' ', "")
        )
    }
}

/// The columns by which tables of devices can be sorted.
fn columns_of_devices() -> String {
    NAMES.into_iter().filter(|name| !is_of_programs(name)).collect::<Vec<_>>().join(", ")
}

/// Refuses arguments that would have no effect.
fn check(args: &Top) -> Result<(), DevicesError> {
    let shows_programs = args.show.is_empty() || args.show.contains(&TopKind::Programs);
    if args.pcm && !args.show.is_empty() && shows_programs {
        return Err(DevicesError::PcmOfPrograms);
    }
    let Some(column) = &args.sort else { return Ok(()) };
    if args.updates.printed.format != Format::Table {
        return Err(DevicesError::NotSorted);
    }
    if !shows_programs && is_of_programs(column) {
        return Err(DevicesError::NoSuchColumn { column: column.clone() });
    }
    Ok(())
}

/// Shows devices, and what programs publish, until no device of a run or of hardware is left.
///
/// # Errors
/// If there is nothing to show at the beginning, an argument has no effect, or standard output is closed.
pub(crate) fn run(args: &Top) -> Result<(), DevicesError> {
    check(args)?;
    if args.pcm {
        return pcm(args);
    }
    let mut reader = Reader::new(args);
    if is_live(args) {
        let first = reader.read();
        if first.is_empty() {
            return Err(DevicesError::None(reader.shown));
        }
        let has_color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let view = View::new(first, args.sort.clone(), has_color);
        return Ok(show(view, Duration::from_secs_f64(args.updates.every), || reader.read())?);
    }
    let shown_kinds = reader.shown.clone();
    let mut had_devices = false;
    let read = || {
        let snapshot = reader.read();
        let is_over = snapshot.is_empty() || (had_devices && !snapshot.has_lasting_devices());
        had_devices |= snapshot.has_lasting_devices();
        if is_over { Vec::new() } else { vec![snapshot] }
    };
    let width = width();
    let text = |snapshots: &[Snapshot]| {
        snapshots.iter().map(|snapshot| tables::text(snapshot, width, args.sort.as_deref())).collect::<String>()
    };
    let csv = |snapshots: &[Snapshot]| snapshots.iter().map(tables::csv).collect::<String>();
    if live::show(&args.updates, (schema::TOP, "snapshots"), read, text, csv)? {
        Ok(())
    } else {
        Err(DevicesError::None(shown_kinds))
    }
}

/// True if the user sees a terminal that can show a live view.
fn is_live(args: &Top) -> bool {
    let Updates { count, once, printed, .. } = &args.updates;
    let is_plain = *once || count.is_some() || printed.file().is_some() || printed.format != Format::Table;
    let is_terminal = || std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    !is_plain && is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// The characters of a line: the terminal's, or those of a usual terminal.
fn width() -> usize {
    crate::screen::columns(&std::io::stdout()).unwrap_or(WIDTH)
}

/// Prints the columns of pcm-accel at intervals. Each line is a difference, so the first one comes after an interval.
fn pcm(args: &Top) -> Result<(), DevicesError> {
    let updates = &args.updates;
    let count = if updates.once { 1 } else { updates.count.unwrap_or(u64::MAX) };
    let mut reader = Reader::new(args);
    let mut before = (Instant::now(), reader.read());
    if before.1.devices.is_empty() {
        return Err(DevicesError::None(reader.shown));
    }
    for _ in 0..count {
        std::thread::sleep(Duration::from_secs_f64(updates.every));
        let after = (Instant::now(), reader.read());
        if after.1.devices.is_empty() {
            break;
        }
        let seconds = after.0.duration_since(before.0).as_secs_f64();
        let is_read = write_update(updates.printed.file(), tables::pcm(&before.1, &after.1, seconds))?;
        if !is_read {
            break;
        }
        before = after;
    }
    Ok(())
}

/// Reads devices again and again, as the arguments say.
struct Reader {
    /// What is shown.
    shown: Vec<TopKind>,
    /// Have engines record times.
    times: bool,
    /// The counters of hardware, which count while they are open: not for a single reading.
    pmus: Option<Pmus>,
    /// The energy since the first reading, or why it is not known.
    energy: Result<PackageEnergy, String>,
}

impl Reader {
    fn new(args: &Top) -> Reader {
        let is_single = args.updates.once && !args.pcm;
        let pmus = || Pmus::new(Path::new("/sys"), Box::new(SystemCounters), args.pcm);
        let energy = if args.updates.once {
            Err("energy is counted between two readings".into())
        } else {
            PackageEnergy::open(Path::new("/sys")).map_err(|error| chain(&error))
        };
        let is_shown = |kind: &TopKind| {
            // The devices of programs come and go, which the columns of pcm-accel cannot show.
            (args.show.is_empty() || args.show.contains(kind)) && !(args.pcm && *kind == TopKind::Programs)
        };
        let shown = KINDS.into_iter().filter(is_shown).collect();
        let times = !args.updates.once && !args.pcm;
        Reader { shown, times, pmus: (!is_single).then(pmus), energy }
    }

    fn read(&mut self) -> Snapshot {
        let mut snapshot = if self.shown.contains(&TopKind::Runs) { runs(self.times) } else { Snapshot::default() };
        if self.shown.contains(&TopKind::Hardware) {
            snapshot.append(hardware());
        }
        if self.shown.contains(&TopKind::Programs) {
            self.add_programs(&mut snapshot);
        }
        if let Some(pmus) = &mut self.pmus {
            pmus.fill(&mut snapshot);
        }
        snapshot.package_energy_uj = match &mut self.energy {
            Ok(energy) => energy.microjoules().map_or_else(|error| Value::unknown(chain(&error)), Value::Known),
            Err(reason) => Value::unknown(reason.as_str()),
        };
        snapshot
    }

    fn add_programs(&self, snapshot: &mut Snapshot) {
        let published = published::read();
        if self.times {
            published.devices.iter().for_each(DeviceRegion::subscribe);
        }
        snapshot.append(in_process::rows(&published.devices));
        snapshot.programs = programs::rows(&published.processes);
        let problem = |unread: &Unread| format!("process {}: {}", unread.pid, unread.why);
        snapshot.problems.extend(published.unread.iter().map(problem));
    }
}

/// Reads the devices of runs and hardware; with `times`, engines of runs record the times of their descriptors until
/// the next reading.
pub(crate) fn read(times: bool) -> Snapshot {
    let mut snapshot = runs(times);
    snapshot.append(hardware());
    snapshot
}

fn hardware() -> Snapshot {
    sysfs::read(Path::new("/sys"))
}

fn runs(times: bool) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let directories: BTreeSet<PathBuf> = RunDirectory::running(RunKind::Device).into_iter().collect();
    for directory in directories {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let found = if times { subscribe(&directory).map(drop) } else { Ok(()) };
        match found.and_then(|()| run::read(&directory, &name)) {
            Ok(of_run) => snapshot.append(of_run),
            // A run may end while it is read.
            Err(run::ReadError::Index { .. }) if !directory.exists() => {}
            Err(error) => snapshot.problems.push(chain(&error)),
        }
    }
    snapshot
}
