//! Options of `telpher bench` and its companions.

use super::operation::Ops;
use super::values::{Counts, Placement, Sizes, parse_seconds};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use telpher_bench::options;

/// Measure operations on the CPU, on the modelled device and on DSA hardware.
///
/// Sweeps operation x transfer size x mode (one at a time, queue depth, batch) on the CPU path, on the modelled device,
/// executed inline by the submitting thread and by an engine thread of its own, and on hardware where there is some. Prints
/// throughput, latency percentiles, the submitting thread's CPU time, where latency is spent, and the size from which a
/// device wins; writes one HTML file with charts. Every result's bytes are checked.
///
/// The modelled device is software: its numbers are the speed of the model on this CPU, not of DSA hardware.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Sizes are bytes with k, m, g for KiB, MiB, GiB. Lists take commas and ranges: 64..64m is each four
times the one before, 1k..8k*2 each twice.

Examples:
  telpher bench                                     everything, in about 25 seconds
  telpher bench --op move,crc --size 4k..1m*2       two operations, finer sizes
  telpher bench --depth 1..64 --batch 1,32          how queue depth and batches change throughput
  telpher bench --queue shared --threads 2          two submitters on one shared queue
  telpher bench --device hw:wq0.0                   one queue of a real device beside the CPU
  telpher bench --format csv --no-html > out.csv    for a spreadsheet"
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
    /// What the mover's own machinery costs and gains.
    ///
    /// A contest for each question: how much threads lose that share one mover, and so on; the table names them all. The contestants
    /// of each take turns of some milliseconds, and the numbers are medians over the turns. Every contest checks what it moved.
    #[command(after_help = "\
Examples:
  telpher bench mover
  telpher bench mover --only sharing --seconds 10 --no-html
  telpher bench mover --format csv --no-html > mover.csv")]
    Mover(Contests),
    /// What the cache of hot blocks costs, and what fetching ahead does.
    ///
    /// A block that is there, by one thread and by several; one that is not, beyond the copy itself, also when another has to go for it; what
    /// an entry takes of memory; a query whose columns are fetched ahead where nothing can be gained by it. Everything that is compared
    /// takes turns of some milliseconds, and the numbers are medians over the turns. Every block is compared with its source.
    #[command(after_help = "\
