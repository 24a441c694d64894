//! Options of `telpher bench` and its subcommands.

use super::bench_fabric::FabricBench;
use super::device::{DeviceArg, QueueArgs, WqMode};
use super::operation::{NewerOps, Ops};
use super::output::{Output, Printed};
use super::values::{Counts, Placement, Sizes, parse_seconds};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use telpher_bench::options;

/// Measure operations on the CPU, on the modelled device and on DSA hardware.
///
/// Sweeps operation x transfer size x mode (one at a time, several in flight, batches) on the CPU path, on the
/// modelled device (executed inline by the submitting thread, and by a separate engine thread), and on hardware if
/// there is any; --device selects devices, and the CPU is always measured. Prints a summary: the CPU, the fastest way
/// over a device, and what a real DSA would give in simulated time. --full prints throughput, latency percentiles, the
/// submitting thread's CPU time, where latency is spent, and the size from which a device wins. With --html, a page
/// has the charts. Result bytes are checked.
///
/// The modelled device is software: its numbers are the model's speed on this CPU, not that of DSA.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Sizes are bytes, or k, m, g for KiB, MiB, GiB. --size, --in-flight and --batch \
take lists and ranges: 64..64m multiplies by 4, and 1k..8k*2 by 2.

Examples:
  telpher bench                                   a summary, in 25 seconds
  telpher bench --op move,crc --size 4k..1m*2     two operations, finer sizes
  telpher bench --device hw:wq0.0                 one queue of a real device
  telpher bench -f csv -o bench.csv               for a spreadsheet"
)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) kind: Option<BenchKind>,
    #[command(flatten)]
    pub(crate) sweep: Sweep,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchKind {
    Ops(OpsBench),
    Pollution(PollutionBench),
    /// Measure what the mover's own mechanisms cost and gain.
    ///
    /// One experiment for each question, for example how much threads lose that share one mover; the table names them
    /// all. The competitors of each take turns of some milliseconds, and the numbers are medians over the turns. Every
    /// experiment checks the bytes it moved.
    #[command(after_help = "\
Examples:
  telpher bench mover
  telpher bench mover --only sharing --seconds 10
  telpher bench mover --format csv --output mover.csv")]
    Mover(Contests),
    /// Measure what the cache of hot blocks costs, and the effect of prefetching.
    ///
    /// Experiments: a hit, by one thread and by several; a miss, in addition to the copy itself, also with an eviction;
    /// the memory that an entry takes; a query with prefetching where there is nothing to gain. The competitors take
    /// turns of some milliseconds, and the numbers are medians over the turns. Every block is compared with its source.
    #[command(after_help = "\
Examples:
  telpher bench cache
  telpher bench cache --only hits,threads --seconds 10
  telpher bench cache --format csv --output cache.csv")]
    Cache(Contests),
    Cachelike(CacheLikeBench),
    Tier(TierBench),
    Run(RunBench),
    Offload(OffloadBench),
    Query(QueryBench),
    Vhost(VhostBench),
    Fabric(FabricBench),
    /// Measure what the NVMe/TCP target costs its core, with a host in the same process.
    #[command(after_help = "Examples:\n  telpher bench nvmf\n  telpher bench nvmf --only reads,digests --seconds 30")]
    Nvmf(Contests),
    /// Measure what it costs to count what a device does, and to read the counts.
    ///
    /// Experiments: a No-op through the inline model without counts, with totals, and with recorded times; a scrape of
    /// `telpher exporter`, and `telpher top --once`, with eight queues and a hundred processes.
    #[command(after_help = "\
Examples:
  telpher bench telemetry
  telpher bench telemetry --only noop --seconds 10")]
    Telemetry(Contests),
    /// Measure how fast the simulator is, and how much memory it needs.
    ///
    /// Experiments: descriptors that are simulated in a second of processor time, for one thread, for many, and for
    /// threads at a full queue; the memory of a simulation of seven million descriptors. Scenarios take turns.
    #[command(after_help = "\
Examples:
  telpher bench sim
  telpher bench sim --only speed --seconds 30")]
    Sim(Contests),
    /// Measure what a device in a virtual machine costs, and how machines share engines.
    ///
    /// Experiments: a descriptor from its store to its record, beside a message and its reply over a socket; the shares
    /// of two machines that always have work; a machine with its own engine beside a busy neighbour. The machines are
    /// clients of this program, connected to a `telpher vfio` of its own.
    #[command(after_help = "\
Examples:
  telpher bench vfio
  telpher bench vfio --only shares --seconds 10")]
    Vfio(Contests),
    Dml(DmlBench),
    All(AllBench),
    Hosts(HostsBench),
}

