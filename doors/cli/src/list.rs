//! `telpher list`: devices, groups, queues, engines and what they can do.

use crate::args::{Format, List};
use crate::bench::Error;
use serde::Serialize;
use std::fmt::Write as _;
use telpher_bench::{BenchError, devices};
use telpher_device::{DeviceName, Listing, ModelDevice, ModelSource, Preset};
use telpher_hw::Live;
use telpher_report::table::{Align, Table};
use telpher_report::units;

/// Prints the devices.
pub(crate) fn run(args: &List) -> Result<(), Error> {
    args.printed.check()?;
    let listings = listings(&args.device.name)?;
    let text = match args.printed.format {
        Format::Json => {
            let plain: Vec<&Listing> = listings.iter().map(|(_, listing)| listing).collect();
            serde_json::to_string_pretty(&plain).expect("listings are plain data with string keys") + "\n"
        }
        Format::Csv => csv(&listings),
        Format::Table => {
            let mut text: String = listings.iter().map(|(name, listing)| device(name, listing)).collect();
            if args.device.name == "all" && listings.iter().all(|(_, listing)| listing.modelled) {
                text.push_str("hw: the driver reports no DSA hardware; `telpher doctor` looks for the reason\n");
            }
            let _ = writeln!(text, "cpu: the CPU path, kernels {}", telpher_ops::dispatch::level());
            text
        }
    };
    Ok(args.printed.write(text)?)
}

/// One work queue. The fields of a device without queues are those of the device alone.
#[derive(Default, Serialize)]
struct QueueRow {
    device: String,
    name: String,
    group: Option<String>,
    queue: Option<String>,
    mode: Option<&'static str>,
    entries: Option<u32>,
    threshold: Option<u32>,
    priority: Option<u32>,
    max_transfer_size: Option<u64>,
    max_batch_size: Option<u32>,
    block_on_fault: Option<u32>,
    state: Option<String>,
    engines: Vec<String>,
    unusable: Option<String>,
}

/// Returns one line for each work queue, and one for each device without queues.
fn csv(listings: &[(String, Listing)]) -> String {
    let mut rows = Vec::new();
    for (name, device) in listings {
        let begun = rows.len();
        for group in &device.groups {
            let engines: Vec<String> = group.grouped_engines.iter().map(|engine| engine.dev.clone()).collect();
            rows.extend(group.grouped_workqueues.iter().map(|queue| QueueRow {
                device: device.dev.clone(),
                name: name.clone(),
                group: Some(group.dev.clone()),
                queue: Some(queue.dev.clone()),
                mode: queue.mode,
                entries: Some(queue.size),
                threshold: (queue.mode == Some("shared")).then_some(queue.threshold),
                priority: queue.priority,
                max_transfer_size: queue.max_transfer_size,
                max_batch_size: queue.max_batch_size,
                block_on_fault: queue.block_on_fault,
                state: queue.state.clone(),
                engines: engines.clone(),
                unusable: queue.unusable.clone(),
            }));
        }
        if rows.len() == begun {
            rows.push(QueueRow { device: device.dev.clone(), name: name.clone(), ..QueueRow::default() });
        }
    }
    telpher_report::csv::rows(&rows)
}

/// Returns the devices that `--device` names, hardware first.
fn listings(text: &str) -> Result<Vec<(String, Listing)>, BenchError> {
    let hardware = || telpher_device::hardware(&Live::default()).into_iter().map(|listing| ("hw".to_owned(), listing));
    match text.parse::<DeviceName>()? {
        DeviceName::Cpu => Ok(Vec::new()),
        DeviceName::Model(source) => Ok(vec![(text.to_owned(), modelled(text, &source)?)]),
        DeviceName::All => {
            let source = ModelSource::Preset(Preset::default());
            let name = DeviceName::Model(source.clone()).to_string();
            let model = modelled(&name, &source)?;
            Ok(hardware().chain([(name, model)]).collect())
        }
        DeviceName::Hardware(queue) => {
            let dev = format!("dsa{}", queue.device);
            let found: Vec<_> = hardware().filter(|(_, listing)| listing.dev == dev).collect();
            let has_queue = telpher_hw::discover(&Live::default()).queue(&queue.to_string()).is_some();
            if found.is_empty() || !has_queue {
                return Err(BenchError::NotHere(format!(
                    "there is no {queue} on this machine; `telpher list` shows the queues, `telpher doctor` why a \
                     device is missing"
                )));
            }
            Ok(found)
        }
    }
}

fn modelled(name: &str, source: &ModelSource) -> Result<Listing, BenchError> {
    let device = ModelDevice::start(devices::options(source)?);
    let device = device.map_err(|source| BenchError::Start { name: name.to_owned(), source })?;
    Ok(device.listing())
}

/// Formats a value that the device may not report; "?" if it does not.
fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or("?".into(), |value| value.to_string())
}

