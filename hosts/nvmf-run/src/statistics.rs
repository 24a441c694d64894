//! The statistics of a server, as data and as text.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use telpher_metrics::MetricSet as _;
use telpher_nvmf::server::{LoopReport, QueueReport, SocketEngine};
use telpher_nvmf::stats::{LATENCIES, Stats, latency_percentile};

/// The statistics of a server.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Statistics {
    /// The sums over everything.
    pub total: Counters,
    /// The subsystems with connections, now or before.
    pub subsystems: Vec<SubsystemStatistics>,
    /// The loops, with the names of SPDK's `nvmf_get_stats`.
    pub poll_groups: Vec<PollGroup>,
}

/// Counters of a queue, or their sums.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Commands of any kind.
    pub commands: u64,
    /// Read commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes of data to the host.
    pub bytes_read: u64,
    /// Bytes of data from the host.
    pub bytes_written: u64,
    /// Commands that ended with an error.
    pub failed_commands: u64,
    /// Write commands whose data came in the capsule.
    pub in_capsule: u64,
    /// Their share of all write commands in percent; null without writes.
    pub in_capsule_percent: Option<f64>,
    /// R2Ts that were sent.
    pub r2ts: u64,
    /// Errors that ended a connection.
    pub fatal_errors: u64,
    /// Wrong digests of headers.
    pub header_digest_errors: u64,
    /// Wrong digests of data.
    pub data_digest_errors: u64,
    /// Digests of data.
    pub digests: Digests,
    /// Protection information of stored blocks.
    #[serde(default)]
    pub protection: Protection,
    /// Latencies of reads.
    pub read_latency: Latency,
    /// Latencies of writes.
    pub write_latency: Latency,
}

/// Digests of data, by what computed them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Digests {
    /// By a device.
    pub by_device: u64,
    /// By the CPU.
    pub by_cpu: u64,
    /// By the CPU in place of a device that refused or failed.
    pub by_fallback: u64,
    /// Bytes of data whose digests were computed.
    pub bytes: u64,
    /// Digests of a device that did not match while the CPU's did.
    pub wrong_by_device: u64,
}

/// Insertions and checks of protection information, by what did them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Protection {
    /// By a device.
    pub by_device: u64,
    /// By the CPU.
    pub by_cpu: u64,
    /// By the CPU in place of a device that refused or failed, or for blocks that were never written.
    pub by_fallback: u64,
    /// Commands that ended because the information of a block did not match.
    pub errors: u64,
    /// Mismatches of a device that the CPU did not find.
    pub wrong_by_device: u64,
}

/// Latencies of one kind of command. A percentile is the upper limit of its range of the histogram.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// The median in microseconds; null if there is none.
    pub p50_us: Option<u64>,
    /// The 99th percentile in microseconds.
    pub p99_us: Option<u64>,
    /// The number of commands below 1, 2, 4, … µs; the last range has no limit.
    pub histogram: Vec<u64>,
}

/// A subsystem.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SubsystemStatistics {
    /// Its NQN; empty for connections that ended before they had a queue.
    pub nqn: String,
    /// The sums, with connections that have ended.
    pub total: Counters,
    /// Its controllers.
    pub controllers: Vec<ControllerStatistics>,
}

/// A controller.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ControllerStatistics {
    /// CNTLID.
    pub cntlid: u16,
    /// The NQN of its host.
    pub hostnqn: String,
    /// The sums of its open queues.
    pub total: Counters,
    /// Its open queues.
    pub queues: Vec<QueueStatistics>,
}

/// A queue.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct QueueStatistics {
    /// Its number; 0 for the admin queue.
    pub qid: u16,
    /// The host's address and port.
    pub peer: String,
    /// The loop that serves it.
    pub poll_group: usize,
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// Its entries.
    pub entries: u32,
    /// Commands that have not completed.
    pub open_commands: u32,
    /// Its counters.
    pub total: Counters,
}

