//! Bind and unbind: every check in its order, with errno and `cmd_status`. Source: K612 `device.c`.

use super::*;
use crate::tree::Entry;
use Stage::{Configured, DeviceEnabled, Enabled, Found};

fn status(kernel: &mut Kernel) -> String {
    get(kernel, "dsa0/cmd_status").unwrap()
}

/// Settings before a bind, the bind, its errno, and the resulting cmd_status.
type Refusal = (
    &'static str,
    Preset,
    Abi,
    Stage,
    &'static [(&'static str, &'static str)],
    (&'static str, &'static str),
    Errno,
    &'static str,
);

const LATEST: Abi = Abi::V6_12;
const SPR: Preset = Preset::Spr;

const REFUSALS: &[Refusal] = &[
    (
        "no queue in a group",
        SPR,
        LATEST,
        Found,
        &[("engine0.0/group_id", "0")],
        ("idxd", "dsa0"),
        Errno::NXIO,
        "0x800d0000",
    ),
    (
        "a shared queue without a type",
        SPR,
        LATEST,
        Configured,
        &[("wq0.0/type", "none")],
        ("idxd", "dsa0"),
        Errno::NXIO,
        "0x800c0000",
    ),
    (
        "a shared queue on 5.15",
        SPR,
        Abi::V5_15,
        Found,
        &[("wq0.0/group_id", "0")],
        ("idxd", "dsa0"),
        Errno::NXIO,
        "0x800c0000",
    ),
    (
        "no engine in a group",
        SPR,
        LATEST,
        Configured,
        &[
            ("engine0.0/group_id", "-1"),
            ("engine0.1/group_id", "-1"),
            ("engine0.2/group_id", "-1"),
            ("engine0.3/group_id", "-1"),
        ],
        ("idxd", "dsa0"),
        Errno::NXIO,
        "0",
    ),
    (
        "queues without engines: the hardware refuses",
        SPR,
        LATEST,
        Configured,
        &[("wq0.1/group_id", "1")],
        ("idxd", "dsa0"),
        Errno::NXIO,
        "0x15",
    ),
    (
        "more reserved than others leave: the hardware refuses",
        SPR,
        LATEST,
        Configured,
        &[("group0.1/read_buffers_reserved", "8")],
        ("idxd", "dsa0"),
        Errno::NXIO,
        "0x18",
    ),
    ("the device is not enabled", SPR, LATEST, Configured, &[], ("user", "wq0.0"), Errno::NXIO, "0"),
    (
        "driver_name is another driver's",
        SPR,
        LATEST,
        DeviceEnabled,
        &[("wq0.0/driver_name", "dmaengine")],
        ("user", "wq0.0"),
        Errno::NODEV,
        "0x80200000",
    ),
    ("driver_name is not set", SPR, LATEST, DeviceEnabled, &[], ("user", "wq0.2"), Errno::NODEV, "0x80200000"),
    ("no group", SPR, LATEST, DeviceEnabled, &[("wq0.0/group_id", "-1")], ("user", "wq0.0"), Errno::NXIO, "0x80030000"),
    ("no name", SPR, LATEST, DeviceEnabled, &[("wq0.0/name", "")], ("user", "wq0.0"), Errno::NXIO, "0x80040000"),
    (
        "no threshold",
        SPR,
        LATEST,
        DeviceEnabled,
        &[("wq0.0/mode", "dedicated"), ("wq0.0/mode", "shared")],
        ("user", "wq0.0"),
        Errno::NXIO,
        "0x80060000",
    ),
    (
        "priority 0: the hardware refuses",
        SPR,
        LATEST,
        DeviceEnabled,
        &[("wq0.0/priority", "0")],
        ("user", "wq0.0"),
        Errno::NXIO,
        "0x23",
    ),
    (
        "batches of one: the hardware refuses",
        SPR,
        LATEST,
        DeviceEnabled,
        &[("wq0.0/max_batch_size", "1")],
        ("user", "wq0.0"),
        Errno::NXIO,
        "0x27",
    ),
    (
        "size 0: the hardware refuses",
        SPR,
        LATEST,
        DeviceEnabled,
        &[
            ("wq0.2/group_id", "0"),
            ("wq0.2/mode", "dedicated"),
            ("wq0.2/type", "user"),
            ("wq0.2/name", "x"),
            ("wq0.2/priority", "1"),
            ("wq0.2/driver_name", "user"),
        ],
        ("user", "wq0.2"),
        Errno::NXIO,
        "0x22",
    ),
    (
        "another queue is shared without a type",
        SPR,
        LATEST,
        DeviceEnabled,
        &[("wq0.0/type", "none")],
        ("user", "wq0.1"),
        Errno::INVAL,
        "0x800c0000",
    ),
];

