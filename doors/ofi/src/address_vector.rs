//! Address vectors: numbers for the addresses of peers, the same in all endpoints that a vector is bound to.

use crate::bound::BoundEndpoint;
use crate::domain::Domain;
use crate::failure::{Errno, INVALID};
use crate::log;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use telpher_fabric::{Address, FabricError, check_address};

/// An address vector. Both of libfabric's types, maps and tables, number addresses from 0.
#[derive(Debug)]
pub(crate) struct AddressVector {
    _domain: Arc<Domain>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The addresses by number; `None` where one was removed.
    entries: Vec<Option<Entry>>,
    numbers: HashMap<Address, u64>,
    endpoints: Vec<Weak<dyn BoundEndpoint>>,
}

#[derive(Debug)]
struct Entry {
    address: Address,
    /// How often it was inserted and not removed.
    insertions: u64,
}

impl State {
    fn endpoints(&self) -> impl Iterator<Item = Arc<dyn BoundEndpoint>> {
        self.endpoints.iter().filter_map(Weak::upgrade)
    }

    fn entry(&mut self, number: u64) -> Option<&mut Option<Entry>> {
        self.entries.get_mut(usize::try_from(number).ok()?)
    }
}

impl AddressVector {
    pub(crate) fn new(domain: Arc<Domain>) -> AddressVector {
        AddressVector { _domain: domain, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an endpoint the addresses of the vector, those that come later too.
    ///
    /// # Errors
    /// If the endpoint refuses an address.
    pub(crate) fn bind(&self, endpoint: &Arc<dyn BoundEndpoint>) -> Result<(), Errno> {
        let mut state = self.state();
        for (number, entry) in state.entries.iter().enumerate() {
            if let Some(entry) = entry {
                insert_into(&**endpoint, number as u64, &entry.address)?;
            }
        }
        state.endpoints.retain(|known| known.strong_count() > 0);
        state.endpoints.push(Arc::downgrade(endpoint));
        Ok(())
    }

    /// Inserts an address and returns its number. An address that is known keeps its number.
    ///
    /// # Errors
    /// If the bytes are no address of this provider, or one of another machine or user.
    pub(crate) fn insert(&self, bytes: &[u8]) -> Result<u64, Errno> {
        let Some(address) = Address::decode(bytes) else {
            log::warn(format_args!("an address that a program inserts was not made by telpher"));
            return Err(INVALID);
        };
        // Also without an endpoint: a program that inserts first would otherwise learn it when it enables an endpoint.
        check_address(&address).map_err(refused)?;
        let mut state = self.state();
        if let Some(&number) = state.numbers.get(&address) {
            if let Some(Some(entry)) = state.entry(number) {
                entry.insertions += 1;
            }
            return Ok(number);
        }
        let number = state.entries.len() as u64;
        for endpoint in state.endpoints() {
            insert_into(&*endpoint, number, &address)?;
        }
        state.entries.push(Some(Entry { address, insertions: 1 }));
        state.numbers.insert(address, number);
        Ok(number)
    }

    /// Removes an address; one that was inserted twice must be removed twice.
    ///
    /// # Errors
    /// If the number is not in use.
    pub(crate) fn remove(&self, number: u64) -> Result<(), Errno> {
        let mut state = self.state();
        let slot = state.entry(number).ok_or(INVALID)?;
        let entry = slot.as_mut().ok_or(INVALID)?;
        entry.insertions -= 1;
        if entry.insertions > 0 {
            return Ok(());
        }
        let address = entry.address;
        *slot = None;
        state.numbers.remove(&address);
        for endpoint in state.endpoints() {
            endpoint.remove_peer(number);
        }
        Ok(())
    }

    /// Returns the address of a number.
    pub(crate) fn address(&self, number: u64) -> Option<Address> {
        self.state().entry(number)?.as_ref().map(|entry| entry.address)
    }

    /// Returns the number of an address.
    pub(crate) fn number(&self, address: &Address) -> Option<u64> {
        self.state().numbers.get(address).copied()
    }
}

/// Inserts an address into an endpoint, and says so if that fails: libfabric's callers only learn a number.
fn insert_into(endpoint: &dyn BoundEndpoint, number: u64, address: &Address) -> Result<(), Errno> {
    endpoint.insert_peer(number, address).map_err(refused)
}

fn refused(error: FabricError) -> Errno {
    log::warn(format_args!("{error}"));
    Errno::from(error)
}
