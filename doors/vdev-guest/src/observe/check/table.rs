//! The descriptors in flight, the members of batches, and the ranges they use. Fixed capacity, allocated once.

use super::content::Content;
use super::uses::Use;
use crate::observe::trail::Trail;
use std::sync::Arc;
use telpher_abi::Descriptor;

/// Descriptors in flight at once. Source: chosen; more than the entries of a queue plus the slots of its engines.
const FLIGHTS: usize = 512;
/// Ranges and members of all descriptors together. Source: chosen; four full batches of 1024, or some hundred of usual
/// size.
const RANGES: usize = 16_384;
const MEMBERS: usize = 4096;

/// The end of a list.
const END: u32 = u32::MAX;

/// A position in a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor(u32);

/// The index of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(u32);

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
        let place = self.free;
        let Some(slot) = self.items.get_mut(place as usize) else { return false };
        self.free = slot.1;
        *slot = (Some(item), END);
        match self.items.get_mut(list.last as usize) {
            Some(last) => last.1 = place,
            None => list.first = place,
        }
        list.last = place;
        true
    }

    /// The start of a list.
    fn first(&self, list: List) -> Cursor {
        Cursor(list.first)
    }

    /// The next item and its index.
    fn step(&self, cursor: &mut Cursor) -> Option<(Place, &T)> {
        let place = cursor.0;
        let (item, next) = self.items.get(place as usize)?;
        cursor.0 = *next;
        item.as_ref().map(|item| (Place(place), item))
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
pub(super) struct Flight {
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
    pub(super) trail: Arc<Trail>,
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
    flights: Vec<Flight>,
    ranges: Arena<Range>,
    /// Checksums of the ranges at submission, by their index. A separate array, since it is long and rarely used.
    contents: Box<[Content]>,
    members: Arena<Descriptor>,
}

impl Table {
    pub(super) fn new() -> Self {
        Table {
            flights: Vec::with_capacity(FLIGHTS),
            ranges: Arena::new(RANGES),
            contents: vec![Content::default(); RANGES].into(),
            members: Arena::new(MEMBERS),
        }
    }

    /// Adds a submission without ranges; `None` if there is no space.
    pub(super) fn open(&mut self, flight: impl FnOnce(Lists) -> Flight) -> Option<usize> {
        // Never grows, because it must not allocate.
        (self.flights.len() < FLIGHTS).then(|| {
            self.flights.push(flight(Lists { ranges: List::EMPTY, members: List::EMPTY }));
            self.flights.len() - 1
        })
    }

    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }

    pub(super) fn flight(&self, index: usize) -> &Flight {
        &self.flights[index]
    }

    pub(super) fn flight_mut(&mut self, index: usize) -> &mut Flight {
        &mut self.flights[index]
    }

    pub(super) fn find(&self, file: u64, submission: u64) -> Option<usize> {
        self.flights.iter().position(|flight| flight.file == file && flight.submission == submission)
    }

    /// The start of a submission's ranges, for [`step`](Table::step).
    pub(super) fn ranges(&self, index: usize) -> Cursor {
        self.ranges.first(self.flights[index].lists.ranges)
    }

    /// The next range of a submission, in the order of addition. Ranges may be changed meanwhile, but not added or
    /// removed.
    pub(super) fn step(&self, cursor: &mut Cursor) -> Option<(Place, Range)> {
        self.ranges.step(cursor).map(|(place, range)| (place, *range))
    }

    /// Stops comparing a range.
    pub(super) fn forget_content(&mut self, place: Place) {
        if let Some((Some(range), _)) = self.ranges.items.get_mut(place.0 as usize) {
            range.compared = false;
        }
    }

    pub(super) fn set_content(&mut self, place: Place, content: Content) {
        self.contents[place.0 as usize] = content;
    }

    pub(super) fn content(&self, place: Place) -> &Content {
        &self.contents[place.0 as usize]
    }

    /// The descriptor with this position in the batch plus one, as it was at submission; 0 is the submission's own.
    pub(super) fn descriptor(&self, index: usize, member: u32) -> Option<&Descriptor> {
        let flight = &self.flights[index];
        match member {
            0 => Some(&flight.descriptor),
            member => self.members.iter(flight.lists.members).nth(member as usize - 1),
        }
    }

    /// Adds a range; `false` if there is no space.
    pub(super) fn add_range(&mut self, index: usize, range: Range) -> bool {
        self.ranges.push(&mut self.flights[index].lists.ranges, range)
    }

    /// Adds a batch's next member; `false` if there is no space.
    pub(super) fn add_member(&mut self, index: usize, member: Descriptor) -> bool {
        self.members.push(&mut self.flights[index].lists.members, member)
    }

    /// Removes the ranges of a member that has ended: they belong to the program again.
    pub(super) fn release_member(&mut self, index: usize, member: u32) {
        self.ranges.retain(&mut self.flights[index].lists.ranges, |range| range.member != member);
    }

    /// Removes the ranges of a submission for which the table had no space: a part of them would only mislead.
    pub(super) fn forget_ranges(&mut self, index: usize) {
        let flight = &mut self.flights[index];
        self.ranges.retain(&mut flight.lists.ranges, |_| false);
        self.members.retain(&mut flight.lists.members, |_| false);
    }

    /// Removes a submission that has ended.
    pub(super) fn close(&mut self, index: usize) {
        self.forget_ranges(index);
        self.flights.swap_remove(index);
    }

    /// Removes everything in a forked child without dropping the submissions, whose references belong to the parent.
    pub(super) fn abandon(&mut self) {
        for index in 0..self.flights.len() {
            self.forget_ranges(index);
        }
        self.flights.drain(..).for_each(std::mem::forget);
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
