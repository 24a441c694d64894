//! Event queues. The provider has no events of its own; a program may put its own into a queue and read them.

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
    /// `EAGAIN` if there is none.
    pub(crate) fn read(&self, peek: bool) -> Result<Event, Errno> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let event = if peek { events.front().cloned() } else { events.pop_front() };
        event.ok_or(AGAIN)
    }
}
