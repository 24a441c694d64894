//! The legality checks: which descriptors a device refuses, and with what status. Source: SPEC §5.4, §8.1.3, §8.3,
//! Tables 5-3 to 5-5.
//!
//! The architecture lets a device check in any order. This model promises the order of [`Device::check`], so that a
//! descriptor with several errors has one answer. [`ROWS`] holds each operation's flags and reserved bits as a table;
//! the rest are the numbered [`Check`]s.

use crate::action::overlaps;
use crate::device::Device;
use crate::mutation;
use crate::wq::Submitter;
use telpher_abi::{
    DELTA_ENTRY_BYTES, DIF_TUPLE_BYTES, Descriptor, DifBlock, Flags, MAX_DELTA_TRANSFER, MIN_MAX_DELTA_RECORD, OpFlags,
    Opcode, Status,
};

/// One operation's row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) opcode: Opcode,
    /// Every flag bit that may be set.
    flags: u32,
    /// Flag bits that must be set.
    required: u32,
    /// Flag bits that need a capability: (flag, GENCAP bit).
    gates: &'static [(Flags, u32)],
    /// Bits that must be zero in every descriptor of the operation.
    reserved: [u64; 8],
    /// Traffic class selectors 1, 2, 3 that are in use in every descriptor of the operation.
    selectors: u32,
}

const RECORD: u32 = Flags::RECORD.bits();
const A1: u32 = Flags::ADDRESS_1_TC.bits();
const A2: u32 = Flags::ADDRESS_2_TC.bits();
const A3: u32 = Flags::ADDRESS_3_TC.bits();

/// Builds a mask of the bytes `first..=last` of each range, for reserved bits.
const fn bytes(ranges: &[(usize, usize)]) -> [u64; 8] {
    let mut words = [0; 8];
    let mut i = 0;
    while i < ranges.len() {
        let mut byte = ranges[i].0;
        while byte <= ranges[i].1 {
            words[byte / 8] |= 0xff << (8 * (byte % 8));
            byte += 1;
        }
        i += 1;
    }
    words
}

/// Adds single bits of one byte to a mask.
const fn and_bits(mut words: [u64; 8], byte: usize, bits: u8) -> [u64; 8] {
    words[byte / 8] |= (bits as u64) << (8 * (byte % 8));
    words
}

macro_rules! rows {
    ($($op:ident flags $flags:literal required $required:expr, gates $gates:expr, selectors $selectors:expr, reserved $reserved:expr;)*) => {
        /// Operations of 1.x. Flags and required flags: SPEC Table 5-5; reserved bytes: Tables 5-3, 5-4 and, for the
        /// CRC operations, §8.3.12, which the tables contradict; reserved bits inside bytes: §8.3.6, §8.3.8, §8.3.17.
        pub(crate) const ROWS: &[Row] = &[$(Row {
            opcode: Opcode::$op, flags: $flags, required: $required, gates: $gates, selectors: $selectors,
            reserved: $reserved,
        }),*];
    };
}

/// Reserved bits of Create Delta's expected-result mask, byte 56. Source: SPEC §8.3.8.
const RESULT_MASK_RESERVED: u8 = 0xf8;
const DRAIN_GATES: &[(Flags, u32)] = &[(OpFlags::READBACK_1, 9), (OpFlags::READBACK_2, 9)];
const CRC_GATES: &[(Flags, u32)] = &[(OpFlags::CRC64, 11)];

