//! What a program says of its memory.

use crate::config::TierId;
use crate::heat::{HeatMap, NO_TIER};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// What a program knows of some of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// It will be used a lot: it counts as hot until a source finds that it is not.
    Hot,
    /// It will not be used for a while: it counts as cold until a source finds that it is not.
    Cold,
    /// It belongs on this tier, and stays there whatever is found of it.
    Pin(TierId),
    /// It belongs nowhere, if it did.
    Unpin,
}

/// Advice that nobody has taken yet. Source of its bound: chosen; what comes then takes the place of the oldest but pins.
const MOST: usize = 65_536;

/// What has been said, and by whom nothing has been done yet.
#[derive(Debug, Default)]
pub(crate) struct Hints(Mutex<Vec<(Range<u64>, Advice)>>);

impl Hints {
    /// Takes note. False if there is too much of it already.
    pub(crate) fn say(&self, range: Range<u64>, advice: Advice) -> bool {
        let mut hints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = hints.len() < MOST;
        if has_room {
            hints.push((range, advice));
        }
        has_room
    }

    /// Has the map know of it.
    pub(crate) fn tell(&self, heat: &mut HeatMap) {
        let hints = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (range, advice) in hints {
            heat.each_page(&range, |page| match advice {
                Advice::Hot => page.say(u8::MAX),
                Advice::Cold => page.say(0),
                Advice::Pin(tier) => page.pin = tier.0,
                Advice::Unpin => page.pin = NO_TIER,
            });
        }
    }
}
