//! Workloads: scenarios as TOML files, with all fields of every load, and a paragraph that states their purpose.

use super::{Layout, Limit, Load, Scenario, Workload};
use crate::apps;
use crate::machine::Machine;
use crate::places::{BufferPlacement, LineLocation};
use crate::profile::{Layer, ProfileError, Section, Source};
use crate::workload::{Arrivals, ExecutedBy, MoverSettings, NamedValue, QueueId, Sizes, Stream};
use telpher_abi::Opcode;
use telpher_device::{Bandwidth, Capabilities, Config, WqMode};
use telpher_mover::Policy;
use toml::Spanned;
use toml::de::DeTable;

/// Why a workload cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// It is not TOML.
    #[error("{file} is not a workload: {what}")]
    Syntax {
        /// The file.
        file: String,
        /// The parser's message, which names the line.
        what: String,
    },
    /// A key is missing, impossible or unknown.
    #[error(transparent)]
    Key(#[from] ProfileError),
}

/// The part of a file that is independent of the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkloadHeader {
    /// The purpose of the workload.
    pub why: String,
    /// The profile that it is meant for.
    pub profile: Option<String>,
}

impl WorkloadHeader {
    /// Reads the beginning of a file; `file` is its name in errors.
    ///
    /// # Errors
    /// Names file, line and key of a wrong value.
    pub fn parse(file: &str, text: &str) -> Result<WorkloadHeader, WorkloadError> {
        let document = document(file, text)?;
        let root = root(file, text, &document);
        Ok(WorkloadHeader {
            why: root.text("why")?.to_owned(),
            profile: root.text_if_there("profile")?.map(str::to_owned),
        })
    }
}

pub(crate) fn document<'a>(file: &str, text: &'a str) -> Result<Spanned<DeTable<'a>>, WorkloadError> {
    let syntax = |error: toml::de::Error| WorkloadError::Syntax { file: file.to_owned(), what: error.to_string() };
    DeTable::parse(text).map_err(syntax)
}

pub(crate) fn root<'a>(file: &'a str, text: &'a str, document: &'a Spanned<DeTable<'a>>) -> Section<'a> {
    Section::new(String::new(), vec![Layer::new(Source { file, text }, document)])
}

impl Scenario {
    /// Reads a workload for a machine whose devices have these capabilities. `devices` replaces the file's own
    /// configurations.
    ///
    /// # Errors
    /// Names file, line and key of a missing, impossible or unknown value.
    pub fn parse(
        file: &str,
        text: &str,
        machine: Machine,
        capabilities: Capabilities,
        devices: Option<Vec<Config>>,
    ) -> Result<Scenario, WorkloadError> {
        let document = document(file, text)?;
        let root = root(file, text, &document);
        root.text("why")?;
        root.text_if_there("profile")?;
        let own = layout(&root)?.configs(&capabilities);
        let mut scenario = Scenario { machine, capabilities, devices: devices.unwrap_or(own), loads: Vec::new() };
        for section in root.list("load")? {
            let load = load(&section, &scenario)?;
            section.end()?;
            scenario.loads.push(load);
        }
        root.end()?;
        Ok(scenario)
    }
}

fn layout(root: &Section<'_>) -> Result<Layout, ProfileError> {
    let Some(section) = root.section_if_there("devices")? else { return Ok(Layout::single(WqMode::Dedicated)) };
    let mode = match section.text_if_there("queue")? {
        None | Some("dedicated") => WqMode::Dedicated,
        Some("shared") => WqMode::Shared,
        Some(other) => return Err(section.wrong("queue", format!("is {other}, not dedicated or shared"))),
    };
    let count = |key: &str| Ok(section.count_if_there(key, 1..=1024, "")?.unwrap_or(1));
    let layout = Layout {
        // Cannot fail: up to 1024.
        devices: u16::try_from(count("count")?).unwrap_or(u16::MAX),
        groups: count("groups")?,
        wqs: count("wqs")?,
        engines: count("engines")?,
        mode,
        wq_size: section.count_if_there("wq_size", 1..=65535, "entries")?,
        bandwidth: [bandwidth(&section, "read_bandwidth")?, bandwidth(&section, "write_bandwidth")?],
    };
    section.end()?;
    Ok(layout)
}

/// The limit of a group's reads or writes.
fn bandwidth(section: &Section<'_>, key: &str) -> Result<Bandwidth, ProfileError> {
    let Some(name) = section.text_if_there(key)? else { return Ok(Bandwidth::All) };
    Bandwidth::ALL.into_iter().find(|limit| limit.name() == name).ok_or_else(|| {
        let names = Bandwidth::ALL.map(Bandwidth::name).join(", ");
        section.wrong(key, format!("is {name}, which is none of {names}"))
    })
}

