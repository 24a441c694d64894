//! The trees of several kernels, recorded as data: every attribute is parsed to its value.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use telpher_abi::Opcode;
use telpher_hw::{DeviceKind, Files, QueueType, State, discover};
use telpher_portal::QueueMode;

/// A recorded machine: paths and contents of files. A content that begins with `->` is a link, one that begins with `!`
/// an errno.
#[derive(Debug, Default)]
struct Recorded(BTreeMap<PathBuf, String>);

impl Recorded {
    /// Parses lines of `path content`; paths are relative to the bus.
    fn of(lines: &str) -> Self {
        let mut recorded = Recorded::default();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (path, content) = line.split_once(' ').unwrap_or((line, ""));
            recorded.0.insert(Path::new("/sys/bus/dsa").join(path), content.to_owned());
        }
        recorded
    }

    fn with(mut self, path: &str, content: &str) -> Self {
        self.0.insert(Path::new("/sys/bus/dsa").join(path), content.to_owned());
        self
    }
}

impl Files for Recorded {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let content = self.0.get(path).ok_or_else(|| io::Error::from_raw_os_error(2))?;
        match content.strip_prefix('!') {
            Some(errno) => Err(io::Error::from_raw_os_error(errno.parse().unwrap())),
            None => Ok(format!("{content}\n").into_bytes()),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let below = self.0.keys().filter_map(|known| known.strip_prefix(path).ok()?.components().next());
        let mut names: Vec<OsString> = below.map(|name| name.as_os_str().to_owned()).collect();
        names.dedup();
        if names.is_empty() { Err(io::Error::from_raw_os_error(2)) } else { Ok(names) }
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        let content = self.0.get(path).ok_or_else(|| io::Error::from_raw_os_error(2))?;
        content.strip_prefix("->").map(PathBuf::from).ok_or_else(|| io::Error::from_raw_os_error(22))
    }
}

/// Linux 6.12 on a machine with a DSA on node 1.
const V6_12: &str = "
    drivers/idxd/bind
    drivers/user/bind
    drivers/dmaengine/bind
    devices/dsa2 ->../../../devices/pci0000:f2/0000:f2:01.0/dsa2
    devices/dsa2/driver ->../../../../bus/dsa/drivers/idxd
    devices/dsa2/version 0x100
    devices/dsa2/state enabled
    devices/dsa2/numa_node 1
    devices/dsa2/gen_cap 0x40915f0107
    devices/dsa2/op_cap 00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f007d
    devices/dsa2/configurable 1
    devices/dsa2/pasid_enabled 1
    devices/dsa2/max_groups 4
    devices/dsa2/max_work_queues 8
    devices/dsa2/max_work_queues_size 128
    devices/dsa2/max_engines 4
    devices/dsa2/max_batch_size 1024
    devices/dsa2/max_transfer_size 2147483648
    devices/dsa2/max_read_buffers 96
    devices/dsa2/read_buffer_limit 0
    devices/dsa2/clients 3
    devices/dsa2/cmd_status 0
    devices/dsa2/errors 00000000,00000000,00000000,00000000,00000000,00000000,00000000,00005301
    devices/dsa2/cdev_major 238
    devices/group2.0/work_queues wq2.0 wq2.10
    devices/group2.0/engines engine2.0
    devices/group2.0/use_read_buffer_limit 0
    devices/group2.0/read_buffers_reserved 4
    devices/group2.0/read_buffers_allowed 96
    devices/group2.0/traffic_class_a 1
    devices/group2.0/traffic_class_b 1
    devices/group2.1/work_queues
    devices/group2.1/engines
    devices/engine2.0/group_id 0
    devices/engine2.1/group_id -1
    devices/wq2.10/state enabled
    devices/wq2.10/mode shared
    devices/wq2.10/threshold 12
    devices/wq2.0/driver ->../../../../../bus/dsa/drivers/user
    devices/wq2.0/state enabled
    devices/wq2.0/mode dedicated
    devices/wq2.0/size 16
    devices/wq2.0/threshold 0
    devices/wq2.0/group_id 0
    devices/wq2.0/priority 10
    devices/wq2.0/block_on_fault 1
    devices/wq2.0/type user
    devices/wq2.0/name stream lane
    devices/wq2.0/driver_name user
    devices/wq2.0/clients 1
    devices/wq2.0/cdev_minor 0
    devices/wq2.0/max_transfer_size 2097152
    devices/wq2.0/max_batch_size 32
    devices/wq2.0/ats_disable 0
    devices/wq2.0/prs_disable 0
    devices/wq2.0/occupancy 7
    devices/wq2.0/enqcmds_retries !95
    devices/wq2.0/op_config 00000000,00000000,00000000,00000000,00000000,00000000,00000000,00000009
    devices/wq2.2/state disabled
    devices/wq2.2/mode shared
    devices/wq2.2/group_id -1
    devices/wq2.2/type none
    devices/wq2.2/name
    devices/wq2.2/cdev_minor !6