#[test]
fn every_refused_bind_sets_cmd_status() {
    for (why, preset, abi, stage, changes, (driver, name), errno, expected) in REFUSALS {
        let mut kernel = brought(*preset, *abi, *stage);
        script(&mut kernel, changes);
        script(&mut kernel, &[("dsa0/cmd_status", "1")]);
        let bound = bind(&mut kernel, driver, name);
        assert_eq!(bound, Err(*errno), "{why}");
        assert_eq!(status(&mut kernel), *expected, "{why}");
        let state = get(&mut kernel, &format!("{name}/state"));
        assert_eq!(state.as_deref(), Ok("disabled"), "{why}");
        assert_eq!(kernel.entry(&path(&format!("{name}/driver"))), Err(Errno::NOENT), "{why}");
    }
}

#[test]
fn settings_that_the_driver_completes_are_not_refused() {
    // A queue without a group is not written to the device, with or without a size.
    let mut kernel = brought(SPR, LATEST, Configured);
    script(&mut kernel, &[("wq0.3/size", "8"), ("wq0.1/group_id", "-1")]);
    assert_eq!(bind(&mut kernel, "idxd", "dsa0"), Ok(()));
    // Page requests may be disabled, because the driver enables the event log.
    let mut kernel = brought(Preset::Full, LATEST, DeviceEnabled);
    script(&mut kernel, &[("wq0.0/prs_disable", "1")]);
    assert_eq!(bind(&mut kernel, "user", "wq0.0"), Ok(()));
}

#[test]
fn a_shared_queue_without_pasids_is_refused_by_both() {
    let hardware = Hardware { shared_virtual_memory: false, ..Hardware::default() };
    let mut kernel = Kernel::new(&hardware, LATEST, false).unwrap();
    assert_eq!(get(&mut kernel, "dsa0/pasid_enabled").as_deref(), Ok("0"));
    script(&mut kernel, SETTINGS);
    assert_eq!(bind(&mut kernel, "idxd", "dsa0"), Err(Errno::NXIO));
    assert_eq!(status(&mut kernel), "0x800c0000");
    script(&mut kernel, &[("wq0.0/group_id", "-1"), ("wq0.0/size", "0")]);
    assert_eq!(bind(&mut kernel, "idxd", "dsa0"), Ok(()));
    assert_eq!(bind(&mut kernel, "user", "wq0.1"), Err(Errno::OPNOTSUPP));
    assert_eq!(status(&mut kernel), "0x80110000");
    script(&mut kernel, &[("wq0.0/group_id", "0"), ("wq0.0/driver_name", "dmaengine")]);
    assert_eq!(bind(&mut kernel, "dmaengine", "wq0.0"), Err(Errno::NXIO));
    assert_eq!(status(&mut kernel), "0x80050000");
}

#[test]
fn a_dedicated_kernel_queue_needs_privileged_mode_where_the_kernel_uses_it() {
    let config = "/sys/bus/pci/devices/0000:6a:01.0/config";
    for (abi, privileged, expected) in [(Abi::V6_1, false, "0x800f0000"), (Abi::V6_1, true, "0")] {
        let mut kernel = brought(SPR, abi, Configured);
        // PASIDCTL: enabled, with or without Privileged Mode Enable.
        kernel.write_at(config, 0x236, &[if privileged { 5 } else { 1 }, 0]).unwrap();
        assert_eq!(bind(&mut kernel, "idxd", "dsa0"), Ok(()));
        let bound = bind(&mut kernel, "dmaengine", "wq0.1");
        assert_eq!(bound, if privileged { Ok(()) } else { Err(Errno::OPNOTSUPP) });
        assert_eq!(status(&mut kernel), expected);
    }
}