fn load(section: &Section<'_>, scenario: &Scenario) -> Result<Load, ProfileError> {
    let name = section.text("name")?.to_owned();
    let queues = queues(section, scenario)?;
    if let Some(app) = section.text_if_there("app")? {
        let app = apps::parse(section, app, &queues, &scenario.machine)?;
        return Ok(Load { name, threads: 1, what: Workload::App(app), queues: Vec::new(), expect: None });
    }
    let threads = section.count_if_there("threads", 1..=65536, "threads")?.unwrap_or(1);
    let stream = stream(section, scenario, &queues)?;
    let queues = match stream.by {
        ExecutedBy::Device(_) => queues,
        ExecutedBy::Mover(_) if section.has("queues") => {
            return Err(section.wrong("queues", "is set, but a mover uses all configured queues"));
        }
        ExecutedBy::Cpu | ExecutedBy::Mover(_) => Vec::new(),
    };
    let expect = match section.text_if_there("expect")? {
        None => None,
        Some(_) => Some(named(section, "expect", Limit::Latency)?),
    };
    Ok(Load { name, threads, what: Workload::Stream(stream), queues, expect })
}

/// The queues in `queues`, or the first configured queue.
fn queues(section: &Section<'_>, scenario: &Scenario) -> Result<Vec<QueueId>, ProfileError> {
    let there = super::queue_ids(&scenario.devices);
    let Some(names) = section.texts_if_there("queues")? else { return Ok(there.into_iter().take(1).collect()) };
    let queue = |name: &&str| {
        let of = |queue: &&QueueId| format!("wq{}.{}", queue.device, queue.wq) == *name;
        there.iter().find(of).copied().ok_or_else(|| {
            let known: Vec<String> = there.iter().map(|queue| format!("wq{}.{}", queue.device, queue.wq)).collect();
            section.wrong("queues", format!("has {name}, which is not configured; there are {}", known.join(", ")))
        })
    };
    names.iter().map(queue).collect()
}

fn stream(section: &Section<'_>, scenario: &Scenario, queues: &[QueueId]) -> Result<Stream, ProfileError> {
    let op = op(section)?;
    // Cannot fail: up to 2 GiB.
    let size = u32::try_from(section.bytes_if_there("size", 1..=1 << 31)?.unwrap_or(4096)).unwrap_or(u32::MAX);
    if !section.has("size") && !section.has("sizes") {
        section.bytes("size", 1..=1 << 31)?;
    }
    let of = Stream::of(op, size);
    let first = queues.first().map_or(ExecutedBy::DEDICATED, |queue| ExecutedBy::Device(*queue));
    let by = match section.text_if_there("by")? {
        None | Some("device") => first,
        Some("cpu") => ExecutedBy::Cpu,
        Some("mover") => ExecutedBy::Mover(moves(section, op)?),
        Some(other) => return Err(section.wrong("by", format!("is {other}, not device, cpu or mover"))),
    };
    Ok(Stream {
        depth: section.count_if_there("depth", 1..=65536, "in flight")?.unwrap_or(of.depth),
        batch: section.count_if_there("batch", 1..=65536, "descriptors")?.unwrap_or(of.batch),
        submissions: section.count_if_there("count", 1..=100_000_000, "submissions")?.map_or(of.submissions, u64::from),
        sizes: sizes(section)?,
        arrivals: arrivals(section)?,
        seed: section.count_if_there("seed", 0..=u32::MAX, "")?.map_or(of.seed, u64::from),
        walk: named(section, "walk", of.walk)?,
        by,
        through: named(section, "through", of.through)?,
        core: node(section, "core", &scenario.machine)?.unwrap_or(of.core),
        src: place(section, "src", scenario, of.src)?,
        dst: place(section, "dst", scenario, of.dst)?,
        cache_control: section.flag_if_there("cache_control")?.unwrap_or(of.cache_control),
        readback: section.flag_if_there("readback")?.unwrap_or(of.readback),
        block_on_fault: section.flag_if_there("block_on_fault")?.unwrap_or(of.block_on_fault),
        cold_descriptors: section.flag_if_there("cold_descriptors")?.unwrap_or(of.cold_descriptors),
        wait: named(section, "wait", of.wait)?,
        library: named(section, "library", of.library)?,
        ..of
    })
}

