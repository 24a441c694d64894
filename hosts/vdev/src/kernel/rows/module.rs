//! `/sys/module/idxd` and `/sys/module/idxd_bus`, as of loaded modules.

use super::super::attribute::{Attribute, Kind, Store, line, read_only, read_write};

/// Of every module.
pub(crate) static ROWS: &[Attribute] = &[
    read_only("coresize", |_, _| line(151_552)),
    read_only("initsize", |_, _| line(0)),
    read_only("initstate", |_, _| line("live")),
    read_only("taint", |_, _| line("")),
];

/// Of `idxd`: every open node holds it.
pub(crate) static IDXD_USERS: Attribute = read_only("refcnt", |k, _| line(k.open_files()));
/// Of `idxd_bus`: `idxd` holds it.
pub(crate) static BUS_USERS: Attribute = read_only("refcnt", |_, _| line(1));

/// Parameters of `idxd`.
pub(crate) static PARAMETERS: &[Attribute] = &[
    read_write(
        "sva",
        |k, _| line(letter(k.parameters().sva)),
        // Looked at when a device is found, and all are.
        Store::value(Kind::Flag, &[], |k, _, input| k.parameters_mut().sva = input.number != 0),
    ),
    read_write(
        "tc_override",
        |k, _| line(letter(k.parameters().tc_override)),
        Store::value(Kind::Flag, &[], |k, _, input| k.parameters_mut().tc_override = input.number != 0),
    ),
];

fn letter(on: bool) -> char {
    if on { 'Y' } else { 'N' }
}
