//! The attribute of `engineM.N`. Source: K612 `sysfs.c`.

use super::super::attribute::{Attribute, Check, Input, Kind, Store, check, line, read_write};
use super::CONFIGURABLE;
use crate::tree::Errno;

/// The rows.
pub(crate) static ROWS: &[Attribute] = &[read_write(
    "group_id",
    |k, id| line(shown(k.engine(id).group)),
    // The device may be enabled; what is written counts from the next enabling on.
    Store::value(Kind::Signed, &[CONFIGURABLE, GROUP_EXISTS], |k, id, input| k.engine_mut(id).group = group(input)),
)];

/// The number is a group's, or -1 for none.
pub(super) const GROUP_EXISTS: Check = check(Errno::INVAL, |k, id, input| {
    (-1..i128::from(k.dsa(id).capabilities().grp_cap.groups())).contains(&input.number)
});

/// A group as written.
pub(super) fn group(input: &Input<'_>) -> Option<usize> {
    usize::try_from(input.number).ok()
}

/// A group as shown.
pub(super) fn shown(group: Option<usize>) -> String {
    group.map_or_else(|| "-1".into(), |group| group.to_string())
}
