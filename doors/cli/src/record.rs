//! `telpher record`: records what unmodified programs copy, shows it, and predicts what devices would gain.

use crate::args::program::{WriteError, check_writable, write, write_report};
use crate::args::{Format, Hint, Record, RecordMerge, RecordPredict, RecordShow, StatsArg};
use crate::sim::{SimError, machine};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use telpher_offload_wire::verdicts::{self, SiteVerdict};
use telpher_predict::recording::{PredictOptions, compare, predict as predict_recording};
use telpher_record::{FileError, RecordError, RunOptions};
use telpher_recording::{Recording, Site};
use telpher_report::deliver::DeliverError;
use telpher_report::prediction::{self as report_prediction, Prediction, SitePolicy};
use telpher_report::recording::{self as report, CopyProfile};
use telpher_report::schema;
use telpher_report::units;

/// Why a recording cannot be shown or joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ReadingError {
    /// The recording cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The result cannot be written.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
    /// The page cannot be written.
    #[error(transparent)]
    Page(#[from] WriteError),
    /// The table of DTO in a format of other tables.
    #[error("--stats dto is a table of its own; leave out --format")]
    DtoFormat,
    /// Nothing can be predicted.
    #[error(transparent)]
    Simulate(#[from] SimError),
}

/// Files that are read for the summary at the end of a run. Source: chosen; reading one takes up to 10 ms.
const MOST_READ: usize = 100;

/// Runs the program to its end, and says where its recordings are. Returns the program's exit code.
///
/// # Errors
/// If the program cannot be run, or not be recorded.
pub(crate) fn run(args: &Record) -> Result<ExitCode, RecordError> {
    let options = RunOptions {
        program: args.program.clone(),
        folder: args.folder.clone(),
        follow: !args.no_follow,
        grace: Duration::from_secs_f64(args.grace),
    };
    let code = telpher_record::run(&options)?;
    if !args.quiet {
        eprintln!("telpher: {}", summary(&args.folder));
    }
    Ok(ExitCode::from(code))
}

/// Returns what was recorded, as a sentence.
fn summary(folder: &Path) -> String {
    let place = folder.display();
    let paths = [folder];
    let files = match telpher_record::count(&paths) {
        Ok(files) => files,
        Err(error) => return format!("nothing was recorded: {}", telpher_os::chain(&error)),
    };
    let next = format!("telpher record show {place}");
    if files > MOST_READ {
        return format!("{files} processes were recorded in {place}; next: {next}");
    }
    match telpher_record::read(&paths) {
        Ok(recording) => {
            let summary = recording.summary();
            let (calls, bytes) = (summary.calls, units::size(summary.bytes));
            let processes = if files == 1 { "1 process".into() } else { format!("{files} processes") };
            format!("{calls} calls with {bytes} by {processes} were recorded in {place}; next: {next}")
        }
        Err(error) => telpher_os::chain(&error),
    }
}

/// Shows recordings.
///
/// # Errors
/// If they cannot be read, or the result cannot be written.
pub(crate) fn show(args: &RecordShow) -> Result<(), ReadingError> {
    args.printed.check()?;
    if args.stats == StatsArg::Dto && args.printed.format != Format::Table {
        return Err(ReadingError::DtoFormat);
    }
    args.html.as_deref().map_or(Ok(()), check_writable)?;
    let recording = telpher_record::read(&args.paths)?;
    let profile = CopyProfile::new(&recording, telpher_record::site_names(&recording));
    if let Some(path) = &args.html {
        write_report(path, &report::html(&profile), &report::csv(&profile))?;
    }
    let text = || if args.stats == StatsArg::Dto { report::dto(&profile) } else { report::text(&profile) };
    Ok(args.printed.deliver(schema::RECORD_SHOW, &profile, text, || report::csv(&profile))?)
}

/// Predicts what devices would gain.
///
/// # Errors
/// If the recordings cannot be read, the machine is unknown, or the result cannot be written.
pub(crate) fn predict(args: &RecordPredict) -> Result<(), ReadingError> {
    args.printed.check()?;
    for file in [&args.html, &args.verdicts].into_iter().flatten() {
        check_writable(file)?;
    }
    let options = PredictOptions {
        is_recorded_machine: args.same_machine,
        devices: args.devices,
        to_cache: args.hint == Hint::Cache,
        comparisons: args.comparisons,
        ..PredictOptions::on(machine(&args.profile, &args.set)?)
    };
    let recording = telpher_record::read(&args.paths)?;
    let other = args.against.as_ref().map(|path| telpher_record::read(&[path])).transpose()?;
    let mut prediction = predict_recording(&recording, &options).map_err(SimError::from)?;
    if let Some(other) = other {
        prediction.against = Some(compare(&prediction, &other, &options).map_err(SimError::from)?);
    }
    if let Some(path) = &args.verdicts {
        write(path, &verdicts::write(&verdicts_of(&prediction)))?;
    }
    name_sites(&mut prediction, &recording);
    if let Some(path) = &args.html {
        let csv = report_prediction::csv(&prediction);
        write_report(path, &report_prediction::html(&prediction), &csv)?;
    }
    let (text, csv) = (|| report_prediction::text(&prediction), || report_prediction::csv(&prediction));
    Ok(args.printed.deliver(schema::RECORD_PREDICT, &prediction, text, csv)?)
}

/// Returns the best choice for each call site that belongs to a file and was replayed. The prediction knows nothing of
/// others, so `telpher offload` learns about them.
fn verdicts_of(prediction: &Prediction) -> Vec<SiteVerdict> {
    let of = |site: &SitePolicy| {
        let (by_device, build_id, offset) = (site.by == "device", site.build_id.clone(), site.offset);
        site.module.clone().map(|path| SiteVerdict { by_device, build_id, offset, path })
    };
    prediction.sites.iter().filter(|site| site.replayed_calls > 0).filter_map(of).collect()
}

/// Gives the sites of a prediction the names of their functions.
fn name_sites(prediction: &mut Prediction, recording: &Recording) {
    let key = |site: &Site| site.module.and_then(|at| recording.modules.get(at)).map(|module| &module.path);
    let names = telpher_record::site_names(recording).into_iter().zip(&recording.sites);
    let names: BTreeMap<_, _> = names.map(|(name, site)| ((key(site), site.offset), name)).collect();
    for site in &mut prediction.sites {
        site.function = names.get(&(site.module.as_ref(), site.offset)).cloned();
    }
}

/// Joins recordings in one file.
///
/// # Errors
/// If they cannot be read, or the file cannot be written.
pub(crate) fn merge(args: &RecordMerge) -> Result<(), ReadingError> {
    check_writable(&args.into)?;
    let count = telpher_record::merge(&args.paths, &args.into)?;
    eprintln!("telpher: {count} recordings are in {}", args.into.display());
    Ok(())
}
