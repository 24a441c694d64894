//! Type Conversion, Reduce and Reduce with Dualcast. Source: SPEC §8.3.19 to §8.3.21.

use super::{Counted, End, Ended, OperandSpaces, Pages, Scratch, copy, index};
use crate::arrays::Arrays;
use crate::operand::{Domain, Operand};
use telpher_abi::{ComputeResult, OperandId};
use telpher_mem::PAGE_BYTES;

/// Ends an operation with its result byte, and fails the predicate if that is checked and not zero.
pub(super) fn finished(seen: ComputeResult, check_result: bool) -> End {
    End::checked(seen.bits(), !check_result || seen.is_empty())
}

pub(super) fn arrays(spaces: &OperandSpaces<'_>, block: bool, scratch: &mut Scratch, arrays: &Arrays) -> Counted {
    let domain = |operand: Option<Operand>| operand.map_or(Domain::Own, |operand| operand.domain);
    let [src1, src2] = arrays.sources.map(|operand| spaces.pages(domain(operand), block));
    let [dst1, dst2] = arrays.destinations.map(|operand| spaces.pages(domain(operand), block));
    let mut pages = [src1, src2, dst1, dst2];
    let end = run(&mut pages, scratch, arrays);
    Counted::of(end, &pages)
}

fn run([src1, src2, dst1, dst2]: &mut [Pages<'_>; 4], scratch: &mut Scratch, arrays: &Arrays) -> Ended {
    let input = u64::from(arrays.arithmetic.input.bytes());
    let output = u64::from(arrays.arithmetic.output.bytes());
    let (left, right) = scratch.a.split_at_mut(scratch.a.len() / 2);
    let most = (left.len() as u64 / input).min(scratch.b.len() as u64 / output);
    let [source1, source2] = arrays.sources.map(|operand| operand.map(|operand| operand.address));
    let [result1, result2] = arrays.destinations.map(|operand| operand.map(|operand| operand.address));
    let (Some(source1), Some(result1)) = (source1, result1) else { return Ok(End::success()) };
    let (mut done, mut seen) = (0, ComputeResult::empty());
    while done < arrays.elements {
        let mut piece = (arrays.elements - done).min(most);
        if result2.is_some() {
            // Both destinations hold the same elements at every stop: page by page, as their page offsets are equal.
            let rest_of_page = PAGE_BYTES - result1.wrapping_add(done * output) % PAGE_BYTES;
            piece = piece.min(rest_of_page / output);
        }
        let mut stopped = None;
        let sources = [
            (&mut *src1, Some(source1), &mut *left, OperandId::Source1),
            (&mut *src2, source2, &mut *right, OperandId::Source2),
        ];
        for (pages, address, buffer, operand) in sources {
            let Some(address) = address else { continue };
            let buffer = &mut buffer[..index(piece * input)];
            if let Err((valid, stop)) = pages.read(address.wrapping_add(done * input), buffer) {
                // Only whole elements count; the source that stops earlier decides.
                piece = valid as u64 / input;
                stopped = Some((stop, operand));
            }
        }
        let (left, right) = (&left[..index(piece * input)], &right[..index(piece * input)]);
        let results = &mut scratch.b[..index(piece * output)];
        let compute = |results: &mut [u8]| {
            let len = results.len() / index(output) * index(input);
            match arrays.compute {
                None => telpher_ops::convert(&arrays.arithmetic, &left[..len], results),
                Some(compute) => telpher_ops::reduce(&arrays.arithmetic, compute, &left[..len], &right[..len], results),
            }
        };
        let here = compute(&mut *results);
        let mut written = piece;
        let to1 = result1.wrapping_add(done * output);
        match result2.map(|address| address.wrapping_add(done * output)) {
            Some(to2) if piece > 0 => {
                let fails2 = copy::probe_write(dst2, to2).err();
                let failure = match fails2 {
                    Some(stop) => Some((stop, OperandId::Destination2)),
                    None => match dst1.write(to1, results, arrays.hint) {
                        Err((_, stop)) => Some((stop, OperandId::Destination1)),
                        Ok(()) => {
                            let second = dst2.write(to2, results, arrays.hint);
                            second.err().map(|(_, stop)| (stop, OperandId::Destination2))
                        }
                    },
                };
                if failure.is_some() {
                    (written, stopped) = (0, failure);
                }
            }
            _ => {
                if let Err((bytes, stop)) = dst1.write(to1, results, arrays.hint) {
                    (written, stopped) = (bytes as u64 / output, Some((stop, OperandId::Destination1)));
                }
            }
        }
        // Only elements whose results were stored count for the result byte.
        seen |= if written == piece { here } else { compute(&mut results[..index(written * output)]) };
        done += written;
        if let Some((stop, operand)) = stopped {
            return Err(stop.after(done * input, operand).map_record(|record| record.with_result(seen.bits())));
        }
    }
    Ok(finished(seen, arrays.check_result))
}
