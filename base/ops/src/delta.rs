//! Create Delta Record and Apply Delta Record: differences as 10-byte entries. Source of the meaning: SPEC §8.3.8,
//! §8.3.9.
//!
//! An entry is a 16-bit offset in units of 8 bytes, little-endian, then the 8 bytes of the second source. Entries
//! ascend by offset. A transfer has at most [`MAX_DELTA_TRANSFER`] bytes, since the offset has 16 bits.
#![forbid(unsafe_code)]

use crate::dispatch::Kernels;
use telpher_abi::{DELTA_ENTRY_BYTES, MAX_DELTA_TRANSFER};

/// Bytes of one entry.
const ENTRY: usize = DELTA_ENTRY_BYTES as usize;
/// Bytes of data in one entry.
const WORD: usize = 8;

/// The progress of the creation of a delta record.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Created {
    /// Bytes written to the record, a multiple of 10.
    pub record_bytes: usize,
    /// Bytes compared whose differences are all in the record: all bytes, or up to the difference without space.
    pub bytes_compared: usize,
    /// True if there was a difference and no space for its entry.
    pub overflow: bool,
}

/// Writes an entry to `record` for each 8 bytes in which `src2` differs from `src1`.
///
/// `base` is the offset of both slices' start in the whole transfer, in bytes, so that a transfer can be processed in
/// chunks. Each chunk then gets the part of the record that earlier chunks left unused.
///
/// # Panics
/// If the slices' lengths differ or are no multiple of 8, or if `base` is no multiple of 8 or `base` and the length
/// exceed [`MAX_DELTA_TRANSFER`] together.
#[inline]
pub fn create(src1: &[u8], src2: &[u8], base: u32, record: &mut [u8]) -> Created {
    Kernels::best().create_delta(src1, src2, base, record)
}

impl Kernels {
    /// [`delta::create`](create) with these kernels.
    ///
    /// # Panics
    /// As for [`create`].
    #[inline]
    pub fn create_delta(self, src1: &[u8], src2: &[u8], base: u32, record: &mut [u8]) -> Created {
        assert_eq!(src1.len(), src2.len(), "both sources have the same length");
        assert!(
            src1.len().is_multiple_of(WORD) && (base as usize).is_multiple_of(WORD),
            "chunks begin and end at multiples of 8"
        );
        assert!(
            src1.len() <= MAX_DELTA_TRANSFER as usize && base as usize <= MAX_DELTA_TRANSFER as usize - src1.len(),
            "a delta transfer has at most {MAX_DELTA_TRANSFER} bytes"
        );
        match self.mismatch(src1, src2) {
            None => Created { record_bytes: 0, bytes_compared: src1.len(), overflow: false },
            Some(first) => self.record_differences(first / WORD, (src1, src2), base, record),
        }
    }

    /// Creates the record of two sources that differ first in word `at`.
    fn record_differences(self, mut at: usize, (src1, src2): (&[u8], &[u8]), base: u32, record: &mut [u8]) -> Created {
        let (words1, words2) = (src1.as_chunks::<WORD>().0, src2.as_chunks::<WORD>().0);
        let mut entries = record.as_chunks_mut::<ENTRY>().0.iter_mut();
        let mut written = 0;
        // The kernel skips equal bytes. Where it stops, the differences are taken word by word until a whole line is
        // equal again: differences come in clusters, and a call for each word would cost more than the word.
        loop {
            let mut equal_words = 0;
            while at < words1.len() && equal_words < 8 {
                if words1[at] == words2[at] {
                    equal_words += 1;
                } else {
                    let Some(entry) = entries.next() else {
                        return Created { record_bytes: written * ENTRY, bytes_compared: at * WORD, overflow: true };
                    };
                    // At most 0xffff, because the whole transfer has at most 0x80000 bytes.
                    let offset = u16::try_from(base as usize / WORD + at).expect("the transfer's length was checked");
                    entry[..2].copy_from_slice(&offset.to_le_bytes());
                    entry[2..].copy_from_slice(&words2[at]);
                    written += 1;
                    equal_words = 0;
                }
                at += 1;
            }
            match self.mismatch(&src1[at * WORD..], &src2[at * WORD..]) {
                Some(skipped) => at += skipped / WORD,
                None => break,
            }
        }
        Created { record_bytes: written * ENTRY, bytes_compared: src1.len(), overflow: false }
    }
}