/// Run every bench that has goals, and say which goals this host reaches.
///
/// Each bench runs as a program of its own, with its default options: ops, mover, cache, tier, run, offload, query,
/// vhost, fabric, nvmf, telemetry, sim, vfio, dml. One that fails is named with its reason, and the others run. With
/// --rounds, all of them run several times; the numbers are medians, and the range of the rounds is the noise.
///
/// --save keeps the result, one file for each kind of processor and version of telpher. --against compares with the
/// files of other hosts, and prints what differs by more than the noise.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
A round takes the measuring time of each bench, 20 seconds of most, and the time to prepare their data. \
vhost has rounds of its own instead; its help says how long they take. Nothing else should run meanwhile.

Examples:
  telpher bench all --rounds 3 --save results
  telpher bench all --only ops,mover --against results"
)]
pub(crate) struct AllBench {
    /// Benches to run, by name [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// How often all benches run.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) rounds: u32,
    /// Measuring time of each bench in seconds [default: that of each bench].
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    /// Write the result into this folder.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) save: Option<PathBuf>,
    /// Compare with the results in this folder.
    #[arg(long, value_name = "PATH", help_heading = "Output")]
    pub(crate) against: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) printed: Printed,
}

/// Say on how many kinds of host each goal holds, from files of `telpher bench all --save`.
///
/// Measures nothing. Prints Markdown: the hosts, the counts of goals by bench, and each goal that does not hold on
/// every kind of host. Processors with the same name, family and model are one kind; its newest file counts.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  telpher bench hosts results")]
pub(crate) struct HostsBench {
    /// The folder with the files.
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Work")]
pub(crate) struct Sweep {
    /// Operations, such as move,crc or all (docs/commands.md lists them).
    #[arg(long, value_name = "OPS", default_value = "move,fill,compare,crc,copy-crc")]
    pub(crate) op: Ops,
    /// Transfer sizes.
    #[arg(short, long, value_name = "SIZE", default_value = "64..64m")]
    pub(crate) size: Sizes,
    /// Descriptors (or batches) in flight; 1 waits for each [default: 1 and 32].
    #[arg(short, long, value_name = "N")]
    pub(crate) in_flight: Option<Counts>,
    /// Descriptors in a batch; 1 submits each separately [default: 1 and 32].
    #[arg(short, long, value_name = "N")]
    pub(crate) batch: Option<Counts>,
    /// Submitting threads, each pinned to a core.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
    /// NUMA nodes of source and destination buffers, such as 0,1 [default: the system decides].
    #[arg(long, value_name = "SRC,DST")]
    pub(crate) placement: Option<Placement>,
    /// Pages of the buffers: 4k, 2m (transparent huge pages), or 1g (reserved ones).
    #[arg(long, value_enum, value_name = "SIZE", default_value_t = Pages::Small)]
    pub(crate) pages: Pages,
    /// Total measuring time in seconds.
    #[arg(long, value_name = "S", default_value = "22", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    #[command(flatten)]
    pub(crate) queues: QueueArgs,
    /// Engines behind the queues [default: 1].
    #[arg(long, value_name = "N", help_heading = "Device", value_parser = clap::value_parser!(u32).range(1..=4))]
    pub(crate) engines: Option<u32>,
    /// Where the device writes results (DSA's cache-control flag).
    #[arg(long, value_enum, value_name = "WHERE", help_heading = "Device", default_value_t = Hint::Cache)]
    pub(crate) hint: Hint,
    /// Print every table: throughput, latency, CPU time and energy of all sizes and modes.
    #[arg(long, help_heading = "Output")]
    pub(crate) full: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Compare each operation with the best alternative on this machine, in the same run.
///
/// glibc's memcpy, memmove, memset and memcmp; ISA-L's CRC32C and T10-DIF CRC when libisal2 is installed (apt install
/// libisal2); the crc-fast crate; and copy-then-CRC in two passes against one. The operations of DSA 2.x and 3.0 have
/// no alternative: from 64 KiB on they are compared with a memcpy that reads and writes as many bytes. The two sides
/// run in turns of a few milliseconds, and the ratio is the median over the turns: above 1 telpher is faster. Then it
/// measures the costs of a descriptor: submission to record, descriptors per second, the overhead on small copies, CPU
/// time per byte, memory of an idle device.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
Warm: the same buffers are used repeatedly and are in the cache if they fit. Cold: the buffers rotate \
through more memory than the last-level cache holds. Ratios below their goal are marked with '<'.

Examples:
  telpher bench ops
  telpher bench ops --op move --size 256..64m*2 --seconds 60
  telpher bench ops --op reduce,type-conversion --size 64k,1m,16m
  telpher bench ops --format json"
)]
pub(crate) struct OpsBench {
    /// Operations to compare [default: all that have a comparison].
    #[arg(long, value_name = "OPS")]
    pub(crate) op: Option<NewerOps>,
    /// Transfer sizes.
    #[arg(short, long, value_name = "SIZE", default_value = "256..64m")]
    pub(crate) size: Sizes,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Total measuring time in seconds.
    #[arg(long, value_name = "S", default_value = "40", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

/// Measure how copying affects the memory latency of other cores.
///
/// The cache pollution experiment of the DSA analysis at ASPLOS 2024, section 4.5, on this machine: pinned
/// co-runners chase pointers at random through working sets and measure their own access latency, while another core
/// copies by memcpy, by non-temporal CPU copies, through a device, or not at all.
///
/// A modelled engine is a thread, so its copies go through a core's caches; a hardware engine's reads allocate in no
/// cache and its writes only in a part of the last level. A model therefore cannot show the hardware's advantage. It
/// shows how much each copy mechanism costs the co-runners on this machine.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
Examples:
  telpher bench pollution
  telpher bench pollution --device hw:wq0.0
  telpher bench pollution --working-set 1m..32m*2 --size 1m --seconds 60"
)]
pub(crate) struct PollutionBench {
    /// Working sets of the co-runners.
    #[arg(long, value_name = "SIZE", default_value = "512k,4m,16m,32m")]
    pub(crate) working_set: Sizes,
    /// Transfer size of the copies.
    #[arg(short, long, value_name = "SIZE", default_value = "64k", value_parser = super::values::parse_size)]
    pub(crate) size: u64,
    /// Device that copies: model:spr, model:spr-fw2, model:full, model:srf, model:v2-full, model:v3-full, model:FILE or
    /// hw:wqM.N.
    #[arg(short, long, value_name = "DEV", default_value = "model:spr", value_parser = super::values::parse_device)]
    pub(crate) device: String,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Total measuring time in seconds.
    #[arg(long, value_name = "S", default_value = "20", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

// A bench with one experiment for each question. No doc comment: the help text is at the subcommand.
#[derive(Debug, Args)]
#[command(next_help_heading = "Work")]
pub(crate) struct Contests {
    /// Experiments to run, by name [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Total measuring time in seconds.
    #[arg(long, value_name = "S", default_value = "20", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

/// Measure a cache under load, with its long copies by the CPU and by a device.
///
/// A driver of our own that reads CacheBench's JSON: threads get, set and delete values in pools of slabs, and a get
/// that finds no value is followed by a set. Unlike CacheBench, it copies with memmove, a get copies its value and
/// reads the copy once, and every value is checked.
///
/// The same load runs in three processes, in turns: without `telpher offload` (off), with every long copy on the device
/// (always), and with those of call sites that copy uncached data (learned). Prints the rates of gets and sets, and
/// latencies up to p99.999; a percentile is empty below ten samples beyond it.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
`--load paper` is the load of the DSA analysis at ASPLOS 2024, appendix B: a cache of 64 \
GB, two million gets a thread, 4.8 % of the copies with 96.4 % of the bytes. It is scaled to the memory \
and the cores of this machine, and the result says so.

Examples:
  telpher bench cachelike
  telpher bench cachelike --cores 4 --threads 8 --device all
  telpher bench cachelike --gets 100000 --only off,always
  telpher offload --device model:spr -- telpher bench cachelike --alone"
)]
pub(crate) struct CacheLikeBench {
    /// The cache and its load: paper, or a file in CacheBench's JSON format.
    #[arg(long, value_name = "NAME", default_value = "paper")]
    pub(crate) load: String,
    /// CPUs for all threads together [default: half as many as threads].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) cores: Option<u32>,
    /// Threads [default: those of the load].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Gets of each thread [default: those of the load].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) gets: Option<u64>,
    /// Shorter copies stay with the CPU.
    #[arg(long, value_name = "BYTES", default_value = "8k", value_parser = super::values::parse_data)]
    pub(crate) threshold: u64,
    /// Device of the long copies, as for `telpher offload`; may be repeated [default: a modelled device with four
    /// shared queues].
    #[arg(short, long, value_name = "DEV", value_parser = super::values::parse_device)]
    pub(crate) device: Vec<String>,
    /// Sides to measure: off, always, learned [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Run the load once in this process, as it is: for `telpher offload`, `telpher record` or another library.
    #[arg(long, conflicts_with_all = ["only", "device"])]
    pub(crate) alone: bool,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Be one of the processes; commands come on standard input.
    #[arg(long, hide = true)]
    pub(crate) program: bool,
}

