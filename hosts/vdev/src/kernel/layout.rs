//! The paths of the tree: the directories, links and attributes that exist for a device, queue, node or open file, and
//! that are removed with it.

use super::attribute::{Attribute, Id};
use super::device::Driver;
use super::files::OpenFile;
use super::tree::{Content, Item, Tree};
use super::{Abi, Kernel, MAJOR, rows};
use telpher_model::Capabilities;

const BUS: &str = "/sys/bus/dsa";
const MODULE: &str = "/sys/module/idxd";
const BUS_MODULE: &str = "/sys/module/idxd_bus";
const PCI_BUS: &str = "/sys/bus/pci";
const PCI_DRIVER: &str = "/sys/bus/pci/drivers/idxd";
const EVENT_SOURCES: &str = "/sys/bus/event_source";
const DEBUG: &str = "/sys/kernel/debug/idxd";
/// The directory of the nodes; absent while there is none, as in devtmpfs.
pub(super) const NODES: &str = "/dev/dsa";
/// First interrupt number of the first device. Source: chosen, higher than a small machine's own numbers.
const FIRST_INTERRUPT: u32 = 2000;
/// Distance between the interrupt numbers of two devices.
const INTERRUPTS: u32 = 64;

/// Adds the rows that this kernel version and this device have.
fn rows(tree: &mut Tree, directory: &str, rows: &'static [Attribute], id: Id, abi: Abi, caps: Option<&Capabilities>) {
    for row in rows {
        if row.since <= abi && caps.is_none_or(row.visible) {
            tree.put(&format!("{directory}/{}", row.name), Item::Attribute(row, id));
        }
    }
}

/// Adds one row.
fn row(tree: &mut Tree, directory: &str, row: &'static Attribute, id: Id) {
    tree.put(&format!("{directory}/{}", row.name), Item::Attribute(row, id));
}

/// Adds the entries of every device: its directory, `uevent`, `power/`, and `subsystem` if it is on a bus.
fn device(tree: &mut Tree, directory: &str, uevent: &'static Attribute, id: Id, subsystem: Option<&str>) {
    tree.directory(directory);
    row(tree, directory, uevent, id);
    let power = format!("{directory}/power");
    tree.directory(&power);
    for attribute in rows::common::POWER {
        row(tree, &power, attribute, id);
    }
    if let Some(subsystem) = subsystem {
        tree.link(&format!("{directory}/subsystem"), subsystem);
    }
}

/// Adds a device on the dsa bus, and the bus's link to it.
fn bus_device(tree: &mut Tree, directory: &str, uevent: &'static Attribute, id: Id) {
    device(tree, directory, uevent, id, Some(BUS));
    let name = directory.rsplit('/').next().unwrap_or_default();
    tree.link(&format!("{BUS}/devices/{name}"), directory);
}

impl Kernel {
    /// Adds the entries that exist before any device is found: bus, drivers, modules.
    pub(super) fn show_driver(&mut self) {
        let (abi, none) = (self.abi, Id::default());
        let tree = &mut self.tree;
        tree.directory(BUS);
        rows(tree, BUS, rows::bus::BUS, none, abi, None);
        row(tree, BUS, &rows::common::SILENT, none);
        tree.directory(&format!("{BUS}/devices"));
        tree.directory(&format!("{BUS}/drivers"));
        for (index, driver) in Driver::ALL.into_iter().enumerate() {
            let directory = format!("{BUS}/drivers/{}", driver.name());
            tree.directory(&directory);
            rows(tree, &directory, rows::bus::DRIVER, Id { device: 0, index }, abi, None);
            row(tree, &directory, &rows::common::SILENT, none);
            tree.link(&format!("{directory}/module"), MODULE);
        }
        tree.directory(PCI_DRIVER);
        rows(tree, PCI_DRIVER, rows::bus::PCI_DRIVER, none, abi, None);
        row(tree, PCI_DRIVER, &rows::common::SILENT, none);
        tree.link(&format!("{PCI_DRIVER}/module"), MODULE);

        for (module, users) in [(MODULE, &rows::module::IDXD_USERS), (BUS_MODULE, &rows::module::BUS_USERS)] {
            tree.directory(module);
            rows(tree, module, rows::module::ROWS, none, abi, None);
            row(tree, module, users, none);
            row(tree, module, &rows::common::SILENT, none);
            tree.directory(&format!("{module}/holders"));
        }
        tree.link(&format!("{BUS_MODULE}/holders/idxd"), MODULE);
        let parameters = format!("{MODULE}/parameters");
        tree.directory(&parameters);
        rows(tree, &parameters, rows::module::PARAMETERS, none, abi, None);
        tree.directory(&format!("{MODULE}/drivers"));
        for driver in Driver::ALL {
            let name = driver.name();
            tree.link(&format!("{MODULE}/drivers/dsa:{name}"), &format!("{BUS}/drivers/{name}"));
        }
        tree.link(&format!("{MODULE}/drivers/pci:idxd"), PCI_DRIVER);
        if abi >= Abi::V6_6 {
            tree.directory(DEBUG);
        }
        tree.put("/proc/cpuinfo", Item::Binary(Content::CpuInfo, none));
    }

