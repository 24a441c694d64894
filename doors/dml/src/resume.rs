//! Finishes on the CPU what a device left after a page fault: the automatic path.
//!
//! A move, a fill, a dualcast and a flush continue after the bytes that the device reports; a move must, because its
//! ranges may overlap. The others are executed again as a whole: their sources are not among the bytes that they write,
//! so the result is the same, and nothing has to be added up.

use crate::cpu::{end_of_batch, read_member, record_of, run, run_member, write_record};
use telpher_abi::{CompletionRecord, Descriptor, Flags, Opcode, Status};

/// Finishes a descriptor of the automatic path. Returns the record that its submitter sees.
pub(crate) fn finish(d: &Descriptor, record: CompletionRecord) -> CompletionRecord {
    match (d.opcode(), record.status()) {
        (Opcode::Batch, Status::BatchFail) => finish_batch(d, record),
        (Opcode::Batch, _) => record,
        (_, Status::PageFault) => run(&rest(d, &record)),
        _ => record,
    }
}

/// Returns the part of a descriptor that has not been executed, or all of it.
fn rest(d: &Descriptor, record: &CompletionRecord) -> Descriptor {
    let Some(left) = d.size().checked_sub(record.bytes_completed()).filter(|left| *left > 0) else { return *d };
    let done = u64::from(d.size() - left);
    let behind = |address: u64| address.wrapping_add(done);
    let shorter = d.with_size(left);
    match d.opcode() {
        // A backward move has done its end.
        Opcode::MemoryMove if record.result() == 1 => shorter,
        Opcode::MemoryMove => shorter.with_src(behind(d.src())).with_dst(behind(d.dst())),
        // The rest begins in the middle of the pattern, so a whole number of patterns is skipped.
        Opcode::Fill => {
            let (done, extra) = (done / 8 * 8, record.bytes_completed() % 8);
            d.with_size(left + extra).with_dst(d.dst().wrapping_add(done))
        }
        Opcode::Dualcast => shorter.with_src(behind(d.src())).with_dst(behind(d.dst())).with_dst2(behind(d.dst2())),
        Opcode::CacheFlush => shorter.with_dst(behind(d.dst())),
        _ => *d,
    }
}

/// Finishes the members that stopped at a page fault, and those that a fence kept from starting because of one.
fn finish_batch(batch: &Descriptor, record: CompletionRecord) -> CompletionRecord {
    let (mut failed, mut done) = (false, 0);
    for at in 0..batch.size() {
        // The device has read the list a moment ago.
        let Ok(member) = read_member(batch, at) else { return record };
        if failed && member.flags().contains(Flags::FENCE) {
            break;
        }
        let ended = match record_of(&member) {
            Some(written) => {
                let ended = finish(&member, written);
                if ended != written {
                    write_record(&member, &ended);
                }
                ended
            }
            None => run_member(&member),
        };
        failed |= ended.status() != Status::Success;
        done += 1;
    }
    end_of_batch(failed, done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_abi::StatusByte;

    fn stopped(done: u32) -> CompletionRecord {
        CompletionRecord::new(StatusByte::fault(Status::PageFault, true)).with_bytes_completed(done)
    }

    #[test]
    fn the_rest_of_an_operation_begins_after_what_the_device_reports() {
        let copy = Descriptor::memory_move(0x1000, 0x9000, 100);
        assert_eq!(rest(&copy, &stopped(30)), Descriptor::memory_move(0x101e, 0x901e, 70));
        assert_eq!(rest(&copy, &stopped(30).with_result(1)), Descriptor::memory_move(0x1000, 0x9000, 70));
        assert_eq!(rest(&Descriptor::fill(7, 0x1000, 100), &stopped(30)), Descriptor::fill(7, 0x1018, 76));
        let cast = rest(&Descriptor::dualcast(0x1000, 0x2000, 0x5000, 100), &stopped(4));
        assert_eq!(cast, Descriptor::dualcast(0x1004, 0x2004, 0x5004, 96));
        let crc = Descriptor::crc_generation(0x1000, 100, 5);
        assert_eq!(rest(&crc, &stopped(30)), crc, "again as a whole");
        // A device that reports more than it was given is not believed.
        assert_eq!(rest(&copy, &stopped(101)), copy);
        assert_eq!(rest(&copy, &stopped(100)), copy);
    }
}