/// Measure what it costs to move pages between tiers of memory while a program runs.
///
/// Experiments: small pages, by the number moved together, and a huge page, each with and without its copy; pages to
/// which two threads write meanwhile, moved by exchange or by protection, copy and remapping: how many move, and how
/// long the threads wait; and what page scanning costs random writes and reads (GUPS). The competitors take turns, and
/// the numbers are medians over the turns. The bench fails if any byte changes.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
Needs userfaultfd (root, or /dev/userfaultfd), Linux 6.8 and some 700 MiB of memory. The bench's own \
programs are larger the longer they run: --only programs with --seconds 45 or more has them at full size, and with \
--seconds 150 or more they run for ten seconds and longer.

Examples:
  telpher bench tier
  telpher bench tier --only huge --seconds 10
  telpher bench tier --only programs --seconds 60
  telpher bench tier --only programs --program 'gzip -9 -c FILE'
  telpher bench tier --format csv --output tier.csv"
)]
pub(crate) struct TierBench {
    #[command(flatten)]
    pub(crate) contests: Contests,
    /// A shell command that runs three times alone and three times under `telpher tier run`, instead of the bench's own
    /// programs; may be repeated. It must exit with 0. The experiment's name is programs; --seconds does not apply to
    /// such a command.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) program: Vec<String>,
    /// Be one of the bench's own programs: its name, and parameters as KEY=NUMBER.
    #[arg(long, hide = true, num_args = 1..)]
    pub(crate) workload: Vec<String>,
}

