//! The fields of the operations on arrays and scatter-gather lists. Source: SPEC §5.4, §8.3.19 to §8.3.25, §9.2.30 to
//! §9.2.32.

use super::checks::Check;
use super::refusal::{Refusal, fails, refuse};
use crate::arrays::selected_domains;
use crate::capabilities::Capabilities;
use crate::operand::Domain;
use crate::overlap::overlaps;
use telpher_abi::registers::DsaCap0;
use telpher_abi::{ComputeFlags, ComputeType, DataType, Descriptor, Flags, OpFlags, Opcode, SglFormat, Status};

/// The floating-point conversions to a wider type, in the order of DSACAP1's bits; those to a narrower type are grouped
/// by the result. Source: SPEC §9.2.31.
const UP: [(DataType, DataType); 9] = {
    use DataType::{Bf16, Fp8E4M3, Fp8E5M2, Fp16, Fp32, Fp64};
    [
        (Fp8E5M2, Fp16),
        (Fp8E5M2, Bf16),
        (Fp8E5M2, Fp32),
        (Fp8E4M3, Fp16),
        (Fp8E4M3, Bf16),
        (Fp8E4M3, Fp32),
        (Fp16, Fp32),
        (Bf16, Fp32),
        (Fp32, Fp64),
    ]
};

/// True for the operations with data types and compute flags.
pub(super) fn is_typed(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast | Opcode::GatherReduce)
}

/// True for the operations whose buffers a list names.
fn has_list(opcode: Opcode) -> bool {
    use Opcode as O;
    matches!(opcode, O::GatherReduce | O::GatherCopy | O::ScatterCopy | O::ScatterFill)
}

/// True for the operations that this file checks.
pub(super) fn is_here(opcode: Opcode) -> bool {
    is_typed(opcode) || has_list(opcode)
}

/// Returns the flags that choose other address spaces, and whether the device has them for this operation.
pub(super) fn domain_flags(opcode: Opcode, cap: DsaCap0) -> Option<(Flags, bool)> {
    let both = OpFlags::ALTERNATE_SOURCE.union(OpFlags::ALTERNATE_DESTINATION);
    Some(match opcode {
        Opcode::TypeConversion => (both, cap.id_type_conversion()),
        Opcode::Reduce => (OpFlags::USE_ID_SELECTOR, cap.id_reduce()),
        Opcode::ReduceDualcast => (OpFlags::USE_ID_SELECTOR, cap.id_reduce_dualcast()),
        Opcode::GatherCopy => (both, cap.id_gather_copy()),
        Opcode::ScatterCopy => (both, cap.id_scatter_copy()),
        Opcode::ScatterFill => (OpFlags::ALTERNATE_DESTINATION, cap.id_scatter_fill()),
        _ => return None,
    })
}

/// True if the fields of the ID selector and of handles that it does not name are not zero.
pub(super) fn unused_selector_is_set(d: &Descriptor) -> bool {
    let mut wrong = false;
    let selects = d.flags().contains(OpFlags::USE_ID_SELECTOR);
    wrong |= fails(Check::UnusedSelector, !selects && d.id_selector() != 0);
    // A selector with a reserved value is refused later, for its value.
    let domains = selected_domains(d).unwrap_or([Domain::Handle1, Domain::Handle2, Domain::Own, Domain::Own]);
    wrong |= fails(Check::UnusedHandle1, !domains.contains(&Domain::Handle1) && d.handle_1() != 0);
    wrong | fails(Check::UnusedHandle2, !domains.contains(&Domain::Handle2) && d.handle_2() != 0)
}

