//! Digests and copies on a device, through a channel of the mover.
//!
//! ```text
//! job ─► one operation for each run or segment ─► Channel (one batch for a burst) ─► digests joined ─► finished job
//!    └─ short, or the channel is full ─► this thread
//! ```
//!
//! An operation that fails, or that misses its deadline, is done again by this thread. The channel keeps the buffers
//! of a late operation until the device has written its record, so nothing is freed under it. If it keeps a run of
//! blocks, the job ends as a digest of its source, and the backend copies the data when it executes the write.

use crate::digest::join;
use crate::engine::{DigestEngine, DoneBy, FinishedJob, Job, JobId, Segment, Shared, Submissions, Work};
use crate::protection::{Operation, ProtectionWork};
use std::collections::VecDeque;
use std::ops::Range;
use telpher_mem::{BlockRun, OwnedBytes, Slice};
use telpher_mover::{Channel, CrcMode, Finished, Outcome, Rejected, Ticket, Via};
use telpher_ops::Hint;
use telpher_ops::crc::{copy_crc32c, crc32c};

/// The mover's channel for digests: sources are parts of shared bytes, destinations are runs of blocks, or
/// bytes for protected blocks.
pub type DigestChannel = Channel<Slice<Shared>, OwnedBytes>;

/// Jobs of fewer bytes are done by the CPU. Source: assumed; a submission costs about as much as the CRC of 4 KiB on
/// the CPU.
pub const DEFAULT_SHORTEST: usize = 8192;

/// A job whose operations are under way.
#[derive(Debug)]
struct Running {
    id: JobId,
    work: RunningWork,
    /// The digest of each part, in the order of the bytes; empty if there is one part.
    digests: Vec<u32>,
    missing: usize,
    by: DoneBy,
}

#[derive(Debug)]
enum RunningWork {
    Digest(Vec<Segment>),
    Place {
        source: Shared,
        parts: Vec<RunningPart>,
    },
    /// One operation; the channel has the destination.
    Protect(ProtectionWork),
}

/// A run of blocks, and the part of the source that belongs there.
#[derive(Debug)]
struct RunningPart {
    range: Range<usize>,
    /// The channel has the run while it is absent.
    run: Option<BlockRun>,
}

impl RunningWork {
    /// The work of a job, and its number of parts.
    fn of(work: Work) -> (RunningWork, usize) {
        match work {
            Work::Digest(segments) => {
                let parts = segments.len();
                (RunningWork::Digest(segments), parts)
            }
            Work::Place { source, runs } => {
                let mut end = 0;
                let part = |run: BlockRun| {
                    let start = end;
                    end += run.len();
                    RunningPart { range: start..end, run: Some(run) }
                };
                let parts: Vec<RunningPart> = runs.into_iter().map(part).collect();
                let count = parts.len();
                (RunningWork::Place { source, parts }, count)
            }
            Work::Protect(work) => (RunningWork::Protect(work), 1),
        }
    }

    /// The bytes of a part.
    fn segment(&self, part: usize) -> Segment {
        match self {
            RunningWork::Digest(segments) => segments[part].clone(),
            RunningWork::Place { source, parts } => {
                Segment { bytes: Shared::clone(source), range: parts[part].range.clone() }
            }
            RunningWork::Protect(work) => work.source().clone(),
        }
    }

    /// The number of bytes of a part.
    fn len(&self, part: usize) -> usize {
        match self {
            RunningWork::Digest(segments) => segments[part].range.len(),
            RunningWork::Place { parts, .. } => parts[part].range.len(),
            RunningWork::Protect(work) => work.source().range.len(),
        }
    }

    fn finished(self) -> Work {
        let (source, parts) = match self {
            RunningWork::Digest(segments) => return Work::Digest(segments),
            RunningWork::Protect(work) => return Work::Protect(work),
            RunningWork::Place { source, parts } => (source, parts),
        };
        let count = parts.len();
        let runs: Vec<BlockRun> = parts.into_iter().filter_map(|part| part.run).collect();
        if runs.len() == count {
            Work::Place { source, runs }
        } else {
            Work::Digest(vec![Segment { range: 0..source.len(), bytes: source }])
        }
    }
}

