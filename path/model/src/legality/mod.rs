//! The legality checks: which descriptors a device refuses, and with what status. Source: SPEC §5.4, §8.1.3, §8.3,
//! Tables 5-3 to 5-5.
//!
//! The architecture lets a device check in any order. This model promises the order of [`Device::check`], so that a
//! descriptor with several errors has one answer. [`rows`] holds each operation's flags and reserved bits as a table;
//! the rest are the numbered [`Check`]s. The last of them concern entries of the inter-domain permissions table, and
//! are made where an entry is looked up.

mod arrays;
mod checks;
mod refusal;
mod rows;

pub use checks::Check;
pub use refusal::Refusal;
pub(crate) use refusal::{fails, refuse};
#[cfg(feature = "mutation")]
pub(crate) use rows::ROWS;
pub(crate) use rows::{row, uses_handles};

use crate::device::Device;
use crate::mutation;
use crate::overlap::overlaps;
use crate::wq::Submitter;
use rows::{A1, A2, A3, RESULT_MASK_RESERVED, Row};
use telpher_abi::{
    DELTA_ENTRY_BYTES, DIF_TUPLE_BYTES, Descriptor, DifBlock, Flags, MAX_DELTA_TRANSFER, MIN_MAX_DELTA_RECORD, OpFlags,
    Opcode, Status, WindowFlags,
};

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
            || fails(
                Check::InsideBatch,
                in_batch && matches!(opcode, Opcode::Batch | Opcode::Drain | Opcode::UpdateWindow),
            )
        {
            return Err(Status::BadOpcode.into());
        }
        match opcode {
            Opcode::TranslationFetch => {
                let translated = self.pci().ats && !self.wq_cfg(origin.wq).ats_disable();
                refuse(Check::FetchTranslation, !translated, Status::BadOpcode)?;
            }
            Opcode::UpdateWindow => {
                let without = origin.submitter.pasid.is_none();
                refuse(Check::UpdatePasid, without, Status::InterDomainNoPasid)?;
            }
            _ => {}
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
            // Its own flag selects the class of destination 2.
            let second = opcode == Opcode::ReduceDualcast && !usable(flags.contains(OpFlags::DESTINATION_2_TC));
            let unusable = unusable || second;
            if fails(Check::AddressClass, unusable) {
                return Err(Status::TrafficClass.into());
            }
        }
        if arrays::is_here(opcode) {
            return arrays::check_arrays(&self.capabilities, d, opcode, rules.max_transfer.get(), rules.max_sgl.get());
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
        // Bits 5, 14 and 8: 100 needs GENCAP[5], 110 GENCAP[8] as bit 14 alone, and 1x1 does not exist. Source: SPEC
        // Table 8-4.
        let durable = flags.contains(Flags::DESTINATION_READBACK) || self.capabilities.gen_cap.durable_write();
        forbid(Check::CacheControl3, flags.contains(Flags::CACHE_CONTROL_1) || !durable, Flags::CACHE_CONTROL_3);
        if let Some((alternate, has)) = arrays::domain_flags(row.opcode, self.capabilities.dsa_cap_0) {
            forbid(Check::DomainFlags, !has, alternate);
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
            Opcode::UpdateWindow => {
                let can = self.capabilities.id_cap.suppress_drain();
                forbid(Check::SuppressDrain, !can, OpFlags::SUPPRESS_WINDOW_DRAIN);
            }
            Opcode::InterDomainCopy | Opcode::InterDomainCompare => {
                let alternate = OpFlags::ALTERNATE_SOURCE.union(OpFlags::ALTERNATE_DESTINATION);
                if fails(Check::NoAlternate, !flags.intersects(alternate)) {
                    bad |= alternate.bits();
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
            Opcode::Fill | Opcode::InterDomainFill => {
                let short = !flags.contains(OpFlags::FILL_16);
                wrong |= fails(Check::UnusedPattern, short && d.pattern_upper() != 0);
            }
            Opcode::CrcGeneration | Opcode::CopyCrc => {
                let read = flags.contains(OpFlags::READ_SEED);
                let wide = flags.contains(OpFlags::CRC64);
                let seed = if wide { d.crc64_seed() } else { d.crc_seed().into() };
                wrong |= fails(Check::UnusedSeedHalf, !wide && d.crc64_seed() >> 32 != 0);
                wrong |= fails(Check::UnusedSeed, read && seed != 0);
                wrong |= fails(Check::UnusedSeedAddress, !read && d.crc_seed_address() != 0);
            }
            Opcode::Drain => {
                wrong |= fails(Check::UnusedReadback1, !flags.contains(OpFlags::READBACK_1) && d.src() != 0);
                wrong |= fails(Check::UnusedReadback2, !flags.contains(OpFlags::READBACK_2) && d.dst() != 0);
            }
            Opcode::TranslationFetch => {
                wrong |= fails(Check::UnusedStride, !flags.contains(OpFlags::FETCH_STRIDE) && d.region_stride() != 0);
            }
            _ => {}
        }
        if matches!(row.opcode, Opcode::Reduce | Opcode::ReduceDualcast) {
            wrong |= arrays::unused_selector_is_set(d);
        }
        if uses_handles(row.opcode) {
            let [first, second] = [OpFlags::ALTERNATE_SOURCE, OpFlags::ALTERNATE_DESTINATION];
            wrong |= fails(Check::UnusedHandle1, !flags.contains(first) && d.handle_1() != 0);
            wrong |= fails(Check::UnusedHandle2, !flags.contains(second) && d.handle_2() != 0);
        }
        if wrong { Err(Status::NonZeroReserved.into()) } else { Ok(()) }
    }

    /// Checks sizes, counts, other values, alignments, overlaps, in this order.
    #[inline(always)]
    fn check_fields(&self, d: &Descriptor, opcode: Opcode, max_transfer: u64, max_batch: u64) -> Result<(), Refusal> {
        let size = u64::from(d.size());
        match opcode {
            Opcode::Nop | Opcode::Drain => return Ok(()),
            Opcode::TranslationFetch => return check_fetch(d),
            Opcode::UpdateWindow => return self.check_window(d),
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
                let bytes = if d.flags().contains(OpFlags::CRC64) { 8 } else { 4 };
                let aligned = d.crc_seed_address().is_multiple_of(bytes);
                refuse(Check::SeedAlignment, read && !aligned, Status::AddressAlignment)?;
                let apart = opcode == Opcode::CrcGeneration || !overlaps(d.src(), size, d.dst(), size);
                refuse(Check::CopyCrcOverlap, !apart, Status::Overlap)
            }
            Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate | Opcode::DixGenerate => {
                let block = u64::from(DifBlock::from_code(d.dif_flags()).bytes());
                let tuple = u64::from(DIF_TUPLE_BYTES);
                let plain = matches!(opcode, Opcode::DifInsert | Opcode::DixGenerate);
                let source = if plain { block } else { block + tuple };
                refuse(Check::DifSize, !size.is_multiple_of(source), Status::TransferSizeRange)?;
                let aligned = opcode != Opcode::DixGenerate || d.dst().is_multiple_of(tuple);
                refuse(Check::DixAlignment, !aligned, Status::AddressAlignment)?;
                let destination = match opcode {
                    Opcode::DifCheck => 0,
                    Opcode::DifStrip => block,
                    Opcode::DixGenerate => tuple,
                    _ => block + tuple,
                };
                let written = size / source * destination;
                refuse(Check::DifOverlap, overlaps(d.src(), size, d.dst(), written), Status::Overlap)
            }
            _ => Ok(()),
        }
    }
}

