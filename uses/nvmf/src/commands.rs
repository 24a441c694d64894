//! I/O commands: what they need and what they do to a namespace.
//!
//! ```text
//! command ─► Plan::of (checks, no side effect) ─► data from the host ─► Task::start ─► Step … Task::resume ─► Step
//! ```
//!
//! A command that takes several requests of the backend (Compare, Verify, Copy) is a [`Task`], which is resumed with
//! the result of each request.
//!
//! Source: NVM Command Set 1.0 §3.2, §3.3.

use crate::command::{FUSED, Submission, io};
use crate::engine::{JobId, Segment};
use crate::limits::{Limits, MOST_COPY_RANGES};
use crate::namespace::Namespace;
use crate::status::Status;
use crate::storage::{Piece, Started, StorageRequest, StorageResult};
use crate::subsystem::Subsystem;
use std::sync::Arc;
use telpher_mem::BlockRun;

/// Bytes of a range of Dataset Management.
const DSM_RANGE_BYTES: usize = 16;
/// Bytes of a source range of Copy, descriptor format 0.
const COPY_RANGE_BYTES: usize = 32;
/// FUA: force unit access.
const FORCE: u32 = 1 << 30;

/// What a checked command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Flush,
    Read,
    Write,
    Compare,
    WriteZeroes,
    Deallocate,
    /// Dataset Management without a request to deallocate: a hint.
    Nothing,
    Verify,
    Copy,
}

/// A checked command: it is allowed, and its blocks are in the namespace.
#[derive(Clone, Debug)]
pub struct Plan {
    action: Action,
    namespace: Arc<Namespace>,
    /// The first byte, and the number of bytes in the namespace.
    start: u64,
    len: u64,
    force: bool,
    /// Dataset Management and Copy: the number of ranges.
    ranges: usize,
    /// Copy: the blocks of the longest source range (MSSRL).
    longest_copy: u64,
    /// Bytes that the host sends.
    from_host: u32,
    /// Bytes that the host gets.
    to_host: u32,
}