/// The policy of a mover: `policy = { threshold = "4k", route = "local" }`, spelled as in the mover's own settings.
fn moves(section: &Section<'_>, op: Opcode) -> Result<MoverSettings, ProfileError> {
    let mut policy = Policy::default();
    if let Some(section) = section.section_if_there("policy")? {
        for name in MoverSettings::SETTINGS {
            if let Some(value) = section.text_if_there(name)? {
                policy.set(name, value).map_err(|error| section.wrong(name, format!("is {value}: {error}")))?;
            }
        }
        section.end()?;
    }
    Ok(MoverSettings::of(&policy, op))
}

/// An operation by the specification's name.
pub(crate) fn op(section: &Section<'_>) -> Result<Opcode, ProfileError> {
    let name = section.text("op")?;
    Opcode::ALL
        .iter()
        .find(|op| op.name() == name)
        .copied()
        .ok_or_else(|| section.wrong("op", format!("is {name}, which is no operation, such as memory-move")))
}

/// Random sizes with weights: `sizes = [{ size = "64", weight = 3 }, …]`.
fn sizes(section: &Section<'_>) -> Result<Sizes, ProfileError> {
    if !section.has("sizes") {
        return Ok(Sizes::NONE);
    }
    let one = |item: Section<'_>| {
        // Cannot fail: up to 2 GiB.
        let size = u32::try_from(item.bytes("size", 1..=1 << 31)?).unwrap_or(u32::MAX);
        let weight = item.count_if_there("weight", 1..=1_000_000, "")?.unwrap_or(1);
        item.end()?;
        Ok((size, weight))
    };
    let all = section.list("sizes")?.into_iter().map(one).collect::<Result<Vec<_>, ProfileError>>()?;
    Sizes::new(&all).ok_or_else(|| section.wrong("sizes", "has none, or more than 16"))
}

/// `rate` operations a second, evenly or at random times.
fn arrivals(section: &Section<'_>) -> Result<Arrivals, ProfileError> {
    let Some(rate) = section.count_if_there("rate", 1..=u32::MAX, "operations a second")? else {
        return Ok(Arrivals::Closed);
    };
    match section.text_if_there("arrivals")? {
        None | Some("poisson") => Ok(Arrivals::Poisson(rate.into())),
        Some("even") => Ok(Arrivals::Even(rate.into())),
        Some(other) => Err(section.wrong("arrivals", format!("is {other}, not poisson or even"))),
    }
}

/// Reads a value by its name.
pub(crate) fn named<T: NamedValue>(section: &Section<'_>, key: &str, default: T) -> Result<T, ProfileError> {
    let Some(name) = section.text_if_there(key)? else { return Ok(default) };
    T::named(name).ok_or_else(|| {
        let names: Vec<&str> = T::NAMES.iter().map(|(name, _)| *name).collect();
        section.wrong(key, format!("is {name}, which is none of {}", names.join(", ")))
    })
}

/// Reads the number of a memory node.
pub(crate) fn node(section: &Section<'_>, key: &str, machine: &Machine) -> Result<Option<usize>, ProfileError> {
    let nodes = machine.nodes.len();
    let Some(number) = section.count_if_there(key, 0..=u32::MAX, "node")? else { return Ok(None) };
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    if number >= nodes {
        let (name, last) = (&machine.name, nodes.saturating_sub(1));
        return Err(section.wrong(key, format!("is {number}, and the profile {name} has nodes 0 to {last}")));
    }
    Ok(Some(number))
}

