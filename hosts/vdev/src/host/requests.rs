//! The requests about windows that are being answered, and how many of each process there may be.

use super::files::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Most requests of one party that are answered at the same time. Source: chosen; a process has one for each descriptor
/// that its engines execute.
const MOST_REQUESTS: u32 = 64;
/// Requests of all parties from which on a party gets one at a time. Source: chosen; each takes a descriptor, and 1024
/// are usual.
const MOST_IN_ALL: u32 = 256;

/// The party that a request counts for, so that no process keeps others from being answered. The connection says which
/// process it is; all processes that are not visible here count as one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Party {
    /// A process that makes, uses or lists windows.
    User(u32),
    /// A process that changes its windows or waits for their end, which it can do whatever it waits for besides.
    Owner(u32),
}

/// The requests that are being answered.
pub(super) type Requests = Arc<Mutex<Counts>>;

#[derive(Debug, Default)]
pub(super) struct Counts {
    all: u32,
    by_party: BTreeMap<Party, u32>,
}

/// A request that is being answered; dropping this makes room for another.
pub(super) struct Pending {
    requests: Requests,
    party: Party,
}

impl Pending {
    /// `None` if too many requests of the party are being answered, or of all parties and one of this party.
    pub(super) fn begin(requests: &Requests, party: Party) -> Option<Pending> {
        let mut counts = lock(requests);
        let own = counts.by_party.get(&party).copied().unwrap_or_default();
        if own == MOST_REQUESTS || own > 0 && counts.all >= MOST_IN_ALL {
            return None;
        }
        counts.by_party.insert(party, own + 1);
        counts.all += 1;
        drop(counts);
        Some(Pending { requests: Arc::clone(requests), party })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut counts = lock(&self.requests);
        counts.all -= 1;
        if let Some(count) = counts.by_party.get_mut(&self.party) {
            *count -= 1;
            if *count == 0 {
                counts.by_party.remove(&self.party);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(requests: &Requests, party: Party) -> Vec<Pending> {
        std::iter::from_fn(|| Pending::begin(requests, party)).collect()
    }

    #[test]
    fn the_requests_of_a_party_keep_no_other_one_waiting() {
        let requests = Requests::default();
        let all = all_of(&requests, Party::User(1));
        assert_eq!(all.len(), MOST_REQUESTS as usize);
        assert!([Party::User(2), Party::Owner(1)].into_iter().all(|party| Pending::begin(&requests, party).is_some()));
        drop(all);
        assert!(Pending::begin(&requests, Party::User(1)).is_some());
        assert!(lock(&requests).by_party.is_empty(), "a party without requests is forgotten");
        assert_eq!(lock(&requests).all, 0);
    }

    /// Regression: the number of threads and descriptors was bounded by that of the clients only.
    #[test]
    fn many_parties_together_leave_each_one_request() {
        let requests = Requests::default();
        let all: Vec<Pending> = (0..100).flat_map(|process| all_of(&requests, Party::User(process))).collect();
        let most = MOST_IN_ALL + 100 - MOST_IN_ALL / MOST_REQUESTS;
        assert_eq!((all.len(), lock(&requests).all), (most as usize, most));
        let one = all_of(&requests, Party::User(1000));
        assert_eq!(one.len(), 1);
    }
}
