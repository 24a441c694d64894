//! A program's advice about its memory.

use crate::config::TierId;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Advice about a part of a program's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// It will be used a lot: it counts as hot until a source finds otherwise.
    Hot,
    /// It will not be used for a while: it counts as cold until a source finds otherwise.
    Cold,
    /// It belongs on this tier and stays there, however hot it is.
    Pin(TierId),
    /// Ends a [`Pin`](Advice::Pin), if there is one.
    Unpin,
}

/// The most advice that waits for a manager; more is refused. Source: chosen.
const MOST: usize = 65_536;

/// The advice that no manager has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Hints(Mutex<Vec<(Range<u64>, Advice)>>);

impl Hints {
    /// Adds advice; false if there is too much already.
    pub(crate) fn say(&self, range: Range<u64>, advice: Advice) -> bool {
        let mut hints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = hints.len() < MOST;
        if has_room {
            hints.push((range, advice));
        }
        has_room
    }

    /// Returns the waiting advice and removes it.
    pub(crate) fn take(&self) -> Vec<(Range<u64>, Advice)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
