//! Tests of Create and Apply Delta Record, at every level this CPU has.
#![forbid(unsafe_code)]

use crate::oracle;
use proptest::prelude::*;
use telpher_ops::Kernels;
use telpher_ops::delta::{self, ApplyError, ApplyErrorKind, Created, Entry};

/// Returns entries for all differing words of the second source.
fn naive(src1: &[u8], src2: &[u8], base: usize) -> Vec<u8> {
    let words = src1.chunks(8).zip(src2.chunks(8)).enumerate();
    let differing = words.filter(|(_, (a, b))| a != b);
    differing.flat_map(|(at, (_, b))| [&u16::try_from(base / 8 + at).unwrap().to_le_bytes()[..], b].concat()).collect()
}

#[test]
fn one_changed_byte_gives_one_entry_with_the_whole_word() {
    let src1 = [0; 4096];
    let mut src2 = src1;
    src2[2051] = 7;
    for kernels in Kernels::available() {
        let mut record = [0; 80];
        let created = kernels.create_delta(&src1, &src2, 0, &mut record);
        assert_eq!(created, Created { record_bytes: 10, bytes_compared: 4096, overflow: false });
        // 2048 / 8 = 0x100, little-endian.
        assert_eq!(record[..10], [0x00, 0x01, 0, 0, 0, 7, 0, 0, 0, 0]);
    }
}

#[test]
fn without_space_the_bytes_before_the_unrecorded_difference_count() {
    let src1 = [0; 256];
    let src2 = [1; 256];
    for kernels in Kernels::available() {
        // Space for eight entries and an incomplete one.
        let mut record = [0xEE; 89];
        let created = kernels.create_delta(&src1, &src2, 0, &mut record);
        assert_eq!(created, Created { record_bytes: 80, bytes_compared: 64, overflow: true });
        assert_eq!(record[80..], [0xEE; 9]);
    }
}

#[test]
fn the_last_word_of_the_largest_transfer_has_an_offset() {
    let src1 = vec![0; 0x8_0000];
    let mut src2 = src1.clone();
    src2[0x7_ffff] = 1;
    let mut record = [0; 80];
    let created = delta::create(&src1, &src2, 0, &mut record);
    assert_eq!(created, Created { record_bytes: 10, bytes_compared: 0x8_0000, overflow: false });
    assert_eq!(delta::entries(&record[..10]).next().unwrap().offset_bytes, 0x7_fff8);
}

#[test]
#[should_panic(expected = "at most 524288 bytes")]
fn a_chunk_beyond_the_largest_transfer_panics() {
    let _ = delta::create(&[0; 16], &[0; 16], 0x8_0000 - 8, &mut []);
}

#[test]
fn entries_that_do_not_ascend_stop_the_application() {
    let record = [[2, 0, 9, 9, 9, 9, 9, 9, 9, 9], [2, 0, 8, 8, 8, 8, 8, 8, 8, 8]].concat();
    let mut dst = [0; 64];
    let error = ApplyError { applied: 10, kind: ApplyErrorKind::Order };
    assert_eq!(delta::apply(&record, &mut dst, None), Err(error));
    assert_eq!(dst[16..24], [9; 8]);
    let first = ApplyError { applied: 0, kind: ApplyErrorKind::Order };
    assert_eq!(delta::apply(&record, &mut dst, Some(16)), Err(first));
    let order = delta::OffsetOrder::Ascending;
    assert_eq!(delta::checked_entries(&record, 64, Some(16), order).count(), 1, "the iterator ends after the error");
}

#[test]
fn an_entry_at_the_end_of_the_transfer_is_out_of_range() {
    let record = [8, 0, 9, 9, 9, 9, 9, 9, 9, 9];
    let error = ApplyError { applied: 0, kind: ApplyErrorKind::Range };
    assert_eq!(delta::apply(&record, &mut [0; 64], None), Err(error));
    assert_eq!(delta::apply(&record, &mut [0; 72], None), Ok(()));
}

#[test]
fn an_incomplete_entry_at_the_end_is_ignored() {
    let record = [1, 0, 9, 9, 9, 9, 9, 9, 9, 9, 2, 0, 1];
    let entries: Vec<_> = delta::entries(&record).collect();
    assert_eq!(entries, [Entry { offset_bytes: 8, data: [9; 8] }]);
}

proptest! {
    #[test]
    fn applying_what_was_created_makes_the_sources_equal(
        words in 0usize..1500, base in (0u32..1000).prop_map(|words| words * 8),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 1usize..40), 0..12),
    ) {
        let src1 = oracle::noise(9, words * 8);
        let mut src2 = src1.clone();
        for (at, run) in changes {
            let at = at.index(src2.len() + 1);
            let end = (at + run).min(src2.len());
            src2[at..end].iter_mut().for_each(|byte| *byte ^= 0x11);
        }
        let expected = naive(&src1, &src2, base as usize);
        for kernels in Kernels::available() {
            let mut record = vec![0xEE; expected.len() + 5];
            let created = kernels.create_delta(&src1, &src2, base, &mut record);
            let everything = Created { record_bytes: expected.len(), bytes_compared: src1.len(), overflow: false };
            prop_assert_eq!(created, everything);
            prop_assert_eq!(&record[..expected.len()], &expected[..]);
            let mut dst = vec![0; base as usize + src1.len()];
            dst[base as usize..].copy_from_slice(&src1);
            prop_assert_eq!(delta::apply(&record[..expected.len()], &mut dst, None), Ok(()));
            prop_assert!(dst[base as usize..] == src2[..]);
        }
    }

    #[test]
    fn processing_in_chunks_gives_the_same_record(words in 1usize..600, cut: prop::sample::Index, room in 0usize..300) {
        let (src1, mut src2) = (oracle::noise(10, words * 8), oracle::noise(10, words * 8));
        (0..words).step_by(3).for_each(|word| src2[word * 8 + word % 8] ^= 1);
        let mut whole = vec![0; room];
        let expected = delta::create(&src1, &src2, 0, &mut whole);
        let cut = cut.index(words + 1) * 8;
        let mut record = vec![0; room];
        let first = delta::create(&src1[..cut], &src2[..cut], 0, &mut record);
        let mut total = first;
        if !first.overflow {
            let base = u32::try_from(cut).unwrap();
            let second = delta::create(&src1[cut..], &src2[cut..], base, &mut record[first.record_bytes..]);
            total = Created {
                record_bytes: first.record_bytes + second.record_bytes,
                bytes_compared: first.bytes_compared + second.bytes_compared,
                overflow: second.overflow,
            };
        }
        prop_assert_eq!(total, expected);
        prop_assert_eq!(record, whole);
    }
}
