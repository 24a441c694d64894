//! The memory that a descriptor uses: the ranges it reads and writes, its record and its list.

use telpher_abi::{COMPLETION_RECORD_BYTES, DESCRIPTOR_BYTES, Descriptor, Flags, Opcode, OperandId};
use telpher_model::{Action, overlaps};
use telpher_vdev_wire::event::Misuse;

/// The kind of access to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Data, read.
    Read,
    /// Data, written.
    Write,
    /// A completion record, written when the descriptor ends.
    Record,
    /// A batch's descriptors, read.
    List,
}

impl Kind {
    pub(super) fn writes(self) -> bool {
        matches!(self, Kind::Write | Kind::Record)
    }
}

/// A range of memory that a descriptor uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Use {
    pub(super) kind: Kind,
    pub(super) operand: OperandId,
    pub(super) address: u64,
    pub(super) len: u64,
}

impl Use {
    /// The bytes it shares with another range: address and length.
    pub(super) fn shared_with(&self, other: &Use) -> Option<(u64, u64)> {
        if !overlaps(self.address, self.len, other.address, other.len) {
            return None;
        }
        let first = self.address.max(other.address);
        // Ranges may wrap; there is no memory after the end of the address space.
        let end = |range: &Use| range.address.saturating_add(range.len);
        Some((first, end(self).min(end(other)) - first))
    }

    /// The misuse if `self` starts before `earlier` has ended, without any ordering between the two.
    pub(super) fn hazard(&self, earlier: &Use) -> Option<Misuse> {
        match (self.kind, earlier.kind) {
            (Kind::Record, Kind::Record) => Some(Misuse::RecordInUse),
            (new, old) if new.writes() && old.writes() => Some(Misuse::WriteAfterWrite),
            (new, _) if new.writes() => Some(Misuse::WriteAfterRead),
            (_, old) if old.writes() => Some(Misuse::ReadAfterWrite),
            _ => None,
        }
    }
}

/// The completion record that a descriptor names, whether it will be written or not.
pub(super) fn record_of(descriptor: &Descriptor) -> Option<Use> {
    let valid = descriptor.flags().contains(Flags::COMPLETION_RECORD_ADDRESS_VALID);
    valid.then(|| Use {
        kind: Kind::Record,
        operand: OperandId::CompletionRecord,
        address: descriptor.completion_address(),
        len: COMPLETION_RECORD_BYTES,
    })
}

/// All ranges of a descriptor that are checked; flushed cache lines and touched pages are not.
pub(super) fn uses_of(descriptor: &Descriptor) -> impl Iterator<Item = Use> {
    let list = (descriptor.opcode() == Opcode::Batch).then(|| Use {
        kind: Kind::List,
        operand: OperandId::Source1,
        address: descriptor.src(),
        len: u64::from(descriptor.size()) * DESCRIPTOR_BYTES,
    });
    let action = match Action::of(descriptor) {
        Action::Flush { .. } => Action::Nop,
        action => action,
    };
    let data = action.ranges().filter(|range| range.len > 0).map(|range| Use {
        kind: if range.write { Kind::Write } else { Kind::Read },
        operand: range.operand,
        address: range.address,
        len: range.len,
    });
    list.into_iter().chain(data).chain(record_of(descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(descriptor: Descriptor) -> Vec<(Kind, u64, u64)> {
        uses_of(&descriptor).map(|range| (range.kind, range.address, range.len)).collect()
    }

    #[test]
    fn every_kind_of_range_is_found() {
        let copy = Descriptor::memory_move(0x1000, 0x2000, 64).with_record(0x3000);
        assert_eq!(ranges(copy), [(Kind::Read, 0x1000, 64), (Kind::Write, 0x2000, 64), (Kind::Record, 0x3000, 32)]);
        assert_eq!(ranges(Descriptor::batch(0x4000, 3)), [(Kind::List, 0x4000, 192)]);
        assert_eq!(ranges(Descriptor::cache_flush(0x1000, 64)), []);
        assert_eq!(ranges(Descriptor::drain()), []);
        let delta = Descriptor::create_delta(0x1000, 0x2000, 64, 0x3000, 80);
        assert_eq!(ranges(delta), [(Kind::Read, 0x1000, 64), (Kind::Read, 0x2000, 64), (Kind::Write, 0x3000, 80)]);
    }

    #[test]
    fn two_reads_are_no_hazard() {
        let range = |kind| Use { kind, operand: OperandId::Unknown, address: 0, len: 1 };
        let hazard = |new, old| range(new).hazard(&range(old));
        assert_eq!(hazard(Kind::Read, Kind::Read), None);
        assert_eq!(hazard(Kind::Read, Kind::List), None);
        assert_eq!(hazard(Kind::Read, Kind::Write), Some(Misuse::ReadAfterWrite));
        assert_eq!(hazard(Kind::Write, Kind::List), Some(Misuse::WriteAfterRead));
        assert_eq!(hazard(Kind::Record, Kind::Write), Some(Misuse::WriteAfterWrite));
        assert_eq!(hazard(Kind::Record, Kind::Record), Some(Misuse::RecordInUse));
    }

    #[test]
    fn ranges_at_the_end_of_the_address_space_share_the_bytes_up_to_it() {
        let range = |address, len| Use { kind: Kind::Read, operand: OperandId::Unknown, address, len };
        assert_eq!(range(u64::MAX - 3, 100).shared_with(&range(u64::MAX - 1, 100)), Some((u64::MAX - 1, 1)));
        assert_eq!(range(0x1000, 64).shared_with(&range(0x1040, 64)), None);
        assert_eq!(range(0x1000, 65).shared_with(&range(0x1040, 64)), Some((0x1040, 1)));
    }
}
