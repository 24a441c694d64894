//! I/O commands: what they need and what they do to a namespace.
//!
//! ```text
//! command ─► Plan::of (checks, no side effect) ─► data from the host ─► Task::lock, Task::begin ─► Step
//!                                                                  … Task::resume, Task::computed ─► Step
//! ```
//!
//! A command that takes several requests of the backend, or work of an engine (Compare, Copy, protected namespaces), is
//! a [`Task`], which is resumed with each result.
//!
//! Source: NVM Command Set 1.0 §3.2, §3.3.

use crate::command::{FUSED, FUSED_FIRST, FUSED_SECOND, Submission, io};
use crate::engine::{JobId, Segments};
use crate::limits::{Limits, MOST_COPY_RANGES};
use crate::loops::Loops;
use crate::namespace::Namespace;
use crate::protection::{Operation, Protection, ProtectionWork};
use crate::range_lock::Hold;
use crate::status::Status;
use crate::storage::{ByteRange, Piece, Started, StorageRequest, StorageResult, joined, merged};
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
        // The only fused pair is Compare and Write.
        match (command.flags & FUSED, action) {
            (0, _) | (FUSED_FIRST, Action::Compare) | (FUSED_SECOND, Action::Write) => {}
            _ => return Err(Status::INVALID_FIELD.do_not_retry()),
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

    /// Returns whether this command and `second` may be a fused pair: they are for the same blocks.
    #[must_use]
    pub fn is_pair_with(&self, second: &Plan) -> bool {
        let blocks = (self.start, self.len) == (second.start, second.len);
        blocks && Arc::ptr_eq(&self.namespace, &second.namespace)
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

    /// Executes a read whose data is in memory and needs no check, unless a command that must be alone has its blocks.
    #[must_use]
    pub fn read_at_once(&self) -> Option<StorageResult> {
        if self.action != Action::Read || self.namespace.options().protection.is_some() {
            return None;
        }
        // An exclusive command that begins now changes the blocks before the read or after it, since the backend reads
        // them in one step.
        if self.namespace.range_lock().has_exclusive() {
            return None;
        }
        self.namespace.options().storage.read_at_once(self.start, self.len)
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
    /// Other work goes first; then resume the task with an empty success.
    Yielding,
    /// An engine has to do this; give the finished work to [`Task::computed`].
    Computing(ProtectionWork),
    /// The command has ended. A successful read has data.
    Ended(StorageResult),
}

/// A command under execution.
#[derive(Debug)]
pub struct Task {
    plan: Plan,
    id: JobId,
    data: Vec<Piece>,
    /// What is still to be copied or cleared, as first byte and length; the last is the next.
    rest: Vec<ByteRange>,
    /// Copy: where the next bytes go.
    destination: u64,
    /// The first byte of the read that is under way; `None` for other requests.
    reading: Option<u64>,
    /// The first byte of the write whose data is being protected.
    writing: u64,
    /// The Write of a fused pair and its data, until the Compare has succeeded.
    second: Option<Box<(Plan, Vec<Piece>)>>,
    /// The task's part of the namespace's lock.
    hold: Option<Hold>,
    /// Requests of the backend that were started.
    requests: u32,
}

impl Task {
    /// A command whose data has arrived; `data` is in the order of the blocks. `second` is the Write of a fused pair.
    #[must_use]
    pub fn new(plan: Plan, id: JobId, data: Vec<Piece>, second: Option<(Plan, Vec<Piece>)>) -> Task {
        Task {
            destination: plan.start,
            plan,
            id,
            data,
            rest: Vec::new(),
            reading: None,
            writing: 0,
            second: second.map(Box::new),
            hold: None,
            requests: 0,
        }
    }

    /// Takes the namespace's lock. Returns whether the command may begin now. If it may not, `loops` gets an answer for
    /// its number when it may.
    #[must_use]
    pub fn lock(&mut self, loops: &Arc<Loops>) -> bool {
        let Plan { namespace, start, len, action, .. } = &self.plan;
        let (hold, may_begin) = match action {
            Action::Flush | Action::Nothing => return true,
            _ if self.second.is_some() => namespace.range_lock().exclusive(self.id, loops, vec![(*start, *len)]),
            _ if self.may_tear() => namespace.range_lock().exclusive(self.id, loops, self.ranges()),
            _ => namespace.range_lock().shared(self.id, loops, || self.ranges()),
        };
        self.hold = Some(hold);
        may_begin
    }

    /// Returns whether another command could find a part of what this one does to a stored block: a tuple that does not
    /// match its data. Two writes could leave such a block.
    fn may_tear(&self) -> bool {
        let options = self.plan.namespace.options();
        let is_torn = match self.plan.action {
            Action::Write | Action::Copy => !options.storage.has_atomic_writes(),
            // Memory clears many blocks in several steps.
            Action::WriteZeroes | Action::Deallocate => true,
            _ => false,
        };
        options.protection.is_some() && is_torn
    }

    /// All bytes that the command uses; none if its list is invalid, because it will fail.
    fn ranges(&self) -> Vec<ByteRange> {
        match self.plan.action {
            Action::Deallocate => self.dsm_ranges().unwrap_or_default(),
            Action::Copy => {
                let mut ranges = self.copy_ranges().unwrap_or_default();
                let total = ranges.iter().map(|(_, len)| len).sum();
                ranges.push((self.plan.start, total));
                ranges
            }
            _ => vec![(self.plan.start, self.plan.len)],
        }
    }

    /// Returns whether no request of the backend was started.
    #[must_use]
    pub fn is_unstarted(&self) -> bool {
        self.requests == 0
    }

    /// Takes the first request back from the backend. Returns whether the task has had no effect and has no answer.
    #[must_use]
    pub fn cancel(&self) -> bool {
        self.requests == 1 && self.plan.namespace.options().storage.cancel(self.id)
    }

    /// Frees the data of a task that will not go on. The caller keeps the task until the backend has answered, and so
    /// its part of the lock.
    #[must_use]
    pub fn without_data(mut self) -> Task {
        self.data.clear();
        self
    }

    /// The statuses of both commands of a fused pair of which the last step had this status.
    #[must_use]
    pub fn pair_statuses(&self, last: Status) -> (Status, Status) {
        if self.second.is_some() { (last, Status::FAILED_FUSED) } else { (Status::SUCCESS, last) }
    }

    /// Begins the execution.
    pub fn begin(&mut self) -> Step {
        let Plan { start, len, .. } = self.plan;
        let request = match self.plan.action {
            Action::Flush => StorageRequest::Flush,
            Action::Read | Action::Compare | Action::Verify => StorageRequest::Read { start, len },
            Action::Write => {
                let pieces = std::mem::take(&mut self.data);
                return self.write(start, pieces);
            }
            Action::WriteZeroes => return self.clear(vec![(start, len)]),
            Action::Nothing => return Step::Ended(Ok(Segments::new())),
            Action::Deallocate => match self.dsm_ranges() {
                Ok(ranges) => return self.clear(ranges),
                Err(status) => return Step::Ended(Err(status)),
            },
            Action::Copy => match self.copy_ranges() {
                Ok(sources) => {
                    self.rest = sources;
                    return self.advance(Segments::new());
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

    /// The most bytes of the buffers that the execution fills: what the backend reads, and what an engine makes of it.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        let is_protected = self.plan.namespace.options().protection.is_some();
        let len = match self.plan.action {
            Action::Read | Action::Compare | Action::Verify => self.plan.len,
            // One range after the other is copied.
            Action::Copy => self.copy_ranges().iter().flatten().map(|(_, len)| *len).max().unwrap_or(0),
            Action::Write if is_protected => self.plan.len,
            _ => 0,
        };
        // Blocks with and without tuples are in two buffers. The data of a write is counted where it was received.
        let buffers = if is_protected && self.plan.action != Action::Write { 2 } else { 1 };
        usize::try_from(len * buffers).unwrap_or(usize::MAX)
    }

    /// Writes data, after tuples were inserted if the namespace is protected.
    fn write(&mut self, start: u64, pieces: Vec<Piece>) -> Step {
        match self.plan.namespace.options().protection {
            Some(protection) => {
                self.writing = start;
                self.protect(protection, Operation::Insert, start, pieces)
            }
            None => self.request(StorageRequest::Write { start, pieces, force: self.plan.force }),
        }
    }

    fn protect(&self, protection: Protection, operation: Operation, start: u64, pieces: Vec<Piece>) -> Step {
        let block_bytes = self.plan.namespace.block_bytes();
        Step::Computing(protection.work(operation, joined(pieces), block_bytes, start / block_bytes))
    }

    /// Goes on with work that an engine has done.
    pub fn computed(&mut self, work: ProtectionWork) -> Step {
        let operation = work.operation();
        match work.into_result() {
            Err(status) => Step::Ended(Err(status)),
            Ok(stored) if operation == Operation::Insert => {
                let (start, pieces) = (self.writing, vec![Piece::Bytes(stored)]);
                self.request(StorageRequest::Write { start, pieces, force: self.plan.force })
            }
            Ok(data) => self.advance(Segments::from([data])),
        }
    }

    fn request(&mut self, request: StorageRequest) -> Step {
        self.reading = match &request {
            StorageRequest::Read { start, .. } => Some(*start),
            _ => None,
        };
        self.requests += 1;
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
        match (self.reading.take(), self.plan.namespace.options().protection) {
            (Some(start), Some(protection)) => {
                let is_verify = self.plan.action == Action::Verify;
                let operation = if is_verify { Operation::Check } else { Operation::Strip };
                let pieces = segments.into_iter().map(Piece::Bytes).collect();
                self.protect(protection, operation, start, pieces)
            }
            _ => self.advance(segments),
        }
    }

    /// Goes on after a request; `segments` is the data of a read.
    fn advance(&mut self, segments: Segments) -> Step {
        match self.plan.action {
            Action::Read => Step::Ended(Ok(segments)),
            Action::Compare => {
                let expected = segments.iter().flat_map(|segment| segment.as_slice());
                let given = self.data.iter().flat_map(|piece| piece.slices()).flatten();
                if !expected.eq(given) {
                    return Step::Ended(Err(Status::COMPARE_FAILURE));
                }
                match self.second.take() {
                    Some(second) => {
                        (self.plan, self.data) = *second;
                        self.begin()
                    }
                    None => Step::Ended(Ok(Segments::new())),
                }
            }
            Action::Copy => self.copy_on(segments),
            Action::WriteZeroes | Action::Deallocate if !self.rest.is_empty() => self.clear_on(),
            _ => Step::Ended(Ok(Segments::new())),
        }
    }

    /// Clears ranges: at once, or in several steps if the backend clears while it is asked.
    fn clear(&mut self, ranges: Vec<ByteRange>) -> Step {
        self.rest = match self.plan.namespace.options().storage.longest_clear() {
            // A range that is named several times is cleared once.
            Some(_) => merged(&ranges),
            None => ranges,
        };
        self.rest.reverse();
        self.clear_on()
    }

    /// Clears as much of the rest as the backend may clear in one step.
    fn clear_on(&mut self) -> Step {
        let mut room = self.plan.namespace.options().storage.longest_clear().unwrap_or(u64::MAX);
        let mut ranges = Vec::new();
        while room > 0
            && let Some((start, len)) = self.rest.pop()
        {
            let now = len.min(room);
            if now < len {
                self.rest.push((start + now, len - now));
            }
            ranges.push((start, now));
            room -= now;
        }
        let request = match (self.plan.action, ranges.first()) {
            (Action::WriteZeroes, Some(&(start, len))) => {
                StorageRequest::WriteZeroes { start, len, force: self.plan.force }
            }
            _ => StorageRequest::Deallocate { ranges },
        };
        self.requests += 1;
        match self.plan.namespace.start(self.id, request) {
            Started::Later => Step::Waiting,
            Started::Done(Ok(_)) if !self.rest.is_empty() => Step::Yielding,
            Started::Done(result) => Step::Ended(result),
        }
    }

    /// Writes what a Copy has read, or reads its next source.
    fn copy_on(&mut self, segments: Segments) -> Step {
        if segments.is_empty() {
            return match self.rest.pop() {
                Some((start, len)) => self.request(StorageRequest::Read { start, len }),
                None => Step::Ended(Ok(segments)),
            };
        }
        let start = self.destination;
        let pieces: Vec<_> = segments.into_iter().map(Piece::Bytes).collect();
        self.destination += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        self.write(start, pieces)
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

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.plan.namespace.range_lock().leave(hold);
        }
    }
}

/// `N` bytes of an entry.
fn field<const N: usize>(entry: &[u8], offset: usize) -> [u8; N] {
    entry[offset..offset + N].try_into().expect("entries are longer")
}