impl Plan {
    /// Checks a command. `has_write_cache`: writes need not be forced to the medium.
    ///
    /// # Errors
    /// The status for the host.
    pub fn of(
        command: &Submission,
        subsystem: &Subsystem,
        limits: &Limits,
        has_write_cache: bool,
    ) -> Result<Plan, Status> {
        let action = match command.opcode {
            io::FLUSH => Action::Flush,
            io::READ => Action::Read,
            io::WRITE => Action::Write,
            io::COMPARE => Action::Compare,
            io::WRITE_ZEROES => Action::WriteZeroes,
            io::DATASET_MANAGEMENT if command.dword(11) & 1 << 2 != 0 => Action::Deallocate,
            io::DATASET_MANAGEMENT => Action::Nothing,
            io::VERIFY => Action::Verify,
            io::COPY => Action::Copy,
            _ => return Err(Status::INVALID_OPCODE.do_not_retry()),
        };
        if command.flags & FUSED != 0 {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let namespace = subsystem.namespace(command.nsid.get()).ok_or(Status::INVALID_NAMESPACE.do_not_retry())?;
        let writes = matches!(action, Action::Write | Action::WriteZeroes | Action::Deallocate | Action::Copy);
        if writes && namespace.options().is_read_only {
            return Err(Status::WRITE_PROTECTED.do_not_retry());
        }
        let force = !has_write_cache || command.dword(12) & FORCE != 0;
        let longest_copy = u64::from(limits.transfer_bytes) / namespace.block_bytes();
        let (start, len, ranges, from_host, to_host) = (0, 0, 0, 0, 0);
        let mut plan = Plan { action, namespace, start, len, force, ranges, longest_copy, from_host, to_host };
        let first = command.long(10);
        match action {
            Action::Flush => {}
            Action::Read | Action::Write | Action::Compare | Action::WriteZeroes | Action::Verify => {
                let blocks = u64::from(command.dword(12) & 0xffff) + 1;
                (plan.start, plan.len) = plan.namespace.bytes_of(first, blocks)?;
                if action == Action::Verify && plan.len > limits.transfer_bytes.into() {
                    return Err(Status::INVALID_FIELD.do_not_retry());
                }
                plan.take_data(command, limits)?;
            }
            Action::Deallocate | Action::Nothing => {
                plan.ranges = usize::from(command.dword(10).to_le_bytes()[0]) + 1;
                // Linux sends a whole page for one range.
                plan.take_list(command, DSM_RANGE_BYTES, limits)?;
            }
            Action::Copy => {
                let [ranges, format, ..] = command.dword(12).to_le_bytes();
                plan.ranges = usize::from(ranges) + 1;
                if format & 0xf != 0 {
                    return Err(Status::INVALID_FIELD.do_not_retry());
                }
                if plan.ranges > MOST_COPY_RANGES as usize {
                    return Err(Status::COPY_LIMIT.do_not_retry());
                }
                (plan.start, _) = plan.namespace.bytes_of(first, 0)?;
                plan.take_list(command, COPY_RANGE_BYTES, limits)?;
            }
        }
        Ok(plan)
    }

    /// Checks the data of a command that moves its blocks between host and controller.
    fn take_data(&mut self, command: &Submission, limits: &Limits) -> Result<(), Status> {
        let (Action::Read | Action::Write | Action::Compare) = self.action else { return Ok(()) };
        if self.len != u64::from(command.sgl_length.get()) {
            return Err(Status::DATA_LENGTH.do_not_retry());
        }
        if self.len > limits.transfer_bytes.into() {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let bytes = command.sgl_length.get();
        if self.action == Action::Read {
            self.to_host = bytes
        } else {
            self.from_host = bytes
        }
        Ok(())
    }

    /// Checks the data of a command with a list of ranges, which may be longer than the list.
    fn take_list(&mut self, command: &Submission, range_bytes: usize, limits: &Limits) -> Result<(), Status> {
        let bytes = command.sgl_length.get();
        if (bytes as usize) < self.ranges * range_bytes {
            return Err(Status::DATA_LENGTH.do_not_retry());
        }
        if bytes > limits.transfer_bytes {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        self.from_host = bytes;
        Ok(())
    }

    /// Bytes that the host sends.
    #[must_use]
    pub fn from_host(&self) -> u32 {
        self.from_host
    }

    /// Bytes that the host gets.
    #[must_use]
    pub fn to_host(&self) -> u32 {
        self.to_host
    }

    /// Free blocks for `len` bytes from `offset` of a write's data, if the backend has such blocks.
    #[must_use]
    pub fn place(&self, offset: u32, len: usize) -> Option<Vec<BlockRun>> {
        if self.action != Action::Write {
            return None;
        }
        self.namespace.place(self.start + u64::from(offset), len)
    }
}

/// What happens next.
#[derive(Debug)]
pub enum Step {
    /// The backend will answer later; resume the task with the answer.
    Waiting,
    /// The command has ended. A successful read has data.
    Ended(Result<Vec<Segment>, Status>),
}

/// A command under execution.
#[derive(Debug)]
pub struct Task {
    plan: Plan,
    id: JobId,
    data: Vec<Piece>,
    /// Copy: what is still to be copied, as first byte and length; the last is the next.
    sources: Vec<(u64, u64)>,
    /// Copy: where the next bytes go.
    destination: u64,
    /// Copy: the answer that is awaited is that of a write.
    is_writing: bool,
}

impl Task {
    /// Starts a command whose data has arrived; `data` is in the order of the blocks.
    #[must_use]
    pub fn start(plan: Plan, id: JobId, data: Vec<Piece>) -> (Task, Step) {
        let destination = plan.start;
        let mut task = Task { plan, id, data, sources: Vec::new(), destination, is_writing: false };
        let step = task.begin();
        (task, step)
    }

    fn begin(&mut self) -> Step {
        let Plan { start, len, force, .. } = self.plan;
        let request = match self.plan.action {
            Action::Flush => StorageRequest::Flush,
            Action::Read | Action::Compare | Action::Verify => StorageRequest::Read { start, len },
            Action::Write => StorageRequest::Write { start, pieces: std::mem::take(&mut self.data), force },
            Action::WriteZeroes => StorageRequest::WriteZeroes { start, len, force },
            Action::Nothing => return Step::Ended(Ok(Vec::new())),
            Action::Deallocate => match self.dsm_ranges() {
                Ok(ranges) => StorageRequest::Deallocate { ranges },
                Err(status) => return Step::Ended(Err(status)),
            },
            Action::Copy => match self.copy_ranges() {
                Ok(sources) => {
                    self.sources = sources;
                    return self.copy_next();
                }
                Err(status) => return Step::Ended(Err(status)),
            },
        };
        self.request(request)
    }

    /// Bytes that the host gets if the command succeeds.
    #[must_use]
    pub fn to_host(&self) -> u32 {
        self.plan.to_host
    }

    fn request(&mut self, request: StorageRequest) -> Step {
        match self.plan.namespace.start(self.id, request) {
            Started::Done(result) => self.resume(result),
            Started::Later => Step::Waiting,
        }
    }

    /// Goes on with the backend's answer.
    pub fn resume(&mut self, result: StorageResult) -> Step {
        let segments = match result {
            Ok(segments) => segments,
            Err(status) => return Step::Ended(Err(status)),
        };
        match self.plan.action {
            Action::Read => Step::Ended(Ok(segments)),
            Action::Compare => {
                let expected = segments.iter().flat_map(|segment| segment.as_slice());
                let given = self.data.iter().flat_map(|piece| piece.slices()).flatten();
                let result = if expected.eq(given) { Ok(Vec::new()) } else { Err(Status::COMPARE_FAILURE) };
                Step::Ended(result)
            }
            Action::Copy if self.is_writing => {
                self.is_writing = false;
                self.copy_next()
            }
            Action::Copy => {
                self.is_writing = true;
                let start = self.destination;
                let pieces: Vec<_> = segments.into_iter().map(Piece::Bytes).collect();
                self.destination += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
                self.request(StorageRequest::Write { start, pieces, force: self.plan.force })
            }
            _ => Step::Ended(Ok(Vec::new())),
        }
    }

    fn copy_next(&mut self) -> Step {
        match self.sources.pop() {
            Some((start, len)) => self.request(StorageRequest::Read { start, len }),
            None => Step::Ended(Ok(Vec::new())),
        }
    }

    /// The list of ranges that the host sent, as entries of `N` bytes.
    fn list<const N: usize>(&self) -> Vec<[u8; N]> {
        let bytes: Vec<u8> = self.data.iter().flat_map(Piece::slices).flatten().copied().collect();
        let (entries, _) = bytes.as_chunks::<N>();
        entries.iter().take(self.plan.ranges).copied().collect()
    }

    fn dsm_ranges(&self) -> Result<Vec<(u64, u64)>, Status> {
        let entries = self.list::<DSM_RANGE_BYTES>();
        let ranges = entries.iter().map(|entry| {
            let blocks = u32::from_le_bytes(field(entry, 4));
            self.plan.namespace.bytes_of(u64::from_le_bytes(field(entry, 8)), blocks.into())
        });
        ranges.collect()
    }

    /// The source ranges of Copy, in reverse order.
    fn copy_ranges(&self) -> Result<Vec<(u64, u64)>, Status> {
        let namespace = &self.plan.namespace;
        let entries = self.list::<COPY_RANGE_BYTES>();
        let sources: Result<Vec<_>, Status> = entries
            .iter()
            .rev()
            .map(|entry| {
                let blocks = u64::from(u16::from_le_bytes(field(entry, 16))) + 1;
                if blocks > self.plan.longest_copy {
                    return Err(Status::COPY_LIMIT.do_not_retry());
                }
                namespace.bytes_of(u64::from_le_bytes(field(entry, 8)), blocks)
            })
            .collect();
        let sources = sources?;
        let total: u64 = sources.iter().map(|(_, len)| len).sum();
        let first = self.plan.start / namespace.block_bytes();
        namespace.bytes_of(first, total / namespace.block_bytes())?;
        Ok(sources)
    }
}

/// `N` bytes of an entry.
fn field<const N: usize>(entry: &[u8], offset: usize) -> [u8; N] {
    entry[offset..offset + N].try_into().expect("entries are longer")
}
