//! Applications in workload files; missing keys have the published values.

use super::{
    AllReduce, App, CacheBench, Copier, CopyBy, DigestBy, DtoTuning, DtoVersion, Exchange, Fabric, FabricPattern, Gups,
    MessagePattern, Messages, Migration, MigrationOffload, PagePlacement, Prefetch, Promotion, Query, SharedMemory,
    Storage, Vhost,
};
use crate::machine::Machine;
use crate::picos::Picos;
use crate::profile::{ProfileError, Section};
use crate::scenario::workload::{named, node};
use crate::workload::QueueId;

/// The names of the applications.
const NAMES: &str =
    "allreduce, cachebench, exchange, fabric, gups, messages, migration, promotion, query, storage and vhost";

/// Reads the application `name` from a section; `queues` are the queues that it may use.
pub(crate) fn parse(
    section: &Section<'_>,
    name: &str,
    queues: &[QueueId],
    machine: &Machine,
) -> Result<App, ProfileError> {
    let queues = if by_core(section, queues)? { &[] } else { queues };
    match name {
        "allreduce" => allreduce(section, queues).map(App::AllReduce),
        "cachebench" => cachebench(section, queues).map(App::CacheBench),
        "exchange" => exchange(section, queues, machine).map(App::Exchange),
        "fabric" => fabric(section, queues).map(App::Fabric),
        "gups" => gups(section, queues, machine).map(App::Gups),
        "messages" => messages(section, queues).map(App::Messages),
        "migration" => migration(section, queues, machine).map(App::Migration),
        "promotion" => promotion(section, queues, machine).map(App::Promotion),
        "query" => query(section, queues, machine).map(App::Query),
        "storage" => storage(section, queues).map(App::Storage),
        "vhost" => vhost(section, queues).map(App::Vhost),
        _ => Err(section.wrong("app", format!("is {name}; there are {NAMES}"))),
    }
}

/// Reads `by`: true if the core does the work that a device could do.
fn by_core(section: &Section<'_>, queues: &[QueueId]) -> Result<bool, ProfileError> {
    match section.text_if_there("by")? {
        Some("cpu") => Ok(true),
        None | Some("device") if !queues.is_empty() => Ok(false),
        _ => Err(section.wrong("by", "is neither cpu, nor device with a queue")),
    }
}

fn copier(queues: &[QueueId]) -> Copier {
    if queues.is_empty() { Copier::Core } else { Copier::Devices(queues.to_vec()) }
}

/// Reads the table `costs` into `known`; missing keys keep their values.
fn costs(section: &Section<'_>, known: &mut [(&str, &str, &mut f64)]) -> Result<(), ProfileError> {
    let Some(section) = section.section_if_there("costs")? else { return Ok(()) };
    for (key, unit, value) in known {
        // A rate of 0 would never end.
        let least = if *unit == "GB/s" { 0.001 } else { 0.0 };
        if section.has(key) {
            **value = section.number(key, least..=1e6, unit)?;
        }
    }
    section.end()
}

fn vhost(section: &Section<'_>, queues: &[QueueId]) -> Result<Vhost, ProfileError> {
    let of = Vhost::default();
    let mut costs_read = of.costs;
    let cycles = "cycles";
    costs(
        section,
        &mut [
            ("round", cycles, &mut costs_read.round),
            ("packet", cycles, &mut costs_read.packet),
            ("copy", cycles, &mut costs_read.copy),
            ("line", cycles, &mut costs_read.line),
            ("payload_miss", cycles, &mut costs_read.payload_miss),
            ("header_miss", cycles, &mut costs_read.header_miss),
            ("offload", cycles, &mut costs_read.offload),
            ("guest", cycles, &mut costs_read.guest),
        ],
    )?;
    let from = section.count_if_there("threshold", 0..=65535, "bytes")?;
    let copies = match (queues, from) {
        ([], _) => CopyBy::Core,
        ([first, rest @ ..], from) => {
            let (enqueue, dequeue) = (*first, *rest.first().unwrap_or(first));
            from.map_or(CopyBy::Device { enqueue, dequeue }, |from| CopyBy::Hybrid { from, enqueue, dequeue })
        }
    };
    Ok(Vhost {
        packet_bytes: section.count_if_there("packet", 64..=9728, "bytes")?.unwrap_or(of.packet_bytes),
        burst: section.count_if_there("burst", 1..=1024, "packets")?.unwrap_or(of.burst),
        copies,
        packets: section.count_if_there("count", 1..=10_000_000, "packets")?.map_or(of.packets, u64::from),
        offered_mbit_s: section
            .count_if_there("offered_mbit_s", 1..=10_000_000, "Mbit/s")?
            .map_or(of.offered_mbit_s, u64::from),
        port_ring: section.count_if_there("port_ring", 1..=8192, "entries")?.unwrap_or(of.port_ring),
        virtqueue: section.count_if_there("virtqueue", 1..=32768, "entries")?.unwrap_or(of.virtqueue),
        clock_mhz: section.count_if_there("clock_mhz", 100..=10_000, "MHz")?.unwrap_or(of.clock_mhz),
        l2_bytes: section.bytes_if_there("l2", 64..=1 << 30)?.unwrap_or(of.l2_bytes),
        l2_ways: section.count_if_there("l2_ways", 1..=1024, "ways")?.unwrap_or(of.l2_ways),
        costs: costs_read,
        ..of
    })
}