/// A loop. The names are those of SPDK where it has the value.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PollGroup {
    /// `loop_0` and so on.
    pub name: String,
    /// What moves the bytes of its sockets: `io_uring` or `epoll`.
    #[serde(default)]
    pub socket_engine: String,
    /// Admin queues since the start.
    pub admin_qpairs: u64,
    /// I/O queues since the start.
    pub io_qpairs: u64,
    /// Open admin queues.
    pub current_admin_qpairs: u64,
    /// Open I/O queues.
    pub current_io_qpairs: u64,
    /// Commands that have not completed.
    pub pending_bdev_io: u64,
    /// Accepted commands of I/O queues that have completed.
    pub completed_nvme_io: u64,
    /// How often the loop woke up.
    pub wakeups: u64,
    /// System calls by which it waited, received and sent.
    pub system_calls: u64,
    /// Receives from sockets.
    pub receives: u64,
    /// Sends to sockets.
    pub sends: u64,
    /// Open connections.
    pub connections: u64,
    /// Connections since the start.
    pub accepted_connections: u64,
    /// Connections that were refused because there were too many.
    pub refused_connections: u64,
    /// Hosts that were refused.
    pub refused_hosts: u64,
    /// Batches that were submitted to the device.
    pub device_batches: u64,
    /// Operations in a batch on average; null without batches.
    pub mean_batch: Option<f64>,
}

/// `part` as a share of `whole` times `unit`; `None` if the whole is 0.
#[allow(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
fn ratio(part: u64, whole: u64, unit: f64) -> Option<f64> {
    (whole > 0).then(|| (unit * 100.0 * part as f64 / whole as f64).round() / 100.0)
}

fn latency(histogram: &[u64; LATENCIES]) -> Latency {
    Latency {
        p50_us: latency_percentile(histogram, 0.5),
        p99_us: latency_percentile(histogram, 0.99),
        histogram: histogram.to_vec(),
    }
}

impl From<Stats> for Counters {
    fn from(stats: Stats) -> Counters {
        Counters {
            commands: stats.commands,
            reads: stats.reads,
            writes: stats.writes,
            bytes_read: stats.bytes_to_host,
            bytes_written: stats.bytes_from_host,
            failed_commands: stats.failed_commands,
            in_capsule: stats.writes_in_capsule,
            in_capsule_percent: ratio(stats.writes_in_capsule, stats.writes, 100.0),
            r2ts: stats.r2ts,
            fatal_errors: stats.fatal_errors,
            header_digest_errors: stats.header_digest_errors,
            data_digest_errors: stats.data_digest_errors,
            digests: Digests {
                by_device: stats.digests_by_device,
                by_cpu: stats.digests_by_cpu,
                by_fallback: stats.digests_by_fallback,
                bytes: stats.digested_bytes,
                wrong_by_device: stats.wrong_device_digests,
            },
            protection: Protection {
                by_device: stats.protections_by_device,
                by_cpu: stats.protections_by_cpu,
                by_fallback: stats.protections_by_fallback,
                errors: stats.protection_errors,
                wrong_by_device: stats.wrong_device_checks,
            },
            read_latency: latency(&stats.read_latencies),
            write_latency: latency(&stats.write_latencies),
        }
    }
}

/// The open queues of a subsystem with their loops, by controller.
type Controllers<'a> = BTreeMap<u16, Vec<(usize, &'a QueueReport)>>;

impl Statistics {
    /// Joins the reports of all loops.
    #[must_use]
    pub fn of(loops: &[LoopReport]) -> Statistics {
        let mut total = Stats::default();
        let mut ended: BTreeMap<String, Stats> = BTreeMap::new();
        let mut open: BTreeMap<String, Controllers<'_>> = BTreeMap::new();
        for (index, report) in loops.iter().enumerate() {
            for (nqn, stats) in &report.ended {
                let sum = ended.entry(nqn.clone()).or_default();
                *sum = sum.plus(stats);
                total = total.plus(stats);
            }
            for queue in &report.queues {
                total = total.plus(&queue.stats);
                if let Some(name) = &queue.queue {
                    let controllers = open.entry(name.subsystem.clone()).or_default();
                    controllers.entry(name.controller).or_default().push((index, queue));
                    ended.entry(name.subsystem.clone()).or_default();
                }
            }
        }
        let subsystems = ended.into_iter().map(|(nqn, ended)| {
            let controllers = open.remove(&nqn).unwrap_or_default();
            subsystem(nqn, ended, controllers)
        });
        Statistics {
            total: total.into(),
            subsystems: subsystems.collect(),
            poll_groups: loops.iter().enumerate().map(|(index, report)| poll_group(index, report)).collect(),
        }
    }

