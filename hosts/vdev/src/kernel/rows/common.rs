//! Attributes that every device of the kernel has: `uevent` and `power/`.

use super::super::Kernel;
use super::super::attribute::{Attribute, Show, Store, line, read_only, read_write, write_only};
use super::super::device::Driver;
use crate::tree::Errno;

/// `uevent` of a device.
pub(crate) static DSA: Attribute = uevent(|k, id| {
    let bound = k.dsa(id).bound.then_some(Driver::Idxd);
    Ok(device_uevent(k, "dsa", bound))
});
/// `uevent` of a queue.
pub(crate) static WQ: Attribute = uevent(|k, id| Ok(device_uevent(k, "wq", k.wq(id).driver)));
/// `uevent` of a group.
pub(crate) static GROUP: Attribute = uevent(|k, _| Ok(device_uevent(k, "group", None)));
/// `uevent` of an engine.
pub(crate) static ENGINE: Attribute = uevent(|k, _| Ok(device_uevent(k, "engine", None)));
/// `uevent` of a node.
pub(crate) static CDEV: Attribute = uevent(|k, id| {
    let minor = k.wq(id).minor.ok_or(Errno::NODEV)?;
    let name = format!("dsa/wq{}.{}", k.dsa(id).number, id.index);
    let numbers = format!("MAJOR={}\nMINOR={minor}\nDEVNAME={name}\n", super::super::MAJOR);
    Ok(numbers + &device_uevent(k, "idxd_cdev", None))
});
/// `uevent` of an open file.
pub(crate) static FILE: Attribute = uevent(|k, _| Ok(device_uevent(k, "idxd_file", None)));
/// `uevent` of devices without properties.
pub(crate) static PLAIN: Attribute = uevent(|_, _| Ok(String::new()));
/// `uevent` of drivers, modules and buses, which is write-only.
pub(crate) static SILENT: Attribute = write_only("uevent", |_, _, text| synthesise(text));

/// `dev` of a node.
pub(crate) static DEV: Attribute =
    read_only("dev", |k, id| line(format_args!("{}:{}", super::super::MAJOR, k.wq(id).minor.ok_or(Errno::NODEV)?)));

/// Attributes in `power/`. The driver leaves runtime power management disabled.
pub(crate) static POWER: &[Attribute] = &[
    read_write("autosuspend_delay_ms", |_, _| Err(Errno::IO), Store::Act(|_, _, _| Err(Errno::IO))),
    read_write(
        "control",
        |_, _| line("auto"),
        Store::Act(|_, _, text| if matches!(text, "auto" | "on") { Ok(()) } else { Err(Errno::INVAL) }),
    ),
    read_only("runtime_active_time", |_, _| line(0)),
    read_only("runtime_status", |_, _| line("unsupported")),
    read_only("runtime_suspended_time", |_, _| line(0)),
];

const fn uevent(show: Show) -> Attribute {
    read_write("uevent", show, Store::Act(|_, _, text| synthesise(text)))
}

/// The `uevent` lines of a device on the dsa bus. Source: K612 `drivers/base/core.c`, dev_uevent;
/// `drivers/dma/idxd/bus.c`.
fn device_uevent(kernel: &Kernel, kind: &str, driver: Option<Driver>) -> String {
    let driver = driver.map(|driver| format!("DRIVER={}\n", driver.name())).unwrap_or_default();
    let alias = if kernel.abi() >= super::super::Abi::V6_12 { "MODALIAS=dsa:t0\n" } else { "" };
    format!("DEVTYPE={kind}\n{driver}{alias}")
}

/// Handles a synthetic event: it has no listeners, but its name must be valid. Source: K612 `lib/kobject_uevent.c`,
/// kobject_actions.
pub(super) fn synthesise(text: &str) -> Result<(), Errno> {
    const ACTIONS: [&str; 8] = ["add", "remove", "change", "move", "online", "offline", "bind", "unbind"];
    let word = text.split(' ').next().unwrap_or_default();
    if ACTIONS.contains(&word) { Ok(()) } else { Err(Errno::INVAL) }
}
