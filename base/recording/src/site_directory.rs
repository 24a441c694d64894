//! The directory of call sites: from a return address to the site's index.
//!
//! A word of the directory is 0 or has the return address in its low 48 bits and the index in the other 16, so that one
//! atomic exchange publishes both. A thread that is interrupted anywhere leaves no word half written.

use crate::claim::claim;
use crate::sync::{AtomicU64, Ordering};

/// Bits of a return address.
const ADDRESS_BITS: u32 = 48;
/// The bits of the address in a word.
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;
/// Words that a search looks at. Source: chosen; at most half of the words are in use, so a longer search is rare.
const MOST_LOOKS: usize = 16;

/// Returns the return address and the index in a word of the directory; `None` if the word is free.
pub(crate) fn decode(word: u64) -> Option<(u64, u16)> {
    // Cannot truncate: 16 bits are left.
    let index = u16::try_from(word >> ADDRESS_BITS).expect("16 bits");
    (word & ADDRESS != 0).then_some((word & ADDRESS, index))
}

/// Returns the index of a site, claiming one if the address is new. `words` has a power of two of words, `claimed` the
/// number of indices that were claimed.
///
/// `None` if all `limit` indices are claimed, if too many addresses have the same hash, or if the address does not fit
/// into 48 bits. Two threads that bring the same new address at once may waste an index.
pub(crate) fn find_or_claim(words: &[AtomicU64], claimed: &AtomicU64, limit: usize, address: u64) -> Option<u16> {
    if address == 0 || address > ADDRESS {
        return None;
    }
    // Fibonacci hashing: the high bits of the product depend on all bits of the address.
    let hash = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let first = usize::try_from(hash).ok()?;
    let mut ours = None;
    for look in 0..MOST_LOOKS.min(words.len()) {
        let word = &words[(first + look) & (words.len() - 1)];
        // Relaxed here and below: a word is complete in itself and never changes again.
        match decode(word.load(Ordering::Relaxed)) {
            Some((found, index)) if found == address => return Some(index),
            Some(_) => {}
            None => {
                let index = match ours {
                    Some(index) => index,
                    None => u16::try_from(claim(claimed, limit)?).ok()?,
                };
                let new = address | u64::from(index) << ADDRESS_BITS;
                match word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Some(index),
                    Err(theirs) => match decode(theirs) {
                        Some((found, index)) if found == address => return Some(index),
                        // Another site took the word; the search goes on with the index that we have.
                        _ => ours = Some(index),
                    },
                }
            }
        }
    }
    None
}
