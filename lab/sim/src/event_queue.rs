//! The event queue: events in the order of their time; events of equal times in the order in which they were scheduled.

use crate::picos::Picos;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Scheduled events. The same calls give the same order: nothing depends on addresses, hashes or threads.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    /// The first entry was taken out but is still in the heap. Usually the next scheduled event replaces it, which
    /// halves the work.
    taken: bool,
    scheduled: u64,
    now: Picos,
}

/// An event and its key: time in the upper half, sequence number in the lower. No two keys are equal.
#[derive(Debug)]
struct Entry<E> {
    key: u128,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl<E> Entry<E> {
    fn time(&self) -> Picos {
        // Cannot lose bits: the upper half.
        Picos(u64::try_from(self.key >> 64).unwrap_or(u64::MAX))
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue { heap: BinaryHeap::new(), taken: false, scheduled: 0, now: Picos::ZERO }
    }
}

impl<E: Copy> EventQueue<E> {
    /// The current time: that of the last event taken out.
    #[must_use]
    pub(crate) fn now(&self) -> Picos {
        self.now
    }

    /// The number of events scheduled so far.
    #[must_use]
    pub(crate) fn scheduled(&self) -> u64 {
        self.scheduled
    }

    /// Schedules an event; an event for the past happens now.
    #[inline]
    pub(crate) fn at(&mut self, time: Picos, event: E) {
        let key = u128::from(time.max(self.now).0) << 64 | u128::from(self.scheduled);
        let entry = Reverse(Entry { key, event });
        self.scheduled += 1;
        if std::mem::take(&mut self.taken)
            && let Some(mut first) = self.heap.peek_mut()
        {
            *first = entry;
            return;
        }
        self.heap.push(entry);
    }

    /// Schedules an event after a delay.
    #[inline]
    pub(crate) fn after(&mut self, delay: Picos, event: E) {
        self.at(self.now + delay, event);
    }

    /// The time of the next event.
    #[must_use]
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<Picos> {
        if std::mem::take(&mut self.taken) {
            self.heap.pop();
        }
        self.heap.peek().map(|Reverse(entry)| entry.time())
    }

    /// Advances the time to something that is scheduled elsewhere.
    pub(crate) fn move_on(&mut self, to: Picos) {
        self.now = self.now.max(to);
    }

    /// Takes out the next event and advances the time to it.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<E> {
        self.now = self.peek()?;
        self.taken = true;
        self.heap.peek().map(|Reverse(entry)| entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_scheduling_order() {
        let mut events = EventQueue::default();
        events.at(Picos(5), 'b');
        events.at(Picos(3), 'a');
        events.at(Picos(5), 'a');
        let order: Vec<_> = std::iter::from_fn(|| events.next()).collect();
        assert_eq!(order, ['a', 'b', 'a']);
        assert_eq!(events.now(), Picos(5));
    }

    #[test]
    fn events_stay_in_order_while_others_are_scheduled() {
        let (mut events, mut rng) = (EventQueue::default(), crate::rng::Rng::new(1, 0));
        for number in 0..300 {
            events.at(Picos(rng.below(100)), number);
        }
        let mut last = (Picos::ZERO, 0);
        let mut seen = 0;
        while let Some(number) = events.next() {
            assert!((events.now(), number) >= last, "{number} after {last:?}");
            last = (events.now(), number);
            seen += 1;
            // None, one or two events for each.
            for _ in 0..rng.below(3) {
                if events.scheduled() < 10_000 {
                    events.after(Picos(1 + rng.below(100)), events.scheduled());
                }
            }
        }
        assert_eq!(seen, events.scheduled());
    }

    #[test]
    fn an_event_for_the_past_happens_now() {
        let mut events = EventQueue::default();
        events.at(Picos(5), 1);
        assert_eq!(events.next(), Some(1));
        events.at(Picos(2), 2);
        assert_eq!((events.next(), events.now()), (Some(2), Picos(5)));
    }
}
