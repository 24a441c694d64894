//! Digests and copies on a device, through a channel of the mover.
//!
//! ```text
//! job ─► one operation for each block or segment ─► Channel (one batch for a burst) ─► digests joined ─► finished job
//!    └─ short, or the channel is full ─► this thread
//! ```
//!
//! An operation that fails, or that misses its deadline, is done again by this thread. The channel keeps the buffers
//! of a late operation until the device has written its record, so nothing is freed under it.

use crate::digest::join;
use crate::engine::{DigestEngine, DoneBy, FinishedJob, Job, JobId, Segment, Shared, Work};
use crate::number_hasher::NumberMap;
use std::collections::VecDeque;
use telpher_mem::Slice;
use telpher_mover::{Channel, CrcMode, Finished, Outcome, Rejected, Ticket, Via};
use telpher_ops::Hint;
use telpher_ops::crc::{copy_crc32c, crc32c};

/// The mover's channel for digests: sources are parts of shared bytes, destinations are blocks.
pub type DigestChannel = Channel<Slice<Shared>, Vec<u8>>;

/// Jobs of fewer bytes are done by the CPU. Source: assumed; a submission costs about as much as the CRC of 4 KiB on
/// the CPU.
pub const DEFAULT_SHORTEST: usize = 8192;

/// A job whose operations are under way.
#[derive(Debug)]
struct Running {
    id: JobId,
    work: RunningWork,
    /// The digest of each part, in the order of the bytes.
    digests: Vec<Option<u32>>,
    missing: usize,
    by: DoneBy,
}

#[derive(Debug)]
enum RunningWork {
    Digest(Vec<Segment>),
    Place { source: Shared, block_bytes: usize, blocks: Vec<Option<Vec<u8>>> },
}

impl RunningWork {
    /// The bytes of a part.
    fn segment(&self, part: usize) -> Segment {
        match self {
            RunningWork::Digest(segments) => segments[part].clone(),
            RunningWork::Place { source, block_bytes, .. } => {
                let start = part * block_bytes;
                let end = source.len().min(start + block_bytes);
                Segment { bytes: Shared::clone(source), range: start..end }
            }
        }
    }
}

/// Computes on a device.
#[derive(Debug)]
pub struct DeviceEngine {
    channel: DigestChannel,
    shortest: usize,
    /// Jobs by their number.
    running: NumberMap<u64, Running>,
    next: u64,
    /// The job and the part of each operation.
    operations: NumberMap<Ticket, (u64, usize)>,
    done: VecDeque<FinishedJob>,
    finished: Vec<Finished<Slice<Shared>, Vec<u8>>>,
}

impl DeviceEngine {
    /// An engine on a channel. Jobs of fewer than `shortest` bytes are done by the CPU. The channel should report
    /// operations in the order of arrival, and have a deadline, so that no host waits for a device without bound.
    #[must_use]
    pub fn new(channel: DigestChannel, shortest: usize) -> DeviceEngine {
        DeviceEngine {
            channel,
            shortest,
            running: NumberMap::default(),
            next: 0,
            operations: NumberMap::default(),
            done: VecDeque::new(),
            finished: Vec::new(),
        }
    }

    /// Prepares the operation of one part. If the channel has no room, this thread does it.
    fn start_part(&mut self, number: u64, part: usize) {
        let Some(running) = self.running.get_mut(&number) else { return };
        let segment = running.work.segment(part);
        let block = match &mut running.work {
            RunningWork::Digest(_) => None,
            RunningWork::Place { blocks, .. } => blocks[part].take(),
        };
        let len = segment.range.len();
        let source = Slice::new(Shared::clone(&segment.bytes), segment.range.clone());
        let Ok(source) = source else { unreachable!("a segment lies in its bytes") };
        let taken = match block {
            None => self.channel.crc(source, 0, CrcMode::default()),
            Some(block) if block.len() == len => self.channel.copy_crc(source, block, 0, CrcMode::default()),
            // A part that does not fill its block.
            Some(block) => return self.redo(number, part, Some(block)),
        };
        match taken {
            Ok(ticket) => {
                self.operations.insert(ticket, (number, part));
            }
            Err(Rejected { buffers, .. }) => self.redo(number, part, buffers.dst),
        }
    }

    /// Does one part on this thread. `block` is the part's block, if the channel has given it back.
    fn redo(&mut self, number: u64, part: usize, block: Option<Vec<u8>>) {
        let Some(running) = self.running.get_mut(&number) else { return };
        let segment = running.work.segment(part);
        let bytes = segment.as_slice();
        let digest = match &mut running.work {
            RunningWork::Digest(_) => crc32c(0, bytes, CrcMode::default()),
            RunningWork::Place { block_bytes, blocks, .. } => {
                // The device may still write the old block if the channel has not given it back.
                let mut block = block.unwrap_or_else(|| vec![0; *block_bytes]);
                let digest = copy_crc32c(bytes, &mut block[..bytes.len()], 0, CrcMode::default(), Hint::Cache);
                blocks[part] = Some(block);
                digest
            }
        };
        running.by = DoneBy::Fallback;
        self.part_done(number, part, digest);
    }

    /// Takes the result of an operation.
    fn operation_done(&mut self, finished: Finished<Slice<Shared>, Vec<u8>>) {
        let Some((number, part)) = self.operations.remove(&finished.ticket) else { return };
        let block = finished.buffers.and_then(|buffers| buffers.dst);
        let Ok(Outcome::Crc(digest)) = finished.result else { return self.redo(number, part, block) };
        let Some(running) = self.running.get_mut(&number) else { return };
        if let RunningWork::Place { blocks, .. } = &mut running.work {
            let Some(block) = block else { return self.redo(number, part, None) };
            blocks[part] = Some(block);
        }
        if finished.via != Via::Device {
            running.by = DoneBy::Fallback;
        }
        self.part_done(number, part, digest);
    }

    fn part_done(&mut self, number: u64, part: usize, digest: u32) {
        let Some(running) = self.running.get_mut(&number) else { return };
        running.digests[part] = Some(digest);
        running.missing -= 1;
        if running.missing > 0 {
            return;
        }
        let Some(running) = self.running.remove(&number) else { return };
        let digest = (0..)
            .zip(&running.digests)
            .fold(0, |seed, (part, digest)| join(seed, digest.unwrap_or(0), running.work.segment(part).range.len()));
        let work = match running.work {
            RunningWork::Digest(segments) => Work::Digest(segments),
            RunningWork::Place { source, blocks, .. } => {
                Work::Place { source, blocks: blocks.into_iter().flatten().collect() }
            }
        };
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
        let (work, parts) = match work {
            Work::Digest(segments) => {
                let parts = segments.len();
                (RunningWork::Digest(segments), parts)
            }
            Work::Place { source, blocks } => {
                let (block_bytes, parts) = (blocks.first().map_or(0, Vec::len), blocks.len());
                let blocks = blocks.into_iter().map(Some).collect();
                (RunningWork::Place { source, block_bytes, blocks }, parts)
            }
        };
        let number = self.next;
        self.next += 1;
        let running = Running { id, work, digests: vec![None; parts], missing: parts, by: DoneBy::Device };
        self.running.insert(number, running);
        for part in 0..parts {
            self.start_part(number, part);
        }
    }

    fn submit(&mut self) {
        self.channel.submit();
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
        self.running.len() + self.done.len()
    }
}