#[test]
fn a_bound_target_is_busy_and_a_missing_one_is_no_device() {
    let mut kernel = brought(SPR, LATEST, Enabled);
    assert_eq!(bind(&mut kernel, "idxd", "dsa0"), Err(Errno::BUSY));
    assert_eq!(bind(&mut kernel, "user", "wq0.0"), Err(Errno::BUSY));
    assert_eq!(bind(&mut kernel, "dmaengine", "wq0.0"), Err(Errno::BUSY));
    for (driver, name) in [
        ("idxd", "dsa1"),
        ("idxd", "wq0.0"),
        ("idxd", "\n"),
        ("idxd", "dsa00"),
        ("user", "dsa0"),
        ("user", "wq0.8"),
        ("user", "wq1.0"),
        ("user", "group0.0"),
        ("user", "engine0.0"),
        ("dsa", "dsa0"),
    ] {
        assert_eq!(bind(&mut kernel, driver, name), Err(Errno::NODEV), "{driver} {name}");
    }
    for (driver, name) in
        [("user", "wq0.2"), ("dmaengine", "wq0.0"), ("idxd", "wq0.0"), ("user", "dsa0"), ("idxd", "x")]
    {
        assert_eq!(unbind(&mut kernel, driver, name), Err(Errno::NODEV), "{driver} {name}");
    }
}

#[test]
fn a_bound_device_has_driver_links_and_its_queues_nodes() {
    let mut kernel = brought(SPR, LATEST, Enabled);
    let link = |text: &str| Ok(Entry::Link(text.into()));
    assert_eq!(kernel.entry(&path("dsa0/driver")), link("../../../../bus/dsa/drivers/idxd"));
    assert_eq!(kernel.entry(&path("wq0.0/driver")), link("../../../../../bus/dsa/drivers/user"));
    assert_eq!(
        kernel.entry("/sys/bus/dsa/drivers/user/wq0.0"),
        link("../../../../devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0")
    );
    assert!(kernel.entry(&path("wq0.0/driver/unbind")).is_ok());
    assert_eq!(kernel.entry("/dev/dsa/wq0.1"), Ok(Entry::Node { major: 511, minor: 1 }));
    assert_eq!(kernel.entry("/dev/char/511:1"), link("../dsa/wq0.1"));
    assert_eq!(get(&mut kernel, "wq0.1/cdev_minor").as_deref(), Ok("1"));
    assert_eq!(get(&mut kernel, "wq0.1/dsa!wq0.1/dev").as_deref(), Ok("511:1"));
    assert_eq!(get(&mut kernel, "wq0.0/state").as_deref(), Ok("enabled"));
    assert_eq!(get(&mut kernel, "dsa0/state").as_deref(), Ok("enabled"));
    assert_eq!(status(&mut kernel), "0");
    assert_eq!(kernel.queues().iter().filter(|(.., enabled)| *enabled).count(), 2);

    assert_eq!(unbind(&mut kernel, "user", "wq0.0"), Ok(()));
    for gone in ["/dev/dsa/wq0.0", "/dev/char/511:0", "/sys/dev/char/511:0", "/sys/bus/dsa/drivers/user/wq0.0"] {
        assert_eq!(kernel.entry(gone), Err(Errno::NOENT), "{gone}");
    }
    assert_eq!(get(&mut kernel, "wq0.0/cdev_minor"), Err(Errno::NXIO));
    assert_eq!(kernel.entry(&path("wq0.0/driver")), Err(Errno::NOENT));
    assert_eq!(unbind(&mut kernel, "user", "wq0.1"), Ok(()));
    assert_eq!(kernel.entry("/dev/dsa"), Err(Errno::NOENT), "devtmpfs keeps no empty directory");
    assert!(kernel.roots().contains(&"/dev/dsa".into()));
}

