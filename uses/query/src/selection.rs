//! The rows that a scan has selected: one bit per row.

use std::ops::Range;

/// Rows that an aggregation processes at a time: few enough that intermediate values stay in a core's cache, many
/// enough that the cost per block does not matter. Source: assumed.
pub(super) const BLOCK: usize = 1024;

/// Bits of a word.
pub(super) const WORD: usize = u64::BITS as usize;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The rows that a scan has selected. Created once, and reused by further scans.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    rows: Range<u64>,
    /// The first bit is the first row; bits beyond the last row are 0.
    words: Vec<u64>,
    /// Bytes of the columns that the scan read.
    pub(super) read: u64,
}

impl Selection {
    /// Returns the scanned rows.
    #[must_use]
    pub fn rows(&self) -> Range<u64> {
        self.rows.clone()
    }

    /// Returns the number of selected rows.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns whether this row is selected.
    #[must_use]
    pub fn has(&self, row: u64) -> bool {
        self.rows.contains(&row)
            && usize::try_from(row - self.rows.start).is_ok_and(|at| self.words[at / WORD] >> (at % WORD) & 1 == 1)
    }

    /// Resets it for these rows, with none selected.
    pub(super) fn reset(&mut self, rows: Range<u64>, len: usize) -> &mut [u64] {
        self.rows = rows;
        self.read = 0;
        self.words.clear();
        self.words.resize(len.div_ceil(WORD), 0);
        &mut self.words
    }

    /// Returns the bytes of the cache lines that have selected rows, of the `len` rows from the `at`th of a column with
    /// values of this width, of which a line holds a power of two.
    pub(super) fn touched(&self, at: usize, len: usize, width: usize) -> u64 {
        let per_line = (LINE / width).min(WORD);
        let mut bytes = 0;
        for from in (0..len).step_by(WORD) {
            let rows = (len - from).min(WORD);
            let word = self.word(at + from) & u64::MAX >> (WORD - rows);
            for line in (0..rows).step_by(per_line) {
                let rows = (rows - line).min(per_line);
                if word >> line & u64::MAX >> (WORD - rows) != 0 {
                    bytes += (rows * width) as u64;
                }
            }
        }
        bytes
    }

    /// Returns which of the `len` rows from the `at`th are selected, numbered from 0; at most a block of them.
    pub(super) fn chosen<'a>(&self, at: usize, len: usize, into: &'a mut Indices) -> &'a [u16] {
        let mut count = 0;
        for from in (0..len).step_by(WORD) {
            let mut word = self.word(at + from);
            if len - from < WORD {
                word &= (1 << (len - from)) - 1;
            }
            // Cannot be truncated: `from` is less than a block.
            #[allow(clippy::cast_possible_truncation, reason = "less than a block")]
            let first = from as u16;
            if word == u64::MAX {
                for (number, index) in (first..).zip(&mut into.0[count..count + WORD]) {
                    *index = number;
                }
                count += WORD;
            } else if word != 0 {
                for (byte, first) in word.to_le_bytes().into_iter().zip((first..).step_by(8)) {
                    let set = &SET[usize::from(byte)];
                    let into: &mut [u16] = &mut into.0[count..count + 8];
                    for (index, &bit) in into.iter_mut().zip(set) {
                        *index = first + u16::from(bit);
                    }
                    count += usize::from(ONES[usize::from(byte)]);
                }
            }
        }
        &into.0[..count]
    }

    /// Returns the 64 bits from the `at`th; missing bits are 0.
    fn word(&self, at: usize) -> u64 {
        let get = |word: usize| self.words.get(word).copied().unwrap_or_default();
        match at % WORD {
            0 => get(at / WORD),
            shift => get(at / WORD) >> shift | get(at / WORD + 1) << (WORD - shift),
        }
    }
}

/// Room for the rows of a block, and for the seven that are written beyond the last.
#[derive(Clone, Debug)]
pub(super) struct Indices([u16; BLOCK + 7]);

impl Default for Indices {
    fn default() -> Self {
        Indices([0; BLOCK + 7])
    }
}

/// The set bits of each byte, followed by arbitrary values.
static SET: [[u8; 8]; 256] = {
    let mut all = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut bit, mut count) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                all[byte][count] = bit;
                count += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    all
};

/// The number of set bits of each byte.
static ONES: [u8; 256] = {
    let mut all = [0; 256];
    let mut byte = 1;
    while byte < 256 {
        all[byte] = all[byte / 2];
        if byte % 2 == 1 {
            all[byte] += 1;
        }
        byte += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn selected_rows_are_those_with_a_set_bit(
            words in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], 0..40), start in 0_u64..1_000, at in 0_usize..3_000, len in 0_usize..=BLOCK,
        ) {
            let mut selection = Selection::default();
            let bits = words.len() * WORD;
            selection.reset(start..start + bits as u64, bits).copy_from_slice(&words);
            let (at, mut room) = (at.min(bits), Indices::default());
            let len = len.min(bits - at);
            let chosen = selection.chosen(at, len, &mut room);
            let expected: Vec<u16> = (0..len).filter(|n| selection.has(start + (at + n) as u64)).map(|n| u16::try_from(n).unwrap()).collect();
            prop_assert_eq!(chosen, expected);
            prop_assert_eq!(selection.count(), (0..bits).filter(|n| words[n / 64] >> (n % 64) & 1 == 1).count() as u64);
            prop_assert!(!selection.has(start + bits as u64));
        }
    }
}
