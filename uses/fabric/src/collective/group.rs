//! The collective operations of a group.

use super::arithmetic::{Reduction, reduce_into};
use super::choice::{Choice, LEAST_BYTES};
use super::copies::{Copies, Then};
use super::counts::{Counts, MEMBER_WORDS, SLOTS, Stage, WrongCount, before};
use super::layout::{CHUNK_BYTES, FAILED, Layout};
use super::lock::MemberLock;
use crate::access::own_memory;
use crate::buffer::Buffer;
use crate::copier::{Copier, Copy, Direction};
use crate::number::Number;
use crate::stores::Stores;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use telpher_mem::{Fault, Local, SharedMapping, SharedWords64, Space, WriteHint};
use telpher_os::Lineage;

/// Bytes that are reduced at once. Source: measured; two such buffers fit in a first-level cache. A sum of 1 MiB over
/// two ranks of Open MPI took 0.93 of the time of blocks of 32 KiB with rewritten buffers, and 0.90 with still ones
/// (Intel Xeon, least of 150 short runs in turns, with other programs running). Each block costs a fence of its
/// streaming stores.
const BLOCK_BYTES: usize = 8 << 10;
/// Copies of at least this length may bypass the caches, since another member reads the bytes. Source: assumed, as for
/// messages ([`Config::streaming_bytes`](crate::Config::streaming_bytes)).
const STREAMING_BYTES: u64 = 8 << 10;
/// An AllReduce whose members read at most so many bytes in all is done by each member alone, which saves one wait.
/// Source: assumed.
const DIRECT_BYTES: u64 = 32 << 10;
/// The shortest chunk. Source: assumed; a shorter one takes less time to copy than to wait for.
const LEAST_CHUNK: u64 = 16 << 10;
/// Looks at a count before the thread lets others run. Source: chosen; about a microsecond.
const SPINS: u32 = 64;
/// How long a member waits before it looks whether the other one lives. Source: chosen.
const LOOK: Duration = Duration::from_millis(1);

/// Why an operation failed. The group cannot be used any more: the other members fail, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// A member has ended, or has left the group before all were done.
    #[error("rank {rank} has ended")]
    Ended {
        /// The member.
        rank: usize,
    },
    /// Another member has failed.
    #[error("another rank has failed; it says why")]
    Failed,
    /// An earlier operation of this member has failed.
    #[error("an earlier operation has failed")]
    Unusable,
    /// The members do not call the same operation.
    #[error("rank {rank} calls another operation, or with another length, type, reduction or root")]
    Different {
        /// The other member.
        rank: usize,
    },
    /// A member has written counts that cannot be.
    #[error("rank {rank} broke the protocol; its memory was overwritten")]
    Broken {
        /// The member.
        rank: usize,
    },
    /// A buffer cannot be accessed.
    #[error("the buffer at {address:#x} cannot be accessed")]
    BadBuffer {
        /// The first byte.
        address: u64,
    },
    /// The buffers do not have the lengths that the operation needs, or no rank is the root.
    #[error("the buffers do not have the lengths that the operation needs, or there is no such root")]
    WrongArguments,
    /// The kernel has no memory for the group's pages.
    #[error("the shared memory was lost")]
    LostMemory,
    /// The process was forked after it joined the group.
    #[error("the group belongs to the parent of this process")]
    Forked,
}