rows! {
    Nop flags 0x00101d required 0, gates &[], selectors 0, reserved bytes(&[(16, 35), (38, 63)]);
    Batch flags 0x01121c required 0, gates &[(OpFlags::BATCH_ERROR, 15)], selectors A1,
        reserved bytes(&[(24, 31), (38, 63)]);
    Drain flags 0x0f161c required 0, gates DRAIN_GATES, selectors 0, reserved bytes(&[(32, 35), (38, 63)]);
    MemoryMove flags 0x00771f required 0, gates &[], selectors A1 | A2, reserved bytes(&[(38, 63)]);
    Fill flags 0x04751f required 0, gates &[(OpFlags::FILL_16, 10)], selectors A2,
        reserved bytes(&[(38, 39), (48, 63)]);
    Compare flags 0x00169f required RECORD, gates &[], selectors A1 | A2,
        reserved and_bits(bytes(&[(38, 39), (41, 63)]), 40, 0xfe);
    ComparePattern flags 0x00129f required RECORD, gates &[], selectors A1,
        reserved and_bits(bytes(&[(38, 39), (41, 63)]), 40, 0xfe);
    CreateDelta flags 0x007f9f required RECORD, gates &[], selectors A1 | A2 | A3,
        reserved and_bits(bytes(&[(38, 39), (52, 55), (57, 63)]), 56, RESULT_MASK_RESERVED);
    ApplyDelta flags 0x00771f required 0, gates &[], selectors A1 | A2, reserved bytes(&[(38, 39), (44, 63)]);
    Dualcast flags 0x007f1f required 0, gates &[], selectors A1 | A2 | A3, reserved bytes(&[(38, 39), (48, 63)]);
    CrcGeneration flags 0x0f1a1f required RECORD, gates CRC_GATES, selectors A1,
        reserved bytes(&[(24, 31), (38, 39), (44, 47), (56, 63)]);
    CopyCrc flags 0x0f7f1f required RECORD, gates CRC_GATES, selectors A1 | A2,
        reserved bytes(&[(38, 39), (44, 47), (56, 63)]);
    DifCheck flags 0x00121f required RECORD, gates &[], selectors A1,
        reserved and_bits(bytes(&[(24, 31), (38, 39), (41, 41), (43, 47), (56, 63)]), 42, 0xf0);
    DifInsert flags 0x00771f required 0, gates &[], selectors A1 | A2,
        reserved and_bits(and_bits(bytes(&[(38, 40), (43, 55)]), 42, 0xf0), 41, 0x07);
    DifStrip flags 0x00771f required 0, gates &[], selectors A1 | A2,
        reserved and_bits(bytes(&[(38, 39), (41, 41), (43, 47), (56, 63)]), 42, 0xf0);
    DifUpdate flags 0x00771f required 0, gates &[], selectors A1 | A2,
        reserved and_bits(and_bits(bytes(&[(38, 39), (43, 47)]), 42, 0xf0), 41, 0x07);
    CacheFlush flags 0x00741f required 0, gates &[], selectors A2, reserved bytes(&[(16, 23), (38, 63)]);
}

#[cfg(feature = "mutation")]
impl Row {
    pub(crate) fn flag_mask(&self) -> u32 {
        self.flags
    }

    pub(crate) fn required_mask(&self) -> u32 {
        self.required
    }

    pub(crate) fn reserved_mask(&self) -> &[u64; 8] {
        &self.reserved
    }
}

/// Index of each opcode's row plus one; 0 for none.
#[allow(clippy::cast_possible_truncation, reason = "there are fewer than 256 rows")]
const INDEX: [u8; 256] = {
    let mut index = [0; 256];
    let mut i = 0;
    while i < ROWS.len() {
        index[ROWS[i].opcode.code() as usize] = i as u8 + 1;
        i += 1;
    }
    index
};

/// Returns the row of an operation; `None` if the model does not have it.
#[inline]
pub(crate) fn row(opcode: Opcode) -> Option<&'static Row> {
    let index = INDEX[usize::from(opcode.code())];
    ROWS.get(usize::from(index).wrapping_sub(1))
}

macro_rules! checks {
    ($(#[doc = $doc:literal] $name:ident;)*) => {
        /// Checks outside the table, in their order.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum Check {
            $(#[doc = $doc] $name,)*
        }

        impl Check {
            /// Every check.
            pub const ALL: &'static [Check] = &[$(Check::$name),*];

            /// Returns the rule that it checks, as a short text: `transfer size not zero`.
            #[must_use]
            pub fn rule(self) -> &'static str {
                let doc = match self {
                    $(Check::$name => $doc,)*
                };
                doc.split_once(": ").map_or(doc, |(_, rule)| rule).trim_end_matches('.')
            }
        }
    };
}