";

#[test]
fn every_attribute_of_a_recent_kernel_becomes_its_value() {
    let machine = discover(&Recorded::of(V6_12));
    assert_eq!(machine.oddities, []);
    assert_eq!(machine.drivers, ["dmaengine", "idxd", "user"]);
    let device = machine.device("dsa2").unwrap();
    assert_eq!((device.number, device.kind, device.version), (2, DeviceKind::Dsa, Some(0x100)));
    assert_eq!((device.driver.as_deref(), device.pci_address.as_deref()), (Some("idxd"), Some("0000:f2:01.0")));
    assert_eq!((device.state, device.numa_node), (Some(State::Enabled), Some(1)));
    assert_eq!(device.gen_cap.unwrap().max_transfer_shift(), 31);
    let operations = device.op_cap.unwrap();
    assert!(operations.contains(Opcode::MemoryMove) && !operations.contains(Opcode::Batch));
    assert_eq!((device.configurable, device.pasid_enabled), (Some(true), Some(true)));
    assert_eq!((device.max_groups, device.max_work_queues, device.max_engines), (Some(4), Some(8), Some(4)));
    assert_eq!((device.max_work_queues_size, device.max_batch), (Some(128), Some(1024)));
    assert_eq!((device.max_transfer, device.max_read_buffers), (Some(1 << 31), Some(96)));
    assert_eq!((device.read_buffer_limit, device.event_log_size), (Some(0), None));
    assert_eq!((device.clients, device.cmd_status, device.cdev_major), (Some(3), Some(0), Some(238)));
    assert_eq!(device.errors, Some([0x5301, 0, 0, 0]));
    // Groups and engines.
    let [full, empty] = device.groups.as_slice() else { panic!("{:?}", device.groups) };
    assert_eq!(
        (full.work_queues.as_slice(), full.engines.as_slice()),
        (&["wq2.0", "wq2.10"].map(String::from)[..], &["engine2.0".to_owned()][..])
    );
    assert_eq!((full.read_buffers_reserved, full.read_buffers_allowed), (Some(4), Some(96)));
    assert_eq!(
        (full.use_read_buffer_limit, full.traffic_class_a, full.traffic_class_b),
        (Some(false), Some(1), Some(1))
    );
    assert!(empty.work_queues.is_empty() && empty.engines.is_empty());
    let groups: Vec<_> = device.engines.iter().map(|engine| (engine.name.as_str(), engine.group)).collect();
    assert_eq!(groups, [("engine2.0", Some(0)), ("engine2.1", None)]);
    // Queues, by number and not by text.
    let names: Vec<_> = device.queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["wq2.0", "wq2.2", "wq2.10"]);
    let (_, queue) = machine.queue("wq2.0").unwrap();
    assert_eq!(
        (queue.state, queue.mode, queue.queue_type),
        (Some(State::Enabled), Some(QueueMode::Dedicated), Some(QueueType::User))
    );
    assert_eq!((queue.size, queue.threshold, queue.group, queue.priority), (Some(16), Some(0), Some(0), Some(10)));
    assert_eq!(
        (queue.label.as_deref(), queue.driver_name.as_deref(), queue.driver.as_deref()),
        (Some("stream lane"), Some("user"), Some("user"))
    );
    assert_eq!((queue.clients, queue.cdev_minor, queue.occupancy), (Some(1), Some(0), Some(7)));
    assert_eq!((queue.max_transfer, queue.max_batch), (Some(2_097_152), Some(32)));
    assert_eq!((queue.block_on_fault, queue.ats_disable, queue.prs_disable), (Some(true), Some(false), Some(false)));
    // The driver's way to report that a dedicated queue has no value.
    assert_eq!(queue.enqcmds_retries, None);
    assert_eq!(queue.op_config.unwrap().0, [9, 0, 0, 0]);
    assert_eq!(queue.node(device.kind), Path::new("/dev/dsa/wq2.0"));
    let (_, idle) = machine.queue("wq2.2").unwrap();
    assert_eq!((idle.state, idle.group, idle.queue_type), (Some(State::Disabled), None, Some(QueueType::None)));
    assert_eq!((idle.label.as_deref(), idle.cdev_minor), (None, None));
}

