//! Applications as workload files tell them; what a file does not tell is as published.

use super::{AllReduce, App, CacheBench, Copier, Copies, Digest, Messages, Query, Storage, Talk, Vhost};
use crate::profile::{ProfileError, Section};
use crate::work::Lane;

/// The names there are.
const NAMES: &str = "allreduce, cachebench, messages, query, storage and vhost";

/// The application of a name, with what a section says of it; `lanes` are the queues it may use.
pub(crate) fn told(section: &Section<'_>, name: &str, lanes: &[Lane]) -> Result<App, ProfileError> {
    let lanes = if by_core(section, lanes)? { &[] } else { lanes };
    match name {
        "allreduce" => allreduce(section, lanes).map(App::AllReduce),
        "cachebench" => cachebench(section, lanes).map(App::CacheBench),
        "messages" => messages(section, lanes).map(App::Messages),
        "query" => Ok(App::Query(Query::of_two_columns())),
        "storage" => storage(section, lanes).map(App::Storage),
        "vhost" => vhost(section, lanes).map(App::Vhost),
        _ => Err(section.wrong("app", format!("is {name}; there are {NAMES}"))),
    }
}

/// Who does what could be a device's: `by`.
fn by_core(section: &Section<'_>, lanes: &[Lane]) -> Result<bool, ProfileError> {
    match section.text_if_there("by")? {
        Some("cpu") => Ok(true),
        None | Some("device") if !lanes.is_empty() => Ok(false),
        _ => Err(section.wrong("by", "is neither cpu, nor device with a queue")),
    }
}

fn copier(lanes: &[Lane]) -> Copier {
    if lanes.is_empty() { Copier::Core } else { Copier::Devices(lanes.to_vec()) }
}

fn vhost(section: &Section<'_>, lanes: &[Lane]) -> Result<Vhost, ProfileError> {
    let of = Vhost::default();
    let copies = match lanes {
        [] => Copies::Core,
        [first, rest @ ..] => Copies::Device { enqueue: *first, dequeue: *rest.first().unwrap_or(first) },
    };
    Ok(Vhost {
        packet_bytes: section.count_if_there("packet", 64..=65535, "bytes")?.unwrap_or(of.packet_bytes),
        burst: section.count_if_there("burst", 1..=1024, "packets")?.unwrap_or(of.burst),
        copies,
        ..of
    })
}

fn messages(section: &Section<'_>, lanes: &[Lane]) -> Result<Messages, ProfileError> {
    let of = Messages::default();
    let talk = match section.text_if_there("talk")? {
        None => of.talk,
        Some("ping-pong") => Talk::PingPong,
        Some("stream") => Talk::Stream,
        Some(other) => return Err(section.wrong("talk", format!("is {other}, not ping-pong or stream"))),
    };
    Ok(Messages {
        talk,
        bytes: section.bytes_if_there("size", 1..=1 << 40)?.unwrap_or(of.bytes),
        count: section.count_if_there("count", 1..=1_000_000, "messages")?.map_or(of.count, u64::from),
        copier: copier(lanes),
        ..of
    })
}

fn allreduce(section: &Section<'_>, lanes: &[Lane]) -> Result<AllReduce, ProfileError> {
    let of = AllReduce::default();
    let compute = if section.has("compute") { section.number("compute", 0.0..=1e6, "ms")? } else { of.compute_ms };
    Ok(AllReduce {
        ranks: section.count_if_there("ranks", 2..=1024, "ranks")?.unwrap_or(of.ranks),
        bytes: section.bytes_if_there("size", 1..=1 << 40)?.unwrap_or(of.bytes),
        count: section.count_if_there("count", 1..=1_000_000, "sums")?.map_or(of.count, u64::from),
        compute_ms: compute,
        copier: copier(lanes),
        ..of
    })
}

fn cachebench(section: &Section<'_>, lanes: &[Lane]) -> Result<CacheBench, ProfileError> {
    let of = CacheBench::default();
    let cores = section.count_if_there("cores", 1..=1024, "cores")?.unwrap_or(of.cores);
    Ok(CacheBench {
        cores,
        threads: section.count_if_there("threads", 1..=4096, "threads")?.unwrap_or(2 * cores),
        copies: section.count_if_there("count", 1..=10_000_000, "copies")?.map_or(of.copies, u64::from),
        queues: lanes.to_vec(),
        threshold: section.bytes_if_there("threshold", 0..=1 << 31)?.unwrap_or(of.threshold),
        seed: section.count_if_there("seed", 0..=u32::MAX, "")?.map_or(of.seed, u64::from),
        ..of
    })
}