/// The parameters of messages through shared memory.
fn shared(section: &Section<'_>) -> Result<SharedMemory, ProfileError> {
    let of = SharedMemory::default();
    let (mut command_ns, mut turn_ns) = (of.command_ns, of.turn_ns);
    costs(section, &mut [("command_ns", "ns", &mut command_ns), ("turn_ns", "ns", &mut turn_ns)])?;
    Ok(SharedMemory {
        segment: section.bytes_if_there("segment", 64..=1 << 31)?.unwrap_or(of.segment),
        segments: section.count_if_there("segments", 1..=65536, "segments")?.map_or(of.segments, u64::from),
        pool: section.count_if_there("pool", 1..=1_000_000, "segments")?.map_or(of.pool, u64::from),
        command_ns,
        turn_ns,
        cache_bytes: section.bytes_if_there("cache", 0..=1 << 40)?.unwrap_or(of.cache_bytes),
        sockets: section.count_if_there("sockets", 1..=64, "sockets")?.unwrap_or(of.sockets),
    })
}

fn messages(section: &Section<'_>, queues: &[QueueId]) -> Result<Messages, ProfileError> {
    let of = Messages::default();
    let talk = match section.text_if_there("talk")? {
        None => of.talk,
        Some("ping-pong") => MessagePattern::PingPong,
        Some("stream") => MessagePattern::Stream,
        Some(other) => return Err(section.wrong("talk", format!("is {other}, not ping-pong or stream"))),
    };
    Ok(Messages {
        talk,
        bytes: section.bytes_if_there("size", 1..=1 << 40)?.unwrap_or(of.bytes),
        count: section.count_if_there("count", 1..=1_000_000, "messages")?.map_or(of.count, u64::from),
        copier: copier(queues),
        shared: shared(section)?,
    })
}

fn allreduce(section: &Section<'_>, queues: &[QueueId]) -> Result<AllReduce, ProfileError> {
    let of = AllReduce::default();
    let compute = if section.has("compute") { section.number("compute", 0.0..=1e6, "ms")? } else { of.compute_ms };
    Ok(AllReduce {
        ranks: section.count_if_there("ranks", 2..=1024, "ranks")?.unwrap_or(of.ranks),
        bytes: section.bytes_if_there("size", 1..=1 << 40)?.unwrap_or(of.bytes),
        count: section.count_if_there("count", 1..=1_000_000, "sums")?.map_or(of.count, u64::from),
        compute_ms: compute,
        copier: copier(queues),
        shared: shared(section)?,
    })
}

