//! The bus and its drivers: bind, unbind, probing. [`Id::index`](super::super::attribute::Id) is the driver's.

use super::super::attribute::{Attribute, Id, Store, ValueFormat, line, read_write, write_only};
use super::super::device::Driver;
use crate::tree::Errno;

/// Attributes of `/sys/bus/dsa`.
pub(crate) static BUS: &[Attribute] = &[
    read_write("drivers_autoprobe", |_, _| line(1), Store::value(ValueFormat::Flag, &[], |_, _, _| {})),
    write_only("drivers_probe", |k, _, text| k.probe(text)),
];

/// Attributes of a driver on the bus.
pub(crate) static DRIVER: &[Attribute] = &[
    write_only("bind", |k, id, text| k.bind(driver(id), text)),
    write_only("unbind", |k, id, text| k.unbind(driver(id), text)),
];

/// Attributes of the PCI driver, which does not give up its functions.
pub(crate) static PCI_DRIVER: &[Attribute] = &[
    write_only("bind", |k, _, text| if k.has_function(text) { Err(Errno::BUSY) } else { Err(Errno::NODEV) }),
    write_only("new_id", |_, _, _| Err(Errno::INVAL)),
    write_only("remove_id", |_, _, _| Err(Errno::NODEV)),
    write_only("unbind", |k, _, text| if k.has_function(text) { Err(Errno::BUSY) } else { Err(Errno::NODEV) }),
];

fn driver(id: Id) -> Driver {
    Driver::ALL.get(id.index).copied().unwrap_or(Driver::Compat)
}