/// One difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The position of the bytes, from the start of the transfer; a multiple of 8, at most 0x7fff8.
    pub offset_bytes: u32,
    /// The bytes to store there.
    pub data: [u8; WORD],
}

/// The required order of an entry's offset relative to the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum OffsetOrder {
    /// Larger: the specification's rule (§8.3.9).
    #[default]
    Ascending,
    /// Larger or equal; of two entries with the same offset the later one counts. Hardware accepts this.
    NotDescending,
}

/// The error of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ApplyErrorKind {
    /// Its offset is not in the required order (status 0x07).
    Order,
    /// Its offset lies outside of the transfer (status 0x08).
    Range,
}

/// Error: a delta record has an entry that cannot be applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the delta entry after {applied} bytes of the record {}", match kind {
    ApplyErrorKind::Order => "does not ascend",
    ApplyErrorKind::Range => "lies outside of the transfer",
})]
pub struct ApplyError {
    /// Bytes of the record before the bad entry, all of them applied.
    pub applied: usize,
    /// The error of the entry.
    pub kind: ApplyErrorKind,
}

/// Returns the entries of `record`, unchecked; an incomplete entry at the end is ignored.
pub fn entries(record: &[u8]) -> impl ExactSizeIterator<Item = Entry> + '_ {
    record.as_chunks::<ENTRY>().0.iter().map(|&[low, high, ref data @ ..]| Entry {
        offset_bytes: u32::from(u16::from_le_bytes([low, high])) * 8,
        data: *data,
    })
}

/// Returns the entries of `record` for a transfer of `transfer_bytes`, each one checked; for callers that write to
/// memory outside of a slice. `previous` is the byte offset of the last entry before the record, if it continues
/// another.
///
/// Ends after the first error.
pub fn checked_entries(
    record: &[u8],
    transfer_bytes: usize,
    mut previous: Option<u32>,
    order: OffsetOrder,
) -> impl Iterator<Item = Result<Entry, ApplyError>> + '_ {
    let mut failed = false;
    entries(record).enumerate().map_while(move |(index, entry)| {
        let fits = (entry.offset_bytes as usize).checked_add(WORD).is_some_and(|end| end <= transfer_bytes);
        let kind = match previous {
            _ if failed => return None,
            Some(previous) if entry.offset_bytes < previous => ApplyErrorKind::Order,
            Some(previous) if entry.offset_bytes == previous && order == OffsetOrder::Ascending => {
                ApplyErrorKind::Order
            }
            _ if !fits => ApplyErrorKind::Range,
            _ => {
                previous = Some(entry.offset_bytes);
                return Some(Ok(entry));
            }
        };
        failed = true;
        Some(Err(ApplyError { applied: index * ENTRY, kind }))
    })
}

/// Stores the bytes of each entry of `record` in `dst`, the whole transfer.
///
/// `previous` is the byte offset of the last entry before the record, if it continues another.
///
/// # Errors
/// At the first entry that does not ascend or does not lie in `dst`; the entries before it are applied.
pub fn apply(record: &[u8], dst: &mut [u8], previous: Option<u32>) -> Result<(), ApplyError> {
    for entry in checked_entries(record, dst.len(), previous, OffsetOrder::Ascending) {
        let Entry { offset_bytes, data } = entry?;
        dst[offset_bytes as usize..][..WORD].copy_from_slice(&data);
    }
    Ok(())
}
