//! The descriptors in flight, the members of batches, and the ranges they use. Fixed capacity, allocated once.

use super::content::Content;
use super::uses::Use;
use crate::observe::file_log::FileLog;
use std::sync::Arc;
use telpher_abi::Descriptor;

/// Descriptors in flight at once. Source: chosen; more than the entries of a queue plus the slots of its engines.
const MAX_IN_FLIGHT: usize = 512;
/// Ranges and members of all descriptors together. Source: chosen; four full batches of 1024, or some hundred of usual
/// size.
const MAX_RANGES: usize = 16_384;
const MAX_MEMBERS: usize = 4096;

/// The end of a list.
const END: u32 = u32::MAX;

/// A position in a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor(u32);

/// The index of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemIndex(u32);

/// Lists of items of one kind, with a fixed total number of items.
#[derive(Debug)]
struct Arena<T> {
    items: Box<[(Option<T>, u32)]>,
    free: u32,
}

/// A list in an arena, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: List = List { first: END, last: END };
}

impl<T> Arena<T> {
    fn new(len: usize) -> Self {
        let next = |n: usize| if n + 1 == len { END } else { u32::try_from(n + 1).unwrap_or(END) };
        Arena { items: (0..len).map(|n| (None, next(n))).collect(), free: 0 }
    }

    /// Appends to a list; `false` if there is no space.
    fn push(&mut self, list: &mut List, item: T) -> bool {
        let position = self.free;
        let Some(slot) = self.items.get_mut(position as usize) else { return false };
        self.free = slot.1;
        *slot = (Some(item), END);
        match self.items.get_mut(list.last as usize) {
            Some(last) => last.1 = position,
            None => list.first = position,
        }
        list.last = position;
        true
    }

    /// The start of a list.
    fn first(&self, list: List) -> Cursor {
        Cursor(list.first)
    }

    /// The next item and its index.
    fn step(&self, cursor: &mut Cursor) -> Option<(ItemIndex, &T)> {
        let position = cursor.0;
        let (item, next) = self.items.get(position as usize)?;
        cursor.0 = *next;
        item.as_ref().map(|item| (ItemIndex(position), item))
    }

    fn iter(&self, list: List) -> impl Iterator<Item = &T> {
        let mut cursor = self.first(list);
        std::iter::from_fn(move || self.step(&mut cursor).map(|(_, item)| item))
    }

    /// Keeps the items for which `keep` returns true, in order, and frees the rest.
    fn retain(&mut self, list: &mut List, keep: impl Fn(&T) -> bool) {
        let (mut at, mut kept) = (list.first, List::EMPTY);
        while let Some((Some(item), next)) = self.items.get(at as usize) {
            let (next, keeps) = (*next, keep(item));
            if keeps {
                match self.items.get_mut(kept.last as usize) {
                    Some(last) => last.1 = at,
                    None => kept.first = at,
                }
                kept.last = at;
            } else {
                self.items[at as usize] = (None, self.free);
                self.free = at;
            }
            at = next;
        }
        if let Some(last) = self.items.get_mut(kept.last as usize) {
            last.1 = END;
        }
        *list = kept;
    }
}

/// A range that a descriptor in flight uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) what: Use,
    /// Position in the batch plus one; 0 for a batch or a single descriptor.
    pub(super) member: u32,
    /// Number of members with a fence up to and including this one.
    pub(super) segment: u32,
    /// Hash of the descriptor's work; see `work_of`.
    pub(super) work: u64,
    /// Its contents are compared: no other descriptor in flight may write them.
    pub(super) compared: bool,
}

/// A submitted descriptor.
#[derive(Debug)]
pub(super) struct InFlight {
    /// The open file.
    pub(super) file: u64,
    pub(super) submission: u64,
    pub(super) descriptor: Descriptor,
    /// The portal address of the submission.
    pub(super) destination: u64,
    /// Its queue's group has a single engine.
    pub(super) single_engine: bool,
    /// It is not executed before this time, in nanoseconds.
    pub(super) due_ns: u64,
    /// A change of its list was found.
    pub(super) list_changed: bool,
    pub(super) log: Arc<FileLog>,
    /// Its ranges and members.
    pub(super) lists: Lists,
}

/// The lists of a descriptor in flight.
#[derive(Debug)]
pub(super) struct Lists {
    ranges: List,
    members: List,
}

/// All descriptors in flight.
#[derive(Debug)]
pub(super) struct Table {
    entries: Vec<InFlight>,
    ranges: Arena<Range>,
    /// Checksums of the ranges at submission, by their index. A separate array, since it is long and rarely used.
    contents: Box<[Content]>,
    members: Arena<Descriptor>,
}