fn fabric(section: &Section<'_>, queues: &[QueueId]) -> Result<Fabric, ProfileError> {
    let of = Fabric::default();
    let pattern = match section.text_if_there("talk")? {
        None => of.pattern,
        Some("ping-pong") => FabricPattern::PingPong,
        Some("stream") => FabricPattern::Stream,
        Some("exchange") => FabricPattern::Exchange,
        Some("sum") => FabricPattern::Sum,
        Some(other) => {
            return Err(section.wrong("talk", format!("is {other}, not ping-pong, stream, exchange or sum")));
        }
    };
    let SharedMemory { mut command_ns, mut turn_ns, .. } = of.shared;
    let mut entry_ns = of.entry_ns;
    let known = &mut [
        ("command_ns", "ns", &mut command_ns),
        ("turn_ns", "ns", &mut turn_ns),
        ("entry_ns", "ns", &mut entry_ns),
    ];
    costs(section, known)?;
    let power = |key: &str, value: Option<u32>, default: u32| match value {
        Some(value) if !value.is_power_of_two() => Err(section.wrong(key, format!("is {value}, no power of two"))),
        value => Ok(value.unwrap_or(default)),
    };
    let slot = section.bytes_if_there("slot", 4 << 10..=4 << 20)?.and_then(|bytes| u32::try_from(bytes).ok());
    let flag = |key: &str, default: bool| Ok(section.flag_if_there(key)?.unwrap_or(default));
    Ok(Fabric {
        pattern,
        ranks: section.count_if_there("ranks", 2..=64, "ranks")?.unwrap_or(of.ranks),
        bytes: section.bytes_if_there("size", 1..=1 << 30)?.unwrap_or(of.bytes),
        count: section.count_if_there("count", 1..=1_000_000, "messages")?.map_or(of.count, u64::from),
        compute_ms: if section.has("compute") { section.number("compute", 0.0..=1e6, "ms")? } else { of.compute_ms },
        helper: flag("helper", of.helper)?,
        copier: copier(queues),
        streaming: flag("streaming", of.streaming)?,
        slot_bytes: power("slot", slot, of.slot_bytes)?,
        slots: power("slots", section.count_if_there("slots", 2..=256, "slots")?, of.slots)?,
        in_flight: section.count_if_there("in_flight", 1..=1024, "copies")?.unwrap_or(of.in_flight),
        spread: flag("spread", of.spread)?,
        to_cache: flag("to_cache", of.to_cache)?,
        entry_ns,
        shared: SharedMemory {
            command_ns,
            turn_ns,
            cache_bytes: section.bytes_if_there("cache", 0..=1 << 40)?.unwrap_or(of.shared.cache_bytes),
            sockets: section.count_if_there("sockets", 1..=64, "sockets")?.unwrap_or(of.shared.sockets),
            ..of.shared
        },
    })
}

fn cachebench(section: &Section<'_>, queues: &[QueueId]) -> Result<CacheBench, ProfileError> {
    let of = CacheBench::default();
    let version: DtoVersion = named(section, "model", DtoVersion::default())?;
    let cores = section.count_if_there("cores", 1..=1024, "cores")?.unwrap_or(of.cores);
    let (mut work_ns, mut switch) = (of.work_ns, f64::NAN);
    let mut pause_ns = version.tuning().map_or(f64::NAN, |tuning| tuning.pause_ns);
    let mut known = vec![("work_ns", "ns", &mut work_ns), ("switch_ns", "ns", &mut switch)];
    if version.tuning().is_some() {
        known.push(("pause_ns", "ns", &mut pause_ns));
    }
    costs(section, &mut known)?;
    let tuning = match version.tuning() {
        None => None,
        Some(of) => {
            let rounds = |key: &str, of: u64| {
                section.count_if_there(key, 0..=1_000_000, "rounds").map(|rounds| rounds.map_or(of, u64::from))
            };
            let (least_waits, most_waits) =
                (rounds("least_waits", of.least_waits)?, rounds("most_waits", of.most_waits)?);
            Some(DtoTuning { least_waits, most_waits, pause_ns })
        }
    };
    Ok(CacheBench {
        work_ns,
        switch_ns: if switch.is_nan() { of.switch_ns } else { Some(switch) },
        long_of_10_000: section.count_if_there("long_of_10_000", 0..=10_000, "copies")?.unwrap_or(of.long_of_10_000),
        retries: section.count_if_there("retries", 0..=1_000_000, "times")?.unwrap_or(version.retries()),
        tuning,
        cores,
        threads: section.count_if_there("threads", 1..=4096, "threads")?.unwrap_or(2 * cores),
        copies: section.count_if_there("count", 1..=10_000_000, "copies")?.map_or(of.copies, u64::from),
        queues: queues.to_vec(),
        threshold: section.bytes_if_there("threshold", 0..=1 << 31)?.unwrap_or(version.threshold()),
        seed: section.count_if_there("seed", 0..=u32::MAX, "")?.map_or(of.seed, u64::from),
        ..of
    })
}