fn place(
    section: &Section<'_>,
    key: &str,
    scenario: &Scenario,
    near: BufferPlacement,
) -> Result<BufferPlacement, ProfileError> {
    let Some(section) = section.section_if_there(key)? else { return Ok(near) };
    let page = match section.text_if_there("page")? {
        None | Some("4k") => 4 << 10,
        Some("2m") => 2 << 20,
        Some("1g") => 1 << 30,
        Some(other) => return Err(section.wrong("page", format!("is {other}, not 4k, 2m or 1g"))),
    };
    let place = BufferPlacement {
        node: node(&section, "node", &scenario.machine)?.unwrap_or(near.node),
        page,
        lines: named(&section, "lines", LineLocation::Memory)?,
        skew: section.count_if_there("skew", 0..=63, "bytes")?.unwrap_or(0),
        present: section.flag_if_there("present")?.unwrap_or(true),
        footprint: section.bytes_if_there("footprint", 0..=1 << 50)?.unwrap_or(0),
    };
    section.end()?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::SubmitBy;
    use telpher_device::Preset;
    use telpher_mover::{Route, Split};

    const TEXT: &str = r#"
why = "A test."
[devices]
count = 2
wqs = 2
engines = 2
queue = "shared"
wq_size = 16

[[load]]
name = "copies"
op = "memory-move"
size = "64k"
threads = 3
depth = 4
batch = 2
count = 50
queues = ["wq1.1", "wq0.0"]
wait = "umwait"
src = { page = "2m", lines = "cache" }
dst = { node = 0, skew = 16 }

[[load]]
name = "beside"
op = "fill"
size = 4096
by = "cpu"

[[load]]
name = "either"
op = "memory-move"
size = "1m"
by = "mover"
count = 20
through = "write"
policy = { threshold = "64k", route = "round-robin", split = "256k:2", hybrid = "off" }
"#;

    fn parse(text: &str) -> Result<Scenario, WorkloadError> {
        let machine = Machine::built_in("spr-asplos").unwrap();
        Scenario::parse("my.toml", text, machine, Preset::Spr.capabilities(), None)
    }

    #[test]
    fn every_field_of_a_load_is_read() {
        let scenario = parse(TEXT).unwrap();
        assert_eq!((scenario.devices.len(), scenario.loads.len()), (2, 3));
        assert_eq!(scenario.devices[1].groups[0].grouped_workqueues[1].size, 16);
        let [copies, beside, either] = &scenario.loads[..] else { panic!("three loads") };
        let queue = |device, wq| QueueId { device, wq, shared: true };
        assert_eq!((copies.threads, &copies.queues), (3, &vec![queue(1, 1), queue(0, 0)]));
        let Workload::Stream(stream) = &copies.what else { panic!("a stream") };
        assert_eq!((stream.size, stream.depth, stream.batch, stream.submissions), (65536, 4, 2, 50));
        assert_eq!(
            (stream.wait, stream.src.page, stream.src.lines),
            (crate::workload::Wait::Umwait, 2 << 20, LineLocation::Llc)
        );
        assert_eq!((stream.dst.skew, stream.core), (16, 0));
        assert!(matches!(&beside.what, Workload::Stream(Stream { by: ExecutedBy::Cpu, .. })));
        let Workload::Stream(Stream { by: ExecutedBy::Mover(moves), through: SubmitBy::Write, .. }) = &either.what
        else {
            panic!("a mover")
        };
        assert_eq!((moves.threshold, moves.route), (64 << 10, Route::RoundRobin));
        assert_eq!(moves.split, Split { above: 256 << 10, ways: 2, hybrid: false });
        assert_eq!(scenario.queues_of(either).len(), 4);
        let outcome = scenario.simulate().unwrap();
        assert_eq!(outcome.loads[2].operations, 20);
        assert!(outcome.descriptors > 150 + 20, "long operations are split");
        assert!(outcome.loads[0].gigabytes_per_second() > 1.0);
    }

    #[test]
    fn errors_name_line_and_key() {
        for (from, to, words) in [
            ("size = \"64k\"", "size = \"64q\"", "my.toml, line 13: load[0].size is 64q"),
            ("size = \"64k\"", "", "load[0].size is missing"),
            ("\"memory-move\"", "\"move-it\"", "load[0].op is move-it, which is no operation"),
            ("wq1.1", "wq7.1", "queues has wq7.1, which is not configured; there are wq0.0, wq1.0"),
            ("node = 0", "node = 5", "load[0].dst.node is 5, and the profile spr-asplos has nodes 0 to"),
            ("\"umwait\"", "\"sit\"", "load[0].wait is sit, which is none of poll, umwait, interrupt, sleep"),
            ("depth = 4", "deepness = 4", "load[0].deepness is not a parameter; known there: "),
            ("count = 2\n", "count = 2.5\n", "devices.count is 2.5"),
            ("page = \"2m\"", "page = 2", "load[0].src.page is not a text"),
            (
                "round-robin",
                "straight",
                "load[2].policy.route is straight: 'route' does not take 'straight'; it takes first,",
            ),
            ("threshold", "patience", "load[2].policy.patience is not a parameter; known there: "),
            ("by = \"mover\"", "by = \"mover\"\nqueues = [\"wq0.0\"]", "load[2].queues is set, but a mover uses all"),
            ("by = \"cpu\"", "app = \"game\"", "load[1].app is game; there are"),
            ("why", "what", "why is missing"),
            ("[[load]]", "[[load", "my.toml is not a workload: TOML parse error at line 10"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let message = parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(message.contains(words), "{message}\ninstead of {words}");
        }
    }
}