/// A member of a group.
///
/// All members call the same operations in the same order, with the same lengths. An operation returns when this
/// member's part is done. A member that waits calls `idle` from time to time, so that the caller can do other work that
/// another member may be waiting for; it must not call the group.
///
/// A member that ends makes the operations of the others fail within milliseconds. A member that is stopped, or that
/// calls late, does not. Dropping a group leaves it: what this member has published stays.
#[derive(Debug)]
pub struct Group {
    rank: usize,
    layout: Layout,
    mapping: Arc<SharedMapping>,
    /// The counts of each member.
    members: Vec<Counts<SharedWords64>>,
    /// The word that says that a member has failed.
    failed: SharedWords64,
    lock: MemberLock,
    /// Whether a member is in this process.
    is_here: Vec<bool>,
    memory: Local,
    /// What fills this member's slots, and its parts of results.
    stores: Stores,
    copies: Copies,
    /// Opens the device for the first operation that is long enough.
    open: Option<fn() -> Copier>,
    /// For each kind of operation, since each takes another time.
    choices: [Choice; KINDS],
    /// True if the device copies in this operation.
    uses_device: bool,
    /// Chunks of all operations that are over.
    done: u64,
    /// Chunks that this member has reduced.
    reduced: u64,
    is_usable: bool,
    created_in: Lineage,
    block: Vec<u8>,
    other: Vec<u8>,
}

/// What is the same in all members during an operation.
#[derive(Clone, Copy, Debug)]
struct Call {
    kind: Kind,
    /// Identifies the operation and its arguments.
    number: u64,
    len: u64,
    chunk: u64,
}

/// Operations, as their calls are numbered.
#[derive(Clone, Copy, Debug)]
enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
}

/// The number of kinds.
const KINDS: usize = Kind::AllGather as usize + 1;

impl Call {
    fn new(kind: Kind, root: usize, reduces: Option<(Reduction, Number)>, len: u64) -> Call {
        let reduces = reduces.map_or(0, |(reduction, number)| 1 + reduction as u64 * 16 + number as u64);
        // Distinct for all calls with less than 2^40 bytes.
        let number = ((kind as u64 * 64 + root as u64) * 256 + reduces) << 40 ^ len;
        // At least four chunks of a long message, so that the steps of several overlap.
        let chunk = (len / 4).next_multiple_of(LEAST_CHUNK).clamp(LEAST_CHUNK, CHUNK_BYTES);
        Call { kind, number, len, chunk }
    }

    fn chunks(&self) -> u64 {
        self.len.div_ceil(self.chunk)
    }

    /// Returns the bytes of a chunk.
    fn range(&self, chunk: u64) -> Range<u64> {
        // Cannot overflow: no buffer is longer than the address space.
        let start = chunk * self.chunk;
        start..(start + self.chunk).min(self.len)
    }
}

/// Returns the part of `len` bytes that a member reduces: whole cache lines, and so whole numbers.
fn part(len: u64, member: usize, members: usize) -> Range<u64> {
    let step = len.div_ceil(members as u64).next_multiple_of(64);
    let at = |member: usize| (member as u64 * step).min(len);
    at(member)..at(member + 1)
}

impl Group {
    pub(crate) fn new(
        rank: usize,
        layout: Layout,
        mapping: Arc<SharedMapping>,
        lock: MemberLock,
        is_here: Vec<bool>,
    ) -> Group {
        let words = |at: u64, count| {
            let at = usize::try_from(at).expect("x86-64: a usize has 64 bits");
            SharedWords64::new(&mapping, at, count).expect("the mapping is as long as its layout")
        };
        Group {
            rank,
            layout,
            members: (0..layout.members).map(|of| Counts::new(words(layout.counts(of), MEMBER_WORDS))).collect(),
            failed: words(FAILED, 1),
            lock,
            is_here,
            memory: own_memory(),
            stores: Stores::new(STREAMING_BYTES),
            copies: Copies::new(Copier::cpu()),
            open: None,
            choices: std::array::from_fn(|_| Choice::new()),
            uses_device: false,
            done: 0,
            reduced: 0,
            is_usable: true,
            created_in: Lineage::current(),
            block: vec![0; BLOCK_BYTES],
            other: vec![0; BLOCK_BYTES],
            mapping,
        }
    }