/// The job and the part of each operation. A channel numbers its operations one after the other.
#[derive(Debug, Default)]
struct Operations {
    /// The number of the first operation in `parts`.
    first: u64,
    parts: VecDeque<Option<(usize, usize)>>,
}

impl Operations {
    fn insert(&mut self, ticket: Ticket, job: usize, part: usize) {
        if self.parts.is_empty() {
            self.first = ticket.number();
        }
        debug_assert_eq!(ticket.number(), self.first + self.parts.len() as u64);
        self.parts.push_back(Some((job, part)));
    }

    fn remove(&mut self, ticket: Ticket) -> Option<(usize, usize)> {
        let index = usize::try_from(ticket.number().checked_sub(self.first)?).ok()?;
        let found = self.parts.get_mut(index)?.take();
        while let Some(None) = self.parts.front() {
            self.parts.pop_front();
            self.first += 1;
        }
        found
    }
}

/// Computes on a device.
#[derive(Debug)]
pub struct DeviceEngine {
    channel: DigestChannel,
    shortest: usize,
    /// Jobs by their number, which is used again after the job's end.
    running: Vec<Option<Running>>,
    free: Vec<usize>,
    operations: Operations,
    done: VecDeque<FinishedJob>,
    finished: Vec<Finished<Slice<Shared>, OwnedBytes>>,
    submissions: Submissions,
}

impl DeviceEngine {
    /// An engine on a channel. Jobs of fewer than `shortest` bytes are done by the CPU. The channel should report
    /// operations in the order of arrival, and have a deadline, so that no host waits for a device without bound.
    #[must_use]
    pub fn new(channel: DigestChannel, shortest: usize) -> DeviceEngine {
        DeviceEngine {
            channel,
            shortest,
            running: Vec::new(),
            free: Vec::new(),
            operations: Operations::default(),
            done: VecDeque::new(),
            finished: Vec::new(),
            submissions: Submissions::default(),
        }
    }

    /// Prepares the operation of one part. If the channel has no room, this thread does it.
    fn start_part(&mut self, number: usize, part: usize) {
        let Some(Some(running)) = self.running.get_mut(number) else { return };
        let segment = running.work.segment(part);
        let Ok(source) = Slice::new(segment.bytes, segment.range) else { unreachable!("a segment lies in its bytes") };
        let taken = match &mut running.work {
            RunningWork::Digest(_) => self.channel.crc(source, 0, CrcMode::default()),
            RunningWork::Place { parts, .. } => match parts[part].run.take() {
                Some(run) => self.channel.copy_crc(source, OwnedBytes::Blocks(run), 0, CrcMode::default()),
                None => self.channel.crc(source, 0, CrcMode::default()),
            },
            RunningWork::Protect(work) => {
                let (config, tags) = (work.config(), work.tags());
                match work.operation() {
                    Operation::Check => self.channel.dif_check(source, config, tags),
                    operation => {
                        let destination = OwnedBytes::Heap(work.take_destination());
                        match operation {
                            Operation::Insert => self.channel.dif_insert(source, destination, config, tags),
                            _ => self.channel.dif_strip(source, destination, config, tags),
                        }
                    }
                }
            }
        };
        match taken {
            Ok(ticket) => {
                self.operations.insert(ticket, number, part);
            }
            Err(Rejected { buffers, .. }) => self.redo(number, part, buffers.dst),
        }
    }

    /// Does one part on this thread. `destination` is the part's destination, if the channel has given it back.
    fn redo(&mut self, number: usize, part: usize, destination: Option<OwnedBytes>) {
        let Some(Some(running)) = self.running.get_mut(number) else { return };
        let segment = running.work.segment(part);
        let bytes = segment.as_slice();
        let digest = match (&mut running.work, destination) {
            (RunningWork::Place { parts, .. }, Some(OwnedBytes::Blocks(mut run))) => {
                let digest = copy_crc32c(bytes, &mut run, 0, CrcMode::default(), Hint::Cache);
                parts[part].run = Some(run);
                digest
            }
            (RunningWork::Protect(work), destination) => {
                work.give_back(bytes_of(destination));
                work.run();
                0
            }
            // The device may still write the run if the channel has not given it back.
            (_, _) => crc32c(0, bytes, CrcMode::default()),
        };
        running.by = DoneBy::Fallback;
        self.part_done(number, part, digest);
    }

