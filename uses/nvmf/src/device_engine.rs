//! Digests and copies on a device, through a channel of the mover.
//!
//! ```text
//! job ─► one list of segments, or one operation for each run ─► Channel (one batch for a burst) ─► finished job
//!    └─ short, or the channel is full ─► this thread
//! ```
//!
//! An operation that fails, or that misses its deadline, is done again by this thread. The channel keeps the buffers
//! of a late operation until the device has written its record, so nothing is freed under it. If it keeps a run of
//! blocks, the job ends as a digest of its source, and the backend copies the data when it executes the write.

use crate::digest::join;
use crate::engine::{
    DigestEngine, DoneBy, FallbackReason, FinishedJob, Job, JobId, Segment, Shared, Submissions, Work,
};
use crate::protection::{Operation, ProtectionWork};
use std::ops::Range;
use telpher_mem::{BlockRun, OwnedBytes};
use telpher_mover::{Channel, CrcMode, Finished, Outcome, Rejected, Ticket, Via};
use telpher_ops::Hint;
use telpher_ops::crc::{copy_crc32c, crc32c};

/// The mover's channel for digests: sources are parts of shared bytes, destinations are runs of blocks, or
/// bytes for protected blocks.
pub type DigestChannel = Channel<Segment, OwnedBytes>;

/// Jobs of fewer bytes are done by the CPU. Source: measured, 2026-11-27, AMD EPYC (docs/nvmf.md): the CPU's CRC of
/// 8 KiB of cached data takes 120 ns; a submission with its result took 180 ns with 1,740 instructions, and needs 925
/// since.
pub const DEFAULT_SHORTEST: usize = 8192;

/// A job whose operations are under way. When it has ended, the next job uses its vectors.
#[derive(Debug)]
struct Running {
    id: JobId,
    /// What it does; the runs of [`Work::Place`] are in `placed`.
    work: Work,
    placed: Vec<RunningPart>,
    /// The digest of each part, in the order of the bytes; empty if there is one part.
    digests: Vec<u32>,
    /// The number of parts without a result; 0 if there is no job.
    missing: usize,
    by: DoneBy,
}

/// A run of blocks, and the part of the source that belongs there.
#[derive(Debug)]
struct RunningPart {
    range: Range<usize>,
    /// The channel has the run while it is absent.
    run: Option<BlockRun>,
}

impl Running {
    /// No job.
    fn none() -> Running {
        let id = JobId { connection: 0, slot: 0, generation: 0, part: 0 };
        let work = Work::Digest(Vec::new());
        Running { id, work, placed: Vec::new(), digests: Vec::new(), missing: 0, by: DoneBy::Device }
    }

    /// Takes a job of which nothing is under way yet; returns the number of its parts.
    #[inline]
    fn begin(&mut self, Job { id, work }: Job) -> usize {
        self.id = id;
        self.work = work;
        self.by = DoneBy::Device;
        self.missing = match &mut self.work {
            Work::Digest(segments) => segments.len(),
            Work::Place { runs, .. } => {
                self.placed.extend(parts_of(std::mem::take(runs)));
                self.placed.len()
            }
            Work::Protect(_) => 1,
        };
        self.digests.clear();
        if self.missing > 1 {
            self.digests.resize(self.missing, 0);
        }
        self.missing
    }

    /// The bytes of a part.
    fn segment(&self, part: usize) -> Segment {
        match &self.work {
            Work::Digest(segments) => segments[part].clone(),
            Work::Place { source, .. } => Segment::new(Shared::clone(source), self.placed[part].range.clone()),
            Work::Protect(work) => work.source().clone(),
        }
    }

    /// The number of bytes of a part.
    fn len(&self, part: usize) -> usize {
        match &self.work {
            Work::Digest(segments) => segments[part].len(),
            Work::Place { .. } => self.placed[part].range.len(),
            Work::Protect(work) => work.source().len(),
        }
    }