checks! {
    /// 0x1b: completion record address 32-byte aligned.
    RecordAlignment;
    /// 0x1e: the completion record's traffic class usable.
    RecordClass;
    /// 0x1d: privilege from a shared queue only in privileged mode.
    Privilege;
    /// 0x10: OPCAP or OPCFG lists the operation.
    Operation;
    /// 0x10: no Batch or Drain inside a batch.
    InsideBatch;
    /// 0x11: Fence only inside a batch.
    FenceOutside;
    /// 0x11: completion record request and class need a completion record address.
    RecordFlags;
    /// 0x11: user-mode interrupts allowed.
    UserInterrupt;
    /// 0x11: Block On Fault and cache control as queue and device allow.
    QueueFlags;
    /// 0x11: flags that need a capability.
    GatedFlags;
    /// 0x11: CRC: address 3's class only with Read Seed.
    SeedClass;
    /// 0x11: Drain: readback classes only with readback addresses.
    ReadbackClass;
    /// 0x11: Drain: a record or an interrupt must be requested.
    DrainNotification;
    /// 0x12: completion address zero if not valid.
    UnusedRecordAddress;
    /// 0x12: interrupt handle zero if no interrupt is requested.
    UnusedHandle;
    /// 0x12: Fill: upper pattern zero with an 8-byte pattern.
    UnusedPattern;
    /// 0x12: CRC: seed zero if it is read from memory.
    UnusedSeed;
    /// 0x12: CRC: seed address zero if it is not read.
    UnusedSeedAddress;
    /// 0x12: Drain: readback address 1 zero if not valid.
    UnusedReadback1;
    /// 0x12: Drain: readback address 2 zero if not valid.
    UnusedReadback2;
    /// 0x19: the interrupt handle may be used.
    InterruptHandle;
    /// 0x1e: the addresses' traffic classes usable.
    AddressClass;
    /// 0x13: transfer size not zero.
    SizeZero;
    /// 0x13: transfer size within the queue's limit.
    SizeLimit;
    /// 0x13: delta operations: transfer size within 512 KiB.
    DeltaSize;
    /// 0x13: DIF: transfer size a multiple of the block size, with the 8-byte tuple where the source has one.
    DifSize;
    /// 0x14: batch count at least 2, or 1 where allowed.
    CountLow;
    /// 0x14: batch count within the queue's limit.
    CountLimit;
    /// 0x15: Create Delta: record room at least 80 bytes.
    DeltaRoomLow;
    /// 0x15: Create Delta: record room within the queue's limit.
    DeltaRoomLimit;
    /// 0x15: Apply Delta: record at least one entry.
    DeltaRecordLow;
    /// 0x15: Apply Delta: record within the queue's limit.
    DeltaRecordLimit;
    /// 0x1c: delta operations: source 1, or destination, 8-byte aligned.
    DeltaAddressAlignment;
    /// 0x1c: Create Delta: source 2 8-byte aligned.
    DeltaSource2Alignment;
    /// 0x1c: delta operations: size a multiple of 8.
    DeltaSizeAlignment;
    /// 0x1c: CRC seed address 4-byte aligned.
    SeedAlignment;
    /// 0x17: dualcast destinations equal in bits 11:0.
    DualcastAlignment;
    /// 0x18: descriptor list 64-byte aligned.
    ListAlignment;
    /// 0x16: Memory Move without overlap where the device cannot.
    MoveOverlap;
    /// 0x16: Create Delta: record does not overlap source 1.
    DeltaOverlap1;
    /// 0x16: Create Delta: record does not overlap source 2.
    DeltaOverlap2;
    /// 0x16: Apply Delta: record does not overlap the destination.
    ApplyOverlap;
    /// 0x16: Dualcast: source does not overlap destination 1.
    DualcastOverlap1;
    /// 0x16: Dualcast: source does not overlap destination 2.
    DualcastOverlap2;
    /// 0x16: Dualcast: destinations do not overlap.
    DualcastOverlap12;
    /// 0x16: Copy with CRC: source does not overlap the destination.
    CopyCrcOverlap;
    /// 0x16: DIF: source does not overlap the computed destination.
    DifOverlap;
}

