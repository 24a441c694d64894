//! The free slot numbers, in a list for each stripe of threads.
//!
//! A thread takes numbers from its own list, and from the next ones when its own is empty. A number goes back to the
//! list it belongs to. So threads that work in parallel write different words, and reuse slots that are in their own
//! caches.

use super::free_list::FreeList;
use crate::thread_stripe::{Padded, STRIPES};

/// The smallest number of entries that justifies a list. Source: chosen; with fewer, threads would go from list to
/// list. One for loom, where more would take too long.
const FEWEST: u32 = if cfg!(loom) { 1 } else { 16 };

/// The free numbers in `0..len`.
#[derive(Debug)]
pub(crate) struct FreeLists {
    lists: Box<[Padded<FreeList>]>,
    /// Number of entries of each list except the last, which may have fewer.
    each: u32,
}

impl FreeLists {
    /// All numbers below `len` are free.
    pub(crate) fn new(len: u32) -> Self {
        let most = u32::try_from(STRIPES).unwrap_or(1);
        let each = len.div_ceil((len / FEWEST).clamp(1, most)).max(1);
        let list = |at: u32| Padded(FreeList::new(each.min(len - at * each)));
        FreeLists { lists: (0..len.div_ceil(each)).map(list).collect(), each }
    }

    /// Takes a free number for this thread; `None` if every list was found empty.
    pub(crate) fn pop(&self, thread: usize) -> Option<u32> {
        (0..self.lists.len()).find_map(|next| {
            let list = thread.wrapping_add(next) % self.lists.len();
            let number = self.lists[list].pop()?;
            // Cannot overflow: it is below the `len` of all lists together.
            Some(u32::try_from(list).unwrap_or(0) * self.each + number)
        })
    }

    /// Puts a number back. Only its holder may.
    pub(crate) fn push(&self, number: u32) {
        self.lists[(number / self.each) as usize].push(number % self.each);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_handed_out_once_for_any_length() {
        for len in [0, 1, 2, 15, 16, 31, 33, 100, 127, 128, 129, 1000, 1024] {
            let lists = FreeLists::new(len);
            for _ in 0..2 {
                let mut all: Vec<u32> = std::iter::from_fn(|| lists.pop(3)).collect();
                assert_eq!(lists.pop(3), None);
                all.iter().for_each(|number| lists.push(*number));
                all.sort_unstable();
                assert_eq!(all, (0..len).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn threads_take_from_different_lists_until_those_are_empty() {
        let lists = FreeLists::new(1024);
        for thread in 0..2 * STRIPES {
            let number = lists.pop(thread).unwrap();
            assert_eq!(number as usize / 128, thread % STRIPES);
        }
        // The first list follows the last.
        let rest: Vec<u32> = (0..127).map(|_| lists.pop(STRIPES - 1).unwrap()).collect();
        assert_eq!(rest.iter().filter(|number| **number >= 896).count(), 126);
        assert!(rest[126] < 128);
    }

    #[test]
    fn a_number_may_be_put_back_by_another_thread() {
        let lists = FreeLists::new(64);
        let all: Vec<u32> = std::iter::from_fn(|| lists.pop(3)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| all.iter().for_each(|number| lists.push(*number)));
        });
        assert_eq!(std::iter::from_fn(|| lists.pop(3)).count(), 64);
    }
}
