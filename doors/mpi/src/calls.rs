//! Takes a call, or leaves it to the MPI.
//!
//! All ranks must decide the same. So a call is taken because of what MPI requires to be the same on all ranks: its
//! length in bytes, its root, and for reductions the type and the operation. The types of Bcast and Allgather may
//! differ between the ranks, if only their lengths agree.

use crate::abi::Handle;
use crate::communicators::{Carrier, carrier, decide, lock};
use crate::counters::{COUNTERS, Operation};
use crate::log;
use crate::symbols::{Items, Mpi, MpiError};
use std::ffi::c_int;
use telpher_fabric::collective::{Group, GroupError, Reduction};
use telpher_fabric::{Buffer, Number};

/// Shorter calls stay with the MPI. Source: assumed.
const LEAST_BYTES: u64 = 4 << 10;
/// Longer calls of Bcast and Allgather stay with the MPI: functions that pack count bytes as `int`. Source: chosen.
const MOST_BYTES: u64 = 1 << 30;

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It was done, or failed with an error number.
    Taken(c_int),
    /// The MPI shall do it.
    Left,
}

/// Lends a range of the program's memory to a group.
pub(crate) type Lend = fn(address: usize, len: u64) -> Buffer;

/// One call of the program, on a communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) mpi: &'a Mpi,
    pub(crate) communicator: Handle,
    pub(crate) lend: Lend,
}

/// Why a call that was taken failed.
#[derive(Debug)]
enum CallError {
    Group(GroupError),
    Mpi(MpiError),
}

impl From<GroupError> for CallError {
    fn from(error: GroupError) -> CallError {
        CallError::Group(error)
    }
}

impl From<MpiError> for CallError {
    fn from(error: MpiError) -> CallError {
        CallError::Mpi(error)
    }
}