    /// The open queues as CSV, one line for each.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "subsystem,cntlid,hostnqn,qid,peer,poll_group,open_commands,commands,reads,writes,bytes_read,bytes_written,\
             failed_commands,r2ts,in_capsule,header_digest_errors,data_digest_errors,read_p50_us,read_p99_us,\
             write_p50_us,write_p99_us\n",
        );
        for subsystem in &self.subsystems {
            for controller in &subsystem.controllers {
                for queue in &controller.queues {
                    let total = &queue.total;
                    // A host chooses its name, which may have commas and quotation marks.
                    let names = [&subsystem.nqn, &controller.hostnqn].map(|name| name.replace('"', "\"\""));
                    let [nqn, hostnqn] = names;
                    write!(text, "\"{nqn}\",{},\"{hostnqn}\",{},", controller.cntlid, queue.qid).expect("grows");
                    write!(text, "{},{},{}", queue.peer, queue.poll_group, queue.open_commands).expect("grows");
                    let numbers = [
                        total.commands,
                        total.reads,
                        total.writes,
                        total.bytes_read,
                        total.bytes_written,
                        total.failed_commands,
                        total.r2ts,
                        total.in_capsule,
                        total.header_digest_errors,
                        total.data_digest_errors,
                    ];
                    numbers.iter().for_each(|number| write!(text, ",{number}").expect("grows"));
                    let (read, write) = (&total.read_latency, &total.write_latency);
                    for limit in [read.p50_us, read.p99_us, write.p50_us, write.p99_us] {
                        let limit = limit.map_or_else(String::new, |limit| limit.to_string());
                        write!(text, ",{limit}").expect("grows");
                    }
                    text.push('\n');
                }
            }
        }
        text
    }

    /// The statistics as text, in lines of at most 80 columns as long as names are short.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string grows");
        counters(&mut line, "total", &self.total);
        let Digests { by_device, by_cpu, by_fallback, bytes, wrong_by_device } = self.total.digests;
        line(format_args!(
            "  digests of data: {by_device} by the device, {by_cpu} by the CPU, {by_fallback} by fallback"
        ));
        line(format_args!("    {} digested; {wrong_by_device} wrong by the device", telpher_os::size(bytes)));
        if self.total.protection != Protection::default() {
            let Protection { by_device, by_cpu, by_fallback, errors, wrong_by_device } = self.total.protection;
            line(format_args!(
                "  protection: {by_device} by the device, {by_cpu} by the CPU, {by_fallback} by fallback"
            ));
            line(format_args!("    {errors} commands with damaged blocks; {wrong_by_device} wrong by the device"));
        }
        for subsystem in &self.subsystems {
            line(format_args!(""));
            let nqn = if subsystem.nqn.is_empty() { "connections without a queue" } else { &subsystem.nqn };
            counters(&mut line, nqn, &subsystem.total);
            for controller in &subsystem.controllers {
                line(format_args!("  controller {} of {}", controller.cntlid, controller.hostnqn));
                for queue in &controller.queues {
                    let kind = if queue.qid == 0 { "admin queue".into() } else { format!("queue {}", queue.qid) };
                    let QueueStatistics { peer, open_commands, entries, poll_group, .. } = queue;
                    let name =
                        format!("{kind}, {peer}, loop {poll_group}, {open_commands} of {entries} entries in use");
                    counters(&mut |text| line(format_args!("    {text}")), &name, &queue.total);
                }
            }
        }
        line(format_args!(""));
        line(format_args!("loop    connections  wake-ups  sys.calls I/O queues open I/O batches mean batch"));
        let mut engines = Vec::new();
        for group in &self.poll_groups {
            engines.push(format!("{} by {}", group.name, group.socket_engine));
            let PollGroup { name, connections, wakeups, system_calls, io_qpairs, .. } = group;
            let PollGroup { pending_bdev_io, device_batches, .. } = group;
            let mean = group.mean_batch.map_or_else(|| "–".into(), |mean| format!("{mean:.2}"));
            let calls = format!("{name:<8}{connections:>11}{wakeups:>10}{system_calls:>11}");
            line(format_args!("{calls}{io_qpairs:>11}{pending_bdev_io:>9}{device_batches:>8}{mean:>11}"));
        }
        line(format_args!("sockets: {}", engines.join(", ")));
        text
    }
}