    /// The digest of all parts.
    fn joined(&self) -> u32 {
        let parts = (0..).zip(&self.digests);
        parts.fold(0, |first, (part, digest)| join(first, *digest, self.len(part)))
    }

    /// Puts the runs back into [`Work::Place`]. If the channel keeps one, the work becomes a digest of the source.
    fn collect_runs(&mut self) {
        let Work::Place { source, runs } = &mut self.work else { return };
        let count = self.placed.len();
        runs.extend(self.placed.drain(..).filter_map(|part| part.run));
        if runs.len() < count {
            self.work = Work::Digest(vec![Segment::all(source.clone())]);
        }
    }
}

/// Divides a source among runs.
fn parts_of(runs: Vec<BlockRun>) -> impl Iterator<Item = RunningPart> {
    let mut end = 0;
    runs.into_iter().map(move |run| {
        let start = end;
        end += run.len();
        RunningPart { range: start..end, run: Some(run) }
    })
}

/// What each operation of the channel is for.
#[derive(Debug)]
struct Operations {
    /// By the operation's number, modulo this length. A channel numbers its slots one after the other, and uses a slot
    /// again when its operation was fetched. So the numbers of operations under way differ.
    purposes: Vec<Purpose>,
}

/// What an operation is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// A part of a job: the number of the job, and that of the part.
    Part(usize, usize),
    /// A whole job: a digest whose segments are a list of the channel.
    Whole(JobId),
    /// It has ended.
    None,
}

impl Operations {
    /// No operation of a channel with so many slots.
    fn none(slots: usize) -> Operations {
        Operations { purposes: vec![Purpose::None; slots.next_power_of_two()] }
    }

    #[inline]
    fn place(&mut self, ticket: Ticket) -> &mut Purpose {
        let last = self.purposes.len() - 1;
        // The mask leaves less than the length.
        &mut self.purposes[usize::try_from(ticket.number() & last as u64).unwrap_or(0)]
    }

    #[inline]
    fn insert(&mut self, ticket: Ticket, purpose: Purpose) {
        *self.place(ticket) = purpose;
    }

    #[inline]
    fn remove(&mut self, ticket: Ticket) -> Purpose {
        std::mem::replace(self.place(ticket), Purpose::None)
    }
}

/// The jobs under way, and those that are done.
#[derive(Debug)]
struct Jobs {
    /// Jobs by their number, which is used again after the job's end.
    running: Vec<Running>,
    free: Vec<usize>,
    operations: Operations,
    done: Vec<FinishedJob>,
    /// Jobs under way as lists of the channel.
    lists: usize,
}

impl Jobs {
    /// No jobs, for a channel with so many slots.
    fn none(slots: usize) -> Jobs {
        let operations = Operations::none(slots);
        Jobs { running: Vec::new(), free: Vec::new(), operations, done: Vec::new(), lists: 0 }
    }

    /// Starts a digest as one list of the channel. Gives the segments back if the channel does not take them.
    #[inline]
    fn start_list(
        &mut self,
        channel: &mut DigestChannel,
        id: JobId,
        segments: Vec<Segment>,
    ) -> Result<(), Vec<Segment>> {
        let ticket = channel.crc_list(segments)?;
        self.operations.insert(ticket, Purpose::Whole(id));
        self.lists += 1;
        Ok(())
    }

    /// Takes the result of a list.
    #[inline]
    fn list_done(&mut self, id: JobId, segments: Vec<Segment>, digest: Option<u32>, by: DoneBy) {
        self.lists -= 1;
        let mut work = Work::Digest(segments);
        let digest = digest.unwrap_or_else(|| work.run());
        self.done.push(FinishedJob { id, work, digest, by });
    }

