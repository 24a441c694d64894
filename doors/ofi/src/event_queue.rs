//! Event queues. The provider has no events of its own; a program may put its own into a queue and read them.

use crate::abi::errors;
use crate::failure::{AGAIN, Errno};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::domain::Fabric;

/// An event: its number, and what the program put beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) number: u32,
    pub(crate) bytes: Vec<u8>,
}

/// A queue of events.
#[derive(Debug)]
pub(crate) struct EventQueue {
    _fabric: Arc<Fabric>,
    events: Mutex<VecDeque<Event>>,
}

impl EventQueue {
    pub(crate) fn new(fabric: Arc<Fabric>) -> EventQueue {
        EventQueue { _fabric: fabric, events: Mutex::default() }
    }

    /// Appends an event.
    pub(crate) fn write(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
    }

    /// Returns the first event, and removes it unless `peek`.
    ///
    /// # Errors
    /// `EAGAIN` if there is none. `ETOOSMALL` if it has more than `most` bytes; it stays then.
    pub(crate) fn read(&self, most: usize, peek: bool) -> Result<Event, Errno> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        match events.front() {
            None => Err(AGAIN),
            Some(first) if first.bytes.len() > most => Err(Errno(errors::ETOOSMALL)),
            Some(first) if peek => Ok(first.clone()),
            Some(_) => events.pop_front().ok_or(AGAIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_goes_to_one_of_several_readers() {
        const EVENTS: u32 = 20_000;
        let queue = EventQueue::new(Arc::new(Fabric::default()));
        // The longer events do not fit into the buffer of the first reader, which leaves them for the second one.
        let bytes = |number: u32| vec![0; if number.is_multiple_of(2) { 4 } else { 8 }];
        (0..EVENTS).for_each(|number| queue.write(Event { number, bytes: bytes(number) }));
        let read = |most: usize| {
            let mut numbers = Vec::new();
            loop {
                match queue.read(most, false) {
                    Ok(event) => {
                        assert!(event.bytes.len() <= most);
                        numbers.push(event.number);
                    }
                    Err(AGAIN) => return numbers,
                    Err(Errno(number)) => assert_eq!(number, errors::ETOOSMALL),
                }
            }
        };
        let (short, long) = std::thread::scope(|scope| {
            let short = scope.spawn(|| read(4));
            let long = read(8);
            (short.join().expect("no panic"), long)
        });
        assert!(short.is_sorted() && long.is_sorted());
        let mut all = [short, long].concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..EVENTS));
    }
}