/// Prints the counters under a name.
fn counters(line: &mut dyn FnMut(std::fmt::Arguments<'_>), name: &str, counters: &Counters) {
    let Counters { reads, writes, commands, failed_commands, r2ts, fatal_errors, .. } = counters;
    let (read, written) = (telpher_os::size(counters.bytes_read), telpher_os::size(counters.bytes_written));
    line(format_args!("{name}"));
    line(format_args!("  {reads} reads, {read} to hosts; {writes} writes, {written} from hosts"));
    let percent = counters.in_capsule_percent.map_or_else(|| "–".into(), |percent| format!("{percent:.0} %"));
    line(format_args!("  {commands} commands, {failed_commands} failed; {r2ts} R2Ts; {percent} in capsules"));
    let (header, data) = (counters.header_digest_errors, counters.data_digest_errors);
    line(format_args!("  {fatal_errors} fatal errors; wrong digests: {header} of headers, {data} of data"));
    let latency = |latency: &Latency| {
        let limit = |limit: Option<u64>| limit.map_or_else(|| "–".into(), |limit| format!("< {limit} µs"));
        format!("p50 {}, p99 {}", limit(latency.p50_us), limit(latency.p99_us))
    };
    line(format_args!("  reads {}; writes {}", latency(&counters.read_latency), latency(&counters.write_latency)));
}

fn subsystem(nqn: String, ended: Stats, controllers: Controllers<'_>) -> SubsystemStatistics {
    let mut total = ended;
    let controllers = controllers.into_iter().map(|(cntlid, mut queues)| {
        queues.sort_by_key(|(_, queue)| queue.queue.as_ref().map(|name| name.qid));
        let sum = queues.iter().fold(Stats::default(), |sum, (_, queue)| sum.plus(&queue.stats));
        total = total.plus(&sum);
        let hostnqn = queues.first().and_then(|(_, queue)| queue.queue.as_ref()).map(|name| name.host.clone());
        let queues = queues.into_iter().map(|(poll_group, queue)| QueueStatistics {
            qid: queue.queue.as_ref().map_or(0, |name| name.qid),
            peer: queue.peer.to_string(),
            poll_group,
            header_digest: queue.digests.header,
            data_digest: queue.digests.data,
            entries: queue.entries,
            open_commands: queue.open_commands,
            total: queue.stats.into(),
        });
        ControllerStatistics {
            cntlid,
            hostnqn: hostnqn.unwrap_or_default(),
            total: sum.into(),
            queues: queues.collect(),
        }
    });
    let controllers = controllers.collect();
    SubsystemStatistics { nqn, total: total.into(), controllers }
}

fn poll_group(index: usize, report: &LoopReport) -> PollGroup {
    let count = |is_io: bool| {
        let names = report.queues.iter().filter_map(|queue| queue.queue.as_ref());
        names.filter(|name| (name.qid > 0) == is_io).count() as u64
    };
    let stats = report.stats;
    let open = report.queues.iter().map(|queue| queue.stats.completed_io);
    let ended = report.ended.values().map(|stats| stats.completed_io);
    PollGroup {
        name: format!("loop_{index}"),
        socket_engine: if report.socket_engine == SocketEngine::Uring { "io_uring" } else { "epoll" }.into(),
        admin_qpairs: stats.queues[0],
        io_qpairs: stats.queues[1],
        current_admin_qpairs: count(false),
        current_io_qpairs: count(true),
        pending_bdev_io: report.queues.iter().map(|queue| u64::from(queue.open_commands)).sum(),
        completed_nvme_io: open.chain(ended).sum(),
        wakeups: stats.wakeups,
        system_calls: stats.system_calls,
        receives: stats.receives,
        sends: stats.sends,
        connections: stats.connections,
        accepted_connections: stats.accepted,
        refused_connections: stats.refused,
        refused_hosts: stats.refused_hosts,
        device_batches: stats.device_batches,
        mean_batch: ratio(stats.device_operations, stats.device_batches, 1.0),
    }
}