/// Formats one device as text.
fn device(name: &str, d: &Listing) -> String {
    let mut out = String::new();
    let groups = d.groups.len();
    let queues: usize = d.groups.iter().map(|g| g.grouped_workqueues.len()).sum();
    let engines: usize = d.groups.iter().map(|g| g.grouped_engines.len()).sum();
    let what = if d.modelled { "a modelled Data Streaming Accelerator" } else { "a Data Streaming Accelerator" };
    let _ =
        write!(out, "{} ({name}): {what}, version {}, {}", d.dev, known(d.version.as_ref()), known(d.state.as_ref()));
    if let Some(address) = &d.pci_address {
        let _ = write!(out, ", at {address}");
    }
    let node = d.numa_node.map_or(String::new(), |node| format!(", NUMA node {node}"));
    let _ = writeln!(out, "{node}");
    let _ = writeln!(
        out,
        "  {groups} of {} groups, {queues} of {} work queues, {engines} of {} engines in use; {} queue entries in all",
        known(d.max_groups),
        known(d.max_work_queues),
        known(d.max_engines),
        known(d.work_queue_size)
    );
    let _ = writeln!(
        out,
        "  transfers to {}, batches to {} descriptors, {} read buffers",
        known(d.max_transfer_size.map(units::size)),
        known(d.max_batch_size),
        known(d.max_read_buffers)
    );
    let _ = writeln!(out, "  GENCAP {}, OPCAP {}", known(d.gen_cap.as_ref()), known(d.op_cap.as_ref()));
    let _ = writeln!(out, "  operations: {}\n", wrapped(&d.operations, 14));
    if queues == 0 {
        let _ =
            writeln!(out, "  No queue is configured; configure queues with `accel-config load-config -c FILE -e`.\n");
        return out;
    }
    let _ = writeln!(out, "{}", table(d));
    if !d.modelled {
        let members = d.groups.iter().flat_map(|group| &group.grouped_workqueues);
        for queue in members {
            let _ = match &queue.unusable {
                None => writeln!(out, "  hw:{} can be used", queue.dev),
                Some(why) => writeln!(out, "  hw:{} cannot be used: {why}", queue.dev),
            };
        }
        out.push('\n');
    }
    out
}

/// Returns the table of a device's queues.
fn table(d: &Listing) -> Table {
    let mut columns = vec![
        ("group", Align::Left),
        ("queue", Align::Left),
        ("mode", Align::Left),
        ("entries", Align::Right),
        ("threshold", Align::Right),
        ("priority", Align::Right),
        ("transfer", Align::Right),
        ("batch", Align::Right),
        ("block on fault", Align::Left),
        ("state", Align::Left),
        ("engines", Align::Left),
    ];
    if !d.modelled {
        columns.insert(3, ("type", Align::Left));
    }
    let mut table = Table::new(&columns);
    for group in &d.groups {
        let engines = spans(group.grouped_engines.iter().map(|e| e.dev.as_str()));
        for (i, q) in group.grouped_workqueues.iter().enumerate() {
            let first = |text: String| if i == 0 { text } else { String::new() };
            let mut cells = vec![
                first(group.dev.clone()),
                q.dev.clone(),
                known(q.mode),
                q.size.to_string(),
                if q.mode == Some("shared") { q.threshold.to_string() } else { String::new() },
                known(q.priority),
                known(q.max_transfer_size.map(units::size)),
                known(q.max_batch_size),
                q.block_on_fault.map_or("?", |blocks| if blocks == 1 { "yes" } else { "no" }).into(),
                known(q.state.as_ref()),
                first(engines.clone()),
            ];
            if !d.modelled {
                cells.insert(3, known(q.kind.as_ref()));
            }
            table.row(cells);
        }
    }
    table
}

/// Formats names such as `engine0.1`; consecutive numbers become one span: `engine0.0-2 engine0.4`.
fn spans<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut spans: Vec<(&str, u32, u32)> = Vec::new();
    for name in names {
        let (stem, number) =
            name.rsplit_once('.').and_then(|(stem, n)| Some((stem, n.parse().ok()?))).unwrap_or((name, 0));
        match spans.last_mut() {
            Some((before, _, last)) if *before == stem && *last + 1 == number => *last = number,
            _ => spans.push((stem, number, number)),
        }
    }
    let span = |(stem, first, last): (&str, u32, u32)| match last {
        _ if first == last => format!("{stem}.{first}"),
        _ => format!("{stem}.{first}-{last}"),
    };
    spans.into_iter().map(span).collect::<Vec<_>>().join(" ")
}

/// Joins words with commas, broken before column 100 and indented.
fn wrapped(words: &[&str], indent: usize) -> String {
    let (mut out, mut column) = (String::new(), indent);
    for (i, word) in words.iter().enumerate() {
        if i > 0 {
            out.push(',');
            if column + word.len() + 2 > 100 {
                out.push('\n');
                out.push_str(&" ".repeat(indent));
                column = indent;
            } else {
                out.push(' ');
                column += 2;
            }
        }
        out.push_str(word);
        column += word.len();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_device::ModelOptions;

    #[test]
    fn the_default_device_is_listed_completely() {
        let listing = ModelDevice::start(ModelOptions::default()).unwrap().listing();
        let text = device("model:spr", &listing);
        for words in [
            "dsa0 (model:spr)",
            "4 of 4 groups, 8 of 8 work queues, 4 of 4 engines in use; 128 queue entries",
            "memory-move",
            "wq0.7",
            "engine0.3",
            "dedicated",
            "shared",
        ] {
            assert!(text.contains(words), "{words} is missing in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }

    #[test]
    fn consecutive_engines_are_one_span() {
        let joined = |names: &[&str]| spans(names.iter().copied());
        assert_eq!(joined(&["engine0.0"]), "engine0.0");
        assert_eq!(
            joined(&["engine0.0", "engine0.1", "engine0.2", "engine0.4", "engine1.5"]),
            "engine0.0-2 engine0.4 engine1.5"
        );
        assert_eq!(joined(&[]), "");
    }

    #[test]
    fn long_lists_are_wrapped() {
        let words = ["abcdefghij"; 20];
        let text = wrapped(&words, 4);
        assert!(text.lines().count() > 1 && text.lines().all(|l| l.len() <= 101));
    }
}
