//! Recordings whose calls have known times.

use std::sync::atomic::{AtomicU64, Ordering};
use telpher_predict::machine;
use telpher_predict::recording::PredictOptions;
use telpher_recording::{
    Call, CurvePoint, Curves, Limits, ModuleMapping, Operation, Recording, Start, ThreadWriter, Writer, bytes_needed,
};

/// Picoseconds per byte of hot, cold and fresh data on a virtual machine (Debian 12, EPYC), at 64 KiB.
pub(crate) const HOT: u64 = 19;
pub(crate) const COLD: u64 = 90;
pub(crate) const FRESH: u64 = 420;

pub(crate) const CURVE: [CurvePoint; 2] = [
    CurvePoint { len: 4096, hot_ps: 19, cold_ps: 90, fresh_ps: 420 },
    CurvePoint { len: 1 << 20, hot_ps: 19, cold_ps: 90, fresh_ps: 420 },
];

/// The module of all sites; a site's offset is its number.
pub(crate) const MODULE: usize = 0x40_0000;

/// One call: its site, bytes, and picoseconds per byte.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) site: usize,
    pub(crate) bytes: usize,
    pub(crate) ps: u64,
}

impl Copy {
    pub(crate) fn ns(&self) -> u64 {
        self.bytes as u64 * self.ps / 1000
    }
}

/// A file in memory.
pub(crate) struct File {
    words: Vec<AtomicU64>,
    limits: Limits,
}

impl File {
    pub(crate) fn new(threads: u32, trace_blocks: u32) -> File {
        let limits = Limits { threads, sites: 16, modules: 2, trace_blocks };
        let bytes = usize::try_from(bytes_needed(limits).unwrap()).unwrap();
        File { words: (0..bytes / 8).map(|_| AtomicU64::new(0)).collect(), limits }
    }

    /// A writer whose tick is a nanosecond.
    pub(crate) fn writer(&self, curve: &'static [CurvePoint]) -> Writer<'_> {
        let curves = Curves { copy: curve, ..Curves::default() };
        let start = Start {
            limits: self.limits,
            pid: 1,
            program: b"/usr/bin/program",
            cpu: "test",
            tsc_hz: 1_000_000_000,
            curves,
            ..Start::default()
        };
        let writer = Writer::over(&self.words, &start).unwrap();
        let addresses = MODULE..MODULE + 0x10_0000;
        writer.add_module(&ModuleMapping { path: b"/usr/bin/program", build_id: &[1], addresses });
        writer
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    pub(crate) fn read(&self) -> Recording {
        Recording::read(&self.bytes()).unwrap()
    }
}

/// Records a copy that begins at a time, and returns its end.
pub(crate) fn record(thread: &ThreadWriter<'_>, copy: &Copy, begin: u64) -> u64 {
    let return_address = MODULE + copy.site;
    let (destination, source) = (0x4000_0000, 0x7000_0000);
    let call = Call { operation: Operation::Memcpy, destination, source, len: copy.bytes, return_address };
    let begun = thread.begin(&call, || begin);
    thread.end(&call, begun, || begin + copy.ns(), None);
    begin + copy.ns()
}

/// A program whose threads make the same copies at about the same time, with 10 µs of work before each.
pub(crate) fn program(threads: u32, trace_blocks: u32, copies: impl Fn(u64) -> Copy, count: u64) -> Recording {
    let file = File::new(threads, trace_blocks);
    let writer = file.writer(&CURVE);
    let writers: Vec<ThreadWriter<'_>> = (1..=threads).map(|thread| writer.thread(thread)).collect();
    let mut ends = vec![0; writers.len()];
    for number in 0..count {
        for ((thread, end), lane) in writers.iter().zip(&mut ends).zip(0..) {
            *end = record(thread, &copies(number), *end + 10_000 + lane);
        }
    }
    file.read()
}

pub(crate) fn options() -> PredictOptions {
    PredictOptions::on(machine("spr-asplos", &[]).unwrap())
}