#[test]
fn older_kernels_show_the_same_in_other_formats() {
    let machine = discover(&Recorded::of(
        "
        devices/dsa0/version 0x100
        devices/dsa0/state enabled
        devices/dsa0/numa_node -1
        devices/dsa0/op_cap 0x1003f027f 0 0 0
        devices/dsa0/errors 0x0000000000005101 0x0000000000000000 0x0000000000000000 0x0000000000000000
        devices/dsa0/token_limit 12
        devices/dsa0/max_tokens 96
        devices/group0.0/use_token_limit 1
        devices/group0.0/tokens_reserved 3
        devices/group0.0/tokens_allowed 65
        devices/wq0.0/mode dedicated
        devices/wq0.0/size 16
        ",
    ));
    assert_eq!(machine.oddities, []);
    let device = machine.device("dsa0").unwrap();
    assert_eq!((device.numa_node, device.read_buffer_limit, device.max_read_buffers), (None, Some(12), Some(96)));
    assert_eq!((device.op_cap.unwrap().0[0], device.errors), (0x1_003f_027f, Some([0x5101, 0, 0, 0])));
    let group = &device.groups[0];
    assert_eq!(
        (group.use_read_buffer_limit, group.read_buffers_reserved, group.read_buffers_allowed),
        (Some(true), Some(3), Some(65))
    );
    let queue = &device.queues[0];
    assert_eq!((queue.driver_name.as_deref(), queue.prs_disable, queue.op_config), (None, None, None));
    assert!(machine.drivers.is_empty());
}

#[test]
fn newer_names_take_precedence_over_deprecated_ones() {
    let tree = Recorded::of("devices/dsa0/max_tokens 95").with("devices/dsa0/max_read_buffers", "96");
    assert_eq!(discover(&tree).devices[0].max_read_buffers, Some(96));
}

#[test]
fn unreadable_attributes_are_listed_and_the_rest_is_read() {
    let tree = Recorded::of(V6_12)
        .with("devices/dsa2/state", "sleeping")
        .with("devices/dsa2/version", "!13")
        .with("devices/wq2.0/size", "99999999999")
        .with("devices/wq2.0/block_on_fault", "maybe");
    let machine = discover(&tree);
    let (device, queue) = machine.queue("wq2.0").unwrap();
    assert_eq!((device.state, device.version, queue.size, queue.block_on_fault), (None, None, None, None));
    assert_eq!((device.numa_node, queue.priority), (Some(1), Some(10)));
    let mut oddities: Vec<_> =
        machine.oddities.iter().map(|odd| (odd.path.to_str().unwrap(), odd.why.as_str())).collect();
    oddities.sort_unstable();
    let [state, version, block_on_fault, size] = oddities.as_slice() else { panic!("{oddities:?}") };
    assert_eq!(*state, ("/sys/bus/dsa/devices/dsa2/state", "not understood: 'sleeping'"));
    assert!(version.0.ends_with("dsa2/version") && version.1.contains("os error 13"), "{version:?}");
    assert!(block_on_fault.1.contains("'maybe'") && size.1.contains("'99999999999'"));
}

#[test]
fn names_that_only_look_like_devices_are_ignored() {
    let tree = Recorded::of(
        "
        devices/dsa/state enabled
        devices/dsax/state enabled
        devices/dsa+1/state enabled
        devices/dsa99999999999/state enabled
        devices/wq/state enabled
        devices/iax1/state enabled
        devices/wq1.0/state enabled
        devices/wq1.x/state enabled
        devices/wq10.0/state enabled
        ",
    );
    let machine = discover(&tree);
    let [device] = machine.devices.as_slice() else { panic!("{:?}", machine.devices) };
    // The analytics accelerator shares the numbers; its queues are not DSA queues.
    assert_eq!((device.name.as_str(), device.kind, device.queues.len()), ("iax1", DeviceKind::Iax, 1));
    assert_eq!(device.queues[0].node(device.kind), Path::new("/dev/iax/wq1.0"));
    assert!(machine.queue("wq1.0").is_none() && machine.queues().next().is_none());
}

#[test]
fn a_machine_without_the_driver_has_no_devices_and_no_errors() {
    let machine = discover(&Recorded::default());
    assert_eq!((machine.devices.len(), machine.drivers.len(), machine.oddities.len()), (0, 0, 0));
}
