//! Every bit pattern can be decoded: codes keep their value, codes are the specification's, bytes come back unchanged,
//! and nothing panics, not even printing.

use proptest::prelude::*;
use std::fmt::Debug;
use telpher_abi::perfmon::Event;
use telpher_abi::registers::*;
use telpher_abi::{
    CompletionRecord, ComputeFlags, ComputeType, DataType, Descriptor, DestDifFlags, DeviceError, DifBlock, DifFlags,
    DifStatus, EventLogEntry, Flags, OpFlags, Opcode, OperandId, Rounding, SglFormat, SourceDifFlags, Status,
    StatusByte, SwError, WindowFlags,
};

/// Checks names and codes of one kind: every byte round-trips, exactly the named codes have names, and all names
/// differ.
fn check_codes<T: Copy + PartialEq + Debug>(
    named: &[T],
    literals: &[(T, u8)],
    from: fn(u8) -> T,
    code: fn(T) -> u8,
    is_unknown: fn(&T) -> bool,
) {
    for (value, expected) in literals {
        assert_eq!(code(*value), *expected, "{value:?}");
        assert_eq!(from(*expected), *value);
    }
    assert_eq!(named.len(), literals.len(), "each named code stands in the literal table");
    assert!(named.iter().map(|v| code(*v)).is_sorted_by(|a, b| a < b), "ascending, none twice");
    for byte in 0..=u8::MAX {
        let value = from(byte);
        assert_eq!(code(value), byte);
        assert_eq!(is_unknown(&value), !literals.iter().any(|(_, c)| *c == byte), "{byte:#x}");
        assert!(!format!("{value:?}").is_empty());
    }
}

#[test]
fn every_opcode_byte_can_be_decoded() {
    use Opcode as O;
    // SPEC Table 8-2.
    let literals = [
        (O::Nop, 0x00),
        (O::Batch, 0x01),
        (O::Drain, 0x02),
        (O::MemoryMove, 0x03),
        (O::Fill, 0x04),
        (O::Compare, 0x05),
        (O::ComparePattern, 0x06),
        (O::CreateDelta, 0x07),
        (O::ApplyDelta, 0x08),
        (O::Dualcast, 0x09),
        (O::TranslationFetch, 0x0a),
        (O::CrcGeneration, 0x10),
        (O::CopyCrc, 0x11),
        (O::DifCheck, 0x12),
        (O::DifInsert, 0x13),
        (O::DifStrip, 0x14),
        (O::DifUpdate, 0x15),
        (O::DixGenerate, 0x17),
        (O::TypeConversion, 0x18),
        (O::Reduce, 0x19),
        (O::ReduceDualcast, 0x1a),
        (O::GatherReduce, 0x1b),
        (O::GatherCopy, 0x1c),
        (O::ScatterCopy, 0x1d),
        (O::ScatterFill, 0x1e),
        (O::CacheFlush, 0x20),
        (O::UpdateWindow, 0x21),
        (O::InterDomainCopy, 0x23),
        (O::InterDomainFill, 0x24),
        (O::InterDomainCompare, 0x25),
        (O::InterDomainComparePattern, 0x26),
    ];
    check_codes(O::ALL, &literals, O::from_code, O::code, |v| matches!(v, O::Unknown(_)));
    assert_eq!(O::Unknown(0x99).to_string(), "opcode 0x99");
    for opcode in O::ALL {
        assert_eq!(Descriptor::new(*opcode).opcode(), *opcode);
    }
}

