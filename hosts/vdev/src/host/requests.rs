//! The requests about windows that are being answered, and how many of each party there may be.

use super::files::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Most requests of one process, or by one window's secret, that are answered at the same time. Source: chosen; a
/// process has one for each descriptor that its engines execute.
const MOST_REQUESTS: u32 = 64;

/// The party that a request counts for, so that no party keeps others from being answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Party {
    /// The address space of an open file.
    Space(u64),
    /// A process that has closed windows.
    Process(u32),
    /// All processes that hold a window, by its number.
    Window(u64),
}

/// The requests that are being answered, by party.
pub(super) type Requests = Arc<Mutex<BTreeMap<Party, u32>>>;

/// A request that is being answered; dropping this makes room for another.
pub(super) struct Pending {
    requests: Requests,
    party: Party,
}

impl Pending {
    /// `None` if too many requests of the party are being answered.
    pub(super) fn begin(requests: &Requests, party: Party) -> Option<Pending> {
        let mut counts = lock(requests);
        let count = counts.entry(party).or_default();
        if *count == MOST_REQUESTS {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Pending { requests: Arc::clone(requests), party })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut counts = lock(&self.requests);
        if let Some(count) = counts.get_mut(&self.party) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.party);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_of_a_party_keep_no_other_one_waiting() {
        let requests = Requests::default();
        let others = [Party::Space(2), Party::Process(1), Party::Window(1)];
        let all: Vec<Pending> = std::iter::from_fn(|| Pending::begin(&requests, Party::Space(1))).collect();
        assert_eq!(all.len(), MOST_REQUESTS as usize);
        assert!(others.iter().all(|party| Pending::begin(&requests, *party).is_some()));
        drop(all);
        assert!(Pending::begin(&requests, Party::Space(1)).is_some());
        assert!(lock(&requests).is_empty(), "a party without requests is forgotten");
    }
}