/// Measure what jobs of libdml, the replacement for Intel's DML, cost a program in C.
///
/// Experiments: a no-op, and copies, CRCs and DIF on the software path, beside the operations themselves; copies on the
/// hardware path, beside the mover's own call, both on a modelled device; jobs on devices that Intel's library does
/// not use. With --original, the same jobs of Intel's library are measured, too. The sides run in turns of some
/// milliseconds, and the numbers are medians over the turns.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
A program in C is compiled with cc and linked with the libdml that pkg-config finds: install it with \
`doors/dml/install.sh DIR`, and set PKG_CONFIG_PATH=DIR/lib/pkgconfig.

Examples:
  telpher bench dml
  telpher bench dml --only software --seconds 30
  telpher bench dml --only original --original /usr/local"
)]
pub(crate) struct DmlBench {
    #[command(flatten)]
    pub(crate) contests: Contests,
    /// The folder in which Intel's library is installed: include/dml/dml.h and lib/libdml.a.
    #[arg(long, value_name = "DIR")]
    pub(crate) original: Option<PathBuf>,
}

/// Measure what it costs a program to run under `telpher run`.
///
/// Experiments: a program that submits as any DSA program does, with its submission sites rewritten after the first
/// trap, and with every submission trapping; copies of 1 MiB, compared with direct use of the model; the start of
/// `telpher run -- true`; a program that never uses the device, with and without `telpher run`. The competitors run in
/// turns, and the ratios are medians over the turns.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
Examples:
  telpher bench run
  telpher bench run --seconds 60 --format json"
)]
pub(crate) struct RunBench {
    #[command(flatten)]
    pub(crate) output: Output,
    /// Total measuring time in seconds.
    #[arg(long, value_name = "S", default_value = "20", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    /// Be the measured program; commands come on standard input.
    #[arg(long, hide = true)]
    pub(crate) program: bool,
}