#[test]
fn every_status_byte_can_be_decoded() {
    use Status as S;
    // SPEC Table 5-6.
    let literals = [
        (S::None, 0x00),
        (S::Success, 0x01),
        (S::SuccessPredicateFalse, 0x02),
        (S::PageFault, 0x03),
        (S::PageFaultRefused, 0x04),
        (S::BatchFail, 0x05),
        (S::BatchPageFault, 0x06),
        (S::DeltaOffsetOrder, 0x07),
        (S::DeltaOffsetRange, 0x08),
        (S::DifError, 0x09),
        (S::BadOpcode, 0x10),
        (S::InvalidFlags, 0x11),
        (S::NonZeroReserved, 0x12),
        (S::TransferSizeRange, 0x13),
        (S::DescriptorCountRange, 0x14),
        (S::FieldRange, 0x15),
        (S::Overlap, 0x16),
        (S::DualcastAlignment, 0x17),
        (S::DescriptorListAlignment, 0x18),
        (S::InterruptHandle, 0x19),
        (S::CompletionRecordFault, 0x1a),
        (S::CompletionRecordAlignment, 0x1b),
        (S::AddressAlignment, 0x1c),
        (S::PrivilegeBad, 0x1d),
        (S::TrafficClass, 0x1e),
        (S::ReadbackFault, 0x1f),
        (S::HardwareReadError, 0x20),
        (S::HardwareWriteError, 0x21),
        (S::TranslationFailure, 0x22),
        (S::DrainEventLog, 0x26),
        (S::BatchEventLog, 0x27),
        (S::InterDomainNoPasid, 0x28),
        (S::InterDomainHandle, 0x29),
        (S::InterDomainPermission, 0x2a),
        (S::InterDomainWindow, 0x2b),
        (S::UpdateWindowEntry, 0x2c),
        (S::UpdateWindowFields, 0x2d),
        (S::InterDomainAborted, 0x2e),
    ];
    check_codes(S::ALL, &literals, S::from_code, S::code, |v| matches!(v, S::Unknown(_)));
    for byte in 0..=u8::MAX {
        let status = StatusByte(byte);
        // SPEC §8.2: the code is bits 5:0, bit 7 the direction, and a written status is never zero.
        assert_eq!(status.status().code(), byte & 0x3f);
        assert_eq!(status.is_write(), byte >= 0x80);
        assert_eq!(status.is_complete(), byte != 0);
        assert!(!format!("{status:?}").is_empty());
        assert_eq!(CompletionRecord::default().with_status_code(byte).status_byte(), status);
        assert_eq!(CompletionRecord::new(status).to_bytes()[0], byte);
    }
    // SPEC §8.2: the codes for which bit 7 means something.
    let directed: Vec<u8> = S::ALL.iter().filter(|s| s.has_direction()).map(|s| s.code()).collect();
    assert_eq!(directed, [0x03, 0x04, 0x06, 0x1a, 0x1f]);
    assert_eq!(StatusByte::fault(S::PageFault, true).0, 0x83);
    assert_eq!(StatusByte::fault(S::PageFault, false).0, 0x03);
}

#[test]
fn every_device_error_and_command_byte_can_be_decoded() {
    use {CommandCode as C, CommandError as E, DeviceError as D};
    // SPEC Table 5-7.
    let errors = [
        (D::ConfigurationChange, 0x51),
        (D::CommandActive, 0x52),
        (D::QueueOverflow, 0x53),
        (D::EventLogFailure, 0x54),
    ];
    check_codes(D::ALL, &errors, D::from_code, D::code, |v| matches!(v, D::Unknown(_)));
    // SPEC §9.2.11.
    let commands = [
        (C::EnableDevice, 1),
        (C::DisableDevice, 2),
        (C::DrainAll, 3),
        (C::AbortAll, 4),
        (C::ResetDevice, 5),
        (C::EnableWq, 6),
        (C::DisableWq, 7),
        (C::DrainWq, 8),
        (C::AbortWq, 9),
        (C::ResetWq, 10),
        (C::DrainPasid, 11),
        (C::AbortPasid, 12),
        (C::RequestInterruptHandle, 13),
        (C::ReleaseInterruptHandle, 14),
        (C::RequestIdptHandle, 15),
        (C::ReleaseIdptHandle, 16),
        (C::InvalidateBitmapCache, 17),
    ];
    check_codes(C::ALL, &commands, C::from_code, C::code, |v| matches!(v, C::Unknown(_)));
    // SPEC §9.2.12.
    let failures = [
        (E::None, 0x00),
        (E::UnknownCommand, 0x01),
        (E::WqIndex, 0x02),
        (E::Hardware, 0x03),
        (E::NonZeroReserved, 0x04),
        (E::Halted, 0x05),
        (E::DeviceNotDisabled, 0x10),
        (E::Configuration, 0x11),
        (E::BusMaster, 0x12),
        (E::PageRequestAllocation, 0x13),
        (E::WqSizes, 0x14),
        (E::GroupMembers, 0x15),
        (E::WqGrouping, 0x16),
        (E::EngineGrouping, 0x17),
        (E::ReadBuffers, 0x18),
        (E::EventLog, 0x19),
        (E::Ats, 0x1a),
        (E::ConfigPasid, 0x1b),
        (E::DeviceNotEnabled, 0x20),
        (E::WqNotDisabled, 0x21),
        (E::WqSizeZero, 0x22),
        (E::WqPriorityZero, 0x23),
        (E::WqMode, 0x24),
        (E::WqBlockOnFault, 0x25),
        (E::WqPasid, 0x26),
        (E::WqMaxBatch, 0x27),
        (E::WqMaxTransfer, 0x28),
        (E::WqPrivilege, 0x2a),
        (E::WqOccupancyInterrupt, 0x2b),
        (E::WqAtsDisable, 0x2c),
        (E::WqOpConfig, 0x2d),
        (E::WqPrsDisable, 0x2e),
        (E::DisableNotEnabled, 0x31),
        (E::WqNotEnabled, 0x32),
        (E::InterruptIndex, 0x41),
        (E::NoInterruptHandle, 0x42),
        (E::IdptIndex, 0x51),
        (E::NoIdptHandle, 0x52),
    ];
    check_codes(E::ALL, &failures, E::from_code, E::code, |v| matches!(v, E::Unknown(_)));
}

