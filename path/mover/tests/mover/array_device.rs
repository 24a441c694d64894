//! Conversions, reductions and operations with lists of the test device, one element or byte at a time.
#![allow(clippy::cast_possible_truncation, reason = "tests cut small numbers")]

use crate::common::device::{Faulty, Performed, Touch, get, put};
use telpher_abi::{
    CompletionRecord, ComputeResult, ComputeType, DataType, Descriptor, Opcode, SglFormat, Status, StatusByte,
};
use telpher_mover::Arithmetic;
use telpher_portal::QueueInfo;

fn element_bytes(d: &Descriptor) -> (u64, u64) {
    let bytes = |code| u64::from(DataType::from_code(code).expect("a type").bytes());
    (bytes(d.input_type_code()), bytes(d.output_type_code()))
}

/// Returns the status of a descriptor that breaks a rule. Source: SPEC §5.4.
fn illegal(info: &QueueInfo, d: &Descriptor) -> Option<Status> {
    let (input, output) = element_bytes(d);
    let (size, entries, max) = (u64::from(d.size()), u64::from(d.sgl_size()), info.max_transfer);
    let is_list = d.opcode().code() >= Opcode::GatherReduce.code();
    if is_list && (entries == 0 || entries > 1 << info.dsa_cap_0.max_sgl_shift()) {
        return Some(Status::DescriptorCountRange);
    }
    let block = u64::from(d.element_count()) * input;
    let most = 1 << info.dsa_cap_0.max_gather_block_shift();
    let is_wrong = match d.opcode() {
        Opcode::GatherReduce => size * input.max(output) > most || size * input * entries > max,
        Opcode::GatherCopy | Opcode::ScatterCopy | Opcode::ScatterFill => size > max || size != entries * block,
        _ => size * input.max(output) > max,
    };
    let is_aligned = match d.opcode() {
        Opcode::TypeConversion => d.src().is_multiple_of(input) && d.dst().is_multiple_of(output),
        Opcode::Reduce | Opcode::ReduceDualcast => {
            (d.src() | d.dst()).is_multiple_of(input) && d.reduce_dst().is_multiple_of(output)
        }
        _ => true,
    };
    match () {
        () if size == 0 || is_wrong => Some(Status::TransferSizeRange),
        () if !is_aligned => Some(Status::AddressAlignment),
        () if d.opcode() == Opcode::ReduceDualcast && (d.reduce_dst() ^ d.reduce_dst2()) & 0xfff != 0 => {
            Some(Status::DualcastAlignment)
        }
        () => None,
    }
}

fn read(address: u64, n: u64) -> Vec<u8> {
    (0..n).map(|i| get(address + i)).collect()
}

fn write(address: u64, bytes: &[u8]) {
    (address..).zip(bytes).for_each(|(at, byte)| put(at, *byte));
}

pub(crate) fn execute(info: &QueueInfo, d: &Descriptor, touch: Touch<'_>) -> Performed {
    if let Some(status) = illegal(info, d) {
        return Ok(CompletionRecord::new(StatusByte::new(status)));
    }
    match d.opcode() {
        Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast => numbers(d, touch),
        Opcode::GatherReduce => gather_reduce(d, touch),
        _ => blocks(d, touch),
    }
}

fn success(seen: ComputeResult) -> CompletionRecord {
    CompletionRecord::new(StatusByte::new(Status::Success)).with_result(seen.bits())
}

fn arithmetic(d: &Descriptor) -> (Arithmetic, Option<ComputeType>) {
    (Arithmetic::of(d).expect("types"), ComputeType::from_code(d.compute_type_code()))
}

