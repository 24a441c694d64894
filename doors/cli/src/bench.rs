//! `telpher bench`: measures, and delivers what was measured.

use crate::args::{AllBench, Bench, BenchKind, Contests, Format, Output};
use crate::{log, version};
use serde::Serialize;
use std::io;
use telpher_bench::all::{AllOptions, HostFileError};
use telpher_bench::questions::Answers;
use telpher_bench::results::Route;
use telpher_bench::{BenchError, report};
use telpher_mover::TuningError;
use telpher_report::deliver::{self, DeliverError};
use telpher_report::machine::Machine;
use telpher_report::schema::{self, Schema};
use telpher_report::terminal;

/// Why a bench ended without results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// The measurement failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The result could not be delivered.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
    /// The tuning file that the environment names cannot be used.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// A rank of a bench of messages failed.
    #[error("a rank cannot go on")]
    Rank(#[source] io::Error),
    /// Standard output is closed.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    /// A result of a host cannot be read or written.
    #[error(transparent)]
    HostFile(#[from] HostFileError),
}

/// Runs what the command line asks for.
pub(crate) fn run(args: &Bench) -> Result<(), Error> {
    let machine = Machine::read();
    log::info(|| format!("processor {}, CPUs {:?}, NUMA nodes {:?}", machine.cpu, machine.cores, machine.nodes));
    log::info(|| format!("kernels: {}", version::kernels()));
    let sweep_text = if args.sweep.full { report::sweep::text } else { report::summary::text };
    match &args.kind {
        None => measured(
            schema::BENCH,
            &args.sweep.output,
            || {
                let result = telpher_bench::sweep::run(&args.sweep.options(), machine)?;
                let routes = || result.routes().iter().map(Route::label).collect::<Vec<_>>().join(", ");
                log::info(|| format!("--device {}: measured {}", args.sweep.device.name, routes()));
                Ok(result)
            },
            [sweep_text, report::sweep::csv, report::sweep::html],
        ),
        Some(BenchKind::Ops(ops)) => measured(
            schema::BENCH_OPS,
            &ops.output,
            || telpher_bench::ops::run(&ops.options(), machine),
            [report::ops::text, report::ops::csv, report::ops::html],
        ),
        Some(BenchKind::Pollution(pollution)) => measured(
            schema::BENCH_POLLUTION,
            &pollution.output,
            || telpher_bench::pollution::run(&pollution.options(), machine),
            [report::pollution::text, report::pollution::csv, report::pollution::html],
        ),
        Some(BenchKind::Mover(args)) => {
            answered(args, telpher_bench::mover::LEAD, || telpher_bench::mover::run(&args.options(), machine))
        }
        Some(BenchKind::Cache(args)) => {
            answered(args, telpher_bench::cache::LEAD, || telpher_bench::cache::run(&args.options(), machine))
        }
        Some(BenchKind::Tier(args)) if !args.workload.is_empty() => {
            Ok(telpher_bench::tier::workloads::run(&args.workload)?)
        }
        Some(BenchKind::Tier(args)) => {
            answered(&args.contests, telpher_bench::tier::LEAD, || telpher_bench::tier::run(&args.options(), machine))
        }
        Some(BenchKind::Cachelike(cache)) if cache.program => telpher_bench::cachelike::obey().map_err(Error::Output),
        Some(BenchKind::Cachelike(cache)) => measured(
            schema::BENCH_CACHELIKE,
            &cache.output,
            || telpher_bench::cachelike::run(&cache.options(), machine),
            [report::cachelike::text, report::cachelike::csv, report::cachelike::html],
        ),
        Some(BenchKind::Run(run)) if run.program => telpher_bench::run::program::obey().map_err(Error::Output),
        Some(BenchKind::Run(run)) => measured(
            schema::BENCH_RUN,
            &run.output,
            || telpher_bench::run::run(run.seconds, machine),
            [report::run::text, report::run::csv, report::run::html],
        ),
        Some(BenchKind::Offload(args)) if args.program => {
            telpher_bench::offload::program::obey().map_err(Error::Output)
        }
        Some(BenchKind::Offload(args)) => answered(&args.contests, telpher_bench::offload::LEAD, || {
            telpher_bench::offload::run(&args.contests.options(), machine)
        }),
        Some(BenchKind::Query(query)) => measured(
            schema::BENCH_QUERY,
            &query.output,
            || telpher_bench::query::run(&query.options(), machine),
            [report::query::text, report::query::csv, report::query::html],
        ),
        Some(BenchKind::Nvmf(args)) => {
            answered(args, telpher_bench::nvmf::LEAD, || telpher_bench::nvmf::run(&args.options(), machine))
        }
        Some(BenchKind::Telemetry(args)) => {
            answered(args, telpher_bench::telemetry::LEAD, || telpher_bench::telemetry::run(&args.options(), machine))
        }
        Some(BenchKind::Sim(args)) => {
            answered(args, telpher_bench::simulator::LEAD, || telpher_bench::simulator::run(&args.options(), machine))
        }
        Some(BenchKind::Vfio(args)) => {
            answered(args, telpher_bench::vfio::LEAD, || telpher_bench::vfio::run(&args.options(), machine))
        }
        Some(BenchKind::Dml(args)) => {
            answered(&args.contests, telpher_bench::dml::LEAD, || telpher_bench::dml::run(&args.options(), machine))
        }
        Some(BenchKind::Fabric(fabric)) => match fabric.rank() {
            Some((socket, number, cpu)) => {
                telpher_bench::fabric::library::obey(&socket, number, cpu).map_err(Error::Rank)
            }
            None => measured(
                schema::BENCH_FABRIC,
                &fabric.output,
                || telpher_bench::fabric::run(&fabric.options(), machine),
                [report::fabric::text, report::fabric::csv, report::fabric::html],
            ),
        },
        Some(BenchKind::All(args)) => all(args, &machine),
        Some(BenchKind::Hosts(args)) => {
            Ok(deliver::print(report::all::markdown(&telpher_bench::all::read_folder(&args.folder)?))?)
        }
        Some(BenchKind::Vhost(vhost)) => measured(
            schema::BENCH_VHOST,
            &vhost.output,
            || telpher_bench::vhost::run(&vhost.options(), machine),
            [report::vhost::text, report::vhost::csv, report::vhost::html],
        ),
    }
}

/// Runs all benches, saves the result, and compares it with those of other hosts.
fn all(args: &AllBench, machine: &Machine) -> Result<(), Error> {
    args.printed.check()?;
    args.save.as_deref().map_or(Ok(()), telpher_bench::all::check_folder)?;
    // Read before the measurement: a wrong folder is reported at once, and not the file that is written below.
    let others = args.against.as_deref().map_or(Ok(Vec::new()), telpher_bench::all::read_folder)?;
    let options = AllOptions { only: args.only.clone(), rounds: args.rounds, seconds: args.seconds };
    let result = telpher_bench::all::run(&options, machine)?;
    let saved = args.save.as_deref().map(|folder| result.save(folder));
    args.printed.begin();
    args.printed.write(match args.printed.format {
        Format::Table => terminal::folded(&report::all::text(&result, &others), terminal::columns()),
        // The result names its own schema, that of the saved file.
        Format::Json => serde_json::to_string_pretty(&result).expect("results are plain data with string keys"),
        Format::Csv => report::all::csv(&result),
    })?;
    // After the result, which is not lost if the file is.
    if let Some(saved) = saved {
        eprintln!("Result: {}", saved?.display());
    }
    Ok(())
}

/// Measures, and delivers the result in the format asked for: text, CSV, HTML.
fn measured<T: Serialize>(
    schema: Schema,
    output: &Output,
    measure: impl FnOnce() -> Result<T, BenchError>,
    [as_text, as_csv, as_html]: [fn(&T) -> String; 3],
) -> Result<(), Error> {
    let output = output.destination();
    deliver::writable(&output)?;
    let result = measure()?;
    Ok(deliver::deliver(&output, schema, &result, || as_text(&result), || as_csv(&result), || as_html(&result))?)
}

/// Runs experiments, and delivers their answers.
fn answered(args: &Contests, lead: &str, run: impl FnOnce() -> Result<Answers, BenchError>) -> Result<(), Error> {
    let output = args.output.destination();
    deliver::writable(&output)?;
    let answers = run()?;
    let (text, csv) = (|| report::questions::text(&answers), || report::questions::csv(&answers));
    Ok(deliver::deliver(&output, schema::BENCH_ANSWERS, &answers, text, csv, || {
        report::questions::html(&answers, lead)
    })?)
}