/// Returns `wrong`, unless a mutation run has switched this check off.
#[inline]
fn fails(check: Check, wrong: bool) -> bool {
    wrong && !mutation::is_off(check)
}

/// The reason why a descriptor is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status in the completion record.
    pub status: Status,
    /// With 0x11: the offending bits.
    pub flags: u32,
    /// The rule that the descriptor breaks, where the status alone does not say it.
    pub check: Option<Check>,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Refusal { status, flags: 0, check: None }
    }
}

/// The origin of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) wq: usize,
    pub(crate) submitter: Submitter,
    /// Position in its batch, for a member.
    pub(crate) batch_index: Option<u16>,
}

impl Device {
    /// True if a queue's engine would end a descriptor without accessing any memory except its completion record,
    /// because it fails a check. `member` treats it as a member of a batch.
    #[must_use]
    pub fn refuses(&self, wq: usize, submitter: Submitter, descriptor: &Descriptor, member: bool) -> bool {
        wq >= self.queues() || self.refusal(wq, submitter, descriptor, member).is_some()
    }

    /// Returns why a queue's engine would refuse a descriptor; `None` if it would execute it. `member` treats it as a
    /// member of a batch.
    ///
    /// # Panics
    /// If the device does not have the queue.
    #[must_use]
    pub fn refusal(&self, wq: usize, submitter: Submitter, descriptor: &Descriptor, member: bool) -> Option<Refusal> {
        self.check(descriptor, Origin { wq, submitter, batch_index: member.then_some(0) }).err()
    }

    /// Checks a descriptor; an error is the reason for the refusal.
    #[inline]
    pub(crate) fn check(&self, d: &Descriptor, origin: Origin) -> Result<(), Refusal> {
        self.check_as(d.opcode(), d, origin)
    }

    /// Checks a descriptor whose opcode is known. If the caller passes a constant, the compiler removes the checks of
    /// other operations.
    #[inline(always)]
    pub(crate) fn check_as(&self, opcode: Opcode, d: &Descriptor, origin: Origin) -> Result<(), Refusal> {
        let flags = d.flags();
        let rules = &self.wqs[origin.wq].rules.0;
        let record = flags.contains(Flags::COMPLETION_RECORD_ADDRESS_VALID);
        if fails(Check::RecordAlignment, record && !d.completion_address().is_multiple_of(32)) {
            return Err(Status::CompletionRecordAlignment.into());
        }
        let classes = rules.classes.get();
        let usable = |selected: bool| classes >> u64::from(selected) & 1 == 1;
        if fails(Check::RecordClass, record && !usable(flags.contains(Flags::COMPLETION_RECORD_TC))) {
            return Err(Status::TrafficClass.into());
        }
        let shared = rules.dedicated.get() == 0;
        if fails(Check::Privilege, shared && origin.submitter.privileged && !self.pci().privileged) {
            return Err(Status::PrivilegeBad.into());
        }
        let row = row(opcode).ok_or(Status::BadOpcode)?;
        let in_batch = origin.batch_index.is_some();
        if fails(Check::Operation, !self.accepts_operation(origin.wq, opcode))
            || fails(Check::InsideBatch, in_batch && matches!(opcode, Opcode::Batch | Opcode::Drain))
        {
            return Err(Status::BadOpcode.into());
        }
        self.check_flags(d, row, origin)?;
        self.check_reserved(d, row)?;
        let interrupt = flags.contains(Flags::REQUEST_COMPLETION_INTERRUPT);
        if interrupt {
            let found = self.interrupt_of_handle(d.interrupt_handle(), origin.submitter);
            if fails(Check::InterruptHandle, found.is_none()) {
                return Err(Status::InterruptHandle.into());
            }
        }
        if classes != 0b11 {
            let selectors = row.selectors | conditional_selectors(d);
            let unusable = [Flags::ADDRESS_1_TC, Flags::ADDRESS_2_TC, Flags::ADDRESS_3_TC]
                .into_iter()
                .any(|selector| selectors & selector.bits() != 0 && !usable(flags.contains(selector)));
            if fails(Check::AddressClass, unusable) {
                return Err(Status::TrafficClass.into());
            }
        }
        self.check_fields(d, opcode, rules.max_transfer.get(), rules.max_batch.get())
    }