#[test]
fn small_codes_ignore_higher_bits() {
    for byte in 0..=u8::MAX {
        assert_eq!(DifBlock::from_code(byte).code(), byte & 3);
        assert_eq!(DeviceState::from_code(byte) as u8, byte & 3);
        assert_eq!(WqState::from_code(byte) as u8, byte & 3);
        assert_eq!(PortalKind::from_code(byte) as u8, byte & 3);
    }
    assert_eq!(DifBlock::ALL.map(DifBlock::bytes), [512, 520, 4096, 4104]);
    let kinds = [0, 1, 2, 3].map(PortalKind::from_code);
    assert_eq!(kinds.map(PortalKind::is_limited), [false, true, false, true]);
    assert_eq!(kinds.map(PortalKind::is_ims), [false, false, true, true]);
    assert_eq!((OperandId::Unknown as u8, OperandId::ScatterGatherList as u8), (0, 6));
}

#[test]
fn flag_bits_are_the_specifications() {
    // SPEC Table 8-3, bit by bit from 0.
    let flags = [
        Flags::FENCE,
        Flags::BLOCK_ON_FAULT,
        Flags::COMPLETION_RECORD_ADDRESS_VALID,
        Flags::REQUEST_COMPLETION_RECORD,
        Flags::REQUEST_COMPLETION_INTERRUPT,
        Flags::CACHE_CONTROL_3,
        Flags::RESERVED_6,
        Flags::CHECK_RESULT,
        Flags::CACHE_CONTROL_1,
        Flags::ADDRESS_1_TC,
        Flags::ADDRESS_2_TC,
        Flags::ADDRESS_3_TC,
        Flags::COMPLETION_RECORD_TC,
        Flags::STRICT_ORDERING,
        Flags::DESTINATION_READBACK,
        Flags::DESTINATION_STEERING_TAG,
    ];
    for (i, flag) in flags.iter().enumerate() {
        assert_eq!(flag.bits(), 1 << i);
    }
    assert_eq!(Flags::OPERATION_SPECIFIC.bits(), 0x00ff_0000);
    assert_eq!(Flags::RECORD.bits(), 0x0c);
    // SPEC §8.3: the operations' own bits.
    let own = [
        (OpFlags::BATCH_ERROR, 16),
        (OpFlags::READBACK_1, 16),
        (OpFlags::READBACK_2, 17),
        (OpFlags::SUPPRESS_TC_A_READBACK, 18),
        (OpFlags::SUPPRESS_TC_B_READBACK, 19),
        (OpFlags::FILL_16, 18),
        (OpFlags::READ_SEED, 16),
        (OpFlags::BYPASS_INVERT_REFLECT, 17),
        (OpFlags::BYPASS_DATA_REFLECT, 18),
        (OpFlags::CRC64, 19),
    ];
    for (flag, bit) in own {
        assert_eq!(flag.bits(), 1 << bit);
    }
    // SPEC §8.3.17.
    assert_eq!((DifFlags::INVERT_CRC_SEED.bits(), DifFlags::INVERT_CRC_RESULT.bits()), (0x04, 0x08));
    let source = [
        SourceDifFlags::ALL_F_ERROR,
        SourceDifFlags::ALL_F_DETECT,
        SourceDifFlags::APP_F_DETECT,
        SourceDifFlags::APP_REF_F_DETECT,
        SourceDifFlags::APP_TAG_INCREMENTS,
        SourceDifFlags::NO_GUARD_CHECK,
        SourceDifFlags::NO_REF_TAG_CHECK,
        SourceDifFlags::REF_TAG_FIXED,
    ];
    assert_eq!(source.map(|flag| flag.bits()), [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80]);
    let dest = [
        DestDifFlags::APP_TAG_PASS,
        DestDifFlags::APP_TAG_INCREMENTS,
        DestDifFlags::GUARD_PASS,
        DestDifFlags::REF_TAG_PASS,
        DestDifFlags::REF_TAG_FIXED,
    ];
    assert_eq!(dest.map(|flag| flag.bits()), [0x08, 0x10, 0x20, 0x40, 0x80]);
    let found = [DifStatus::GUARD, DifStatus::APP_TAG, DifStatus::REF_TAG, DifStatus::ALL_F];
    assert_eq!(found.map(|flag| flag.bits()), [1, 2, 4, 8]);
    let causes = [
        (IntCause::SW_ERROR, 0),
        (IntCause::COMMAND, 1),
        (IntCause::OCCUPANCY, 2),
        (IntCause::PERFMON, 3),
        (IntCause::HALT, 4),
        (IntCause::EVENT_LOG, 5),
        (IntCause::HANDLES_REVOKED, 31),
    ];
    for (cause, bit) in causes {
        assert_eq!(cause.bits(), 1u32 << bit);
    }
}

