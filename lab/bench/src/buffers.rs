//! Buffers for benchmarks: known bytes, page alignment, and enough positions to stay warm or cold.

use serde::Serialize;
use telpher_mem::{MapError, PageSize, Region};
use telpher_os::Random;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Whether operations find their bytes in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Temperature {
    /// The same position again and again: in the cache if it fits.
    Warm,
    /// Rotation through more memory than the last-level cache holds.
    Cold,
}

impl Temperature {
    /// Returns the word in tables.
    pub fn name(self) -> &'static str {
        match self {
            Temperature::Warm => "warm",
            Temperature::Cold => "cold",
        }
    }
}

/// Fills a buffer with bytes that depend on `seed` and on the position, so that a misplaced byte is noticed.
pub fn fill_known(bytes: &mut [u8], seed: u64) {
    Random::new(seed | 1).fill(bytes);
}

/// Fills with numbers that are ordinary in every type: positive, and with exponents for which every conversion and sum
/// yields a normal number. The first byte of each 16-bit word varies.
fn ordinary_numbers(bytes: &mut [u8]) {
    for (number, bytes) in (0_u64..).zip(bytes.as_chunks_mut().0) {
        let fraction = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8 & 0x0007_0007_0007_0007;
        *bytes = (0x3f38_3f38_3f38_3f38 | fraction).to_le_bytes();
    }
}

/// Returns the first offset at which two buffers differ; a missing byte differs from any byte.
pub fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    let shared = a.iter().zip(b).position(|(x, y)| x != y);
    shared.or_else(|| (a.len() != b.len()).then(|| a.len().min(b.len())))
}

/// Allocates `len` zero bytes on a page boundary; this thread touches every page.
pub fn touched(len: usize, pages: PageSize) -> Result<Region, MapError> {
    let mut region = Region::new(len, pages)?;
    region.iter_mut().step_by(PAGE).for_each(|byte| *byte = std::hint::black_box(0));
    Ok(region)
}

/// Source and destination memory, divided into positions of one transfer each.
#[derive(Debug)]
pub struct Arena {
    src: Region,
    dst: Region,
    /// The source has been filled with numbers.
    numbers: bool,
}

/// The positions of an arena, and the next one.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    src_len: usize,
    dst_len: usize,
    stride: usize,
    count: usize,
    step: usize,
    at: usize,
}

impl Places {
    /// Returns the number of positions.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Arena {
    /// Allocates `len` bytes on each side and fills the source with known bytes. The destination is a little larger,
    /// for operations that add to their data.
    pub fn new(len: usize) -> Result<Self, MapError> {
        let (src, dst) = (touched(len, PageSize::Small)?, touched(len + len / 32 + PAGE, PageSize::Small)?);
        let mut arena = Arena { src, dst, numbers: false };
        fill_known(&mut arena.src, 1);
        Ok(arena)
    }

    /// Divides the arena into positions for transfers of `src_len` to `dst_len` bytes.
    pub fn places(&self, src_len: usize, dst_len: usize, temperature: Temperature) -> Places {
        let stride = src_len.max(dst_len).next_multiple_of(64);
        let room = self.src.len().min(self.dst.len());
        let count = match temperature {
            Temperature::Warm => 1,
            Temperature::Cold => (room / stride).max(1),
        };
        // The step is odd and about the golden section of the count, so that successive positions are far apart and the
        // prefetcher cannot predict them. The rotation covers the whole arena because step and count are coprime.
        let step = (count * 618 / 1000..).find(|s| *s > 0 && gcd(*s, count) == 1).unwrap_or(1);
        Places { src_len, dst_len, stride, count, step, at: 0 }
    }

    /// Returns the source and the destination of the next position.
    #[inline]
    pub fn next(&mut self, places: &mut Places) -> (&[u8], &mut [u8]) {
        places.at += places.step;
        if places.at >= places.count {
            places.at %= places.count;
        }
        let from = places.at * places.stride;
        (&self.src[from..][..places.src_len], &mut self.dst[from..][..places.dst_len])
    }

    /// Returns the source and the destination of the last used position.
    pub fn last(&self, places: &Places) -> (&[u8], &[u8]) {
        let from = places.at * places.stride;
        (&self.src[from..][..places.src_len], &self.dst[from..][..places.dst_len])
    }

    /// Fills the whole source with numbers that are ordinary in every type, unless it has them.
    pub fn with_numbers(&mut self) -> &mut Self {
        if !self.numbers {
            ordinary_numbers(&mut self.src);
            self.numbers = true;
        }
        self
    }

    /// Makes both sides equal at every position, for operations that compare.
    pub fn equalise(&mut self, places: &Places) {
        let len = (places.count * places.stride).min(self.src.len());
        self.dst[..len].copy_from_slice(&self.src[..len]);
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_bytes_differ_by_seed_and_position() {
        let (mut a, mut b) = (vec![0; 1003], vec![0; 1003]);
        fill_known(&mut a, 1);
        fill_known(&mut b, 3);
        assert_ne!(a, b);
        assert_ne!(a[..8], a[8..16]);
        fill_known(&mut b, 1);
        assert_eq!(first_difference(&a, &b), None);
        b[777] ^= 1;
        assert_eq!(first_difference(&a, &b), Some(777));
        assert_eq!(first_difference(&a, &a[..5]), Some(5));
    }

    #[test]
    fn cold_positions_repeat_only_after_all_others() {
        let mut arena = Arena::new(64 << 10).unwrap();
        let mut places = arena.places(1000, 1000, Temperature::Cold);
        let mut seen: Vec<usize> = (0..places.count).map(|_| arena.next(&mut places).0.as_ptr() as usize).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((seen.len(), places.count), (64, 64));
    }

    #[test]
    fn a_warm_position_never_changes() {
        let mut arena = Arena::new(4096).unwrap();
        let mut places = arena.places(64, 64, Temperature::Warm);
        let first = arena.next(&mut places).0.as_ptr();
        assert_eq!(arena.next(&mut places).0.as_ptr(), first);
    }

    #[test]
    fn equalised_positions_compare_equal() {
        let mut arena = Arena::new(8192).unwrap();
        let mut places = arena.places(100, 100, Temperature::Cold);
        arena.equalise(&places);
        let (a, b) = arena.next(&mut places);
        assert_eq!(a, b);
    }
}