    /// True if one operation is in [`operations_of`](Device::operations_of), without reading the whole set.
    #[inline]
    fn accepts_operation(&self, wq: usize, opcode: Opcode) -> bool {
        if !self.capabilities.wq_cap.op_config() {
            return self.capabilities.op_cap.contains(opcode);
        }
        let code = opcode.code();
        self.wqcfg[wq][4 + usize::from(code >> 6)].get() >> (code & 63) & 1 == 1
    }

    #[inline(always)]
    fn check_flags(&self, d: &Descriptor, row: &Row, origin: Origin) -> Result<(), Refusal> {
        let flags = d.flags();
        let bits = flags.bits();
        // Bits without a conditional rule are bad if the operation's row does not list them.
        let mut bad = bits & !mutation::flags(row.opcode, row.flags);
        bad |= mutation::required(row.opcode, row.required) & !bits;
        let mut forbid = |check: Check, when: bool, mask: Flags| {
            if fails(check, when && bits & mask.bits() != 0) {
                bad |= bits & mask.bits();
            }
        };
        forbid(Check::FenceOutside, origin.batch_index.is_none(), Flags::FENCE);
        forbid(
            Check::RecordFlags,
            !flags.contains(Flags::COMPLETION_RECORD_ADDRESS_VALID),
            Flags::REQUEST_COMPLETION_RECORD.union(Flags::COMPLETION_RECORD_TC),
        );
        let rules = &self.wqs[origin.wq].rules.0;
        #[allow(clippy::cast_possible_truncation, reason = "stored from 24 flag bits")]
        let allowed = Flags::from_bits_retain(rules.flags.get() as u32);
        forbid(Check::QueueFlags, true, Flags::all().difference(allowed));
        if flags.contains(Flags::REQUEST_COMPLETION_INTERRUPT) {
            // Source: SPEC Table 8-3, Request Completion Interrupt.
            let denied =
                !self.gen_cfg().user_interrupts() && !origin.submitter.privileged && origin.submitter.pasid.is_some();
            forbid(Check::UserInterrupt, denied, Flags::REQUEST_COMPLETION_INTERRUPT);
        }
        for (flag, capability) in row.gates {
            forbid(Check::GatedFlags, self.capabilities.gen_cap.0[0] >> capability & 1 == 0, *flag);
        }
        match row.opcode {
            Opcode::CrcGeneration | Opcode::CopyCrc => {
                forbid(Check::SeedClass, !flags.contains(OpFlags::READ_SEED), Flags::ADDRESS_3_TC);
            }
            Opcode::Drain => {
                forbid(Check::ReadbackClass, !flags.contains(OpFlags::READBACK_1), Flags::ADDRESS_1_TC);
                forbid(Check::ReadbackClass, !flags.contains(OpFlags::READBACK_2), Flags::ADDRESS_2_TC);
                let notify = Flags::REQUEST_COMPLETION_RECORD.union(Flags::REQUEST_COMPLETION_INTERRUPT);
                if fails(Check::DrainNotification, !flags.intersects(notify)) {
                    bad |= notify.bits();
                }
            }
            // Early 1.x firmware lets a Cache Flush keep the lines (GENCAP[3]).
            Opcode::CacheFlush if self.capabilities.gen_cap.cache_control_flush() => {
                bad &= !Flags::CACHE_CONTROL_1.bits();
            }
            _ => {}
        }
        if bad == 0 { Ok(()) } else { Err(Refusal { flags: bad, ..Refusal::from(Status::InvalidFlags) }) }
    }

