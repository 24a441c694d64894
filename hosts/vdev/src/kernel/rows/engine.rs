//! The attribute of `engineM.N`. Source: K612 `sysfs.c`.

use super::super::attribute::{Attribute, Check, Input, Store, ValueFormat, check, line, read_write};
use super::CONFIGURABLE;
use crate::tree::Errno;

/// The attribute table.
pub(crate) static ROWS: &[Attribute] = &[read_write(
    "group_id",
    |k, id| line(shown(k.engine(id).group)),
    // The device may be enabled; the value takes effect when it is enabled next.
    Store::value(ValueFormat::Signed, &[CONFIGURABLE, GROUP_EXISTS], |k, id, input| {
        k.engine_mut(id).group = group(input)
    }),
)];

/// The number is an existing group, or -1 for none.
pub(super) const GROUP_EXISTS: Check = check(Errno::INVAL, |k, id, input| {
    (-1..i128::from(k.dsa(id).capabilities().grp_cap.groups())).contains(&input.number)
});

/// Parses a group.
pub(super) fn group(input: &Input<'_>) -> Option<usize> {
    usize::try_from(input.number).ok()
}

/// Formats a group.
pub(super) fn shown(group: Option<usize>) -> String {
    group.map_or_else(|| "-1".into(), |group| group.to_string())
}
