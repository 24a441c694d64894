//! A queue in order of insertion, with removal anywhere, and with indexes once it is long.

use super::key::{Class, Compared, MessageKey, Selector};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

/// Queues of up to this many entries are scanned. Source: assumed; a scan of one cache line costs less than a hash.
pub(crate) const SCANNED: usize = 16;
/// The most indexes of a queue of messages. Source: chosen; Open MPI and MPICH use two classes each.
pub(crate) const MOST_INDEXES: usize = 4;

/// Names an entry; it is never valid for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryId {
    place: u32,
    sequence: u64,
}

impl EntryId {
    /// Returns the number with which the entry was inserted.
    pub(super) fn sequence(self) -> u64 {
        self.sequence
    }
}

/// The end of a list of places.
const NONE: u32 = u32::MAX;

/// The neighbours in a list.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

const UNLINKED: Link = Link { before: NONE, after: NONE };

/// The ends of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends { first: NONE, last: NONE };

#[derive(Debug)]
struct Entry<K, V, const N: usize> {
    key: K,
    /// `None` in a free place.
    value: Option<V>,
    /// The lower, the older.
    sequence: u64,
    /// In the list of all entries. A free place has the next one as `after`.
    order: Link,
    /// In the list of equal entries of each index.
    equals: [Link; N],
}

/// The entries of a class by what they compare, each list in order of insertion.
#[derive(Debug)]
struct Index {
    class: Class,
    lists: HashMap<Compared, Ends, Multiply>,
}

/// Entries `K` with values `V`. With `N` = 1 each entry is in the index of its class, otherwise in all indexes.
#[derive(Debug)]
pub(super) struct Queue<K, V, const N: usize> {
    entries: Vec<Entry<K, V, N>>,
    free: u32,
    all: Ends,
    len: usize,
    indexes: Vec<Index>,
    /// True for a queue of receives that has become long: every entry is in an index until the queue is empty.
    is_indexed: bool,
}

impl<K, V, const N: usize> Default for Queue<K, V, N> {
    fn default() -> Self {
        Queue { entries: Vec::new(), free: NONE, all: EMPTY, len: 0, indexes: Vec::new(), is_indexed: false }
    }
}

/// What a queue needs to know of its keys.
pub(super) trait Key: Copy {
    /// The class of the key, if it determines one.
    fn own_class(&self) -> Option<Class>;
    /// What an index of this class compares; `None` if the key does not belong there.
    fn compared_in(&self, class: &Class) -> Option<Compared>;
}

impl Key for Selector {
    fn own_class(&self) -> Option<Class> {
        Some(self.class())
    }

    fn compared_in(&self, class: &Class) -> Option<Compared> {
        (self.class() == *class).then(|| self.compared())
    }
}

impl Key for MessageKey {
    fn own_class(&self) -> Option<Class> {
        None
    }

    fn compared_in(&self, class: &Class) -> Option<Compared> {
        class.compared(self)
    }
}

impl<K: Key, V, const N: usize> Queue<K, V, N> {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(super) fn index_count(&self) -> usize {
        self.indexes.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts an entry behind all others, whose numbers are lower.
    pub(super) fn push(&mut self, key: K, value: V, sequence: u64) -> EntryId {
        let entry = Entry { key, value: Some(value), sequence, order: UNLINKED, equals: [UNLINKED; N] };
        let place = if self.free == NONE {
            self.entries.push(entry);
            u32::try_from(self.entries.len() - 1).expect("an entry has more than a byte, so memory ends before")
        } else {
            let place = self.free;
            self.free = self.at(place).order.after;
            self.entries[place as usize] = entry;
            place
        };
        let mut all = self.all;
        self.append(&mut all, place, |entry| &mut entry.order);
        self.all = all;
        self.len += 1;
        if self.is_indexed || N > 1 {
            self.add_to_indexes(place);
        }
        EntryId { place, sequence }
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, id: EntryId) -> Option<(K, V)> {
        let key = *self.entry(id)?.0;
        let place = id.place;
        for number in 0..self.indexes.len() {
            self.remove_from_index(number, place);
        }
        Some((key, self.take_at(place)?))
    }