impl Device {
    /// Checks the fields of Update Window that need no entry of the table. Source: SPEC Table 5-6, code 0x2d.
    fn check_window(&self, d: &Descriptor) -> Result<(), Refusal> {
        let (base, size) = (d.src(), d.dst());
        let flags = WindowFlags::from_bits_retain(d.window_flags());
        let enabled = flags.contains(WindowFlags::ENABLE);
        let offset = flags.contains(WindowFlags::OFFSET_MODE);
        let wraps = base.checked_add(size.saturating_sub(1)).is_none();
        let can = self.capabilities.id_cap.offset_mode();
        refuse(Check::UpdateEmpty, enabled && size == 0, Status::UpdateWindowFields)?;
        refuse(Check::UpdateWrap, enabled && wraps, Status::UpdateWindowFields)?;
        refuse(Check::UpdateModeUnused, offset && !enabled, Status::UpdateWindowFields)?;
        refuse(Check::UpdateMode, offset && !can, Status::UpdateWindowFields)?;
        refuse(Check::UpdateUnused, !enabled && (base | size) != 0, Status::NonZeroReserved)
    }
}

/// Checks the fields of Translation Fetch. The queue's limit of a transfer does not apply. Source: SPEC §8.3.11; the
/// codes for an empty and a wrapping region are not named there.
fn check_fetch(d: &Descriptor) -> Result<(), Refusal> {
    let size = u64::from(d.size());
    refuse(Check::SizeZero, size == 0, Status::TransferSizeRange)?;
    refuse(Check::FetchWrap, d.src().checked_add(size.saturating_sub(1)).is_none(), Status::FieldRange)?;
    if d.flags().contains(OpFlags::FETCH_STRIDE) {
        let stride = d.region_stride();
        refuse(Check::FetchStrideLow, stride < PAGE, Status::AddressAlignment)?;
        refuse(Check::FetchStridePower, !stride.is_power_of_two(), Status::AddressAlignment)?;
    }
    Ok(())
}

/// The smallest stride of Translation Fetch, in bytes. Source: SPEC §8.3.11.
const PAGE: u32 = 4096;

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