fn storage(section: &Section<'_>, queues: &[QueueId]) -> Result<Storage, ProfileError> {
    let of = Storage::default();
    let digests = section.flag_if_there("digest")?.unwrap_or(true);
    let digest = match queues {
        _ if !digests => DigestBy::None,
        [] => DigestBy::Core,
        queues => DigestBy::Devices(queues.to_vec()),
    };
    let mut costs_read = of.costs;
    costs(
        section,
        &mut [
            ("call_ns", "ns", &mut costs_read.call_ns),
            ("command_ns", "ns", &mut costs_read.command_ns),
            ("send_ns", "ns", &mut costs_read.send_ns),
            ("send_kib_ns", "ns", &mut costs_read.send_kib_ns),
            ("offload_ns", "ns", &mut costs_read.offload_ns),
            ("checksum_gb_s", "GB/s", &mut costs_read.checksum_gb_s),
            ("disk_gb_s", "GB/s", &mut costs_read.disk_gb_s),
            ("disk_us", "us", &mut costs_read.disk_us),
            ("link_gb_s", "GB/s", &mut costs_read.link_gb_s),
            ("initiator_us", "us", &mut costs_read.initiator_us),
        ],
    )?;
    costs_read.disks = section.count_if_there("disks", 1..=1024, "disks")?.unwrap_or(of.costs.disks);
    let bytes = |key, range| Ok(section.bytes_if_there(key, range)?.and_then(|bytes| u32::try_from(bytes).ok()));
    Ok(Storage {
        bytes: bytes("size", 512..=16 << 20)?.unwrap_or(of.bytes),
        threshold: bytes("threshold", 0..=1 << 31)?.unwrap_or(of.threshold),
        cores: section.count_if_there("cores", 1..=1024, "cores")?.unwrap_or(of.cores),
        digest,
        under_way: section.count_if_there("under_way", 1..=1_000_000, "reads")?.unwrap_or(of.under_way),
        reads: section.count_if_there("count", 2..=10_000_000, "reads")?.map_or(of.reads, u64::from),
        costs: costs_read,
    })
}

fn migration(section: &Section<'_>, queues: &[QueueId], machine: &Machine) -> Result<Migration, ProfileError> {
    let of = Migration::compacting();
    let page = section.bytes_if_there("page", 4096..=2 << 20)?.and_then(|bytes| u32::try_from(bytes).ok());
    let above = section.count_if_there("above", 0..=u32::MAX, "pages")?.unwrap_or(32);
    Ok(Migration {
        pages: section.count_if_there("pages", 1..=1 << 24, "pages")?.map_or(of.pages, u64::from),
        page: page.unwrap_or(of.page),
        together: section.count_if_there("together", 1..=1 << 16, "pages of a call")?.unwrap_or(of.together),
        core: node(section, "core", machine)?.unwrap_or(of.core),
        from: node(section, "from", machine)?.unwrap_or(of.from),
        to: node(section, "to", machine)?.unwrap_or(of.to),
        offload: queues.first().map(|queue| MigrationOffload { above, queue: *queue }),
        ..of
    })
}

fn promotion(section: &Section<'_>, queues: &[QueueId], machine: &Machine) -> Result<Promotion, ProfileError> {
    Ok(Promotion {
        work: Picos::from_nanos(section.count("work", 1..=1_000_000, "ms")? * 1_000_000),
        // Cannot fail: up to 10000.
        slow_percent: u32::try_from(section.count("slow_percent", 100..=10_000, "% of that")?).unwrap_or(100),
        migration: migration(section, queues, machine)?,
    })
}

fn exchange(section: &Section<'_>, queues: &[QueueId], machine: &Machine) -> Result<Exchange, ProfileError> {
    let page = section.bytes_if_there("page", 4096..=2 << 20)?.unwrap_or(4096);
    if ![4096, 2 << 20].contains(&page) {
        return Err(section.wrong("page", format!("has {page} bytes, not 4k or 2m")));
    }
    let of = if page > 4096 { Exchange::promoting_huge(1) } else { Exchange::promoting(512) };
    Ok(Exchange {
        pages: section.count_if_there("pages", 1..=1 << 24, "pages")?.map_or(of.pages, u64::from),
        together: section.count_if_there("together", 1..=1 << 16, "pages of a batch")?.unwrap_or(of.together),
        neighbours: section.flag_if_there("neighbours")?.unwrap_or(of.neighbours),
        core: node(section, "core", machine)?.unwrap_or(of.core),
        from: node(section, "from", machine)?.unwrap_or(of.from),
        to: node(section, "to", machine)?.unwrap_or(of.to),
        queues: queues.to_vec(),
        ..of
    })
}