/// Checks sizes, values, alignments and overlaps, in this order. The caller has checked neither.
pub(super) fn check_arrays(
    caps: &Capabilities,
    d: &Descriptor,
    opcode: Opcode,
    max_transfer: u64,
    max_sgl: u64,
) -> Result<(), Refusal> {
    let typed = is_typed(opcode);
    let types = (DataType::from_code(d.input_type_code()), DataType::from_code(d.output_type_code()));
    // A type that does not exist is refused after the sizes, which then count its elements as bytes.
    let bytes = |data_type: Option<DataType>| data_type.map_or(1, |data_type| u64::from(data_type.bytes()));
    let (input_size, output_size) = (bytes(types.0), if typed { bytes(types.1) } else { 1 });
    let size = u64::from(d.size());
    let elements = if typed { size } else { d.element_count().into() };
    let block = elements * input_size;
    refuse(Check::SizeZero, size == 0, Status::TransferSizeRange)?;
    if typed {
        let wrong = block > max_transfer || elements * output_size > max_transfer;
        refuse(Check::SizeLimit, wrong, Status::TransferSizeRange)?;
    } else {
        refuse(Check::SizeLimit, size > max_transfer, Status::TransferSizeRange)?;
    }
    if has_list(opcode) {
        let entries = u64::from(d.sgl_size());
        refuse(Check::ListEmpty, entries == 0, Status::DescriptorCountRange)?;
        refuse(Check::ListLimit, entries > max_sgl, Status::DescriptorCountRange)?;
        if opcode == Opcode::GatherReduce {
            let most = 1 << caps.dsa_cap_0.max_gather_block_shift();
            let wrong = block > most || elements * output_size > most;
            refuse(Check::GatherBlock, wrong, Status::TransferSizeRange)?;
            refuse(Check::GatherTotal, entries * block > max_transfer, Status::TransferSizeRange)?;
        } else if types.0.is_some() {
            // Cannot overflow: 16, 32 and 3 bits.
            refuse(Check::ListSize, entries * block != size, Status::TransferSizeRange)?;
        }
    }
    check_types(caps, d, opcode, types)?;
    check_places(d, opcode, (input_size, output_size), elements)
}

/// Checks types, computation, options, list format and ID selector.
fn check_types(
    caps: &Capabilities,
    d: &Descriptor,
    opcode: Opcode,
    types: (Option<DataType>, Option<DataType>),
) -> Result<(), Refusal> {
    let (cap1, cap2) = (caps.dsa_cap_1, caps.dsa_cap_2);
    let supported =
        |data_type: Option<DataType>| data_type.filter(|data_type| cap1.data_types() >> data_type.code() & 1 == 1);
    let value = |check, wrong| refuse(check, wrong, Status::FieldRange);
    value(Check::InputType, supported(types.0).is_none())?;
    if has_list(opcode) {
        let format = SglFormat::from_code(d.sgl_format_code());
        let has = format.is_some_and(|format| caps.dsa_cap_0.sgl_formats() >> format.code() & 1 == 1);
        value(Check::ListFormat, !has)?;
    }
    if !is_typed(opcode) {
        return Ok(());
    }
    value(Check::OutputType, supported(types.1).is_none())?;
    if let (Some(input), Some(output)) = types {
        value(Check::TypeClass, input.is_float() != output.is_float())?;
        let convertible = input == output
            || !input.is_float()
            || has_conversion(cap1.up_conversions(), cap1.down_conversions(), input, output);
        value(Check::TypePair, input.is_float() == output.is_float() && !convertible)?;
        if opcode != Opcode::TypeConversion {
            let compute = ComputeType::from_code(d.compute_type_code());
            let has = compute.filter(|compute| cap1.compute_types() >> compute.code() & 1 == 1);
            value(Check::ComputeCode, has.is_none())?;
            let logical = compute.is_some_and(|compute| !compute.is_arithmetic());
            value(Check::ComputeClass, logical && input.is_float())?;
        }
        let flags = ComputeFlags::from_bits_retain(d.compute_flags());
        let has = |flag| flags.contains(flag);
        let float = input.is_float();
        let one_source = matches!(opcode, Opcode::TypeConversion | Opcode::GatherReduce);
        let negates = ComputeFlags::NEGATE_1.union(ComputeFlags::NEGATE_2);
        value(Check::NegateCapability, flags.intersects(negates) && !cap2.negate())?;
        value(Check::NegateSource2, has(ComputeFlags::NEGATE_2) && one_source)?;
        value(Check::FlushClass, has(ComputeFlags::FLUSH_TO_ZERO) && !float)?;
        value(Check::FlushCapability, has(ComputeFlags::FLUSH_TO_ZERO) && !cap2.flush_to_zero())?;
        value(Check::DenormalClass, has(ComputeFlags::DENORMALS_ARE_ZERO) && !float)?;
        let capable = cap2.denormals_are_zero();
        value(Check::DenormalCapability, has(ComputeFlags::DENORMALS_ARE_ZERO) && !capable)?;
        let rounding = flags.rounding_code();
        value(Check::RoundingClass, rounding != 0 && !float)?;
        value(Check::RoundingRange, rounding > 3)?;
        value(Check::RoundingCapability, float && rounding <= 3 && cap2.roundings() >> rounding & 1 == 0)?;
        value(Check::SignedClass, has(ComputeFlags::SIGNED) && float)?;
        value(Check::SignedCapability, has(ComputeFlags::SIGNED) && !cap2.signed())?;
        value(Check::SaturateClass, has(ComputeFlags::SATURATE) && float)?;
        value(Check::SaturateCapability, has(ComputeFlags::SATURATE) && !cap2.saturate())?;
        value(Check::ComputeFlagsReserved, flags.bits() & !KNOWN != 0)?;
    }
    if matches!(opcode, Opcode::Reduce | Opcode::ReduceDualcast) && d.flags().contains(OpFlags::USE_ID_SELECTOR) {
        let selector = d.id_selector();
        value(Check::SelectorEmpty, selector == 0)?;
        value(Check::SelectorReserved, selected_domains(d).is_none())?;
        value(Check::SelectorDestination2, opcode == Opcode::Reduce && selector >> 6 != 0)?;
    }
    Ok(())
}

