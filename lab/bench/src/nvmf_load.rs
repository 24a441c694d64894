//! `telpher nvmf bench`: the load generator of `telpher-nvmf` against a target, as a result to print.
//!
//! ```text
//! run ───────────────────────────────────────────► load::run ─► LoadReport   the target that the user names
//! run_loops ─► OwnServer (1, 2, … loops), one each ─► load::run ─► LoopsReport  servers of its own
//! ```

mod own_server;

pub use own_server::ServerOptions;
pub use telpher_nvmf::digest::Digests;
pub use telpher_nvmf::load::{End, LoadOptions, MOST_DEPTH, Pattern};

use crate::BenchError;
use own_server::OwnServer;
use serde::Serialize;
use std::io;
use std::thread;
use std::time::Duration;
use telpher_nvmf::load::{self, LoadError, LoadResult};
use telpher_os::Termination;
use telpher_report::machine::Machine;

/// How often a signal is looked for while a load runs.
const LOOK: Duration = Duration::from_millis(50);

/// What a load on one target has measured.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The machine of the host, which may be the target's, too.
    pub machine: Machine,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
    /// The target's address.
    pub address: String,
    /// The subsystem's name.
    pub subsystem: String,
    /// The namespace.
    pub nsid: u32,
    /// What was measured.
    #[serde(flatten)]
    pub load: Load,
}

/// What the same load has measured on servers with different numbers of loops.
#[derive(Clone, Debug, Serialize)]
pub struct LoopsReport {
    /// The machine of the host and the servers.
    pub machine: Machine,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
    /// The servers.
    pub servers: ServerOptions,
    /// One for each number of loops, rising.
    pub runs: Vec<LoopsRun>,
}

/// A load on a server with this number of loops.
#[derive(Clone, Debug, Serialize)]
pub struct LoopsRun {
    /// Threads that served connections.
    pub loops: u16,
    /// What was measured.
    #[serde(flatten)]
    pub load: Load,
}

/// A load, and what it has measured.
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    /// The pattern's name.
    pub pattern: String,
    /// `none`, `header`, `data` or `header and data`.
    pub digests: &'static str,
    /// I/O queues.
    pub connections: u16,
    /// Threads of the host.
    pub threads: u16,
    /// Commands in flight on each I/O queue.
    pub in_flight: u16,
    /// Connections that only stayed open.
    pub idle_connections: u16,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Measured time.
    pub seconds: f64,
    /// Commands that succeeded.
    pub commands: u64,
    /// Commands per second.
    pub iops: f64,
    /// Bytes per second, in both directions together.
    pub bytes_per_second: f64,
    /// Latencies of commands in nanoseconds.
    pub latency_ns: LatencyNs,
    /// CPU time of the host's threads for one command, in nanoseconds; `None` without commands.
    pub cpu_ns: Option<f64>,
    /// Blocks that were read and are as they were written.
    pub verified_blocks: u64,
    /// Blocks that were read and have no checksum.
    pub unknown_blocks: u64,
    /// Writes that were repeated because their data arrived damaged.
    pub repeated_writes: u64,
    /// The errors of connections that ended early. The load has failed if there are any.
    pub errors: Vec<String>,
}

/// Latencies in nanoseconds; `None` after too few commands.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LatencyNs {
    /// The median.
    pub p50: Option<f64>,
    /// 99 of 100 commands are faster.
    pub p99: Option<f64>,
    /// 999 of 1000 commands are faster.
    pub p999: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
}

/// Runs a load.
///
/// # Errors
/// [`BenchError::Load`] if it cannot start. Connections that end early are in [`Load::errors`].
pub fn run(options: &LoadOptions, machine: Machine) -> Result<LoadReport, BenchError> {
    Ok(report(options, &load::run(options)?, machine))
}

/// Starts servers with 1, 2, … loops, one after the other, and runs the same load on each. The address of the options
/// is replaced by the server's, and the server's disk is filled first. Ctrl-C and SIGTERM end the server and the load.
///
/// # Errors
/// [`BenchError`] if a server or a load cannot start, or a signal arrives. Connections that end early are in
/// [`Load::errors`].
pub fn run_loops(options: &LoadOptions, servers: &ServerOptions, machine: Machine) -> Result<LoopsReport, BenchError> {
    // Before any thread starts, so that no signal ends this process while a server runs.
    let signals = Termination::listen().map_err(measuring)?;
    let mut remarks = vec![format!(
        "Host and servers share the {} CPUs of this machine and its loopback device; there is no network between them.",
        machine.cores.len()
    )];
    let mut runs = Vec::new();
    for loops in 1..=servers.most_loops {
        let server = OwnServer::start(servers, &options.identity.subsystem_nqn, loops)?;
        let options = LoadOptions { address: server.address(), fill: true, ..options.clone() };
        let result = run_until_signal(&options, &server, &signals)?;
        server.end()?;
        for remark in remarks_on(&options, &result) {
            if !remarks.contains(&remark) {
                remarks.push(remark);
            }
        }
        runs.push(LoopsRun { loops, load: measured(&options, &result) });
    }
    Ok(LoopsReport { machine, remarks, servers: servers.clone(), runs })
}

/// Runs a load, and ends the server at a signal. The load's connections close with it, and so the load ends.
fn run_until_signal(
    options: &LoadOptions,
    server: &OwnServer,
    signals: &Termination,
) -> Result<LoadResult, BenchError> {
    let (result, is_stopped): (Result<LoadResult, LoadError>, bool) = thread::scope(|scope| {
        let load = scope.spawn(|| load::run(options));
        let mut is_stopped = false;
        while !load.is_finished() && !is_stopped {
            is_stopped = signals.wait(LOOK);
        }
        if is_stopped {
            server.stop();
        }
        (load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), is_stopped)
    });
    if is_stopped {
        return Err(measuring(io::Error::new(io::ErrorKind::Interrupted, "a signal ended it")));
    }
    Ok(result?)
}