fn gups(section: &Section<'_>, queues: &[QueueId], machine: &Machine) -> Result<Gups, ProfileError> {
    let of = Gups::default();
    let placing = match section.text_if_there("placing")? {
        None => of.placing,
        Some("policy") => PagePlacement::Policy,
        Some("chance") => PagePlacement::Chance { runs: 32 },
        Some("none") => PagePlacement::NotPlaced,
        Some("knowing") => PagePlacement::Knowing,
        Some(other) => {
            return Err(section.wrong("placing", format!("is {other}, not policy, chance, none or knowing")));
        }
    };
    let percent = |key: &str, of: u32| Ok(section.count_if_there(key, 0..=100, "%")?.unwrap_or(of));
    let seconds = |seconds: u32| Picos::from_nanos(u64::from(seconds) * 1_000_000_000);
    Ok(Gups {
        threads: section.count_if_there("threads", 1..=1024, "threads")?.unwrap_or(of.threads),
        bytes: section.bytes_if_there("size", 2 << 20..=1 << 36)?.unwrap_or(of.bytes),
        hot_percent: percent("hot_percent", of.hot_percent)?,
        to_hot_percent: percent("to_hot_percent", of.to_hot_percent)?,
        hot_run: section.count_if_there("hot_run", 1..=1 << 20, "pages")?.unwrap_or(of.hot_run),
        fast_percent: percent("fast_percent", of.fast_percent)?,
        slow_percent: section.count_if_there("slow_percent", 100..=10_000, "% of that")?.unwrap_or(of.slow_percent),
        placing,
        lasts: section.count_if_there("seconds", 1..=3600, "s")?.map_or(of.lasts, seconds),
        fast: node(section, "fast", machine)?.unwrap_or(of.fast),
        slow: node(section, "slow", machine)?.unwrap_or(of.slow),
        queues: queues.to_vec(),
        seed: section.count_if_there("seed", 0..=u32::MAX, "")?.map_or(of.seed, u64::from),
        ..of
    })
}

/// Reads the threads of the published query, with or without prefetching; each group needs at least one of every kind.
fn query(section: &Section<'_>, queues: &[QueueId], machine: &Machine) -> Result<Query, ProfileError> {
    let of = if queues.is_empty() { Query::of_two_columns() } else { Query::prefetching(0) };
    let groups = section.count_if_there("groups", 1..=1024, "groups")?.unwrap_or(of.groups);
    let threads = |key: &str, of: u32| {
        let threads = section.count_if_there(key, 1..=65536, "threads")?.unwrap_or(of);
        if threads < groups || threads % groups > 0 {
            let why = format!("is {threads}, and each of the {groups} groups needs as many, one at least");
            return Err(section.wrong(key, why));
        }
        Ok(threads)
    };
    let there = |key: &str, of: usize| match node(section, key, machine)? {
        None if of >= machine.nodes.len() => Err(section.wrong(key, "is missing; it must be a memory node")),
        threads => Ok(threads.unwrap_or(of)),
    };
    let prefetch = match of.prefetch {
        None => None,
        Some(of) => Some(Prefetch {
            to: there("to", of.to)?,
            threads: threads("fetchers", of.threads)?,
            queues: queues.to_vec(),
            library: named(section, "library", of.library)?,
            mapped: section.flag_if_there("mapped")?.unwrap_or(of.mapped),
            split: section.flag_if_there("split")?.unwrap_or(of.split),
            spread: section.flag_if_there("spread")?.unwrap_or(of.spread),
            relaxed: section.flag_if_there("relaxed")?.unwrap_or(of.relaxed),
            late: named(section, "late", of.late)?,
        }),
    };
    Ok(Query {
        column: section.bytes_if_there("size", 1 << 20..=1 << 36)?.unwrap_or(of.column),
        groups,
        chunk: section.bytes_if_there("chunk", 1 << 16..=1 << 30)?.unwrap_or(of.chunk),
        scanners: threads("scanners", of.scanners)?,
        summers: threads("summers", of.summers)?,
        node: there("node", of.node)?,
        hardware_threads: section.count_if_there("hardware_threads", 1..=4096, "")?.unwrap_or(of.hardware_threads),
        a: there("a", of.a)?,
        b: there("b", of.b)?,
        prefetch,
        ..of
    })
}