    /// Takes the result of an operation.
    fn operation_done(&mut self, finished: Finished<Slice<Shared>, OwnedBytes>) {
        let Some((number, part)) = self.operations.remove(finished.ticket) else { return };
        let destination = finished.buffers.and_then(|buffers| buffers.dst);
        let Some(Some(running)) = self.running.get_mut(number) else { return };
        let mut is_by_device = finished.via == Via::Device;
        let digest = match (&mut running.work, finished.result, destination) {
            (RunningWork::Digest(_), Ok(Outcome::Crc(digest)), _) => digest,
            (RunningWork::Place { parts, .. }, Ok(Outcome::Crc(digest)), destination) => {
                if let Some(OwnedBytes::Blocks(run)) = destination {
                    parts[part].run = Some(run);
                }
                digest
            }
            (RunningWork::Protect(work), Ok(outcome), destination)
                if destination.is_some() || work.operation() == Operation::Check =>
            {
                work.give_back(bytes_of(destination));
                match outcome {
                    Outcome::Dif { .. } => {}
                    Outcome::DifMismatch { at, .. } => {
                        is_by_device &= work.mismatch_at(usize::try_from(at).unwrap_or(usize::MAX));
                    }
                    _ => return self.redo(number, part, None),
                }
                0
            }
            (_, _, destination) => return self.redo(number, part, destination),
        };
        if !is_by_device {
            running.by = DoneBy::Fallback;
        }
        self.part_done(number, part, digest);
    }

    fn part_done(&mut self, number: usize, part: usize, digest: u32) {
        let Some(Some(running)) = self.running.get_mut(number) else { return };
        if let Some(place) = running.digests.get_mut(part) {
            *place = digest;
        }
        running.missing -= 1;
        if running.missing > 0 {
            return;
        }
        let Some(running) = self.running[number].take() else { return };
        self.free.push(number);
        let digest = if running.digests.is_empty() {
            digest
        } else {
            let parts = (0..).zip(&running.digests);
            parts.fold(0, |seed, (part, digest)| join(seed, *digest, running.work.len(part)))
        };
        let work = running.work.finished();
        self.done.push_back(FinishedJob { id: running.id, work, digest, by: running.by });
    }
}

impl DigestEngine for DeviceEngine {
    fn prepare(&mut self, Job { id, mut work }: Job) {
        if work.len() < self.shortest || work.is_empty() {
            let digest = work.run();
            self.done.push_back(FinishedJob { id, work, digest, by: DoneBy::Cpu });
            return;
        }
        let (work, parts) = RunningWork::of(work);
        let digests = if parts > 1 { vec![0; parts] } else { Vec::new() };
        let running = Some(Running { id, work, digests, missing: parts, by: DoneBy::Device });
        let number = if let Some(number) = self.free.pop() {
            self.running[number] = running;
            number
        } else {
            self.running.push(running);
            self.running.len() - 1
        };
        for part in 0..parts {
            self.start_part(number, part);
        }
    }

    fn submit(&mut self) {
        let operations = self.channel.submit() as u64;
        if operations > 0 {
            self.submissions.batches += 1;
            self.submissions.operations += operations;
        }
    }

    fn completed(&mut self, done: &mut Vec<FinishedJob>) {
        let mut finished = std::mem::take(&mut self.finished);
        self.channel.completed(&mut finished);
        for operation in finished.drain(..) {
            self.operation_done(operation);
        }
        self.finished = finished;
        done.extend(self.done.drain(..));
    }

    fn pending(&self) -> usize {
        self.running.len() - self.free.len() + self.done.len()
    }

    fn submissions(&self) -> Submissions {
        self.submissions
    }
}

/// The bytes that a channel has given back.
fn bytes_of(destination: Option<OwnedBytes>) -> Vec<u8> {
    match destination {
        Some(OwnedBytes::Heap(bytes)) => bytes,
        Some(OwnedBytes::Blocks(_)) | None => Vec::new(),
    }
}