#[test]
fn an_unbound_queue_keeps_only_size_group_and_driver_name() {
    let mut kernel = brought(Preset::Full, LATEST, Configured);
    script(
        &mut kernel,
        &[
            ("wq0.0/block_on_fault", "1"),
            ("wq0.0/ats_disable", "0"),
            ("wq0.0/max_transfer_size", "4096"),
            ("wq0.0/max_batch_size", "64"),
            ("wq0.0/enqcmds_retries", "3"),
            ("wq0.0/op_config", "9"),
        ],
    );
    bind(&mut kernel, "idxd", "dsa0").unwrap();
    bind(&mut kernel, "user", "wq0.0").unwrap();
    unbind(&mut kernel, "user", "wq0.0").unwrap();
    let kept = [("size", "16"), ("group_id", "0"), ("driver_name", "user")];
    let forgotten = [
        ("state", "disabled"),
        ("mode", "shared"),
        ("threshold", "0"),
        ("priority", "0"),
        ("block_on_fault", "0"),
        ("ats_disable", "0"),
        ("name", ""),
        ("type", "none"),
        ("max_transfer_size", "2097152"),
        ("max_batch_size", "32"),
        ("enqcmds_retries", "32"),
    ];
    for (name, value) in kept.iter().chain(&forgotten) {
        assert_eq!(get(&mut kernel, &format!("wq0.0/{name}")).as_deref(), Ok(*value), "{name}");
    }
    let (queue, device) = (get(&mut kernel, "wq0.0/op_config"), get(&mut kernel, "dsa0/op_cap"));
    assert_eq!(queue, device);
}

#[test]
fn an_unbound_device_releases_its_queues_and_is_reset() {
    let mut kernel = brought(SPR, LATEST, Enabled);
    assert_eq!(unbind(&mut kernel, "idxd", "dsa0"), Ok(()));
    for (attribute, value) in [
        ("dsa0/state", "disabled"),
        ("wq0.0/state", "disabled"),
        ("wq0.0/size", "0"),
        ("wq0.0/group_id", "-1"),
        ("wq0.1/name", ""),
        ("engine0.0/group_id", "-1"),
        ("group0.0/work_queues", ""),
        ("group0.0/engines", ""),
    ] {
        assert_eq!(get(&mut kernel, attribute).as_deref(), Ok(value), "{attribute}");
    }
    assert_eq!(kernel.entry("/dev/dsa"), Err(Errno::NOENT));
    assert_eq!(kernel.entry(&path("dsa0/driver")), Err(Errno::NOENT));
    bring(&mut kernel, Enabled);
    assert_eq!(get(&mut kernel, "wq0.0/state").as_deref(), Ok("enabled"), "and can be enabled again");
}

#[test]
fn a_failed_bind_of_a_queue_clears_its_type() {
    let mut kernel = brought(SPR, LATEST, DeviceEnabled);
    script(&mut kernel, &[("wq0.1/priority", "0")]);
    assert_eq!(bind(&mut kernel, "user", "wq0.1"), Err(Errno::NXIO));
    assert_eq!(get(&mut kernel, "wq0.1/type").as_deref(), Ok("none"));
    assert_eq!(get(&mut kernel, "wq0.1/name").as_deref(), Ok("two"));
}

#[test]
fn a_queue_with_a_type_and_no_size_gets_sixteen_entries() {
    let mut kernel = brought(SPR, LATEST, Configured);
    script(&mut kernel, &[("wq0.0/size", "0")]);
    assert_eq!(bind(&mut kernel, "idxd", "dsa0"), Ok(()));
    assert_eq!(get(&mut kernel, "wq0.0/size").as_deref(), Ok("16"));
}

#[test]
fn the_compatibility_interface_forwards_by_type() {
    let mut kernel = brought(SPR, LATEST, Configured);
    assert_eq!(bind(&mut kernel, "dsa", "dsa0"), Ok(()));
    assert_eq!(bind(&mut kernel, "dsa", "wq0.0"), Ok(()));
    assert!(kernel.entry("/sys/bus/dsa/drivers/user/wq0.0").is_ok());
    assert_eq!(bind(&mut kernel, "dsa", "wq0.2"), Err(Errno::NODEV), "it has no type");
    assert_eq!(unbind(&mut kernel, "dsa", "wq0.0"), Ok(()));
    assert_eq!(unbind(&mut kernel, "dsa", "wq0.0"), Err(Errno::NODEV));
    assert_eq!(unbind(&mut kernel, "dsa", "dsa0"), Ok(()));
}

