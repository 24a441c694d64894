//! Error numbers for what `telpher-fabric` refuses or fails.

use crate::abi::errors;
use std::ffi::CStr;
use telpher_fabric::{AccessError, FabricError, Failure};

/// A positive error number; libfabric's functions return it negated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
/// The object belongs to the parent of this process.
pub(crate) const FORKED: Errno = Errno(libc::EPERM);

impl From<FabricError> for Errno {
    fn from(error: FabricError) -> Errno {
        Errno(match error {
            FabricError::Full { .. } => libc::EAGAIN,
            FabricError::OtherMachine { .. } | FabricError::Unreachable { .. } => libc::EHOSTUNREACH,
            FabricError::OtherUser { .. } => libc::EACCES,
            FabricError::UnknownPeer { .. } | FabricError::NotClaimed { .. } | FabricError::AlreadyClaimed { .. } => {
                libc::EINVAL
            }
            FabricError::WrongAtomic => libc::EOPNOTSUPP,
            FabricError::KeyInUse { .. } => errors::ENOKEY,
            FabricError::Limit { .. } => libc::ENOMEM,
            FabricError::Forked => FORKED.0,
            FabricError::Closed => errors::EOPBADSTATE,
            FabricError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EIO,
        })
    }
}

/// Returns the error number of a failed operation.
pub(crate) fn of_operation(failure: Failure) -> Errno {
    Errno(match failure {
        Failure::Truncated { .. } => errors::ETRUNC,
        Failure::Canceled => libc::ECANCELED,
        Failure::NoMessage => libc::ENOMSG,
        // MPIs end the job on it, which is the right outcome.
        Failure::PeerDied => libc::ECONNABORTED,
        Failure::PeerBroken => libc::EPROTO,
        Failure::BadBuffer { .. } | Failure::Access(AccessError::NotMapped) => libc::EFAULT,
        Failure::Access(AccessError::UnknownKey) => errors::ENOKEY,
        Failure::Access(AccessError::OutOfRange | AccessError::NotPermitted) => libc::EACCES,
        Failure::Access(AccessError::Misaligned) => libc::EINVAL,
        _ => libc::EIO,
    })
}

/// Explains an error number of [`of_operation`].
pub(crate) fn explain(errno: i32) -> &'static CStr {
    match errno {
        errors::ETRUNC => c"the message is longer than the receive buffer",
        libc::ECANCELED => c"the receive was canceled",
        libc::ENOMSG => c"no message matches",
        libc::ECONNABORTED => c"the peer's process has ended",
        libc::EPROTO => c"the peer sent a message that breaks the protocol",
        libc::EFAULT => c"the buffer, or the peer's memory, cannot be accessed",
        errors::ENOKEY => c"the peer has no region with this key",
        libc::EACCES => c"the peer's region does not have these bytes, or does not permit this access",
        libc::EINVAL => c"the address in the peer's memory is not a multiple of the size of the type",
        _ => c"the operation failed",
    }
}