    #[inline(always)]
    fn check_reserved(&self, d: &Descriptor, row: &Row) -> Result<(), Refusal> {
        let flags = d.flags();
        let mut reserved = mutation::reserved(row.opcode, &row.reserved);
        if row.opcode == Opcode::CreateDelta && self.capabilities.tolerances.result_mask_bits {
            reserved[7] &= !u64::from(RESULT_MASK_RESERVED);
        }
        let mut wrong = d.0.iter().zip(&reserved).fold(0, |wrong, (word, mask)| wrong | word & mask) != 0;
        wrong |= fails(
            Check::UnusedRecordAddress,
            !flags.contains(Flags::COMPLETION_RECORD_ADDRESS_VALID) && d.completion_address() != 0,
        );
        wrong |= fails(
            Check::UnusedHandle,
            !flags.contains(Flags::REQUEST_COMPLETION_INTERRUPT) && d.interrupt_handle() != 0,
        );
        match row.opcode {
            Opcode::Fill => {
                let short = !flags.contains(OpFlags::FILL_16);
                wrong |= fails(Check::UnusedPattern, short && d.pattern_upper() != 0);
            }
            Opcode::CrcGeneration | Opcode::CopyCrc => {
                let read = flags.contains(OpFlags::READ_SEED);
                wrong |= fails(Check::UnusedSeed, read && d.crc_seed() != 0);
                wrong |= fails(Check::UnusedSeedAddress, !read && d.crc_seed_address() != 0);
            }
            Opcode::Drain => {
                wrong |= fails(Check::UnusedReadback1, !flags.contains(OpFlags::READBACK_1) && d.src() != 0);
                wrong |= fails(Check::UnusedReadback2, !flags.contains(OpFlags::READBACK_2) && d.dst() != 0);
            }
            _ => {}
        }
        if wrong { Err(Status::NonZeroReserved.into()) } else { Ok(()) }
    }