    /// Takes an entry out that is in no index.
    #[inline]
    fn take_at(&mut self, place: u32) -> Option<V> {
        let mut all = self.all;
        self.unlink(&mut all, place, |entry| &mut entry.order);
        self.all = all;
        self.len -= 1;
        if self.len == 0 {
            self.indexes.clear();
            self.is_indexed = false;
        }
        let free = self.free;
        let entry = self.at_mut(place);
        entry.order.after = free;
        let taken = entry.value.take();
        self.free = place;
        taken
    }

    pub(super) fn entry(&self, id: EntryId) -> Option<(&K, &V)> {
        let entry = self.entries.get(id.place as usize).filter(|entry| entry.sequence == id.sequence)?;
        Some((&entry.key, entry.value.as_ref()?))
    }

    pub(super) fn value_mut(&mut self, id: EntryId) -> Option<&mut V> {
        let entry = self.entries.get_mut(id.place as usize).filter(|entry| entry.sequence == id.sequence)?;
        entry.value.as_mut()
    }

    /// Returns all keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.iter().filter(|entry| entry.value.is_some()).map(|entry| &entry.key)
    }

    /// Finds the oldest entry that the function accepts.
    pub(super) fn find(&self, mut accepts: impl FnMut(&K, &V) -> bool) -> Option<EntryId> {
        let mut place = self.all.first;
        while place != NONE {
            let entry = self.at(place);
            if entry.value.as_ref().is_some_and(|value| accepts(&entry.key, value)) {
                return Some(EntryId { place, sequence: entry.sequence });
            }
            place = entry.order.after;
        }
        None
    }

    fn at(&self, place: u32) -> &Entry<K, V, N> {
        &self.entries[place as usize]
    }

    fn at_mut(&mut self, place: u32) -> &mut Entry<K, V, N> {
        &mut self.entries[place as usize]
    }

    fn id(&self, place: u32) -> EntryId {
        EntryId { place, sequence: self.at(place).sequence }
    }

    fn append(&mut self, ends: &mut Ends, place: u32, link: impl Fn(&mut Entry<K, V, N>) -> &mut Link) {
        *link(self.at_mut(place)) = Link { before: ends.last, after: NONE };
        if ends.last == NONE {
            ends.first = place;
        } else {
            link(self.at_mut(ends.last)).after = place;
        }
        ends.last = place;
    }

    fn unlink(&mut self, ends: &mut Ends, place: u32, link: impl Fn(&mut Entry<K, V, N>) -> &mut Link) {
        let Link { before, after } = *link(self.at_mut(place));
        if before == NONE {
            ends.first = after
        } else {
            link(self.at_mut(before)).after = after
        }
        if after == NONE { ends.last = before } else { link(self.at_mut(after)).before = before }
    }

    /// The place of an index in the links of its entries.
    fn slot(number: usize) -> usize {
        if N == 1 { 0 } else { number }
    }

    fn add_to_indexes(&mut self, place: u32) {
        let key = self.at(place).key;
        if let Some(class) = key.own_class()
            && !self.indexes.iter().any(|index| index.class == class)
        {
            // An index without entries is replaced, so there are never more indexes than entries.
            self.indexes.retain(|index| !index.lists.is_empty());
            self.indexes.push(Index { class, lists: HashMap::default() });
        }
        for number in 0..self.indexes.len() {
            self.add_to_index(number, place);
        }
    }

    fn add_to_index(&mut self, number: usize, place: u32) {
        let key = self.at(place).key;
        let Some(compared) = key.compared_in(&self.indexes[number].class) else { return };
        let mut ends = self.indexes[number].lists.get(&compared).copied().unwrap_or(EMPTY);
        self.append(&mut ends, place, |entry| &mut entry.equals[Self::slot(number)]);
        self.indexes[number].lists.insert(compared, ends);
    }

