//! Opens the userfaultfd that moves pages, with the features that this user may use and the kernel has.

use crate::fork_gate::hold_forks;
use telpher_os::{Userfault, UserfaultError, UserfaultFeatures};

/// The events reported in addition to faults.
pub(crate) const EVENTS: UserfaultFeatures = UserfaultFeatures::EVENT_REMAP
    .and(UserfaultFeatures::EVENT_REMOVE)
    .and(UserfaultFeatures::EVENT_UNMAP)
    .and(UserfaultFeatures::THREAD_ID)
    .and(UserfaultFeatures::MOVE);

/// Opens a userfaultfd that reports forks if permitted, and tracks writes if the kernel can.
pub(super) fn open_userfault() -> Result<Userfault, UserfaultError> {
    let open = |features| match Userfault::open(UserfaultFeatures::TRACK_WRITES.and(features)) {
        Err(UserfaultError::Lacks(_)) => Userfault::open(features),
        opened => opened,
    };
    match open(EVENTS.and(UserfaultFeatures::EVENT_FORK)) {
        Err(UserfaultError::Forbidden(_)) => {
            let userfault = open(EVENTS)?;
            hold_forks();
            Ok(userfault)
        }
        opened => opened,
    }
}