    /// Adds a device that the driver has found: its PCI function, itself, groups, engines, queues, counters.
    pub(super) fn show_device(&mut self, id: Id) {
        let (abi, caps) = (self.abi, *self.dsa(id).capabilities());
        let (function, directory) = (self.function_path(id), self.device_path(id));
        let (number, name) = (self.dsa(id).number, self.dsa(id).name());
        let has_log = self.dsa(id).event_log.is_some();
        let address = self.dsa(id).address.clone();
        let tree = &mut self.tree;

        let bridge = function.rsplit_once('/').map_or("/sys/devices", |(bridge, _)| bridge);
        device(tree, bridge, &rows::common::PLAIN, id, None);
        device(tree, &function, &rows::common::PLAIN, id, Some(PCI_BUS));
        rows(tree, &function, rows::pci::ROWS, id, abi, Some(&caps));
        tree.put(&format!("{function}/config"), Item::Binary(Content::ConfigSpace, id));
        tree.link(&format!("{function}/driver"), PCI_DRIVER);
        tree.directory(&format!("{function}/msi_irqs"));
        for entry in 0..u32::from(caps.msix_entries) {
            let interrupt = FIRST_INTERRUPT + INTERRUPTS * number + entry;
            tree.put(&format!("{function}/msi_irqs/{interrupt}"), Item::Attribute(&rows::pci::MSI, id));
        }
        tree.link(&format!("{PCI_BUS}/devices/{address}"), &function);
        tree.link(&format!("{PCI_DRIVER}/{address}"), &function);

        bus_device(tree, &directory, &rows::common::DSA, id);
        rows(tree, &directory, rows::device::ROWS, id, abi, Some(&caps));
        let children: [(&str, u8, &'static [Attribute], &'static Attribute); 3] = [
            ("group", caps.grp_cap.groups(), rows::group::ROWS, &rows::common::GROUP),
            ("engine", caps.eng_cap.engines(), rows::engine::ROWS, &rows::common::ENGINE),
            ("wq", caps.wq_cap.queues(), rows::wq::ROWS, &rows::common::WQ),
        ];
        for (kind, count, attributes, uevent) in children {
            for index in 0..usize::from(count) {
                let (child, id) = (format!("{directory}/{kind}{number}.{index}"), Id { index, ..id });
                bus_device(tree, &child, uevent, id);
                rows(tree, &child, attributes, id, abi, Some(&caps));
            }
        }

        let counters = format!("/sys/devices/{name}");
        device(tree, &counters, &rows::common::PLAIN, id, Some(EVENT_SOURCES));
        rows(tree, &counters, rows::pmu::ROWS, id, abi, Some(&caps));
        tree.directory(&format!("{counters}/format"));
        rows(tree, &format!("{counters}/format"), rows::pmu::FORMAT, id, abi, Some(&caps));
        tree.directory(&format!("{counters}/events"));
        rows(tree, &format!("{counters}/events"), rows::pmu::EVENTS, id, abi, Some(&caps));
        tree.link(&format!("{EVENT_SOURCES}/devices/{name}"), &counters);

        if abi >= Abi::V6_6 {
            tree.directory(&format!("{DEBUG}/{name}"));
        }
        if has_log {
            tree.put(&format!("{DEBUG}/{name}/event_log"), Item::Binary(Content::EventLog, id));
        }
    }

    /// Adds the links between a driver and the device or queue that is bound to it.
    pub(super) fn show_bound(&mut self, id: Id, queue: Option<usize>, driver: Driver) {
        let (path, name) = self.bound_path(id, queue);
        let directory = format!("{BUS}/drivers/{}", driver.name());
        self.tree.link(&format!("{path}/driver"), &directory);
        self.tree.link(&format!("{directory}/{name}"), &path);
    }

