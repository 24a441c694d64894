//! The bus and its drivers: bind, unbind, probing. [`Id::index`](super::super::attribute::Id) is the driver's.

use super::super::attribute::{Attribute, Id, Kind, Store, line, read_write, write_only};
use super::super::device::Driver;
use crate::tree::Errno;

/// Of `/sys/bus/dsa`.
pub(crate) static BUS: &[Attribute] = &[
    read_write("drivers_autoprobe", |_, _| line(1), Store::value(Kind::Flag, &[], |_, _, _| {})),
    write_only("drivers_probe", |k, _, text| k.probe(text)),
];

/// Of a driver on it.
pub(crate) static DRIVER: &[Attribute] = &[
    write_only("bind", |k, id, text| k.bind(driver(id), text)),
    write_only("unbind", |k, id, text| k.unbind(driver(id), text)),
];

/// Of the PCI driver: its functions stay with it.
pub(crate) static PCI_DRIVER: &[Attribute] = &[
    write_only("bind", |k, _, text| if k.has_function(text) { Err(Errno::BUSY) } else { Err(Errno::NODEV) }),
    write_only("new_id", |_, _, _| Err(Errno::INVAL)),
    write_only("remove_id", |_, _, _| Err(Errno::NODEV)),
    write_only("unbind", |k, _, text| if k.has_function(text) { Err(Errno::BUSY) } else { Err(Errno::NODEV) }),
];

fn driver(id: Id) -> Driver {
    Driver::ALL.get(id.index).copied().unwrap_or(Driver::Compat)
}