Examples:
  telpher bench cache
  telpher bench cache --only hits,threads --seconds 10 --no-html
  telpher bench cache --format csv --no-html > cache.csv")]
    Cache(Contests),
    Tier(TierBench),
    Run(RunBench),
    Query(QueryBench),
    Vhost(VhostBench),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Sweep {
    /// Operations: move, fill, compare, compare-pattern, create-delta, apply-delta, dualcast, crc, copy-crc, dif-check,
    /// dif-insert, dif-strip, dif-update, cache-flush, or all.
    #[arg(long, value_name = "OPS", default_value = "move,fill,compare,crc,copy-crc")]
    pub(crate) op: Ops,
    /// Transfer sizes.
    #[arg(long, value_name = "SIZES", default_value = "64..64m")]
    pub(crate) size: Sizes,
    /// Descriptors (or batches) in flight; 1 waits for each before the next. Without --depth and --batch: one at a time,
    /// 32 in flight, and two batches of 32 in flight.
    #[arg(long, value_name = "COUNTS")]
    pub(crate) depth: Option<Counts>,
    /// Descriptors a batch carries; 1 submits each by itself.
    #[arg(long, value_name = "COUNTS")]
    pub(crate) batch: Option<Counts>,
    /// Submitting threads, each pinned to a core.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
    /// Kind of work queue: dedicated has one client, so each thread gets a queue of its own; shared has many [default:
    /// dedicated].
    #[arg(long, value_enum)]
    pub(crate) queue: Option<Queue>,
    /// Entries of a work queue [default: the device's 128, divided among its queues].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) wq_size: Option<u32>,
    /// Engines behind the queues [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4))]
    pub(crate) engines: Option<u32>,
    /// NUMA nodes of source and destination buffers, such as 0,1. Default: wherever the system puts them.
    #[arg(long, value_name = "SRC,DST")]
    pub(crate) placement: Option<Placement>,
    /// Pages of the buffers: 4k, or 2m (transparent huge pages).
    #[arg(long, value_enum, default_value_t = Pages::Small)]
    pub(crate) pages: Pages,
    /// Where the device shall leave results: in the cache, or in memory (DSA's cache-control flag).
    #[arg(long, value_enum, default_value_t = Hint::Cache)]
    pub(crate) hint: Hint,
    /// Where work goes: cpu, model:spr, model:spr-fw2, model:full, model:FILE (accel-config JSON), hw:wqM.N, or all (the CPU,
    /// model:spr, and the hardware queues this program may use). The CPU is always measured beside a device, as its baseline.
    #[arg(long, value_name = "DEV", default_value = "all", value_parser = super::values::parse_device)]
    pub(crate) device: String,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Measuring time in all.
    #[arg(long, value_name = "S", default_value = "22", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

/// Compare each operation with the best alternative on this machine, in the same run.
///
/// glibc's memcpy, memmove, memset and memcmp; ISA-L's CRC32C and T10-DIF CRC when libisal2 is installed (apt install
/// libisal2); the crc-fast crate; and copy-then-CRC in two passes against one. The two sides run in turns of a few
/// milliseconds, and the ratio is the median over the turns: above 1 telpher is faster. Then the costs around a
/// descriptor: submission to record, descriptors per second, the overhead on small copies, CPU time per byte, memory
/// of an idle device.
#[derive(Debug, Args)]
#[command(after_help = "\
Warm: the same buffers again and again, in the cache where they fit. Cold: rotating through more
memory than the last-level cache holds. Ratios below 0.9 are marked with '<'.

Examples:
  telpher bench ops
  telpher bench ops --op move --size 256..64m*2 --seconds 60
  telpher bench ops --format json --no-html")]
pub(crate) struct OpsBench {
    /// Operations to compare, by default every one that has an alternative: move, fill, compare, crc, copy-crc,
    /// dif-insert, dif-check, create-delta.
    #[arg(
        long,
        value_name = "OPS",
        default_value = "move,fill,compare,crc,copy-crc,dif-insert,dif-check,create-delta"
    )]
    pub(crate) op: Ops,
    /// Transfer sizes.
    #[arg(long, value_name = "SIZES", default_value = "256..64m")]
    pub(crate) size: Sizes,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Measuring time in all.
    #[arg(long, value_name = "S", default_value = "40", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

/// What copying does to the memory latency of neighbours.
///
/// The cache pollution experiment of the DSA analysis at ASPLOS 2024, section 4.5, on the machine at hand: pinned
/// co-runners chase pointers at random through working sets and measure their own access latency, while another core
/// copies by memcpy, by non-temporal CPU copies, through a device, or not at all.
///
/// A modelled engine is a thread, so its copies go through a core's caches; a hardware engine's reads allocate in no
/// cache and its writes only in a part of the last level. The hardware's advantage cannot show on a model; what shows is how
/// much each way of copying costs the neighbours on this machine.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher bench pollution
  telpher bench pollution --device hw:wq0.0
  telpher bench pollution --working-set 1m..32m*2 --size 1m --seconds 60")]
