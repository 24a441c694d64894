//! Reports what a run does: the trace of every descriptor, the findings of the check, the numbers for the summary.
//!
//! ```text
//! shared memory of files ─► host ─► Reporter ─► assemble: entries to lines ─► file, as text or JSON
//!                                      ├─► misuse_report: each kind of finding once per site, to standard error
//!                                      └─► Summary
//! telpher trace FILE ─► Reader: Line::parse ─► Filter ─► text, JSON, fields for CSV, Summary
//! ```

mod assemble;
mod background_writer;
mod columns;
mod filter;
pub mod line;
mod misuse_report;
pub mod names;
mod parse;
mod reader;

pub use columns::COLUMNS;
pub use filter::{Filter, FilterError, ResultFilter, parse_operation, parse_queue, parse_result, parse_time};
pub use line::Line;
pub use parse::ParseError;
pub use reader::{ReadError, Reader};

use crate::host::{FileInfo, Listener};
use crate::summary::Summary;
use assemble::Assembler;
use background_writer::BackgroundWriter;
use rustix::time::ClockId;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_os::clock_ns;
use telpher_vdev_wire::event::Misuse;
use telpher_vdev_wire::file_memory::{Statistics, TraceEntry, TraceKind};

/// How trace entries are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum TraceFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line.
    JsonLines,
}

/// Why a trace cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the trace to {}", path.display())]
pub struct TraceError {
    /// The trace file.
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The output of the trace.
struct Sink {
    path: PathBuf,
    out: Box<dyn Write + Send>,
    format: TraceFormat,
    /// The first write error; nothing is written after it.
    failed: Option<io::Error>,
}

impl Sink {
    /// Writes lines, each by one call, so that readers see them immediately.
    fn write(&mut self, lines: &[Line]) {
        for line in lines {
            if self.failed.is_some() {
                return;
            }
            let text = match self.format {
                TraceFormat::Text => format!("{line}\n"),
                TraceFormat::JsonLines => line.json() + "\n",
            };
            self.failed = self.out.write_all(text.as_bytes()).err();
        }
    }
}

/// Receives what the open files of a run do, and reports it.
pub struct Reporter {
    begin_ns: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    sink: Option<Sink>,
    /// The output of misuse reports.
    errors: Box<dyn Write + Send>,
    files: BTreeMap<u64, Assembler>,
    summary: Summary,
    /// Sites whose misuse was reported.
    reported: BTreeSet<String>,
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reporter").field("begin_ns", &self.begin_ns).finish_non_exhaustive()
    }
}

impl Reporter {
    /// Creates a reporter. It writes a trace if a path is given; `-` is standard error, where reports of misuse go too.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn new(trace: Option<&Path>, format: TraceFormat) -> Result<Self, TraceError> {
        let open = |path: &Path| -> io::Result<Box<dyn Write + Send>> {
            let out: Box<dyn Write + Send> =
                if path == Path::new("-") { Box::new(io::stderr()) } else { Box::new(telpher_os::create_file(path)?) };
            Ok(Box::new(BackgroundWriter::new(out)?))
        };
        let sink = match trace {
            None => None,
            Some(path) => {
                let out = open(path).map_err(|source| TraceError { path: path.into(), source })?;
                Some(Sink { path: path.into(), out, format, failed: None })
            }
        };
        let errors = BackgroundWriter::new(Box::new(io::stderr()));
        let errors = errors.map_err(|source| TraceError { path: "-".into(), source })?;
        Ok(Self::with(sink, Box::new(errors)))
    }

    fn with(sink: Option<Sink>, errors: Box<dyn Write + Send>) -> Self {
        let begin_ns = clock_ns(ClockId::Monotonic);
        let inner =
            Inner { sink, errors, files: BTreeMap::new(), summary: Summary::default(), reported: BTreeSet::new() };
        Reporter { begin_ns, inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of the files that have been released so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.inner().summary.clone()
    }

    /// Findings of the check so far, for a run that fails on misuse.
    #[must_use]
    pub fn findings(&self) -> u64 {
        self.inner().summary.findings()
    }

    /// Ends the trace; prints on standard error how many events it misses and how often misuse was found.
    ///
    /// # Errors
    /// If the trace could not be written completely.
    pub fn finish(&self) -> Result<(), TraceError> {
        let mut inner = self.inner();
        let Inner { sink, errors, files, summary, .. } = &mut *inner;
        let mut lines = Vec::new();
        for assembler in files.values_mut() {
            assembler.finish(&mut lines);
        }
        files.clear();
        let lost = summary.lost();
        if lost > 0 {
            let _ = writeln!(
                errors,
                "telpher: the trace misses {lost} events: they came faster than they were written, or their process \
                 was killed"
            );
        }
        if let Some(sentence) = summary.misuse_sentence() {
            let _ = writeln!(errors, "telpher: check: {sentence}");
        }
        let _ = errors.flush();
        let Some(sink) = sink else { return Ok(()) };
        sink.write(&lines);
        let flushed = sink.out.flush();
        match sink.failed.take().or(flushed.err()) {
            Some(source) => Err(TraceError { path: sink.path.clone(), source }),
            None => Ok(()),
        }
    }
}

