//! Tests of a reporter: from entries to text.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use telpher_abi::{CompletionRecord, Descriptor, Offer, StatusByte};
use telpher_vdev_wire::event::{Finding, InvolvedDescriptor, ReportedTo, SubmitInstruction};

/// An output that the test can read afterwards; it is full at `room` bytes.
#[derive(Clone)]
struct FakeFile {
    text: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl FakeFile {
    fn new() -> Self {
        FakeFile { text: Arc::default(), room: usize::MAX }
    }

    fn text(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }
}

impl Write for FakeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = self.text.lock().unwrap();
        if text.len() + bytes.len() > self.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        text.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn reporter(format: TraceFormat, out: &FakeFile, errors: &FakeFile) -> Reporter {
    let sink = Sink { path: "trace".into(), out: Box::new(out.clone()), format, failed: None };
    Reporter::with(Some(sink), Box::new(errors.clone()))
}

const FILE: FileInfo = FileInfo { open: 7, device: 0, wq: 3, process: 42, pasid: 1, dedicated: false };

fn descriptor() -> Descriptor {
    Descriptor::memory_move(0x1000, 0x2000, 64).with_record(0x3000)
}

fn entry(kind: TraceKind, submission: u64) -> TraceEntry {
    let (code, answer) = match kind {
        TraceKind::Submitted => (SubmitInstruction::Enqcmd as u32, Offer::Taken as u32),
        _ => (0, ReportedTo::Record as u32),
    };
    TraceEntry {
        submission,
        kind: kind as u32,
        process: 42,
        thread: 43,
        code,
        answer,
        descriptor: descriptor().0,
        record: CompletionRecord::new(StatusByte(1)).0,
        ..TraceEntry::EMPTY
    }
}

fn misuse(submission: u64, misuse: Misuse, address: u64) -> TraceEntry {
    let latest = InvolvedDescriptor { submission, member: 0, operand: 1, descriptor: descriptor().0 };
    let finding = Finding { misuse, latest, other: None, address, len: 64 };
    TraceEntry { process: 42, thread: 43, ..finding.to_entry() }
}

/// Statistics are a table of about 50 KiB.
fn statistics(lost: u64) -> Box<Statistics> {
    let zero = || AtomicU64::new(0);
    Box::new(Statistics {
        outcomes: std::array::from_fn(|_| std::array::from_fn(|_| zero())),
        sizes: std::array::from_fn(|_| std::array::from_fn(|_| zero())),
        bytes: std::array::from_fn(|_| zero()),
        retries: zero(),
        dropped: zero(),
        faults: zero(),
        traps: zero(),
        calls: zero(),
        lost: AtomicU64::new(lost),
    })
}

#[test]
fn entries_become_lines_in_the_format_asked_for() {
    for format in [TraceFormat::Text, TraceFormat::JsonLines] {
        let (out, errors) = (FakeFile::new(), FakeFile::new());
        let reporter = reporter(format, &out, &errors);
        reporter.opened(&FILE);
        reporter.entry(&FILE, &entry(TraceKind::Submitted, 1));
        assert_eq!(out.text(), "");
        reporter.entry(&FILE, &entry(TraceKind::Ended, 1));
        reporter.entry(&FILE, &entry(TraceKind::Submitted, 2));
        reporter.released(&FILE, &statistics(5));
        reporter.finish().unwrap();
        let text = out.text();
        let lines: Vec<Line> = text.lines().map(|line| Line::parse(line, 0).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        let Line::Descriptor(first) = &lines[0] else { panic!("{text}") };
        assert_eq!((first.origin.queue.as_str(), first.status), ("wq0.3", Some(1)));
        let Line::Descriptor(second) = &lines[1] else { panic!("{text}") };
        assert_eq!(second.end, "not completed");
        assert!(matches!(&lines[2], Line::Lost(lost) if lost.entries == 5));
        assert_eq!(
            errors.text(),
            "telpher: the trace misses 5 events: they came faster than they were written, or their process was killed\n"
        );
        assert_eq!(text.starts_with('{'), format == TraceFormat::JsonLines);
    }
}

#[test]
fn misuse_is_reported_once_a_site_and_counted_each_time() {
    let (out, errors) = (FakeFile::new(), FakeFile::new());
    let reporter = reporter(TraceFormat::Text, &out, &errors);
    for n in 1..5 {
        reporter.entry(&FILE, &misuse(n, Misuse::RecordNotReset, 0x3000 + n));
    }
    reporter.entry(&FILE, &misuse(9, Misuse::SourceChanged, 0x1000));
    assert_eq!(errors.text().matches("telpher: check:").count(), 2);
    assert!(errors.text().contains("where: 64 bytes at 0x3001; wq0.3, process 42, thread 43"), "{}", errors.text());
    assert_eq!(out.text().lines().count(), 5);
    assert_eq!(reporter.findings(), 5);
    reporter.finish().unwrap();
    let last = errors.text().lines().last().unwrap().to_owned();
    assert_eq!(last, "telpher: check: 5 findings: 4 record-not-reset, 1 source-changed");
}

#[test]
fn a_full_disk_is_reported_once_and_stops_nothing_else() {
    let (out, errors) = (FakeFile { room: 300, ..FakeFile::new() }, FakeFile::new());
    let reporter = reporter(TraceFormat::Text, &out, &errors);
    for n in 1..20 {
        reporter.entry(&FILE, &entry(TraceKind::Submitted, n));
        reporter.entry(&FILE, &entry(TraceKind::Ended, n));
    }
    let error = reporter.finish().unwrap_err();
    assert_eq!(error.to_string(), "cannot write the trace to trace");
    assert!((1..20).contains(&out.text().lines().count()));
}

#[test]
fn numbers_of_released_files_are_summed() {
    let reporter = Reporter::new(None, TraceFormat::Text).unwrap();
    for open in 1..4 {
        let file = FileInfo { open, ..FILE };
        reporter.opened(&file);
        let statistics = statistics(0);
        statistics.retries.store(2, Ordering::Relaxed);
        reporter.released(&file, &statistics);
    }
    assert!(reporter.summary().to_string().contains("6 retries"), "{}", reporter.summary());
}

#[test]
fn the_error_names_the_trace_that_cannot_be_created() {
    let path = Path::new("/no/such/folder/trace");
    let error = Reporter::new(Some(path), TraceFormat::Text).unwrap_err();
    assert_eq!(error.to_string(), "cannot write the trace to /no/such/folder/trace");
}