    pub(super) fn hide_bound(&mut self, id: Id, queue: Option<usize>, driver: Driver) {
        let (path, name) = self.bound_path(id, queue);
        self.tree.remove(&format!("{path}/driver"));
        self.tree.remove(&format!("{BUS}/drivers/{}/{name}", driver.name()));
    }

    fn bound_path(&self, id: Id, queue: Option<usize>) -> (String, String) {
        match queue {
            None => (self.device_path(id), self.dsa(id).name()),
            Some(index) => {
                let id = Id { index, ..id };
                (self.queue_path(id), self.queue_name(id))
            }
        }
    }

    /// Adds a queue's node, with a minor number that no node or open file has.
    pub(super) fn show_node(&mut self, id: Id) {
        let minor = self.free_minor();
        self.wq_mut(id).minor = Some(minor);
        let (directory, name) = (self.node_directory(id), self.queue_name(id));
        let tree = &mut self.tree;
        bus_device(tree, &directory, &rows::common::CDEV, id);
        row(tree, &directory, &rows::common::DEV, id);
        tree.link(&format!("/sys/dev/char/{MAJOR}:{minor}"), &directory);
        tree.directory(NODES);
        tree.put(&format!("{NODES}/{name}"), Item::Node { major: MAJOR, minor, id });
        tree.link(&format!("/dev/char/{MAJOR}:{minor}"), &format!("{NODES}/{name}"));
    }

    pub(super) fn hide_node(&mut self, id: Id) {
        let Some(minor) = self.wq_mut(id).minor.take() else { return };
        let (directory, name) = (self.node_directory(id), self.queue_name(id));
        let files: Vec<u32> =
            self.files.open.values().filter(|file| file.queue == id).map(|file| file.number).collect();
        let tree = &mut self.tree;
        for number in files {
            tree.remove(&format!("{BUS}/devices/file{number}"));
        }
        tree.remove(&directory);
        tree.remove(&format!("{BUS}/devices/dsa!{name}"));
        tree.remove(&format!("/sys/dev/char/{MAJOR}:{minor}"));
        tree.remove(&format!("/dev/char/{MAJOR}:{minor}"));
        tree.remove(&format!("{NODES}/{name}"));
        if tree.is_empty(NODES) {
            tree.remove(NODES);
        }
    }

    /// Adds the directory of an open file; it has attributes only if the queue works with PASIDs.
    pub(super) fn show_file(&mut self, open: u64, file: &OpenFile) {
        let directory = format!("{}/file{}", self.node_directory(file.queue), file.number);
        let id = Id { index: usize::try_from(open).unwrap_or(usize::MAX), ..file.queue };
        let (abi, with_pasid) = (self.abi, self.dsa(id).user_pasid());
        bus_device(&mut self.tree, &directory, &rows::common::FILE, id);
        if with_pasid {
            rows(&mut self.tree, &directory, rows::file::ROWS, id, abi, None);
        }
    }

    pub(super) fn hide_file(&mut self, file: &OpenFile) {
        let directory = format!("{}/file{}", self.node_directory(file.queue), file.number);
        // If the directory is gone, it was removed with its node; another queue's file may have the number now.
        if self.tree.entry(&directory, |_, _| 0).is_ok() {
            self.tree.remove(&directory);
            self.tree.remove(&format!("{BUS}/devices/file{}", file.number));
        }
    }

    fn free_minor(&self) -> u32 {
        let nodes = self.devices.iter().flat_map(|dsa| dsa.wqs.iter().filter_map(|wq| wq.minor));
        let used: Vec<u32> = nodes.chain(self.files.open.values().map(|file| file.minor)).collect();
        (0..).find(|minor| !used.contains(minor)).unwrap_or_default()
    }

    fn function_path(&self, id: Id) -> String {
        let address = &self.dsa(id).address;
        let bus = address.rsplit_once(':').map_or("", |(bus, _)| bus);
        format!("/sys/devices/pci{bus}/{address}")
    }

    pub(super) fn device_path(&self, id: Id) -> String {
        format!("{}/{}", self.function_path(id), self.dsa(id).name())
    }

    pub(super) fn queue_path(&self, id: Id) -> String {
        format!("{}/{}", self.device_path(id), self.queue_name(id))
    }

    fn queue_name(&self, id: Id) -> String {
        format!("wq{}.{}", self.dsa(id).number, id.index)
    }

    /// The node's directory in sysfs: its name contains a slash, for which the kernel writes an exclamation mark.
    fn node_directory(&self, id: Id) -> String {
        format!("{}/dsa!{}", self.queue_path(id), self.queue_name(id))
    }
}