pub(crate) struct PollutionBench {
    /// Working sets of the co-runners.
    #[arg(long, value_name = "SIZES", default_value = "512k,4m,16m,32m")]
    pub(crate) working_set: Sizes,
    /// Transfer size of the copies; the first of a list is taken.
    #[arg(long, value_name = "SIZE", default_value = "64k", value_parser = super::values::parse_size)]
    pub(crate) size: u64,
    /// The device that copies: model:spr, model:spr-fw2, model:full, model:FILE (accel-config JSON), or hw:wqM.N.
    #[arg(long, value_name = "DEV", default_value = "model:spr", value_parser = super::values::parse_device)]
    pub(crate) device: String,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Measuring time in all.
    #[arg(long, value_name = "S", default_value = "20", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

// A bench that is a contest for each question; what it says of itself stands at its subcommand.
#[derive(Debug, Args)]
pub(crate) struct Contests {
    /// Contests to hold, by name; all without this option.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Measuring time in all.
    #[arg(long, value_name = "S", default_value = "20", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

/// What it costs to move pages between tiers of memory while a program runs.
///
/// A small page by how many go together, a huge page, each with and without its copy; and pages that two threads write to meanwhile, by an
/// exchange and by protection, a copy and another mapping: how many move, and how long the threads wait; and what random writes and reads
/// (GUPS) lose to being looked at. Everything that is compared takes turns, and the numbers are medians over them. Every byte is what it was, or the
/// bench fails.
#[derive(Debug, Args)]
#[command(after_help = "\
Wants userfaultfd (root, or /dev/userfaultfd) and Linux 6.8; some 700 MiB of memory.

Examples:
  telpher bench tier
  telpher bench tier --only huge --seconds 10 --no-html
  telpher bench tier --only programs --program 'XSBench -s small' --program 'sssp -g 20 -v'
  telpher bench tier --format csv --no-html > tier.csv")]
pub(crate) struct TierBench {
    #[command(flatten)]
    pub(crate) contests: Contests,
    /// A program, as a shell takes it, that runs three times alone and three times under `telpher tier run`, such as XSBench or one of the GAP suite; may
    /// be given more than once. It must end with 0. The contest's name is programs, and --seconds is not for it.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) program: Vec<String>,
}

/// What it costs a program to run under `telpher run`.
///
/// A program that submits as any program for DSA does, with its sites rewritten after the first trap and with every submission
/// trapping; copies of 1 MiB against the model used directly; the start of `telpher run -- true`; a program that never touches
/// the device, with and without. The contestants run in turns, and the ratios are medians over the turns.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher bench run
  telpher bench run --seconds 60 --format json --no-html")]
pub(crate) struct RunBench {
    #[command(flatten)]
    pub(crate) output: Output,
    /// Measuring time in all.
    #[arg(long, value_name = "S", default_value = "20", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    /// Be the program that is measured: what to do is told on standard input.
    #[arg(long, hide = true)]
    pub(crate) program: bool,
}

/// The column engine of `telpher qdp` against DuckDB.
///
/// Filters, sums and groups over generated columns in memory, TPC-H's queries 1 and 6 among them, by the engine alone: nothing is
/// prefetched. DuckDB answers the same questions over its own copy of the same columns, of the same integer types, with as many threads;
/// the two take turns, every answer is compared, and loading, parsing and planning are not measured. Ratios are medians over
/// the rounds.
#[derive(Debug, Args)]
#[command(after_help = "\
DuckDB comes with a Python that has it:
  python3 -m venv duck && duck/bin/pip install duckdb numpy
Without one, the times of the engine stand alone.

Examples:
  telpher bench query --python duck/bin/python
  telpher bench query --size 1g --threads 2 --seconds 60
  telpher bench query --format json --no-html")]
pub(crate) struct QueryBench {
    /// Bytes of the columns of each table.
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = super::values::parse_size)]
    pub(crate) size: u64,
    /// Threads of each side [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Option<u32>,
    /// A Python that has the packages duckdb and numpy.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub(crate) python: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Measuring time in all.
    #[arg(long, value_name = "S", default_value = "20", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

/// Packets into virtual machines and out of them, beside DPDK's.
///
/// The forwarding loop of `telpher vhost` on one core, and DPDK's testpmd as a guest on another, unmodified; the same guest's packets
/// are forwarded by DPDK's net_vhost, the two in turns. Rates are the guest's. Then: the asynchronous pipeline beside our own CPU copies, with
/// an engine executed by the forwarding thread and with one of its own beside DPDK's asynchronous path; what a ring costs; what a packet
/// costs the forwarding core when a device copies; how long packets stay in the pipeline.
///
/// How far the two cores are from each other is found out before and after every point, since virtual machines' cores wander: only
/// points of one distance are compared, and those during which it changed, or a forwarding thread had less than 96 % of its core, are dropped
/// and counted.
#[derive(Debug, Args)]
#[command(after_help = "\
The peer is testpmd of Debian's packages dpdk and dpdk-dev (apt install dpdk dpdk-dev); it wants
root and huge pages, which are reserved while the bench runs. Without it the guest is one of our
own, whose rates stand alone.

Traffic is named as seen from the backend: b2f into the guest, f2b out of it, loop around with 512
packets.

A point takes about a third of a second, every length, way, ring and contestant has one a round,
and a ratio wants a pair of points at one distance of the cores: where cores wander or are busy,
more rounds give more pairs. On two cores, by themselves: copies in 3 rounds 90 s, pipeline 75 s,
threads with 3 lengths in 3 rounds 4 minutes or more, rings, flat and latency together 30 s.

Examples:
  telpher bench vhost --quick
  telpher bench vhost --only copies --ring packed --traffic loop --rounds 11
  telpher bench vhost --only rings,flat,latency --format json --no-html")]
pub(crate) struct VhostBench {
    /// Parts to measure: copies, pipeline, threads, rings, flat, latency; all without this option.
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub(crate) only: Vec<VhostPart>,
    /// Lengths of packets [default: 64,128,256,512,1024,1280,1518].
    #[arg(long, value_name = "SIZES")]
    pub(crate) size: Option<Sizes>,
    /// Rings and drivers: split and packed are those with mergeable buffers; the others use rings in order, or vector instructions.
    #[arg(long, value_name = "RINGS", value_delimiter = ',', default_value = "split,packed")]
    pub(crate) ring: Vec<VhostRing>,
    /// Which way packets go.
    #[arg(long, value_name = "WAYS", value_delimiter = ',', default_value = "b2f,f2b,loop")]
    pub(crate) traffic: Vec<VhostTraffic>,
    /// Packets of so many bytes or more ride the device in the hybrid pipeline [default: it finds out].
    #[arg(long, value_name = "BYTES")]
    pub(crate) threshold: Option<u32>,
    /// Times that every point is measured [default: 5]; verdicts of fewer than three pairs say that they are few.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Less of everything, in less than a minute: three lengths, one round, short windows.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Our own guest, also where there is testpmd.
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
    /// An engine with a thread of its own against DPDK's asynchronous path with its software DMA.
    Threads,
    /// What a chain costs on its way through a ring.
    Rings,
    /// What a packet costs the forwarding core while a device copies.
    Flat,
    /// How much longer a packet takes through the pipeline.
    Latency,
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
    /// Around.
    Loop,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Output {
    /// What goes to standard output.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    /// Where the report goes [default: the command's name, such as telpher-bench-ops.html or telpher-sim-run.html].
    #[arg(long, value_name = "FILE", conflicts_with = "no_html")]
    pub(crate) html: Option<PathBuf>,
    /// Write no report.
    #[arg(long)]
    pub(crate) no_html: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people.
    Table,
    /// One JSON object.
    Json,
    /// One line a result, first line the names.
    Csv,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Queue {
    /// One client, posted writes; never answers that it is full.
    Dedicated,
    /// Many clients; answers Retry when full.
    Shared,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Pages {
    /// 4 KiB pages.
    #[value(name = "4k")]
    Small,
    /// 2 MiB pages, asked for with madvise.
    #[value(name = "2m")]
    Huge,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Hint {
    /// In the cache: somebody reads them soon.
    Cache,
    /// In memory: they are large or cold.
    Memory,
}

impl Sweep {
    /// What is measured.
    pub(crate) fn options(&self) -> options::SweepOptions {
        options::SweepOptions {
            ops: self.op.0.clone(),
            sizes: self.size.0.clone(),
            depths: self.depth.as_ref().map(|counts| counts.0.clone()),
            batches: self.batch.as_ref().map(|counts| counts.0.clone()),
            threads: self.threads,
            queue: self.queue.map(|queue| match queue {
                Queue::Dedicated => options::QueueKind::Dedicated,
                Queue::Shared => options::QueueKind::Shared,
            }),
            wq_size: self.wq_size,
            engines: self.engines,
            placement: self.placement.map(|nodes| options::Placement { src: nodes.src, dst: nodes.dst }),
            pages: match self.pages {
                Pages::Small => telpher_mem::PageSize::Small,
                Pages::Huge => telpher_mem::PageSize::Huge,
            },
            hint: match self.hint {
                Hint::Cache => options::Hint::Cache,
                Hint::Memory => options::Hint::Memory,
            },
            device: self.device.clone(),
            seconds: self.seconds,
        }
    }
}

impl OpsBench {
    /// What is measured.
    pub(crate) fn options(&self) -> options::OpsOptions {
        options::OpsOptions { ops: self.op.0.clone(), sizes: self.size.0.clone(), seconds: self.seconds }
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

impl Output {
    /// Where the result goes.
    pub(crate) fn destination(&self) -> telpher_report::deliver::Output {
        telpher_report::deliver::Output { format: self.format.report(), html: self.html.clone(), no_html: self.no_html }
    }
}

impl Format {
    fn report(self) -> telpher_report::deliver::Format {
        match self {
            Format::Table => telpher_report::deliver::Format::Table,
            Format::Json => telpher_report::deliver::Format::Json,
            Format::Csv => telpher_report::deliver::Format::Csv,
        }
    }
}
