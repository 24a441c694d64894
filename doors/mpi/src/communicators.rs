//! The group of each communicator.

use crate::abi::Handle;
use crate::device;
use crate::log;
use crate::symbols::{Mpi, MpiError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use telpher_fabric::collective::{EXCHANGE_BYTES, Exchange, ExchangeBytes, Formed, Group, MOST_MEMBERS, form};

/// The variable that leaves all calls to the MPI.
const SWITCH: &str = "TELPHER_COLLECTIVES";

/// The most communicators that have a carrier at once; more stay with the MPI. Source: chosen; two ranks then share 200
/// MiB at most.
const MOST_COMMUNICATORS: usize = 256;

/// What carries the calls of a communicator.
#[derive(Debug, Default)]
pub(crate) enum Carrier {
    /// Not decided: no call was long enough so far.
    #[default]
    Undecided,
    /// Shared memory.
    Group(Box<Group>),
    /// The MPI.
    Mpi,
}

/// A communicator's carrier. A thread holds it during an operation.
pub(crate) type Shared = Arc<Mutex<Carrier>>;

/// The communicators that have had a long call. No function of the MPI is called while this is locked: the MPI calls
/// [`forget`] under locks of its own.
fn known() -> MutexGuard<'static, HashMap<Handle, Shared>> {
    static KNOWN: OnceLock<Mutex<HashMap<Handle, Shared>>> = OnceLock::new();
    lock(KNOWN.get_or_init(Mutex::default))
}

/// Locks; after a panic in another call, the group itself knows whether it is usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns what carries the calls of a communicator.
pub(crate) fn carrier(of: Handle) -> Shared {
    Arc::clone(known().entry(of).or_default())
}

/// Forgets a communicator that the MPI frees.
fn forget(freed: Handle) {
    let carrier = known().remove(&freed);
    drop(carrier);
}

/// Forgets all communicators.
pub(crate) fn forget_all() {
    let all = std::mem::take(&mut *known());
    drop(all);
}

/// Exchanges bytes of the ranks of a communicator by the MPI.
struct ByMpi<'a> {
    mpi: &'a Mpi,
    communicator: Handle,
    ranks: usize,
}

impl Exchange for ByMpi<'_> {
    type Error = MpiError;

    fn all_gather(&mut self, own: &ExchangeBytes) -> Result<Vec<ExchangeBytes>, MpiError> {
        let mut all = vec![[0; EXCHANGE_BYTES]; self.ranks];
        self.mpi.gather_bytes(own, all.as_flattened_mut(), self.communicator)?;
        Ok(all)
    }
}

/// Decides what carries the calls of a communicator. All its ranks do so in the same call, and decide the same.
pub(crate) fn decide(mpi: &Mpi, communicator: Handle) -> Result<Carrier, MpiError> {
    // Without notice of its end, another communicator could get its handle, and what was decided for it.
    mpi.on_free(communicator, forget)?;
    if mpi.is_inter(communicator)? {
        return Ok(Carrier::Mpi);
    }
    let ranks = usize::try_from(mpi.size(communicator)?).unwrap_or(0);
    if !(2..=MOST_MEMBERS).contains(&ranks) {
        return Ok(Carrier::Mpi);
    }
    let rank = usize::try_from(mpi.rank(communicator)?).unwrap_or(0);
    let is_on = !matches!(std::env::var(SWITCH).as_deref(), Ok("off" | "0"));
    // Ranks may have different numbers of communicators; one that has too many makes all refuse.
    let has_room = known().len() <= MOST_COMMUNICATORS;
    match form(rank, ranks, is_on && has_room, &mut ByMpi { mpi, communicator, ranks })? {
        Formed::Group(mut group) => {
            group.open_when_needed(device::copier);
            log::info(format_args!("rank {rank} of {ranks} shares memory with the others of its communicator"));
            Ok(Carrier::Group(group))
        }
        Formed::Refused { rank: of, reason } => {
            log::info(format_args!("collective operations of {ranks} ranks stay with the MPI: rank {of} {reason}"));
            Ok(Carrier::Mpi)
        }
    }
}