impl Inner {
    fn assembler(&mut self, file: &FileInfo, begin_ns: u64) -> &mut Assembler {
        let new = || Assembler::new(format!("wq{}.{}", file.device, file.wq), begin_ns);
        self.files.entry(file.open).or_insert_with(new)
    }

    fn report(&mut self, lines: &[Line]) {
        for line in lines {
            let Line::Misuse(line) = line else { continue };
            let Some(misuse) = Misuse::ALL.iter().find(|misuse| misuse.name() == line.misuse) else { continue };
            self.summary.count_misuse(*misuse);
            // A site is identified by its operations and operands, not by the addresses of its buffers.
            let operation = |descriptor: &str| descriptor.split('(').next().unwrap_or_default().to_owned();
            let other = line.other.as_ref().map(|other| (operation(&other.descriptor), other.operand.clone()));
            let latest = (operation(&line.latest.descriptor), &line.latest.operand, line.latest.which.member.is_some());
            let site = format!("{misuse:?} {} {} {latest:?} {other:?}", line.origin.process, line.origin.queue);
            if self.reported.insert(site) {
                let _ = writeln!(self.errors, "{}", misuse_report::report(*misuse, line));
            }
        }
        if let Some(sink) = &mut self.sink {
            sink.write(lines);
        }
    }
}

impl Listener for Reporter {
    fn opened(&self, file: &FileInfo) {
        let mut inner = self.inner();
        inner.summary.count_file(file.process);
        let _ = inner.assembler(file, self.begin_ns);
    }

    fn entry(&self, file: &FileInfo, entry: &TraceEntry) {
        let mut inner = self.inner();
        if entry.kind == TraceKind::Injected as u32 {
            inner.summary.count_injected(entry.code);
        }
        // Without a trace there are only findings, which are reported at once.
        let mut lines = Vec::new();
        inner.assembler(file, self.begin_ns).take(entry, &mut lines);
        inner.report(&lines);
    }

    fn released(&self, file: &FileInfo, statistics: &Statistics) {
        let mut inner = self.inner();
        let mut lines = Vec::new();
        if let Some(mut assembler) = inner.files.remove(&file.open) {
            assembler.finish(&mut lines);
        }
        let lost = inner.summary.add(statistics);
        if lost > 0 {
            let queue = format!("wq{}.{}", file.device, file.wq);
            let origin = line::Origin { process: file.process, thread: 0, queue, ..line::Origin::default() };
            lines.push(Line::Lost(line::LostLine { origin, entries: lost }));
        }
        inner.report(&lines);
    }
}

#[cfg(test)]
mod tests;