/// All compute flags that have a meaning.
const KNOWN: u16 = 0x1ff;

fn has_conversion(up: u16, down: u16, input: DataType, output: DataType) -> bool {
    let place = |pair: (DataType, DataType)| UP.iter().position(|up| *up == pair);
    place((input, output)).is_some_and(|bit| up >> bit & 1 == 1)
        || place((output, input)).is_some_and(|bit| down >> bit & 1 == 1)
}

/// Checks alignments and overlaps.
fn check_places(
    d: &Descriptor,
    opcode: Opcode,
    (input_size, output_size): (u64, u64),
    elements: u64,
) -> Result<(), Refusal> {
    let aligned = |check, address: u64, size| refuse(check, !address.is_multiple_of(size), Status::AddressAlignment);
    let apart = |check, wrong| refuse(check, wrong, Status::Overlap);
    let (source, result) = (elements * input_size, elements * output_size);
    let same_type = d.input_type_code() == d.output_type_code();
    // A source and a destination may be the same array, if the elements keep their type.
    let collide = |src: u64, dst: u64| overlaps(src, source, dst, result) && !(src == dst && same_type);
    match opcode {
        Opcode::TypeConversion => {
            aligned(Check::SourceAlignment, d.src(), input_size)?;
            aligned(Check::ResultAlignment, d.dst(), output_size)?;
            let own = !d.flags().intersects(OpFlags::ALTERNATE_SOURCE.union(OpFlags::ALTERNATE_DESTINATION));
            apart(Check::ResultOverlap, own && collide(d.src(), d.dst()))
        }
        Opcode::Reduce | Opcode::ReduceDualcast => {
            aligned(Check::SourceAlignment, d.src(), input_size)?;
            aligned(Check::Source2Alignment, d.dst(), input_size)?;
            aligned(Check::ResultAlignment, d.reduce_dst(), output_size)?;
            let two = opcode == Opcode::ReduceDualcast;
            if two {
                aligned(Check::Result2Alignment, d.reduce_dst2(), output_size)?;
                let differ = (d.reduce_dst() ^ d.reduce_dst2()) & 0xfff != 0;
                refuse(Check::DualcastAlignment, differ, Status::DualcastAlignment)?;
            }
            let own = selected_domains(d).map_or([false; 4], |domains| domains.map(|domain| domain == Domain::Own));
            let pair = |source: usize, result: usize, src, dst| own[source] && own[result] && collide(src, dst);
            apart(Check::ResultOverlap, pair(0, 2, d.src(), d.reduce_dst()))?;
            apart(Check::Source2Overlap, pair(1, 2, d.dst(), d.reduce_dst()))?;
            if two {
                apart(Check::Result2Overlap, pair(0, 3, d.src(), d.reduce_dst2()))?;
                apart(Check::Source2Result2Overlap, pair(1, 3, d.dst(), d.reduce_dst2()))?;
                let results = overlaps(d.reduce_dst(), result, d.reduce_dst2(), result);
                apart(Check::DualcastOverlap12, own[2] && own[3] && results)?;
            }
            Ok(())
        }
        Opcode::GatherReduce => {
            aligned(Check::ResultAlignment, d.dst(), output_size)?;
            apart(Check::ListOverlap, overlaps(d.src(), list_bytes(d), d.dst(), result))
        }
        Opcode::GatherCopy => {
            let own = !d.flags().contains(OpFlags::ALTERNATE_DESTINATION);
            apart(Check::ListOverlap, own && overlaps(d.src(), list_bytes(d), d.dst(), d.size().into()))
        }
        _ => Ok(()),
    }
}

/// Returns the bytes of a descriptor's list.
fn list_bytes(d: &Descriptor) -> u64 {
    let entry = SglFormat::from_code(d.sgl_format_code()).map_or(0, |format| u64::from(format.entry_bytes()));
    u64::from(d.sgl_size()) * entry
}