    /// Takes a job; returns its number and its number of parts.
    #[inline]
    fn insert(&mut self, job: Job) -> (usize, usize) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.running.push(Running::none());
            self.running.len() - 1
        });
        (number, self.running[number].begin(job))
    }

    /// Prepares the operation of one part. If the channel has no room, this thread does it.
    #[inline]
    fn start_part(&mut self, channel: &mut DigestChannel, number: usize, part: usize) {
        let Some(running) = self.running.get_mut(number) else { return };
        let taken = match &mut running.work {
            Work::Digest(segments) => channel.crc(segments[part].clone(), 0, CrcMode::default()),
            Work::Place { source, .. } => start_copy(channel, source, &mut running.placed[part]),
            Work::Protect(work) => start_protection(channel, work),
        };
        match taken {
            Ok(ticket) => self.operations.insert(ticket, Purpose::Part(number, part)),
            Err(Rejected { buffers, .. }) => self.redo(number, part, buffers.dst, FallbackReason::NoRoom),
        }
    }

    /// Does one part on this thread. `destination` is the part's destination, if the channel has given it back.
    #[cold]
    fn redo(&mut self, number: usize, part: usize, destination: Option<OwnedBytes>, reason: FallbackReason) {
        let Some(running) = self.running.get_mut(number) else { return };
        let segment = running.segment(part);
        let bytes = segment.as_slice();
        let digest = match (&mut running.work, destination) {
            (Work::Place { .. }, Some(OwnedBytes::Blocks(mut run))) => {
                let digest = copy_crc32c(bytes, &mut run, 0, CrcMode::default(), Hint::Cache);
                running.placed[part].run = Some(run);
                digest
            }
            (Work::Protect(work), destination) => {
                work.give_back(bytes_of(destination));
                work.run();
                0
            }
            // The device may still write the run if the channel has not given it back.
            (_, _) => crc32c(0, bytes, CrcMode::default()),
        };
        running.by = DoneBy::Fallback(reason);
        self.part_done(number, part, digest);
    }

    /// Takes the result of an operation.
    #[inline]
    fn operation_done(&mut self, finished: Finished<Segment, OwnedBytes>) {
        let (number, part) = match self.operations.remove(finished.ticket) {
            Purpose::Part(number, part) => (number, part),
            Purpose::Whole(id) => {
                let (digest, by) = match finished.result {
                    Ok(Outcome::Crc(digest)) if finished.via == Via::Device => (Some(digest), DoneBy::Device),
                    Ok(Outcome::Crc(digest)) => (Some(digest), DoneBy::Fallback(FallbackReason::of(&finished))),
                    _ => (None, DoneBy::Fallback(FallbackReason::of(&finished))),
                };
                return self.list_done(id, finished.sources, digest, by);
            }
            Purpose::None => return,
        };
        let mut reason = FallbackReason::of(&finished);
        let destination = finished.buffers.and_then(|buffers| buffers.dst);
        let Some(running) = self.running.get_mut(number) else { return };
        let mut is_by_device = finished.via == Via::Device;
        let digest = match (&mut running.work, finished.result, destination) {
            (Work::Digest(_), Ok(Outcome::Crc(digest)), _) => digest,
            (Work::Place { .. }, Ok(Outcome::Crc(digest)), destination) => {
                if let Some(OwnedBytes::Blocks(run)) = destination {
                    running.placed[part].run = Some(run);
                }
                digest
            }
            (Work::Protect(work), Ok(outcome), destination)
                if destination.is_some() || work.operation() == Operation::Check =>
            {
                work.give_back(bytes_of(destination));
                match outcome {
                    Outcome::Dif { .. } => {}
                    Outcome::DifMismatch { at, .. } => {
                        if !work.mismatch_at(usize::try_from(at).unwrap_or(usize::MAX)) && is_by_device {
                            (is_by_device, reason) = (false, FallbackReason::Unwritten);
                        }
                    }
                    _ => return self.redo(number, part, None, reason),
                }
                0
            }
            (_, _, destination) => return self.redo(number, part, destination, reason),
        };
        if !is_by_device {
            running.by = DoneBy::Fallback(reason);
        }
        self.part_done(number, part, digest);
    }

    #[inline]
    fn part_done(&mut self, number: usize, part: usize, digest: u32) {
        let Some(running) = self.running.get_mut(number) else { return };
        if let Some(place) = running.digests.get_mut(part) {
            *place = digest;
        }
        running.missing -= 1;
        if running.missing > 0 {
            return;
        }
        let digest = if running.digests.is_empty() { digest } else { running.joined() };
        running.collect_runs();
        let work = std::mem::replace(&mut running.work, Work::Digest(Vec::new()));
        self.free.push(number);
        self.done.push(FinishedJob { id: running.id, work, digest, by: running.by });
    }
}