#[test]
fn a_probe_by_the_bus_tries_the_drivers_in_turn() {
    let mut kernel = brought(SPR, LATEST, Configured);
    let probe = "/sys/bus/dsa/drivers_probe";
    assert_eq!(write(&mut kernel, probe, "dsa0"), Ok(()));
    assert_eq!(write(&mut kernel, probe, "wq0.0\n"), Ok(()));
    assert!(kernel.entry("/sys/bus/dsa/drivers/user/wq0.0").is_ok());
    assert_eq!(write(&mut kernel, probe, "wq0.9"), Err(Errno::NODEV));
}

#[test]
fn a_change_of_the_function_while_enabled_halts_the_device() {
    let mut kernel = brought(SPR, LATEST, Enabled);
    let config = "/sys/bus/pci/devices/0000:6a:01.0/config";
    assert!(!kernel.poll_ready(0));
    // setpci COMMAND=0x0402: bus mastering disabled.
    assert_eq!(kernel.write_at(config, 4, &[0x02, 0x04]), Ok(2));
    assert_eq!(get(&mut kernel, "dsa0/state").as_deref(), Ok("halted"));
    assert_eq!(get(&mut kernel, "wq0.0/state").as_deref(), Ok("disabled"));
    assert!(get(&mut kernel, "dsa0/errors").unwrap().ends_with("00005101"), "SWERROR 0x51");
    assert!(kernel.poll_ready(0));
    assert!(kernel.queues().iter().all(|(.., enabled)| !enabled));
    kernel.write_at(config, 4, &[0x06, 0x04]).unwrap();

    // The device stays halted until the function is reset; then it can be enabled again.
    for name in ["wq0.0", "wq0.1"] {
        assert_eq!(unbind(&mut kernel, "user", name), Ok(()));
    }
    assert_eq!(unbind(&mut kernel, "idxd", "dsa0"), Ok(()));
    script(&mut kernel, SETTINGS);
    assert_eq!(bind(&mut kernel, "idxd", "dsa0"), Err(Errno::NXIO));
    assert_eq!(write(&mut kernel, "/sys/bus/pci/devices/0000:6a:01.0/reset", "1"), Ok(()));
    bring(&mut kernel, Enabled);
    assert_eq!(get(&mut kernel, "dsa0/state").as_deref(), Ok("enabled"));
}

#[test]
fn a_reset_of_the_function_stops_its_queues_without_the_driver() {
    let mut kernel = brought(SPR, LATEST, Enabled);
    assert_eq!(write(&mut kernel, "/sys/bus/pci/devices/0000:6a:01.0/reset", "1"), Ok(()));
    assert_eq!(get(&mut kernel, "wq0.0/state").as_deref(), Ok("enabled"));
    assert!(kernel.queues().iter().all(|(.., enabled)| !enabled));
    assert_eq!(kernel.open("/dev/dsa/wq0.1", caller(1, 1)), Err(Errno::NXIO));
    assert_eq!(unbind(&mut kernel, "idxd", "dsa0"), Ok(()));
    bring(&mut kernel, Enabled);
    assert!(kernel.open("/dev/dsa/wq0.1", caller(1, 1)).is_ok());
}

#[test]
fn every_uevent_names_the_device_type() {
    let mut kernel = brought(SPR, LATEST, Enabled);
    for (path, text) in [
        ("dsa0/uevent", "DEVTYPE=dsa\nDRIVER=idxd\nMODALIAS=dsa:t0\n"),
        ("wq0.0/uevent", "DEVTYPE=wq\nDRIVER=user\nMODALIAS=dsa:t0\n"),
        ("wq0.2/uevent", "DEVTYPE=wq\nMODALIAS=dsa:t0\n"),
        ("group0.0/uevent", "DEVTYPE=group\nMODALIAS=dsa:t0\n"),
        ("engine0.0/uevent", "DEVTYPE=engine\nMODALIAS=dsa:t0\n"),
        ("wq0.0/dsa!wq0.0/uevent", "MAJOR=511\nMINOR=0\nDEVNAME=dsa/wq0.0\nDEVTYPE=idxd_cdev\nMODALIAS=dsa:t0\n"),
    ] {
        assert_eq!(kernel.show(&super::path(path)), Ok(text.into()), "{path}");
    }
    assert_eq!(set(&mut kernel, "dsa0/uevent", "change"), Ok(()));
    assert_eq!(set(&mut kernel, "dsa0/uevent", "explode"), Err(Errno::INVAL));
}