#[test]
fn perfmon_events_are_distinct_single_bits() {
    for (i, event) in Event::ALL.iter().enumerate() {
        assert!(event.bit.is_power_of_two() && event.bit < 1 << 28 && event.category < 5, "{event:?}");
        assert!(!Event::ALL[..i].contains(event), "{event:?} has two names");
    }
    // SPEC App. D: in the order of their codes, the 17 operations of 1.x and two of 2.0 in category 3, the others in
    // category 5.
    let of = |version: u32, category: u8| -> Vec<u32> {
        let operations = Opcode::ALL.iter().filter_map(|opcode| Event::of_operation(*opcode));
        operations.filter(|event| (event.since(), event.category) == (version, category)).map(|of| of.bit).collect()
    };
    let bits = |bits: std::ops::Range<u32>| bits.map(|bit| 1 << bit).collect::<Vec<u32>>();
    assert_eq!([of(0x100, 3), of(0x100, 5)], [bits(0..17), vec![]]);
    assert_eq!([of(0x200, 3), of(0x200, 5)], [bits(17..19), vec![0x400, 1, 2, 4, 8]]);
    assert_eq!([of(0x300, 3), of(0x300, 5)], [vec![], bits(11..18)]);
    assert!(Opcode::ALL.iter().all(|opcode| Event::of_operation(*opcode).is_some()));
}

#[test]
fn an_operation_set_is_256_independent_bits() {
    // OPCAP of current Sapphire Rapids firmware: without delta operations.
    let part = OpCap([0x1_003f_027f, 0, 0, 0]);
    assert!(part.contains(Opcode::MemoryMove) && part.contains(Opcode::CacheFlush) && part.contains(Opcode::Dualcast));
    assert!(!part.contains(Opcode::CreateDelta) && !part.contains(Opcode::ApplyDelta));
    for byte in 0..=u8::MAX {
        let opcode = Opcode::from_code(byte);
        let alone = OpCap::default().with(opcode, true);
        let members = (0..=u8::MAX).filter(|other| alone.contains(Opcode::from_code(*other)));
        assert_eq!(members.collect::<Vec<_>>(), [byte]);
        let without = OpCap([u64::MAX; 4]).with(opcode, false);
        assert!(!without.contains(opcode) && without.is_subset_of(&OpCap([u64::MAX; 4])));
        assert_eq!(alone.is_subset_of(&part), part.contains(opcode));
        assert_eq!(alone.with(opcode, false), OpCap::default());
    }
}