    /// Returns the number of this member.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of members.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.layout.members
    }

    /// Lets a device copy the chunks of longer operations, where this member measures that they take less time then.
    /// What the device refuses or leaves undone is copied by the CPU.
    ///
    /// An operation returns when the device has ended its copies. If the device does not answer any more, the channel
    /// gives its queue up after [`ChannelPolicy::limit`](telpher_mover::ChannelPolicy), and the CPU copies.
    pub fn copy_with(&mut self, copier: Copier) {
        self.copies = Copies::new(copier);
    }

    /// Like [`copy_with`](Group::copy_with), with what `open` returns. The first operation that is long enough for a
    /// device calls it.
    pub fn open_when_needed(&mut self, open: fn() -> Copier) {
        self.open = Some(open);
    }

    /// Returns how many copies the device has made.
    #[must_use]
    pub fn copies_by_device(&self) -> u64 {
        self.copies.by_device()
    }

    /// Reduces the `from` of all members into the `to` of each. `from` and `to` have the same length, and are disjoint
    /// or the same.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn all_reduce(
        &mut self,
        (reduction, number): (Reduction, Number),
        from: Buffer,
        to: Buffer,
        idle: &mut dyn FnMut(),
    ) -> Result<(), GroupError> {
        let call = Call::new(Kind::AllReduce, 0, Some((reduction, number)), from.len());
        let is_direct = from.len().saturating_mul(self.ranks() as u64) <= DIRECT_BYTES;
        self.run(&call, from.len() == to.len() && fits(&call, reduction, number), |group| {
            if is_direct {
                group.reduce_alone(&call, (reduction, number), from, to, idle)
            } else {
                group.reduce_parts(&call, (reduction, number), from, Some(to), true, idle)
            }
        })
    }

    /// Reduces the `from` of all members into the `to` of the root. The others have no `to`. `from` and `to` are as for
    /// [`all_reduce`](Group::all_reduce).
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn reduce(
        &mut self,
        (reduction, number): (Reduction, Number),
        root: usize,
        from: Buffer,
        to: Option<Buffer>,
        idle: &mut dyn FnMut(),
    ) -> Result<(), GroupError> {
        let call = Call::new(Kind::Reduce, root, Some((reduction, number)), from.len());
        let is_root = self.rank == root;
        let is_right = root < self.ranks() && to.is_some() == is_root && to.is_none_or(|to| to.len() == from.len());
        self.run(&call, is_right && fits(&call, reduction, number), |group| {
            group.reduce_parts(&call, (reduction, number), from, to, !is_root, idle)
        })
    }

    /// Copies the buffer of the root to the buffers of the others.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn broadcast(&mut self, root: usize, buffer: Buffer, idle: &mut dyn FnMut()) -> Result<(), GroupError> {
        let call = Call::new(Kind::Broadcast, root, None, buffer.len());
        self.run(&call, root < self.ranks(), |group| {
            for chunk in 0..call.chunks() {
                let bytes = call.range(chunk);
                let count = group.done + chunk;
                let is_root = group.rank == root;
                if is_root {
                    group.fill(&call, chunk, buffer, std::slice::from_ref(&(0..bytes.end - bytes.start)), idle)?;
                } else {
                    group.wait_filled(&call, root, count, idle)?;
                }
                // No slot of the others has bytes; their counts keep all stages in step.
                group.copies.begin(Direction::Out, count, if is_root { Then::Emptied } else { Then::EmptiedAll });
                if !is_root {
                    group.copy_out(buffer.address() + bytes.start, group.slot(root, count), &bytes)?;
                }
                group.end_copies(Direction::Out);
            }
            Ok(())
        })
    }

    /// Gathers the `from` of all members, by rank, in the `to` of each. `to` is as long as all `from` together. `from`
    /// and `to` are disjoint, or `from` is this member's place in `to`.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn all_gather(&mut self, from: Buffer, to: Buffer, idle: &mut dyn FnMut()) -> Result<(), GroupError> {
        let call = Call::new(Kind::AllGather, 0, None, from.len());
        let is_right = from.len().checked_mul(self.ranks() as u64) == Some(to.len());
        self.run(&call, is_right, |group| {
            let chunks = call.chunks();
            for step in 0..=chunks {
                if step < chunks {
                    let bytes = call.range(step);
                    group.fill(&call, step, from, std::slice::from_ref(&(0..bytes.end - bytes.start)), idle)?;
                }
                let Some(chunk) = step.checked_sub(1) else { continue };
                let (bytes, count) = (call.range(chunk), group.done + chunk);
                group.copies.begin(Direction::Out, count, Then::Emptied);
                for member in group.others() {
                    group.wait_filled(&call, member, count, idle)?;
                    let at = to.address() + member as u64 * call.len + bytes.start;
                    group.copy_out(at, group.slot(member, count), &bytes)?;
                }
                group.end_copies(Direction::Out);
            }
            let own = to.address() + group.rank as u64 * call.len;
            if own != from.address() {
                group.copy(own, from.address(), &(0..call.len), WriteHint::Cache)?;
            }
            Ok(())
        })
    }

    /// Runs an operation, and tells the others if it fails.
    fn run(
        &mut self,
        call: &Call,
        is_right: bool,
        operation: impl FnOnce(&mut Group) -> Result<(), GroupError>,
    ) -> Result<(), GroupError> {
        if !self.created_in.is_current() {
            return Err(GroupError::Forked);
        }
        if !self.is_usable {
            return Err(GroupError::Unusable);
        }
        if !is_right {
            return self.ended(Err(GroupError::WrongArguments));
        }
        if call.len >= LEAST_BYTES
            && let Some(open) = self.open.take()
        {
            self.copy_with(open());
        }
        self.uses_device = self.copies.has_device() && self.choices[call.kind as usize].next(call.len);
        let start = Instant::now();
        // The device must have left the caller's buffers before they are the caller's again, also if `idle` unwinds.
        let ended = catch_unwind(AssertUnwindSafe(|| operation(self).and_then(|()| self.finish_copies())));
        // The others learn of a failure before this member waits for its device, which may take long.
        let result = self.ended(*ended.as_ref().unwrap_or(&Err(GroupError::Failed)));
        self.copies.abandon();
        if let Err(panic) = ended {
            // The panic says more than the error.
            resume_unwind(panic);
        }
        if result.is_ok() {
            self.done += call.chunks();
            if self.copies.has_device() {
                self.choices[call.kind as usize].took(call.len, self.uses_device, start.elapsed());
            }
        }
        result
    }

    /// Ends an operation, and tells the others if it has failed.
    fn ended(&mut self, result: Result<(), GroupError>) -> Result<(), GroupError> {
        let result = result.and_then(|()| if self.mapping.is_whole() { Ok(()) } else { Err(GroupError::LostMemory) });
        if result.is_err() {
            self.is_usable = false;
            // Release: pairs with the Acquire in `wait`, for symmetry; no bytes follow from it.
            self.failed[0].store(1, Ordering::Release);
        }
        result
    }

    fn own(&self) -> &Counts<SharedWords64> {
        &self.members[self.rank]
    }

    /// Returns the other members, the next rank first, so that not all read the same slot at once.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.ranks());
        (1..ranks).map(move |distance| (rank + distance) % ranks)
    }

    fn slot(&self, member: usize, count: u64) -> u64 {
        self.mapping.address() + self.layout.slot(member, count)
    }

    fn result(&self, count: u64) -> u64 {
        self.mapping.address() + self.layout.result(count)
    }

    fn publish_reduced(&mut self, count: u64) {
        self.reduced = count;
        self.own().publish(Stage::Reduced, count);
    }

    /// Copies as many bytes as `bytes` has.
    fn copy(&self, to: u64, from: u64, bytes: &Range<u64>, hint: WriteHint) -> Result<(), GroupError> {
        self.memory.move_forward(to, from, bytes.end - bytes.start, hint).map_err(bad_buffer)
    }

    /// Starts to copy a part of a chunk to the caller's buffer.
    fn copy_out(&mut self, to: u64, from: u64, bytes: &Range<u64>) -> Result<(), GroupError> {
        let hint = WriteHint::Cache;
        let copy = Copy { dst: to, src: from, len: bytes.end - bytes.start, hint };
        if self.uses_device && self.copies.start(Direction::Out, copy) {
            return Ok(());
        }
        self.copy(to, from, bytes, hint)
    }

    /// All copies of a chunk are started.
    fn end_copies(&mut self, direction: Direction) {
        self.copies.end(direction);
        self.count_ended();
    }

    /// Counts the chunks whose copies have ended.
    fn count_ended(&mut self) {
        while let Some((chunk, then)) = self.copies.next_ended() {
            let count = chunk + 1;
            match then {
                Then::Filled { call } => self.own().publish_filled(call, count),
                Then::Taken => self.own().publish(Stage::Taken, count),
                Then::Emptied | Then::EmptiedAll => {
                    if then == Then::EmptiedAll {
                        self.own().publish(Stage::Filled, count);
                    }
                    self.publish_reduced(count);
                    self.own().publish(Stage::Taken, count);
                }
            }
        }
    }

    /// Takes note of what the device has done.
    #[inline]
    fn collect(&mut self) -> Result<(), GroupError> {
        if self.uses_device {
            self.copies.collect().map_err(bad_buffer)?;
            self.count_ended();
        }
        Ok(())
    }

    /// Waits until all chunks of an operation are counted.
    fn finish_copies(&mut self) -> Result<(), GroupError> {
        while self.copies.is_busy() {
            self.collect()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Copies parts of a chunk from the buffer to this member's slot, and publishes them.
    fn fill(
        &mut self,
        call: &Call,
        chunk: u64,
        from: Buffer,
        parts: &[Range<u64>],
        idle: &mut dyn FnMut(),
    ) -> Result<(), GroupError> {
        let count = self.done + chunk;
        for member in self.others() {
            self.wait(Stage::Reduced, member, before(count), idle)?;
        }
        let start = from.address() + call.range(chunk).start;
        self.copies.begin(Direction::In, count, Then::Filled { call: call.number });
        for part in parts {
            let (to, from) = (self.slot(self.rank, count) + part.start, start + part.start);
            let len = part.end - part.start;
            let copy = Copy { dst: to, src: from, len, hint: WriteHint::Cache };
            if self.uses_device && self.copies.start(Direction::In, copy) {
                continue;
            }
            let fill = self.stores.fill(len);
            self.copy(to, from, part, fill.hint)?;
            self.stores.filled(fill, len);
        }
        self.end_copies(Direction::In);
        Ok(())
    }

    /// Waits until a member has filled its slot for a chunk of this call.
    fn wait_filled(
        &mut self,
        call: &Call,
        member: usize,
        count: u64,
        idle: &mut dyn FnMut(),
    ) -> Result<(), GroupError> {
        self.wait(Stage::Filled, member, count + 1, idle)?;
        if self.members[member].call(count) == call.number {
            Ok(())
        } else {
            Err(GroupError::Different { rank: member })
        }
    }

    /// A short AllReduce: this member reduces everything itself.
    fn reduce_alone(
        &mut self,
        call: &Call,
        reduces: (Reduction, Number),
        from: Buffer,
        to: Buffer,
        idle: &mut dyn FnMut(),
    ) -> Result<(), GroupError> {
        for chunk in 0..call.chunks() {
            let (bytes, count) = (call.range(chunk), self.done + chunk);
            let len = bytes.end - bytes.start;
            self.fill(call, chunk, from, std::slice::from_ref(&(0..len)), idle)?;
            for member in self.others() {
                self.wait_filled(call, member, count, idle)?;
            }
            self.reduce_range(reduces, count, 0..len, from.address() + bytes.start, |group, at, block| {
                group.memory.write(to.address() + bytes.start + at, block, WriteHint::Cache).map_err(bad_buffer)
            })?;
            self.publish_reduced(count + 1);
            self.own().publish(Stage::Taken, count + 1);
        }
        Ok(())
    }

    /// A reduction whose work the members share. The results of this member's parts go into the memory if others need
    /// them.
    fn reduce_parts(
        &mut self,
        call: &Call,
        reduces: (Reduction, Number),
        from: Buffer,
        to: Option<Buffer>,
        is_shared: bool,
        idle: &mut dyn FnMut(),
    ) -> Result<(), GroupError> {
        let chunks = call.chunks();
        for step in 0..chunks + 2 {
            if step < chunks {
                let bytes = call.range(step);
                let len = bytes.end - bytes.start;
                let own = part(len, self.rank, self.ranks());
                self.fill(call, step, from, &[0..own.start, own.end..len], idle)?;
            }
            if let Some(chunk) = step.checked_sub(1).filter(|&chunk| chunk < chunks) {
                self.reduce_part(call, chunk, reduces, from, to, is_shared, idle)?;
            }
            if let Some(chunk) = step.checked_sub(2) {
                self.take(call, chunk, to, idle)?;
            }
        }
        Ok(())
    }

    /// Reduces this member's part of a chunk.
    #[allow(clippy::too_many_arguments, reason = "one step of one caller")]
    fn reduce_part(
        &mut self,
        call: &Call,
        chunk: u64,
        reduces: (Reduction, Number),
        from: Buffer,
        to: Option<Buffer>,
        is_shared: bool,
        idle: &mut dyn FnMut(),
    ) -> Result<(), GroupError> {
        let (bytes, count) = (call.range(chunk), self.done + chunk);
        for member in self.others() {
            self.wait_filled(call, member, count, idle)?;
            self.wait(Stage::Taken, member, before(count), idle)?;
        }
        // Chunks may be of different lengths, so this part may be another member's of the last chunk in the slot.
        while self.copies.is_emptying_before(before(count)) {
            self.collect()?;
            std::thread::yield_now();
        }
        let own = part(bytes.end - bytes.start, self.rank, self.ranks());
        self.reduce_range(reduces, count, own, from.address() + bytes.start, |group, at, block| {
            if let Some(to) = to {
                let to = to.address() + bytes.start + at;
                group.memory.write(to, block, WriteHint::Cache).map_err(bad_buffer)?;
            }
            if is_shared {
                let len = block.len() as u64;
                let fill = group.stores.fill(len);
                group.memory.write(group.result(count) + at, block, fill.hint).map_err(bad_buffer)?;
                group.stores.filled(fill, len);
            }
            Ok(())
        })?;
        self.publish_reduced(count + 1);
        Ok(())
    }

    /// Reduces a range of a chunk in blocks, by rank, and gives each block with its position in the chunk to `write`.
    fn reduce_range(
        &mut self,
        (reduction, number): (Reduction, Number),
        count: u64,
        range: Range<u64>,
        own: u64,
        mut write: impl FnMut(&mut Group, u64, &[u8]) -> Result<(), GroupError>,
    ) -> Result<(), GroupError> {
        let mut block = std::mem::take(&mut self.block);
        let mut other = std::mem::take(&mut self.other);
        let mut result = Ok(());
        let mut at = range.start;
        while at < range.end && result.is_ok() {
            let len = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(BLOCK_BYTES);
            let (block, other) = (&mut block[..len], &mut other[..len]);
            result = (0..self.ranks()).try_for_each(|member| {
                let source = if member == self.rank { own } else { self.slot(member, count) };
                // Copied first: a hostile member may change the bytes of its slot meanwhile.
                let into = if member == 0 { &mut *block } else { &mut *other };
                self.memory.read(source + at, into).map_err(bad_buffer)?;
                if member > 0 {
                    reduce_into(reduction, number, block, other);
                }
                Ok(())
            });
            result = result.and_then(|()| write(self, at, block));
            at += len as u64;
        }
        (self.block, self.other) = (block, other);
        result
    }

    /// Copies the parts of the other members' results, and counts the chunk as taken.
    fn take(&mut self, call: &Call, chunk: u64, to: Option<Buffer>, idle: &mut dyn FnMut()) -> Result<(), GroupError> {
        let (bytes, count) = (call.range(chunk), self.done + chunk);
        self.copies.begin(Direction::Out, count, Then::Taken);
        if let Some(to) = to {
            for member in self.others() {
                self.wait(Stage::Reduced, member, count + 1, idle)?;
                let part = part(bytes.end - bytes.start, member, self.ranks());
                let at = to.address() + bytes.start + part.start;
                self.copy_out(at, self.result(count) + part.start, &part)?;
            }
        }
        self.end_copies(Direction::Out);
        Ok(())
    }

    /// Returns whether a member has brought `needed` chunks to a stage.
    #[inline]
    fn has_come(&self, stage: Stage, member: usize, needed: u64) -> Result<bool, GroupError> {
        // A member may fill as many slots as it has, before this member has reduced the first of them. Every other
        // progress depends on chunks that are filled.
        let most = self.reduced + SLOTS as u64;
        let reached = self.members[member].reached(stage, needed, most);
        reached.map_err(|WrongCount| GroupError::Broken { rank: member })
    }

    /// Waits until a member has brought `needed` chunks to a stage. It may wait for chunks that the device copies.
    fn wait(&mut self, stage: Stage, member: usize, needed: u64, idle: &mut dyn FnMut()) -> Result<(), GroupError> {
        for _ in 0..SPINS {
            if self.has_come(stage, member, needed)? {
                return Ok(());
            }
            self.collect()?;
            std::hint::spin_loop();
        }
        let mut looked = Instant::now();
        loop {
            idle();
            self.collect()?;
            std::thread::yield_now();
            if self.has_come(stage, member, needed)? {
                return Ok(());
            }
            if looked.elapsed() < LOOK {
                continue;
            }
            // Acquire: pairs with the Release in `run`.
            let problem = if self.failed[0].load(Ordering::Acquire) != 0 {
                Some(GroupError::Failed)
            } else if !self.is_here[member] && !self.lock.is_held(member).unwrap_or(true) {
                Some(GroupError::Ended { rank: member })
            } else {
                None
            };
            if let Some(problem) = problem {
                // It may have come so far before it ended.
                return if self.has_come(stage, member, needed)? { Ok(()) } else { Err(problem) };
            }
            looked = Instant::now();
        }
    }
}

#[cfg(test)]
impl Group {
    /// Returns the counts of this member.
    pub(crate) fn own_counts(&self) -> &Counts<SharedWords64> {
        self.own()
    }

    /// Returns the words of this member's counts.
    pub(crate) fn own_words(&self) -> SharedWords64 {
        let at = usize::try_from(self.layout.counts(self.rank)).unwrap();
        SharedWords64::new(&self.mapping, at, MEMBER_WORDS).unwrap()
    }

    /// Lets the device copy in the next operation, if that is long enough.
    pub(crate) fn forget_times(&mut self) {
        self.choices = std::array::from_fn(|_| Choice::new());
    }

    /// True if a device may copy.
    pub(crate) fn has_device(&self) -> bool {
        self.copies.has_device()
    }

    /// Looks at the locks of members of this process, too.
    pub(crate) fn forget_that_members_are_here(&mut self) {
        self.is_here.fill(false);
    }
}

/// Returns whether numbers of this type fill the buffer, and can be reduced so.
fn fits(call: &Call, reduction: Reduction, number: Number) -> bool {
    call.len.is_multiple_of(number.bytes()) && reduction.applies_to(number)
}

fn bad_buffer(fault: Fault) -> GroupError {
    GroupError::BadBuffer { address: fault.address }
}