type Taken = Result<Ticket, Rejected<Segment, OwnedBytes>>;

/// Prepares the copy of a part to its run, which is taken from `part`.
#[inline(never)]
#[allow(clippy::result_large_err, reason = "a channel gives the buffers back if it does not take the operation")]
fn start_copy(channel: &mut DigestChannel, source: &Shared, part: &mut RunningPart) -> Taken {
    let source = Segment::new(Shared::clone(source), part.range.clone());
    match part.run.take() {
        Some(run) => channel.copy_crc(source, OwnedBytes::Blocks(run), 0, CrcMode::default()),
        None => channel.crc(source, 0, CrcMode::default()),
    }
}

/// Prepares the operation of a job on protection information, whose destination is taken from `work`.
#[inline(never)]
#[allow(clippy::result_large_err, reason = "a channel gives the buffers back if it does not take the operation")]
fn start_protection(channel: &mut DigestChannel, work: &mut ProtectionWork) -> Taken {
    let source = work.source().clone();
    let (config, tags, operation) = (work.config(), work.tags(), work.operation());
    if operation == Operation::Check {
        return channel.dif_check(source, config, tags);
    }
    let destination = OwnedBytes::Heap(work.take_destination());
    match operation {
        Operation::Insert => channel.dif_insert(source, destination, config, tags),
        _ => channel.dif_strip(source, destination, config, tags),
    }
}

/// Computes on a device.
#[derive(Debug)]
pub struct DeviceEngine {
    channel: DigestChannel,
    shortest: usize,
    jobs: Jobs,
    submissions: Submissions,
}

impl DeviceEngine {
    /// An engine on a channel. Jobs of fewer than `shortest` bytes are done by the CPU. The channel should report
    /// operations in the order of arrival, and have a deadline, so that no host waits for a device without bound.
    #[must_use]
    pub fn new(channel: DigestChannel, shortest: usize) -> DeviceEngine {
        let jobs = Jobs::none(channel.capacity());
        DeviceEngine { channel, shortest, jobs, submissions: Submissions::default() }
    }
}

impl DigestEngine for DeviceEngine {
    fn prepare(&mut self, mut job: Job) {
        let bytes = job.work.len();
        if bytes < self.shortest || bytes == 0 {
            let digest = job.work.run();
            self.jobs.done.push(FinishedJob { id: job.id, work: job.work, digest, by: DoneBy::Cpu });
            return;
        }
        if let Work::Digest(segments) = job.work {
            match self.jobs.start_list(&mut self.channel, job.id, segments) {
                Ok(()) => return,
                Err(segments) => job.work = Work::Digest(segments),
            }
        }
        let (number, parts) = self.jobs.insert(job);
        for part in 0..parts {
            self.jobs.start_part(&mut self.channel, number, part);
        }
    }

    fn is_immediate(&self, bytes: usize) -> bool {
        bytes < self.shortest
    }

    fn submit(&mut self) {
        let operations = self.channel.submit() as u64;
        if operations > 0 {
            self.submissions.batches += 1;
            self.submissions.operations += operations;
        }
    }

    fn completed(&mut self, done: &mut Vec<FinishedJob>) {
        let jobs = &mut self.jobs;
        self.channel.each_completed(|finished| jobs.operation_done(finished));
        done.append(&mut jobs.done);
    }

    fn pending(&self) -> usize {
        self.jobs.lists + self.jobs.running.len() - self.jobs.free.len() + self.jobs.done.len()
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
