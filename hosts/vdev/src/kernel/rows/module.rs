//! `/sys/module/idxd` and `/sys/module/idxd_bus`, with the contents of loaded modules.

use super::super::attribute::{Attribute, Store, ValueFormat, line, read_only, read_write};

/// Attributes of every module.
pub(crate) static ROWS: &[Attribute] = &[
    read_only("coresize", |_, _| line(151_552)),
    read_only("initsize", |_, _| line(0)),
    read_only("initstate", |_, _| line("live")),
    read_only("taint", |_, _| line("")),
];

/// Reference count of `idxd`: the number of open nodes.
pub(crate) static IDXD_USERS: Attribute = read_only("refcnt", |k, _| line(k.open_files()));
/// Reference count of `idxd_bus`: `idxd` uses it.
pub(crate) static BUS_USERS: Attribute = read_only("refcnt", |_, _| line(1));

/// Parameters of `idxd`.
pub(crate) static PARAMETERS: &[Attribute] = &[
    read_write(
        "sva",
        |k, _| line(letter(k.parameters().sva)),
        // The driver uses it only when it finds a device, and it has found all devices.
        Store::value(ValueFormat::Flag, &[], |k, _, input| k.parameters_mut().sva = input.number != 0),
    ),
    read_write(
        "tc_override",
        |k, _| line(letter(k.parameters().tc_override)),
        Store::value(ValueFormat::Flag, &[], |k, _, input| k.parameters_mut().tc_override = input.number != 0),
    ),
];

fn letter(on: bool) -> char {
    if on { 'Y' } else { 'N' }
}