fn numbers(d: &Descriptor, touch: Touch<'_>) -> Performed {
    let ((input, output), (arithmetic, compute)) = (element_bytes(d), arithmetic(d));
    let (sources, results) = match d.opcode() {
        Opcode::TypeConversion => (vec![d.src()], vec![d.dst()]),
        Opcode::Reduce => (vec![d.src(), d.dst()], vec![d.reduce_dst()]),
        _ => (vec![d.src(), d.dst()], vec![d.reduce_dst(), d.reduce_dst2()]),
    };
    let mut seen = ComputeResult::empty();
    for i in 0..u64::from(d.size()) {
        let partial = |(stop, _): Faulty| (stop, CompletionRecord::default().with_result(seen.bits()));
        let mut touch = |address, n, write| (0..n).try_for_each(|k| touch(address + k, write, i * input));
        sources.iter().try_for_each(|at| touch(at + i * input, input, false)).map_err(partial)?;
        results.iter().try_for_each(|at| touch(at + i * output, output, true)).map_err(partial)?;
        let operands: Vec<Vec<u8>> = sources.iter().map(|at| read(at + i * input, input)).collect();
        let mut result = vec![0; usize::try_from(output).unwrap()];
        seen |= match &*operands {
            [one] => telpher_ops::convert(&arithmetic, one, &mut result),
            more => telpher_ops::reduce(&arithmetic, compute.expect("a computation"), &more[0], &more[1], &mut result),
        };
        results.iter().for_each(|at| write(at + i * output, &result));
    }
    Ok(success(seen))
}

/// Returns the address of a block. Its entry in the list is touched before it is read.
fn block_of(
    d: &Descriptor,
    (list, at): (u64, u64),
    block: u64,
    mut touch: impl FnMut(u64) -> Result<(), Faulty>,
) -> Result<u64, Faulty> {
    let format = SglFormat::from_code(d.sgl_format_code()).expect("a format");
    let bytes = u64::from(format.entry_bytes());
    (0..bytes).try_for_each(|k| touch(list + at * bytes + k))?;
    Ok(telpher_ops::sgl::address(format, d.sgl_base(), &read(list + at * bytes, bytes), block))
}

/// The results are written at the end only. Bytes completed are always 0.
fn gather_reduce(d: &Descriptor, touch: Touch<'_>) -> Performed {
    let ((input, output), (arithmetic, compute)) = (element_bytes(d), arithmetic(d));
    let block = u64::from(d.size()) * input;
    let mut result = vec![0; usize::try_from(u64::from(d.size()) * output).unwrap()];
    let mut seen = ComputeResult::empty();
    for at in 0..u64::from(d.sgl_size()) {
        let entries = CompletionRecord::default().with_sgl_entries_done(at as u16);
        let partial = |(stop, _): Faulty| (stop, entries);
        let address = block_of(d, (d.src(), at), block, |address| touch(address, false, 0)).map_err(partial)?;
        (0..block).try_for_each(|k| touch(address + k, false, 0)).map_err(partial)?;
        seen |= match at {
            0 => telpher_ops::convert(&arithmetic, &read(address, block), &mut result),
            _ => telpher_ops::fold(&arithmetic, compute.expect("a computation"), &read(address, block), &mut result),
        };
    }
    let entries = CompletionRecord::default().with_sgl_entries_done(d.sgl_size());
    (0..result.len() as u64).try_for_each(|k| touch(d.dst() + k, true, 0)).map_err(|(stop, _)| (stop, entries))?;
    write(d.dst(), &result);
    Ok(success(seen))
}

/// Bytes completed include a part of the block after the entries that are done.
fn blocks(d: &Descriptor, touch: Touch<'_>) -> Performed {
    let block = u64::from(d.element_count()) * element_bytes(d).0;
    let list = if d.opcode() == Opcode::GatherCopy { d.src() } else { d.dst() };
    for at in 0..u64::from(d.sgl_size()) {
        let entries = CompletionRecord::default().with_sgl_entries_done(at as u16);
        let before = at * block;
        let mut touch = |address, write, done| touch(address, write, done).map_err(|(stop, _)| (stop, entries));
        let address = block_of(d, (list, at), block, |address| touch(address, false, before))?;
        for k in 0..block {
            let (from, to) = match d.opcode() {
                Opcode::GatherCopy => (Some(address + k), d.dst() + before + k),
                Opcode::ScatterCopy => (Some(d.src() + before + k), address + k),
                _ => (None, address + k),
            };
            from.map_or(Ok(()), |from| touch(from, false, before + k))?;
            touch(to, true, before + k)?;
            put(to, from.map_or(d.src().to_le_bytes()[k as usize % 8], get));
        }
    }
    Ok(success(ComputeResult::empty()))
}