fn storage(section: &Section<'_>, lanes: &[Lane]) -> Result<Storage, ProfileError> {
    let of = Storage::default();
    let digests = section.flag_if_there("digest")?.unwrap_or(true);
    let digest = match lanes {
        _ if !digests => Digest::None,
        [] => Digest::Core,
        lanes => Digest::Devices(lanes.to_vec()),
    };
    let bytes = section.bytes_if_there("size", 1..=1 << 30)?.and_then(|bytes| u32::try_from(bytes).ok());
    Ok(Storage {
        bytes: bytes.unwrap_or(of.bytes),
        cores: section.count_if_there("cores", 1..=1024, "cores")?.unwrap_or(of.cores),
        digest,
        under_way: section.count_if_there("under_way", 1..=1_000_000, "reads")?.unwrap_or(of.under_way),
        reads: section.count_if_there("count", 2..=10_000_000, "reads")?.map_or(of.reads, u64::from),
        ..of
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::scenario::{Scenario, What};
    use telpher_device::Preset;

    /// The application of a load of one device, four shared queues.
    fn app(load: &str) -> Result<App, String> {
        let text =
            format!("why = \"A test.\"\n[devices]\nwqs = 4\nqueue = \"shared\"\n[[load]]\nname = \"it\"\n{load}");
        let machine = Machine::built_in("spr-asplos").unwrap();
        let scenario = Scenario::parse("my.toml", &text, machine, Preset::Spr.capabilities(), None);
        match scenario.map_err(|error| error.to_string())?.loads.remove(0).what {
            What::App(app) => Ok(app),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_field_is_what_the_file_says() {
        let lane = |wq| Lane { device: 0, wq, shared: true };
        let queues = "queues = [\"wq0.1\", \"wq0.3\"]";
        let two = vec![lane(1), lane(3)];
        let messages = Messages {
            talk: Talk::Stream,
            bytes: 65536,
            count: 7,
            copier: Copier::Devices(two.clone()),
            ..Messages::default()
        };
        let told = app(&format!("app = \"messages\"\ntalk = \"stream\"\nsize = \"64k\"\ncount = 7\n{queues}"));
        assert_eq!(told, Ok(App::Messages(messages)));
        let sum = AllReduce { ranks: 8, compute_ms: 1.5, ..AllReduce::default() };
        assert_eq!(app("app = \"allreduce\"\nby = \"cpu\"\nranks = 8\ncompute = 1.5"), Ok(App::AllReduce(sum)));
        let cache = CacheBench { cores: 3, threads: 6, threshold: 4096, queues: two.clone(), ..CacheBench::default() };
        let told = app(&format!("app = \"cachebench\"\ncores = 3\nthreshold = 4096\n{queues}"));
        assert_eq!(told, Ok(App::CacheBench(cache)));
        let storage = Storage { bytes: 131_072, digest: Digest::Devices(two), ..Storage::default() };
        assert_eq!(app(&format!("app = \"storage\"\nsize = \"128k\"\n{queues}")), Ok(App::Storage(storage)));
        let none = Storage { digest: Digest::None, ..Storage::default() };
        assert_eq!(app("app = \"storage\"\ndigest = false"), Ok(App::Storage(none)));
        let Ok(App::Vhost(switch)) = app(&format!("app = \"vhost\"\npacket = 64\n{queues}")) else {
            panic!("a switch")
        };
        assert_eq!(switch.copies, Copies::Device { enqueue: lane(1), dequeue: lane(3) });
    }

    #[test]
    fn what_there_is_not_is_named() {
        for (load, names) in [
            ("app = \"mail\"", ["my.toml, line 7", "mail", "cachebench"]),
            ("app = \"messages\"\ntalk = \"shout\"", ["talk", "shout", "ping-pong"]),
            ("app = \"storage\"\ncores = 0", ["my.toml, line 8", "cores", "1024"]),
            ("app = \"vhost\"\nby = \"hand\"", ["by", "cpu", "device"]),
        ] {
            let error = app(load).unwrap_err();
            assert!(names.iter().all(|name| error.contains(name)), "{error}");
        }
    }
}