/// SPEC §8.1.9 to §8.1.14: codes and sizes of types, operations and list formats.
#[test]
fn numeric_codes_are_those_of_the_tables() {
    let types: Vec<_> = DataType::ALL.iter().map(|t| (t.code(), t.bytes(), t.is_float())).collect();
    let expected = [
        (0, 1, false),
        (1, 2, false),
        (2, 4, false),
        (3, 8, false),
        (4, 1, true),
        (5, 1, true),
        (6, 2, true),
        (7, 2, true),
        (8, 4, true),
        (9, 8, true),
    ];
    assert_eq!(types, expected);
    for code in 0..=u8::MAX {
        assert_eq!(DataType::from_code(code).map(DataType::code), (code < 10).then_some(code));
        assert_eq!(ComputeType::from_code(code).is_some(), matches!(code, 1 | 3..=7));
        assert_eq!(
            SglFormat::from_code(code).map(SglFormat::entry_bytes),
            [None, Some(8), Some(4), Some(8)].get(usize::from(code)).copied().flatten()
        );
        assert_eq!(Rounding::from_code(code).map(Rounding::code), (code < 4).then_some(code));
    }
    let arithmetic = ComputeType::ALL.iter().filter(|t| t.is_arithmetic()).map(|t| t.name());
    assert_eq!(arithmetic.collect::<Vec<_>>(), ["add", "min", "max"]);
    let flags = (ComputeFlags::SIGNED | ComputeFlags::ROUNDING).with_rounding(Rounding::Up);
    assert_eq!((flags.bits(), flags.rounding_code()), (1 << 7 | 2 << 4, 2));
}

#[test]
fn window_flags_are_the_bits_of_an_entry() {
    for bits in 0..16 {
        let flags = WindowFlags::from_bits_retain(bits);
        let entry = IdptEntry([u64::MAX; 4]).with_window_flags(flags);
        assert_eq!(entry.window_flags(), flags);
        // Bit 34 is the access privilege and stays.
        assert_eq!(entry.0[0] >> 32 & 0x1f, u64::from(bits & 3 | (bits & 12) << 1 | 4));
    }
    assert_eq!([0, 1, 2, 3].map(|code| IdptType::from_code(code) as u8), [0, 1, 2, 3]);
}