    /// Checks sizes, counts, other values, alignments, overlaps, in this order.
    #[inline(always)]
    fn check_fields(&self, d: &Descriptor, opcode: Opcode, max_transfer: u64, max_batch: u64) -> Result<(), Refusal> {
        let size = u64::from(d.size());
        match opcode {
            Opcode::Nop | Opcode::Drain => return Ok(()),
            Opcode::Batch => {
                let least = if self.capabilities.gen_cap.batch_1() { 1 } else { 2 };
                if fails(Check::CountLow, size < least) || fails(Check::CountLimit, size > max_batch) {
                    return Err(Status::DescriptorCountRange.into());
                }
                if fails(Check::ListAlignment, !d.src().is_multiple_of(64)) {
                    return Err(Status::DescriptorListAlignment.into());
                }
                return Ok(());
            }
            _ => {}
        }
        if fails(Check::SizeZero, size == 0) || fails(Check::SizeLimit, size > max_transfer) {
            return Err(Status::TransferSizeRange.into());
        }
        match opcode {
            Opcode::MemoryMove => {
                let apart = self.capabilities.gen_cap.overlapping_copy() || !overlaps(d.src(), size, d.dst(), size);
                refuse(Check::MoveOverlap, !apart, Status::Overlap)
            }
            Opcode::CreateDelta => {
                refuse(Check::DeltaSize, d.size() > MAX_DELTA_TRANSFER, Status::TransferSizeRange)?;
                let room = u64::from(d.max_delta_size());
                refuse(Check::DeltaRoomLow, d.max_delta_size() < MIN_MAX_DELTA_RECORD, Status::FieldRange)?;
                refuse(Check::DeltaRoomLimit, room > max_transfer, Status::FieldRange)?;
                refuse(Check::DeltaAddressAlignment, !d.src().is_multiple_of(8), Status::AddressAlignment)?;
                refuse(Check::DeltaSource2Alignment, !d.dst().is_multiple_of(8), Status::AddressAlignment)?;
                refuse(Check::DeltaSizeAlignment, !size.is_multiple_of(8), Status::AddressAlignment)?;
                let record = d.delta_address();
                refuse(Check::DeltaOverlap1, overlaps(d.src(), size, record, room), Status::Overlap)?;
                refuse(Check::DeltaOverlap2, overlaps(d.dst(), size, record, room), Status::Overlap)
            }
            Opcode::ApplyDelta => {
                refuse(Check::DeltaSize, d.size() > MAX_DELTA_TRANSFER, Status::TransferSizeRange)?;
                let record = u64::from(d.delta_record_size());
                refuse(Check::DeltaRecordLow, d.delta_record_size() < DELTA_ENTRY_BYTES, Status::FieldRange)?;
                refuse(Check::DeltaRecordLimit, record > max_transfer, Status::FieldRange)?;
                refuse(Check::DeltaAddressAlignment, !d.dst().is_multiple_of(8), Status::AddressAlignment)?;
                refuse(Check::DeltaSizeAlignment, !size.is_multiple_of(8), Status::AddressAlignment)?;
                refuse(Check::ApplyOverlap, overlaps(d.src(), record, d.dst(), size), Status::Overlap)
            }
            Opcode::Dualcast => {
                let low = 0xfff;
                refuse(Check::DualcastAlignment, d.dst() & low != d.dst2() & low, Status::DualcastAlignment)?;
                refuse(Check::DualcastOverlap1, overlaps(d.src(), size, d.dst(), size), Status::Overlap)?;
                refuse(Check::DualcastOverlap2, overlaps(d.src(), size, d.dst2(), size), Status::Overlap)?;
                refuse(Check::DualcastOverlap12, overlaps(d.dst(), size, d.dst2(), size), Status::Overlap)
            }
            Opcode::CrcGeneration | Opcode::CopyCrc => {
                let read = d.flags().contains(OpFlags::READ_SEED);
                let aligned = d.crc_seed_address().is_multiple_of(4);
                refuse(Check::SeedAlignment, read && !aligned, Status::AddressAlignment)?;
                let apart = opcode == Opcode::CrcGeneration || !overlaps(d.src(), size, d.dst(), size);
                refuse(Check::CopyCrcOverlap, !apart, Status::Overlap)
            }
            Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => {
                let block = u64::from(DifBlock::from_code(d.dif_flags()).bytes());
                let tuple = u64::from(DIF_TUPLE_BYTES);
                let source = if opcode == Opcode::DifInsert { block } else { block + tuple };
                refuse(Check::DifSize, !size.is_multiple_of(source), Status::TransferSizeRange)?;
                let destination = match opcode {
                    Opcode::DifCheck => 0,
                    Opcode::DifStrip => block,
                    _ => block + tuple,
                };
                let written = size / source * destination;
                refuse(Check::DifOverlap, overlaps(d.src(), size, d.dst(), written), Status::Overlap)
            }
            _ => Ok(()),
        }
    }
}

#[inline]
fn refuse(check: Check, wrong: bool, status: Status) -> Result<(), Refusal> {
    if fails(check, wrong) { Err(Refusal { check: Some(check), ..Refusal::from(status) }) } else { Ok(()) }
}

/// Returns the traffic class selectors that are in use only in some descriptors of the operation.
fn conditional_selectors(d: &Descriptor) -> u32 {
    let flags = d.flags();
    let when = |flag: Flags, selector: u32| if flags.contains(flag) { selector } else { 0 };
    match d.opcode() {
        Opcode::CrcGeneration | Opcode::CopyCrc => when(OpFlags::READ_SEED, A3),
        Opcode::Drain => when(OpFlags::READBACK_1, A1) | when(OpFlags::READBACK_2, A2),
        _ => 0,
    }
}