fn measuring(source: io::Error) -> BenchError {
    BenchError::Program { what: "the measurement".into(), source }
}

fn report(options: &LoadOptions, result: &LoadResult, machine: Machine) -> LoadReport {
    LoadReport {
        machine,
        remarks: remarks_on(options, result),
        address: options.address.to_string(),
        subsystem: options.identity.subsystem_nqn.clone(),
        nsid: options.nsid,
        load: measured(options, result),
    }
}

fn remarks_on(options: &LoadOptions, result: &LoadResult) -> Vec<String> {
    let mut remarks = Vec::new();
    if result.depth < options.depth {
        remarks.push(format!("The target's queues have room for {} commands, not {}.", result.depth, options.depth));
    }
    if result.counts.unknown_blocks > 0 {
        let fill = "with --fill, all blocks are written first, and every read is verified";
        remarks.push(format!("{} blocks were read that have no checksum; {fill}.", result.counts.unknown_blocks));
    }
    remarks
}

fn measured(options: &LoadOptions, result: &LoadResult) -> Load {
    let commands = result.counts.commands();
    // docs/commands.md: a 99th percentile needs 100 samples, 99.9 % need 1,000.
    let quantile = |share, least| (commands >= least).then(|| result.latencies.quantile(share).as_secs_f64() * 1e9);
    Load {
        pattern: result.pattern.to_string(),
        digests: match (options.digests.header, options.digests.data) {
            (false, false) => "none",
            (true, false) => "header",
            (false, true) => "data",
            (true, true) => "header and data",
        },
        connections: result.connections,
        threads: result.threads,
        in_flight: result.depth,
        idle_connections: result.idle_connections,
        block_bytes: result.geometry.block_bytes,
        seconds: result.elapsed.as_secs_f64(),
        commands,
        iops: result.iops(),
        bytes_per_second: result.bytes_per_second(),
        latency_ns: LatencyNs {
            p50: quantile(0.5, 1),
            p99: quantile(0.99, 100),
            p999: quantile(0.999, 1000),
            max: quantile(1.0, 1),
        },
        cpu_ns: (commands > 0).then(|| result.cpu_per_command().as_secs_f64() * 1e9),
        verified_blocks: result.counts.verified_blocks,
        unknown_blocks: result.counts.unknown_blocks,
        repeated_writes: result.counts.repeated_writes,
        errors: result.errors.iter().map(|error| telpher_os::chain(error)).collect(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use telpher_nvmf::load::{ConnectionError, Counts, Geometry, Latencies};

    /// A load of `commands` reads with an error.
    fn sample_result(options: &LoadOptions, commands: u64) -> LoadResult {
        LoadResult {
            pattern: options.pattern,
            connections: 1,
            threads: 1,
            depth: 31,
            controllers: 1,
            idle_connections: 0,
            geometry: Geometry { block_bytes: 512, blocks: 1, transfer_bytes: 1, capsule_bytes: 1, entries: 32 },
            elapsed: Duration::from_secs(2),
            counts: Counts { reads: commands, bytes_read: commands * 16_384, unknown_blocks: 7, ..Counts::default() },
            latencies: Latencies::default(),
            cpu: Duration::from_millis(5),
            errors: vec![ConnectionError { connection: "connection 3".into(), source: LoadError::Closed }],
        }
    }

    fn sample_options() -> LoadOptions {
        let address = "127.0.0.1:4420".parse().unwrap();
        LoadOptions::new(address, "nqn.2026-01.org.example:disk", Pattern::RandRead16k)
    }

    /// A report with remarks and an error.
    pub(crate) fn sample() -> LoadReport {
        let options = sample_options();
        report(&options, &sample_result(&options, 1000), Machine::read())
    }

    /// A report on two servers; the second completed too few commands for a 99th percentile.
    pub(crate) fn sample_of_loops() -> LoopsReport {
        let options = sample_options();
        let run = |(loops, commands)| LoopsRun { loops, load: measured(&options, &sample_result(&options, commands)) };
        let threshold_bytes = Some(16_384);
        let servers =
            ServerOptions { memory_bytes: 64 << 20, most_loops: 2, device: "model:spr".into(), threshold_bytes };
        let runs = [(1, 1000), (2, 60)].map(run).to_vec();
        LoopsReport { machine: Machine::read(), remarks: vec!["A remark.".into()], servers, runs }
    }

    #[test]
    fn a_report_has_rates_remarks_and_errors_with_their_causes() {
        let LoadReport { load, remarks, .. } = sample();
        assert_eq!((load.iops, load.bytes_per_second, load.cpu_ns), (500.0, 8_192_000.0, Some(5000.0)));
        assert!(remarks[0].contains("31") && remarks[1].starts_with("7 blocks"));
        assert_eq!(load.errors, ["connection 3: the target closed the connection"]);
    }

    #[test]
    fn quantiles_of_too_few_commands_are_unknown() {
        let options = sample_options();
        let of = |commands| measured(&options, &sample_result(&options, commands));
        let known = |load: Load| {
            let latency = load.latency_ns;
            [latency.p50, latency.p99, latency.p999, latency.max, load.cpu_ns].map(|value| value.is_some())
        };
        assert_eq!(known(of(0)), [false; 5]);
        assert_eq!(known(of(99)), [true, false, false, true, true]);
        assert_eq!(known(of(999)), [true, true, false, true, true]);
        assert_eq!(known(of(1000)), [true; 5]);
    }
}