/// Checks every constructor against the bytes of the specification's layouts: (descriptor, opcode, flags, bytes 16–63
/// as words).
#[test]
fn constructors_fill_the_fields_of_their_operation() {
    let cases = [
        (Descriptor::nop(), 0x00, 0, [0, 0, 0, 0, 0, 0]),
        (Descriptor::batch(0x1000, 7), 0x01, 0, [0x1000, 0, 7, 0, 0, 0]),
        (Descriptor::drain(), 0x02, 0, [0, 0, 0, 0, 0, 0]),
        (Descriptor::memory_move(1, 2, 3), 0x03, 0, [1, 2, 3, 0, 0, 0]),
        (Descriptor::fill(0xaabb, 2, 3), 0x04, 0, [0xaabb, 2, 3, 0, 0, 0]),
        (Descriptor::fill16([0xaa, 0xbb], 2, 3), 0x04, 1 << 18, [0xaa, 2, 3, 0xbb, 0, 0]),
        (Descriptor::compare(1, 2, 3), 0x05, 0, [1, 2, 3, 0, 0, 0]),
        (Descriptor::compare_pattern(1, 0xaa, 3), 0x06, 0, [1, 0xaa, 3, 0, 0, 0]),
        (Descriptor::create_delta(1, 2, 3, 4, 80), 0x07, 0, [1, 2, 3, 4, 80, 0]),
        (Descriptor::apply_delta(4, 80, 2, 3), 0x08, 0, [4, 2, 3, 80, 0, 0]),
        (Descriptor::dualcast(1, 2, 4, 3), 0x09, 0, [1, 2, 3, 4, 0, 0]),
        (Descriptor::crc_generation(1, 3, 5), 0x10, 0, [1, 0, 3, 5, 0, 0]),
        (Descriptor::copy_crc(1, 2, 3, 5), 0x11, 0, [1, 2, 3, 5, 0, 0]),
        (Descriptor::dif(Opcode::DifStrip, 1, 2, 3), 0x14, 0, [1, 2, 3, 0, 0, 0]),
        (Descriptor::cache_flush(2, 3), 0x20, 0, [0, 2, 3, 0, 0, 0]),
        (Descriptor::translation_fetch(1, 3), 0x0a, 0, [1, 0, 3, 0, 0, 0]),
        (Descriptor::crc64_generation(1, 3, 5), 0x10, 1 << 19, [1, 0, 3, 5, 0, 0]),
        (Descriptor::copy_crc64(1, 2, 3, 5), 0x11, 1 << 19, [1, 2, 3, 5, 0, 0]),
        (Descriptor::update_window(5, 1, 2, WindowFlags::all()), 0x21, 0, [1, 2, 0, 0, 0, 0x0005_ff00_0000_0000]),
        (Descriptor::inter_domain_copy(1, None, 2, Some(5), 3), 0x23, 2 << 16, [1, 2, 3, 0, 0, 5 << 48]),
        (Descriptor::inter_domain_copy(1, Some(6), 2, Some(5), 3), 0x23, 3 << 16, [1, 2, 3, 0, 0, 5 << 48 | 6 << 32]),
        (Descriptor::inter_domain_fill(1, 2, 5, 3), 0x24, 2 << 16, [1, 2, 3, 0, 0, 5 << 48]),
        (Descriptor::inter_domain_compare(1, Some(6), 2, None, 3), 0x25, 1 << 16, [1, 2, 3, 0, 0, 6 << 32]),
        (Descriptor::inter_domain_compare_pattern(1, 6, 2, 3), 0x26, 1 << 16, [1, 2, 3, 0, 0, 6 << 32]),
    ];
    for (descriptor, opcode, flags, rest) in cases {
        assert_eq!(descriptor.0[0], opcode << 56 | flags << 32, "{descriptor:?}");
        assert_eq!(descriptor.0[1], 0, "{descriptor:?}");
        assert_eq!(descriptor.0[2..], rest, "{descriptor:?}");
        // Requesting a record adds two flags and the address, and nothing else.
        let recorded = descriptor.with_record(0xabc0);
        assert_eq!(recorded.0[0], opcode << 56 | (flags | 0x0c) << 32);
        assert_eq!((recorded.0[1], &recorded.0[2..]), (0xabc0, &rest[..]));
    }
}

proptest! {
    #[test]
    fn descriptors_round_trip_through_bytes(low: [u8; 32], high: [u8; 32]) {
        let bytes: [u8; 64] = std::array::from_fn(|i| if i < 32 { low[i] } else { high[i - 32] });
        let descriptor = Descriptor::from_bytes(&bytes);
        prop_assert_eq!(descriptor.to_bytes(), bytes);
        prop_assert_eq!(descriptor.opcode().code(), bytes[7]);
        prop_assert_eq!(descriptor.flags().bits().to_le_bytes()[..3].to_vec(), bytes[4..7].to_vec());
        prop_assert_eq!(descriptor.with_flags(descriptor.flags()), descriptor);
        assert!(!format!("{descriptor:?} {}", descriptor.opcode()).is_empty());
        let entry = EventLogEntry(descriptor.0);
        prop_assert_eq!(entry.to_bytes(), bytes);
        prop_assert_eq!(entry.record().to_bytes(), high);
        prop_assert_eq!(entry.with_record(entry.record()), entry);
    }

    #[test]
    fn records_round_trip_through_bytes(bytes: [u8; 32]) {
        let record = CompletionRecord::from_bytes(&bytes);
        prop_assert_eq!(record.to_bytes(), bytes);
        prop_assert_eq!(record.status_byte().0, bytes[0]);
        assert!(!format!("{record:?} {}", record.status()).is_empty());
        assert!(!format!("{:?}", SwError(record.0)).is_empty());
    }
}