/// Measure what `telpher offload` and `telpher record` cost a program, and what they gain.
///
/// Experiments: calls below the threshold, offloaded and recorded, against plain calls; the start of a program; a
/// program whose copies are all of cached data; 64 KiB copies of uncached data by a modelled device with the calling
/// thread, and by a simulated device; the prediction from a recording against the same program with simulated device
/// times; redis, if it is installed. The competitors take turns, and ratios are medians over the turns.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
Needs up to 2 GiB of memory where the caches are large.

Examples:
  telpher bench offload
  telpher bench offload --only calls,start --seconds 10
  telpher bench offload --format csv --output offload.csv"
)]
pub(crate) struct OffloadBench {
    #[command(flatten)]
    pub(crate) contests: Contests,
    /// Be the measured program; commands come on standard input.
    #[arg(long, hide = true)]
    pub(crate) program: bool,
}

/// Compare the column engine of `telpher qdp` with DuckDB.
///
/// The engine filters, sums and groups generated columns in memory, without prefetching; the queries include TPC-H's 1
/// and 6. DuckDB answers the same queries over its own copy of the same columns, with the same integer types and number
/// of threads. The two take turns, and every answer is compared. Loading, parsing and planning are not measured. Ratios
/// are medians over the rounds.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
DuckDB is used through a Python that has it installed:
  python3 -m venv duck && duck/bin/pip install duckdb numpy
Name that Python with --python. Without it, only the engine is measured.

