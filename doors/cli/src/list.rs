//! `telpher list`: devices, groups, queues, engines and what they can do.

use crate::args::{List, ListFormat};
use crate::bench::{BenchError, devices};
use crate::report::table::{Align, Table};
use crate::report::units;
use std::fmt::Write as _;
use std::io::{self, Write};
use telpher_device::{Listing, ModelDevice};

/// Prints what is there.
pub(crate) fn run(args: &List) -> Result<(), BenchError> {
    let listings = match devices::named(&args.device)? {
        None => Vec::new(),
        Some((name, source)) => {
            let options = devices::options(&source)?;
            let device =
                ModelDevice::start(options).map_err(|source| BenchError::Start { name: name.clone(), source })?;
            vec![(name, device.listing())]
        }
    };
    let text = match args.format {
        ListFormat::Json => {
            let plain: Vec<&Listing> = listings.iter().map(|(_, listing)| listing).collect();
            serde_json::to_string_pretty(&plain).expect("listings are plain data with string keys") + "\n"
        }
        ListFormat::Text => {
            let mut text: String = listings.iter().map(|(name, listing)| device(name, listing)).collect();
            let _ = writeln!(text, "cpu: the CPU path, kernels {}", telpher_ops::dispatch::level());
            text
        }
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(BenchError::Output),
    }
}

/// One device for people.
fn device(name: &str, d: &Listing) -> String {
    let mut out = String::new();
    let groups = d.groups.len();
    let queues: usize = d.groups.iter().map(|g| g.grouped_workqueues.len()).sum();
    let engines: usize = d.groups.iter().map(|g| g.grouped_engines.len()).sum();
    let _ =
        writeln!(out, "{} ({name}): a modelled Data Streaming Accelerator, version {}, {}", d.dev, d.version, d.state);
    let _ = writeln!(
        out,
        "  {groups} of {} groups, {queues} of {} work queues, {engines} of {} engines in use; {} queue entries in all",
        d.max_groups, d.max_work_queues, d.max_engines, d.work_queue_size
    );
    let _ = writeln!(
        out,
        "  transfers to {}, batches to {} descriptors, {} read buffers",
        units::size(d.max_transfer_size),
        d.max_batch_size,
        d.max_read_buffers
    );
    let _ = writeln!(out, "  GENCAP {}, OPCAP {}", d.gen_cap, d.op_cap);
    let _ = writeln!(out, "  operations: {}\n", wrapped(&d.operations, 14));
    let mut table = Table::new(&[
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
    ]);
    for group in &d.groups {
        let engines: Vec<&str> = group.grouped_engines.iter().map(|e| e.dev.as_str()).collect();
        for (i, q) in group.grouped_workqueues.iter().enumerate() {
            let first = |text: String| if i == 0 { text } else { String::new() };
            table.row([
                first(group.dev.clone()),
                q.dev.clone(),
                q.mode.into(),
                q.size.to_string(),
                if q.mode == "shared" { q.threshold.to_string() } else { String::new() },
                q.priority.to_string(),
                units::size(q.max_transfer_size),
                q.max_batch_size.to_string(),
                if q.block_on_fault == 1 { "yes".into() } else { "no".into() },
                q.state.into(),
                first(engines.join(" ")),
            ]);
        }
    }
    let _ = writeln!(out, "{table}");
    out
}

/// Words with commas, broken before column 100 and indented.
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
    fn the_default_device_is_told_whole() {
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
    fn long_lists_are_broken() {
        let words = ["abcdefghij"; 20];
        let text = wrapped(&words, 4);
        assert!(text.lines().count() > 1 && text.lines().all(|l| l.len() <= 101));
    }
}