    fn remove_from_index(&mut self, number: usize, place: u32) {
        let key = self.at(place).key;
        let Some(compared) = key.compared_in(&self.indexes[number].class) else { return };
        let Some(mut ends) = self.indexes[number].lists.get(&compared).copied() else { return };
        self.unlink(&mut ends, place, |entry| &mut entry.equals[Self::slot(number)]);
        if ends.first == NONE {
            self.indexes[number].lists.remove(&compared);
        } else {
            self.indexes[number].lists.insert(compared, ends);
        }
    }

    /// Puts all entries into their indexes, or into one new index.
    fn build(&mut self, add: impl Fn(&mut Self, u32)) {
        let mut place = self.all.first;
        while place != NONE {
            add(self, place);
            place = self.at(place).order.after;
        }
    }
}

impl<V> Queue<Selector, V, 1> {
    /// Finds the oldest selector that takes the message.
    pub(super) fn oldest_selector(&mut self, key: &MessageKey) -> Option<EntryId> {
        if !self.is_indexed {
            if self.len <= SCANNED {
                return self.find(|selector, _| selector.matches(key));
            }
            self.is_indexed = true;
            self.build(Self::add_to_indexes);
        }
        let first = |index: &Index| Some(index.lists.get(&index.class.compared(key)?)?.first);
        let oldest = self.indexes.iter().filter_map(first).min_by_key(|&place| self.at(place).sequence)?;
        Some(self.id(oldest))
    }

    /// Takes the oldest value out whose selector takes the message, if the function accepts it and the queue is short:
    /// in one search, which other functions need several for.
    #[inline]
    pub(super) fn take_scanned(&mut self, key: &MessageKey, accepts: impl FnOnce(&V) -> bool) -> Option<V> {
        if self.is_indexed || self.len > SCANNED {
            return None;
        }
        let mut place = self.all.first;
        while place != NONE {
            let entry = self.at(place);
            if entry.key.matches(key) {
                let is_accepted = entry.value.as_ref().is_some_and(accepts);
                return if is_accepted { self.take_at(place) } else { None };
            }
            place = entry.order.after;
        }
        None
    }
}

impl<V> Queue<MessageKey, V, MOST_INDEXES> {
    /// Finds the oldest message that the selector takes.
    pub(super) fn oldest_message(&mut self, selector: &Selector) -> Option<EntryId> {
        if self.len <= SCANNED {
            return self.find(|key, _| selector.matches(key));
        }
        let class = selector.class();
        let number = match self.indexes.iter().position(|index| index.class == class) {
            Some(number) => number,
            None if self.indexes.len() == MOST_INDEXES => return self.find(|key, _| selector.matches(key)),
            None => {
                let number = self.indexes.len();
                self.indexes.push(Index { class, lists: HashMap::default() });
                self.build(|queue, place| queue.add_to_index(number, place));
                number
            }
        };
        let ends = self.indexes[number].lists.get(&selector.compared())?;
        Some(self.id(ends.first))
    }
}

/// A hash of few instructions: the halves of one product. The default hash costs more than the rest of a search.
#[derive(Clone, Copy, Default, Debug)]
struct Multiply;

/// Hashes the words of [`Compared`].
#[derive(Clone, Copy, Debug)]
struct Product(u64);

/// An odd number without a pattern. Source: the fraction of the golden ratio, in 64 bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl BuildHasher for Multiply {
    type Hasher = Product;

    fn build_hasher(&self) -> Product {
        Product(FACTOR)
    }
}

impl Hasher for Product {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        #[allow(clippy::cast_possible_truncation, reason = "the two halves of a product")]
        let (low, high) = (product as u64, (product >> 64) as u64);
        self.0 = low ^ high;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