#[cfg(test)]
mod tests {
    use super::super::{LateCopy, StorageCosts, VhostCosts};
    use super::*;
    use crate::machine::Machine;
    use crate::scenario::{Scenario, Workload};
    use telpher_device::Preset;

    /// The application of a workload with one load, for one device with four shared queues.
    fn app(load: &str) -> Result<App, String> {
        let text =
            format!("why = \"A test.\"\n[devices]\nwqs = 4\nqueue = \"shared\"\n[[load]]\nname = \"it\"\n{load}");
        let machine = Machine::built_in("spr-asplos").unwrap();
        let scenario = Scenario::parse("my.toml", &text, machine, Preset::Spr.capabilities(), None);
        match scenario.map_err(|error| error.to_string())?.loads.remove(0).what {
            Workload::App(app) => Ok(app),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_field_is_read_from_the_file() {
        let queue = |wq| QueueId { device: 0, wq, shared: true };
        let key = "queues = [\"wq0.1\", \"wq0.3\"]";
        let two = vec![queue(1), queue(3)];
        let messages = Messages {
            talk: MessagePattern::Stream,
            bytes: 65536,
            count: 7,
            copier: Copier::Devices(two.clone()),
            ..Messages::default()
        };
        let read = app(&format!("app = \"messages\"\ntalk = \"stream\"\nsize = \"64k\"\ncount = 7\n{key}"));
        assert_eq!(read, Ok(App::Messages(messages)));
        let sum = AllReduce { ranks: 8, compute_ms: 1.5, ..AllReduce::default() };
        assert_eq!(app("app = \"allreduce\"\nby = \"cpu\"\nranks = 8\ncompute = 1.5"), Ok(App::AllReduce(sum)));
        let fabric = Fabric {
            pattern: FabricPattern::Sum,
            ranks: 4,
            bytes: 65536,
            streaming: false,
            slot_bytes: 32768,
            spread: true,
            copier: Copier::Devices(two.clone()),
            ..Fabric::default()
        };
        let keys = "talk = \"sum\"\nranks = 4\nsize = \"64k\"\nstreaming = false\nslot = \"32k\"\nspread = true";
        assert_eq!(app(&format!("app = \"fabric\"\n{keys}\n{key}")), Ok(App::Fabric(fabric)));
        let exchange = Fabric { pattern: FabricPattern::Exchange, helper: true, compute_ms: 0.5, ..Fabric::default() };
        let keys = "by = \"cpu\"\ntalk = \"exchange\"\nhelper = true\ncompute = 0.5";
        assert_eq!(app(&format!("app = \"fabric\"\n{keys}")), Ok(App::Fabric(exchange)));
        let cache = CacheBench { cores: 3, threads: 6, threshold: 4096, queues: two.clone(), ..CacheBench::default() };
        let read = app(&format!("app = \"cachebench\"\ncores = 3\nthreshold = 4096\n{key}"));
        assert_eq!(read, Ok(App::CacheBench(cache)));
        let storage = Storage { bytes: 131_072, digest: DigestBy::Devices(two), ..Storage::default() };
        assert_eq!(app(&format!("app = \"storage\"\nsize = \"128k\"\n{key}")), Ok(App::Storage(storage)));
        let pages = Migration { pages: 64, to: 1, together: 16, ..Migration::compacting() };
        let read = app("app = \"migration\"\nby = \"cpu\"\npages = 64\nto = 1\ntogether = 16");
        assert_eq!(read, Ok(App::Migration(pages)));
        let pages =
            Migration { offload: Some(MigrationOffload { above: 8, queue: queue(1) }), ..Migration::compacting() };
        let promotion = Promotion { work: Picos::from_nanos(5_000_000), slow_percent: 150, migration: pages };
        let read = app(&format!("app = \"promotion\"\nwork = 5\nslow_percent = 150\nabove = 8\n{key}"));
        assert_eq!(read, Ok(App::Promotion(promotion)));
        let way = Exchange { pages: 9, neighbours: false, to: 1, from: 0, ..Exchange::promoting(3) };
        let read =
            app(&format!("app = \"exchange\"\npages = 9\ntogether = 3\nneighbours = false\nfrom = 0\nto = 1\n{key}"));
        assert_eq!(read, Ok(App::Exchange(way.by(vec![queue(1), queue(3)]))));
        let read = app("app = \"exchange\"\nby = \"cpu\"\npage = \"2m\"");
        assert_eq!(read, Ok(App::Exchange(Exchange::promoting_huge(1))));
        let placing = PagePlacement::Knowing;
        let updates = Gups {
            bytes: 1 << 30,
            fast_percent: 25,
            placing,
            lasts: Picos::from_nanos(7_000_000_000),
            ..Gups::default()
        };
        let keys = "size = \"1g\"\nfast_percent = 25\nplacing = \"knowing\"\nseconds = 7";
        assert_eq!(app(&format!("app = \"gups\"\nby = \"cpu\"\n{keys}")), Ok(App::Gups(updates)));
        let plain = Query { column: 1 << 30, groups: 4, scanners: 8, summers: 4, b: 1, ..Query::of_two_columns() };
        let keys = "size = \"1g\"\ngroups = 4\nscanners = 8\nsummers = 4\nb = 1";
        assert_eq!(app(&format!("app = \"query\"\nby = \"cpu\"\n{keys}")), Ok(App::Query(plain)));
        let read = app(&format!(
            "app = \"query\"\nto = 2\nmapped = false\nfetchers = 64\nsplit = true\nspread = true\n\
             relaxed = false\nlate = \"poll\"\n{key}"
        ));
        let Ok(App::Query(Query { prefetch: Some(prefetch), .. })) = read else { panic!("{read:?}") };
        let library = crate::workload::Library::Dml;
        let queues = vec![queue(1), queue(3)];
        let late = LateCopy::Poll;
        let (mapped, relaxed, split, spread) = (false, false, true, true);
        assert_eq!(prefetch, Prefetch { to: 2, threads: 64, queues, library, mapped, split, spread, relaxed, late });
        let none = Storage { digest: DigestBy::None, ..Storage::default() };
        assert_eq!(app("app = \"storage\"\ndigest = false"), Ok(App::Storage(none)));
        let Ok(App::Vhost(switch)) = app(&format!("app = \"vhost\"\npacket = 64\n{key}")) else { panic!("a switch") };
        assert_eq!(switch.copies, CopyBy::Device { enqueue: queue(1), dequeue: queue(3) });
        let Ok(App::Vhost(switch)) = app(&format!("app = \"vhost\"\nthreshold = 300\n{key}")) else {
            panic!("a switch")
        };
        assert_eq!(switch.copies, CopyBy::Hybrid { from: 300, enqueue: queue(1), dequeue: queue(3) });
    }

    #[test]
    fn a_workload_may_change_costs() {
        let own =
            "app = \"vhost\"\nby = \"cpu\"\nclock_mhz = 3000\nl2 = \"1m\"\n[load.costs]\npacket = 400\nline = 7.5";
        let published = Vhost::default();
        let costs = VhostCosts { packet: 400.0, line: 7.5, ..published.costs };
        let switch = Vhost { clock_mhz: 3000, l2_bytes: 1 << 20, costs, ..published };
        assert_eq!(app(own), Ok(App::Vhost(switch)));
        let own = "app = \"storage\"\nby = \"cpu\"\ndisks = 2\nthreshold = \"4k\"\n\
                   [load.costs]\nsend_ns = 0\ncall_ns = 1\ndisk_gb_s = 12.5";
        let published = Storage::default();
        let costs = StorageCosts { send_ns: 0.0, call_ns: 1.0, disk_gb_s: 12.5, disks: 2, ..published.costs };
        let storage = Storage { digest: DigestBy::Core, threshold: 4096, costs, ..published };
        assert_eq!(app(own), Ok(App::Storage(storage)));
        let own = "app = \"messages\"\nby = \"cpu\"\nsockets = 2\nsegment = \"64k\"\n[load.costs]\nturn_ns = 1000";
        let shared = SharedMemory { sockets: 2, segment: 65536, turn_ns: 1000.0, ..SharedMemory::default() };
        assert_eq!(app(own), Ok(App::Messages(Messages { shared, ..Messages::default() })));
        let own = "app = \"fabric\"\nby = \"cpu\"\nsockets = 2\n[load.costs]\nentry_ns = 9";
        let shared = SharedMemory { sockets: 2, ..SharedMemory::default() };
        assert_eq!(app(own), Ok(App::Fabric(Fabric { shared, entry_ns: 9.0, ..Fabric::default() })));
        let own = "app = \"cachebench\"\nby = \"cpu\"\nretries = 9\n[load.costs]\nswitch_ns = 900";
        let Ok(App::CacheBench(cache)) = app(own) else { panic!("a cache") };
        assert_eq!((cache.retries, cache.switch_ns, cache.work_ns), (9, Some(900.0), CacheBench::default().work_ns));
        let today = "app = \"cachebench\"\nby = \"cpu\"\nmodel = \"dto-2025\"";
        let Ok(App::CacheBench(cache)) = app(&format!("{today}\nleast_waits = 1\nmost_waits = 2")) else {
            panic!("a cache")
        };
        let tuning = DtoTuning { least_waits: 1, most_waits: 2, pause_ns: 50.0 };
        assert_eq!((cache.retries, cache.threshold, cache.tuning), (0, 65536, Some(tuning)));
        let paper = app("app = \"cachebench\"\nby = \"cpu\"\nmodel = \"dto-2023\"");
        assert_eq!(paper, app("app = \"cachebench\"\nby = \"cpu\""));
    }

    #[test]
    fn errors_name_the_wrong_key() {
        for (load, names) in [
            ("app = \"mail\"", ["my.toml, line 7", "mail", "cachebench"]),
            ("app = \"messages\"\ntalk = \"shout\"", ["talk", "shout", "ping-pong"]),
            ("app = \"fabric\"\nslots = 48", ["line 8", "slots is 48", "power of two"]),
            ("app = \"fabric\"\ntalk = \"shout\"", ["talk", "shout", "sum"]),
            ("app = \"storage\"\ncores = 0", ["my.toml, line 8", "cores", "1024"]),
            ("app = \"storage\"\nsize = \"32m\"", ["my.toml, line 8", "size", "16777216"]),
            ("app = \"cachebench\"\nmodel = \"dto-2024\"", ["line 8", "model", "dto-2025"]),
            ("app = \"cachebench\"\nleast_waits = 1", ["line 8", "least_waits", "model"]),
            ("app = \"query\"", ["my.toml", "to is missing", "node"]),
            ("app = \"query\"\nby = \"cpu\"\nsummers = 31", ["summers", "31", "32 groups"]),
            ("app = \"migration\"\nto = 9", ["my.toml, line 8", "to is 9", "nodes 0 to"]),
            ("app = \"promotion\"", ["my.toml", "work is missing", "ms"]),
            ("app = \"exchange\"\npage = \"8k\"", ["my.toml, line 8", "8192", "2m"]),
            ("app = \"gups\"\nplacing = \"luck\"", ["placing", "luck", "chance"]),
            ("app = \"gups\"\nhot_percent = 101", ["line 8", "hot_percent", "100"]),
            ("app = \"vhost\"\nby = \"hand\"", ["by", "cpu", "device"]),
            ("app = \"vhost\"\n[load.costs]\npaket = 1", ["line 9", "costs.paket", "payload_miss"]),
            ("app = \"storage\"\n[load.costs]\nlink_gb_s = 0", ["line 9", "costs.link_gb_s", "GB/s"]),
            ("app = \"messages\"\n[load.costs]\nturn_ns = -1", ["line 9", "costs.turn_ns", "ns"]),
            ("app = \"query\"\nby = \"cpu\"\n[load.costs]\nx = 1", ["line 9", "costs", "app"]),
            ("app = \"allreduce\"\nsockets = 0", ["line 8", "sockets", "64"]),
        ] {
            let error = app(load).unwrap_err();
            assert!(names.iter().all(|name| error.contains(name)), "{error}");
        }
    }
}
