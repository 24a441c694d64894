//! The answer of a check.

use super::checks::Check;
use crate::mutation;
use telpher_abi::Status;

/// Returns `wrong`, unless a mutation run has switched this check off.
#[inline]
pub(crate) fn fails(check: Check, wrong: bool) -> bool {
    wrong && !mutation::is_off(check)
}

/// The reason why a descriptor is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status in the completion record.
    pub status: Status,
    /// With 0x11: the offending bits.
    pub flags: u32,
    /// With 0x29 to 0x2c: the handle of the inter-domain permissions table.
    pub handle: Option<u16>,
    /// The rule that the descriptor breaks, where the status alone does not say it.
    pub check: Option<Check>,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Refusal { status, flags: 0, handle: None, check: None }
    }
}

#[inline]
pub(crate) fn refuse(check: Check, wrong: bool, status: Status) -> Result<(), Refusal> {
    if fails(check, wrong) { Err(Refusal { check: Some(check), ..Refusal::from(status) }) } else { Ok(()) }
}
