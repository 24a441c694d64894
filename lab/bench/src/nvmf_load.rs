//! `telpher nvmf bench`: the load generator of `telpher-nvmf` against a target, as a result to print.

use crate::BenchError;
use serde::Serialize;
use telpher_nvmf::load::{self, LoadOptions, LoadResult};
use telpher_report::machine::Machine;

/// What a load has measured.
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
    /// The pattern's name.
    pub pattern: String,
    /// `none`, `header`, `data` or `header and data`.
    pub digests: &'static str,
    /// I/O queues.
    pub connections: u16,
    /// Threads of the host.
    pub threads: u16,
    /// Commands in flight on each I/O queue.
    pub depth: u16,
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
    /// CPU time of the host's threads for one command, in nanoseconds.
    pub cpu_ns: f64,
    /// Blocks that were read and are as they were written.
    pub verified_blocks: u64,
    /// Blocks that were read and have no checksum.
    pub unknown_blocks: u64,
    /// Writes that were repeated because their data arrived damaged.
    pub repeated_writes: u64,
    /// The errors of connections that ended early. The load has failed if there are any.
    pub errors: Vec<String>,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LatencyNs {
    /// The median.
    pub p50: f64,
    /// 99 of 100 commands are faster.
    pub p99: f64,
    /// 999 of 1000 commands are faster.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// Runs a load.
///
/// # Errors
/// [`BenchError::Load`] if it cannot start. Connections that end early are in [`LoadReport::errors`].
pub fn run(options: &LoadOptions, machine: Machine) -> Result<LoadReport, BenchError> {
    Ok(report(options, &load::run(options)?, machine))
}

fn report(options: &LoadOptions, result: &LoadResult, machine: Machine) -> LoadReport {
    let mut remarks = Vec::new();
    if result.depth < options.depth {
        remarks.push(format!("The target's queues have room for {} commands, not {}.", result.depth, options.depth));
    }
    if result.counts.unknown_blocks > 0 {
        let fill = "with --fill, all blocks are written first, and every read is verified";
        remarks.push(format!("{} blocks were read that have no checksum; {fill}.", result.counts.unknown_blocks));
    }
    let quantile = |share| result.latencies.quantile(share).as_secs_f64() * 1e9;
    LoadReport {
        machine,
        remarks,
        address: options.address.to_string(),
        subsystem: options.identity.subsystem_nqn.clone(),
        nsid: options.nsid,
        pattern: result.pattern.to_string(),
        digests: match (options.digests.header, options.digests.data) {
            (false, false) => "none",
            (true, false) => "header",
            (false, true) => "data",
            (true, true) => "header and data",
        },
        connections: result.connections,
        threads: result.threads,
        depth: result.depth,
        idle_connections: result.idle_connections,
        block_bytes: result.geometry.block_bytes,
        seconds: result.elapsed.as_secs_f64(),
        commands: result.counts.commands(),
        iops: result.iops(),
        bytes_per_second: result.bytes_per_second(),
        latency_ns: LatencyNs { p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999), max: quantile(1.0) },
        cpu_ns: result.cpu_per_command().as_secs_f64() * 1e9,
        verified_blocks: result.counts.verified_blocks,
        unknown_blocks: result.counts.unknown_blocks,
        repeated_writes: result.counts.repeated_writes,
        errors: result.errors.iter().map(|error| telpher_os::chain(error)).collect(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use telpher_nvmf::load::{Counts, Geometry, Latencies, LoadError, Pattern};

    /// A report with remarks and an error.
    pub(crate) fn sample() -> LoadReport {
        let address = "127.0.0.1:4420".parse().unwrap();
        let options = LoadOptions::new(address, "nqn.2026-01.org.example:disk", Pattern::RandRead16k);
        let error = load::ConnectionError { connection: "connection 3".into(), source: LoadError::Closed };
        let result = LoadResult {
            pattern: options.pattern,
            connections: 1,
            threads: 1,
            depth: 31,
            controllers: 1,
            idle_connections: 0,
            geometry: Geometry { block_bytes: 512, blocks: 1, transfer_bytes: 1, capsule_bytes: 1, entries: 32 },
            elapsed: std::time::Duration::from_secs(2),
            counts: Counts { reads: 1000, bytes_read: 16_384_000, unknown_blocks: 7, ..Counts::default() },
            latencies: Latencies::default(),
            cpu: std::time::Duration::from_millis(5),
            errors: vec![error],
        };
        report(&options, &result, Machine::read())
    }

    #[test]
    fn a_report_has_rates_remarks_and_errors_with_their_causes() {
        let report = sample();
        assert_eq!((report.iops, report.bytes_per_second, report.cpu_ns), (500.0, 8_192_000.0, 5000.0));
        assert!(report.remarks[0].contains("31") && report.remarks[1].starts_with("7 blocks"));
        assert_eq!(report.errors, ["connection 3: the target closed the connection"]);
    }
}