impl Call<'_> {
    /// `MPI_Allreduce`.
    pub(crate) fn all_reduce(self, from: usize, to: usize, count: i64, kind: (Handle, Handle)) -> Outcome {
        let Some((kind, len)) = self.reducible(count, kind) else { return Outcome::Left };
        self.run(
            Operation::AllReduce,
            |_| true,
            |group, idle| {
                let to = (self.lend)(to, len);
                let from = if from == self.mpi.abi.in_place { to } else { (self.lend)(from, len) };
                Ok(group.all_reduce(kind, from, to, idle)?)
            },
        )
    }

    /// `MPI_Reduce`.
    pub(crate) fn reduce(self, from: usize, to: usize, count: i64, kind: (Handle, Handle), root: c_int) -> Outcome {
        let Some((kind, len)) = self.reducible(count, kind) else { return Outcome::Left };
        let Ok(root) = usize::try_from(root) else { return Outcome::Left };
        self.run(
            Operation::Reduce,
            |group| root < group.ranks(),
            |group, idle| {
                let to = (group.rank() == root).then(|| (self.lend)(to, len));
                let from = match to {
                    Some(to) if from == self.mpi.abi.in_place => to,
                    _ => (self.lend)(from, len),
                };
                Ok(group.reduce(kind, root, from, to, idle)?)
            },
        )
    }

    /// `MPI_Bcast`.
    pub(crate) fn broadcast(self, items: Items, root: c_int) -> Outcome {
        let Some(len) = self.len(items) else { return Outcome::Left };
        let Ok(root) = usize::try_from(root) else { return Outcome::Left };
        if !(LEAST_BYTES..=MOST_BYTES).contains(&len) {
            return Outcome::Left;
        }
        self.run(
            Operation::Broadcast,
            |group| root < group.ranks(),
            |group, idle| {
                if self.is_contiguous(items) {
                    return Ok(group.broadcast(root, (self.lend)(items.address, len), idle)?);
                }
                let mut bytes = room(len);
                if group.rank() == root {
                    self.mpi.pack(items, &mut bytes, self.communicator)?;
                }
                group.broadcast(root, self.lend_own(&mut bytes), idle)?;
                if group.rank() != root {
                    self.mpi.unpack(&bytes, items, self.communicator)?;
                }
                Ok(())
            },
        )
    }

    /// `MPI_Allgather`. The counts of `to` are those of one rank.
    pub(crate) fn all_gather(self, from: Items, to: Items) -> Outcome {
        let Some(len) = self.len(to) else { return Outcome::Left };
        let is_in_place = from.address == self.mpi.abi.in_place;
        // A wrong program sends another length than it receives. Then the group fails on all ranks.
        let Some(sent) = (if is_in_place { Some(len) } else { self.len(from) }) else { return Outcome::Left };
        // The number of ranks is the same on all.
        let fits = |group: &Group| len.saturating_mul(group.ranks() as u64) <= MOST_BYTES;
        if len < LEAST_BYTES {
            return Outcome::Left;
        }
        self.run(Operation::AllGather, fits, |group, idle| {
            let (rank, ranks) = (group.rank() as u64, group.ranks() as u64);
            let mut gathered = Vec::new();
            let all = if self.is_contiguous(to) {
                (self.lend)(to.address, len * ranks)
            } else {
                gathered = room(len * ranks);
                self.lend_own(&mut gathered)
            };
            let mut packed = Vec::new();
            let own = if is_in_place && self.is_contiguous(to) {
                all.part(rank * len, len)
            } else if is_in_place {
                // The place of this rank in an array of the derived type.
                let distance = self.mpi.type_extent(to.data_type)?.wrapping_mul(to.count);
                let offset = distance.wrapping_mul(i64::try_from(rank).unwrap_or(0)).cast_unsigned();
                let offset = usize::try_from(offset).unwrap_or(0);
                let place = Items { address: to.address.wrapping_add(offset), ..to };
                self.packed(place, len, &mut packed)?
            } else if self.is_contiguous(from) {
                (self.lend)(from.address, sent)
            } else {
                self.packed(from, sent, &mut packed)?
            };
            group.all_gather(own, all, idle)?;
            if !gathered.is_empty() {
                let count = to.count.saturating_mul(i64::try_from(ranks).unwrap_or(i64::MAX));
                self.mpi.unpack(&gathered, Items { count, ..to }, self.communicator)?;
            }
            Ok(())
        })
    }

    /// Returns what a reduction does, and its length, if it may be taken.
    fn reducible(&self, count: i64, (data_type, operation): (Handle, Handle)) -> Option<((Reduction, Number), u64)> {
        let number = self.mpi.abi.basic(data_type)?.number?;
        let reduction = self.mpi.abi.reduction(operation)?;
        let len = u64::try_from(count).ok()?.checked_mul(number.bytes())?;
        let is_taken = reduction.applies_to(number) && len >= LEAST_BYTES;
        (is_taken && !self.mpi.abi.are_null(self.communicator, data_type)).then_some(((reduction, number), len))
    }

    /// Returns the bytes of the elements; `None` if the MPI refuses the arguments.
    fn len(&self, items: Items) -> Option<u64> {
        if self.mpi.abi.are_null(self.communicator, items.data_type) {
            return None;
        }
        let count = u64::try_from(items.count).ok()?;
        let size = match self.mpi.abi.basic(items.data_type) {
            Some(basic) => basic.bytes,
            // Without elements, nothing is asked.
            None if count == 0 => 0,
            None => self.mpi.type_size(items.data_type).ok()?,
        };
        count.checked_mul(size)
    }

    /// Returns whether the elements are known to lie next to each other.
    fn is_contiguous(&self, items: Items) -> bool {
        self.mpi.abi.basic(items.data_type).is_some()
    }

    /// Packs elements into bytes that a group reads.
    fn packed(&self, items: Items, len: u64, into: &mut Vec<u8>) -> Result<Buffer, MpiError> {
        *into = room(len);
        self.mpi.pack(items, into, self.communicator)?;
        Ok(self.lend_own(into))
    }

    /// Lends bytes of this library.
    fn lend_own(&self, bytes: &mut [u8]) -> Buffer {
        (self.lend)(bytes.as_mut_ptr().expose_provenance(), bytes.len() as u64)
    }

    /// Runs an operation on the communicator's group, if it has one that the operation fits.
    fn run(
        self,
        operation: Operation,
        fits: impl FnOnce(&Group) -> bool,
        run: impl FnOnce(&mut Group, &mut dyn FnMut()) -> Result<(), CallError>,
    ) -> Outcome {
        let shared = carrier(self.communicator);
        let mut carrier = lock(&shared);
        if matches!(*carrier, Carrier::Undecided) {
            match decide(self.mpi, self.communicator) {
                Ok(decided) => *carrier = decided,
                Err(MpiError(code)) => return Outcome::Taken(code),
            }
        }
        let Carrier::Group(group) = &mut *carrier else { return Outcome::Left };
        if !fits(group) {
            return Outcome::Left;
        }
        COUNTERS.count(operation, true);
        let mut idle = || self.mpi.progress(self.communicator);
        let copies_before = group.copies_by_device();
        let result = run(group, &mut idle);
        COUNTERS.copied(group.copies_by_device() - copies_before);
        match result {
            Ok(()) => Outcome::Taken(0),
            // The MPI has called the communicator's error handler.
            Err(CallError::Mpi(MpiError(code))) => Outcome::Taken(code),
            Err(CallError::Group(error)) => {
                let (rank, ranks) = (group.rank(), group.ranks());
                let name = operation.name();
                log::warn(format_args!("{name} failed on rank {rank} of a communicator of {ranks}: {error}"));
                // The error handler may free the communicator.
                drop(carrier);
                let code = self.mpi.abi.error_other;
                self.mpi.call_error_handler(self.communicator, code);
                Outcome::Taken(code)
            }
        }
    }
}

/// Returns zeroed bytes.
fn room(len: u64) -> Vec<u8> {
    vec![0; usize::try_from(len).unwrap_or(0)]
}
