//! The userfaultfd by which pages move, with as much as this user may have and the kernel can.

use crate::gate::hold_forks;
use telpher_os::{Userfault, UserfaultError, UserfaultFeatures};

/// What is told of besides faults.
pub(crate) const EVENTS: UserfaultFeatures = UserfaultFeatures::EVENT_REMAP
    .and(UserfaultFeatures::EVENT_REMOVE)
    .and(UserfaultFeatures::EVENT_UNMAP)
    .and(UserfaultFeatures::THREAD_ID)
    .and(UserfaultFeatures::MOVE);

/// One that tells of forks if it may, and tracks writes if the kernel can.
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