Examples:
  telpher bench query
  telpher bench query --size 1g --threads 2 --seconds 60
  telpher bench query --format json"
)]
pub(crate) struct QueryBench {
    /// Total bytes of each table's columns.
    #[arg(short, long, value_name = "SIZE", default_value = "256m", value_parser = super::values::parse_size)]
    pub(crate) size: u64,
    /// Threads of each side [default: one for each core].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Option<u32>,
    /// A Python interpreter with the packages duckdb and numpy.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub(crate) python: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Total measuring time in seconds.
    #[arg(long, value_name = "S", default_value = "20", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

/// Measure packet rates into and out of virtual machines, compared with DPDK.
///
/// The forwarding loop of `telpher vhost` runs on one core, and unmodified DPDK testpmd as the guest on another. DPDK's
/// net_vhost forwards the same guest's packets, in turns with ours. Rates are measured by the guest. Further parts: the
/// asynchronous pipeline with an engine executed by the forwarding thread, compared with our own CPU copies; the
/// pipeline with an engine thread, compared with DPDK's asynchronous path; the cost of a ring; the cost of a packet for
/// the forwarding core when a device copies; the latency of the pipeline; the rate between an interface and a guest.
///
/// The distance of the two cores is measured before and after every point, since virtual CPUs migrate. Only points of
/// one distance are compared. A point is dropped and counted if the distance changed, or if a forwarding thread had
/// less than 96 % of its core.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
The peer is testpmd from Debian's packages dpdk and dpdk-dev (apt install dpdk dpdk-dev); it needs \
root and huge pages, which are reserved while the bench runs. Without it the guest is our own, \
and its rates are not compared with DPDK's.

Traffic is named as seen from the backend: b2f goes into the guest, f2b comes out of it, loop \
circulates 512 packets.

A point takes about a third of a second. Each round has one point for every length, direction, ring \
and competitor. A ratio needs a pair of points at one distance of the cores: if virtual CPUs migrate \
or are busy, more rounds give more pairs. On two idle cores: copies in 3 rounds 90 s, pipeline \
75 s, threads with 3 lengths in 3 rounds 4 minutes or more, rings, flat and latency together 30 s. \
interface needs root, and takes 80 s in 3 rounds.

Examples:
  telpher bench vhost --quick
  telpher bench vhost --only copies --ring packed --traffic loop --rounds 11
  telpher bench vhost --only rings,flat,latency --format json"
)]
pub(crate) struct VhostBench {
    /// Parts to measure: copies, pipeline, threads, rings, flat, latency, interface [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<VhostPart>,
    /// Packet lengths [default: 64,128,256,512,1024,1280,1518].
    #[arg(short, long, value_name = "SIZE")]
    pub(crate) size: Option<Sizes>,
    /// Rings and drivers: split and packed have mergeable buffers; the others use rings in order, or vector
    /// instructions.
    #[arg(long, value_name = "RINGS", value_delimiter = ',', default_value = "split,packed")]
    pub(crate) ring: Vec<VhostRing>,
    /// Direction of the packets.
    #[arg(long, value_name = "WAYS", value_delimiter = ',', default_value = "b2f,f2b,loop")]
    pub(crate) traffic: Vec<VhostTraffic>,
    /// The device copies packets of this many bytes or more in the hybrid pipeline [default: learned].
    #[arg(long, value_name = "BYTES")]
    pub(crate) threshold: Option<u32>,
    /// How often every point is measured [default: 5]; verdicts from fewer than three pairs are marked.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// A short run of less than a minute: three lengths, one round, short windows.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Use our own guest even if testpmd is installed.
    #[arg(long)]
    pub(crate) own_guest: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum VhostPart {
    /// CPU copies against DPDK's net_vhost.
    Copies,
    /// The hybrid pipeline with an inline engine against our CPU copies.
    Pipeline,
    /// An engine thread against DPDK's asynchronous path with its software DMA.
    Threads,
    /// The cost of a descriptor chain in a ring.
    Rings,
    /// The cost of a packet for the forwarding core while a device copies.
    Flat,
    /// The latency that the pipeline adds to a packet.
    Latency,
    /// Packets between a network interface and a guest.
    Interface,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum VhostRing {
    /// A split ring, mergeable buffers.
    Split,
    /// A packed ring, mergeable buffers.
    Packed,
    /// A split ring used in order.
    SplitInorder,
    /// A packed ring used in order, buffers not merged.
    PackedInorder,
    /// A split ring, vector instructions.
    SplitVec,
    /// A packed ring used in order, vector instructions.
    PackedVec,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum VhostTraffic {
    /// Backend to frontend.
    B2f,
    /// Frontend to backend.
    F2b,
    /// Around: a fixed set of packets circulates.
    Loop,
}

/// Pages of buffers, measured or simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Pages {
    /// 4 KiB pages.
    #[value(name = "4k")]
    Small,
    /// 2 MiB pages.
    #[value(name = "2m")]
    Huge,
    /// 1 GiB pages.
    #[value(name = "1g")]
    Gigantic,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Hint {
    /// In the cache: a core reads them soon.
    Cache,
    /// In memory: they are large or cold.
    Memory,
}

impl Pages {
    /// The pages of a measurement.
    fn measured(self) -> options::Pages {
        match self {
            Pages::Small => options::Pages::Small,
            Pages::Huge => options::Pages::Huge,
            Pages::Gigantic => options::Pages::Gigantic,
        }
    }

    /// Bytes of a page.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Pages::Small => 4 << 10,
            Pages::Huge => 2 << 20,
            Pages::Gigantic => 1 << 30,
        }
    }
}

impl Sweep {
    /// What is measured.
    pub(crate) fn options(&self) -> options::SweepOptions {
        options::SweepOptions {
            ops: self.op.0.clone(),
            sizes: self.size.0.clone(),
            depths: self.in_flight.as_ref().map(|counts| counts.0.clone()),
            batches: self.batch.as_ref().map(|counts| counts.0.clone()),
            threads: self.threads,
            queue: self.queues.wq_mode.map(|mode| match mode {
                WqMode::Dedicated => options::QueueKind::Dedicated,
                WqMode::Shared => options::QueueKind::Shared,
            }),
            wq_size: self.queues.wq_size,
            engines: self.engines,
            placement: self.placement.map(|nodes| options::Placement { src: nodes.src, dst: nodes.dst }),
            pages: self.pages.measured(),
            hint: match self.hint {
                Hint::Cache => options::Hint::Cache,
                Hint::Memory => options::Hint::Memory,
            },
            device: self.device.name.clone(),
            waits: self.full,
            seconds: self.seconds,
        }
    }
}

impl OpsBench {
    /// What is measured.
    pub(crate) fn options(&self) -> options::OpsOptions {
        let ops = self.op.as_ref().map_or_else(|| telpher_bench::ops::operations().collect(), |ops| ops.0.clone());
        options::OpsOptions { ops, sizes: self.size.0.clone(), seconds: self.seconds }
    }
}

impl PollutionBench {
    /// What is measured.
    pub(crate) fn options(&self) -> options::PollutionOptions {
        options::PollutionOptions {
            working_sets: self.working_set.0.clone(),
            size: self.size,
            device: self.device.clone(),
            seconds: self.seconds,
        }
    }
}

impl Contests {
    /// What is measured.
    pub(crate) fn options(&self) -> options::ExperimentOptions {
        options::ExperimentOptions { only: self.only.clone(), seconds: self.seconds }
    }
}

impl TierBench {
    /// What is measured.
    pub(crate) fn options(&self) -> options::TierOptions {
        options::TierOptions { experiments: self.contests.options(), programs: self.program.clone() }
    }
}

impl DmlBench {
    /// What is measured.
    pub(crate) fn options(&self) -> options::DmlOptions {
        options::DmlOptions { experiments: self.contests.options(), original: self.original.clone() }
    }
}

impl CacheLikeBench {
    /// What is measured.
    pub(crate) fn options(&self) -> options::CacheLikeOptions {
        options::CacheLikeOptions {
            load: self.load.clone(),
            cores: self.cores,
            threads: self.threads,
            gets: self.gets,
            threshold: self.threshold,
            devices: self.device.clone(),
            only: self.only.clone(),
            alone: self.alone,
        }
    }
}

impl QueryBench {
    /// What is measured.
    pub(crate) fn options(&self) -> options::QueryOptions {
        options::QueryOptions {
            size: self.size,
            threads: self.threads,
            python: self.python.clone(),
            seconds: self.seconds,
        }
    }
}

impl VhostBench {
    /// What is measured.
    pub(crate) fn options(&self) -> options::VhostOptions {
        options::VhostOptions {
            only: self.only.iter().map(|part| part.option()).collect(),
            sizes: self.size.as_ref().map(|sizes| sizes.0.clone()),
            rings: self.ring.iter().map(|ring| ring.option()).collect(),
            traffic: self.traffic.iter().map(|traffic| traffic.option()).collect(),
            threshold: self.threshold,
            rounds: self.rounds,
            quick: self.quick,
            own_guest: self.own_guest,
        }
    }
}

impl VhostPart {
    fn option(self) -> options::VhostPart {
        match self {
            VhostPart::Copies => options::VhostPart::Copies,
            VhostPart::Pipeline => options::VhostPart::Pipeline,
            VhostPart::Threads => options::VhostPart::Threads,
            VhostPart::Rings => options::VhostPart::Rings,
            VhostPart::Flat => options::VhostPart::Flat,
            VhostPart::Latency => options::VhostPart::Latency,
            VhostPart::Interface => options::VhostPart::Interface,
        }
    }
}

impl VhostRing {
    fn option(self) -> options::VhostRing {
        match self {
            VhostRing::Split => options::VhostRing::Split,
            VhostRing::Packed => options::VhostRing::Packed,
            VhostRing::SplitInorder => options::VhostRing::SplitInorder,
            VhostRing::PackedInorder => options::VhostRing::PackedInorder,
            VhostRing::SplitVec => options::VhostRing::SplitVec,
            VhostRing::PackedVec => options::VhostRing::PackedVec,
        }
    }
}

impl VhostTraffic {
    fn option(self) -> options::VhostTraffic {
        match self {
            VhostTraffic::B2f => options::VhostTraffic::B2f,
            VhostTraffic::F2b => options::VhostTraffic::F2b,
            VhostTraffic::Loop => options::VhostTraffic::Loop,
        }
    }
}