impl Table {
    pub(super) fn new() -> Self {
        Table {
            entries: Vec::with_capacity(MAX_IN_FLIGHT),
            ranges: Arena::new(MAX_RANGES),
            contents: vec![Content::default(); MAX_RANGES].into(),
            members: Arena::new(MAX_MEMBERS),
        }
    }

    /// Adds a submission without ranges; `None` if there is no space.
    pub(super) fn open(&mut self, entry: impl FnOnce(Lists) -> InFlight) -> Option<usize> {
        // Never grows, because it must not allocate.
        (self.entries.len() < MAX_IN_FLIGHT).then(|| {
            self.entries.push(entry(Lists { ranges: List::EMPTY, members: List::EMPTY }));
            self.entries.len() - 1
        })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entry(&self, index: usize) -> &InFlight {
        &self.entries[index]
    }

    pub(super) fn entry_mut(&mut self, index: usize) -> &mut InFlight {
        &mut self.entries[index]
    }

    pub(super) fn find(&self, file: u64, submission: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.file == file && entry.submission == submission)
    }

    /// The start of a submission's ranges, for [`step`](Table::step).
    pub(super) fn ranges(&self, index: usize) -> Cursor {
        self.ranges.first(self.entries[index].lists.ranges)
    }

    /// The next range of a submission, in the order of addition. Ranges may be changed meanwhile, but not added or
    /// removed.
    pub(super) fn step(&self, cursor: &mut Cursor) -> Option<(ItemIndex, Range)> {
        self.ranges.step(cursor).map(|(position, range)| (position, *range))
    }

    /// Stops comparing a range.
    pub(super) fn forget_content(&mut self, position: ItemIndex) {
        if let Some((Some(range), _)) = self.ranges.items.get_mut(position.0 as usize) {
            range.compared = false;
        }
    }

    pub(super) fn set_content(&mut self, position: ItemIndex, content: Content) {
        self.contents[position.0 as usize] = content;
    }

    pub(super) fn content(&self, position: ItemIndex) -> &Content {
        &self.contents[position.0 as usize]
    }

    /// The descriptor with this position in the batch plus one, as it was at submission; 0 is the submission's own.
    pub(super) fn descriptor(&self, index: usize, member: u32) -> Option<&Descriptor> {
        let entry = &self.entries[index];
        match member {
            0 => Some(&entry.descriptor),
            member => self.members.iter(entry.lists.members).nth(member as usize - 1),
        }
    }

    /// Adds a range; `false` if there is no space.
    pub(super) fn add_range(&mut self, index: usize, range: Range) -> bool {
        self.ranges.push(&mut self.entries[index].lists.ranges, range)
    }

    /// Adds a batch's next member; `false` if there is no space.
    pub(super) fn add_member(&mut self, index: usize, member: Descriptor) -> bool {
        self.members.push(&mut self.entries[index].lists.members, member)
    }

    /// Removes the ranges of a member that has ended: they belong to the program again.
    pub(super) fn release_member(&mut self, index: usize, member: u32) {
        self.ranges.retain(&mut self.entries[index].lists.ranges, |range| range.member != member);
    }

    /// Removes the ranges of a submission for which the table had no space: a part of them would only mislead.
    pub(super) fn forget_ranges(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        self.ranges.retain(&mut entry.lists.ranges, |_| false);
        self.members.retain(&mut entry.lists.members, |_| false);
    }

    /// Removes a submission that has ended.
    pub(super) fn close(&mut self, index: usize) {
        self.forget_ranges(index);
        self.entries.swap_remove(index);
    }

    /// Removes everything in a forked child without dropping the submissions, whose references belong to the parent.
    pub(super) fn abandon(&mut self) {
        for index in 0..self.entries.len() {
            self.forget_ranges(index);
        }
        self.entries.drain(..).for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_free_removed_items() {
        let mut arena = Arena::new(10);
        let (mut odd, mut all) = (List::EMPTY, List::EMPTY);
        for n in 0..5 {
            assert!(arena.push(&mut all, n) && arena.push(&mut odd, 10 + n));
        }
        assert!(!arena.push(&mut all, 99));
        arena.retain(&mut odd, |n| n % 2 == 1);
        assert_eq!(arena.iter(odd).copied().collect::<Vec<_>>(), [11, 13]);
        assert_eq!(arena.iter(all).copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        for n in 0..3 {
            assert!(arena.push(&mut odd, 20 + n));
        }
        assert!(!arena.push(&mut odd, 99));
        assert_eq!(arena.iter(odd).copied().collect::<Vec<_>>(), [11, 13, 20, 21, 22]);
        arena.retain(&mut all, |_| false);
        assert_eq!((arena.iter(odd).count(), arena.iter(all).count()), (5, 0));
        assert!((0..5).all(|n| arena.push(&mut all, n)) && !arena.push(&mut all, 5));
    }
}
