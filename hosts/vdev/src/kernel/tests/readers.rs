//! Reads files as clients do. Source: observed clients.

use super::*;
use crate::tree::Entry;
use Stage::Enabled;

fn names(kernel: &Kernel, directory: &str) -> Vec<String> {
    kernel.list(directory).unwrap().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn the_paths_that_every_client_uses_exist() {
    let kernel = brought(Preset::Spr, Abi::V6_6, Enabled);
    let directories = [
        "/sys/module/idxd",
        "/sys/module/idxd_bus",
        "/sys/bus/dsa/drivers/idxd",
        "/sys/bus/dsa/drivers/user",
        "/sys/bus/dsa/drivers/dmaengine",
        "/sys/bus/dsa/drivers/dsa",
        "/sys/bus/dsa/devices",
        "/sys/bus/pci/drivers/idxd",
        "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0",
        "/dev/dsa",
    ];
    for directory in directories {
        assert_eq!(kernel.entry(directory), Ok(Entry::Directory), "{directory}");
    }
    for driver in ["idxd", "user", "dmaengine", "dsa"] {
        for file in ["bind", "unbind"] {
            let path = format!("/sys/bus/dsa/drivers/{driver}/{file}");
            assert_eq!(kernel.entry(&path), Ok(Entry::Attribute { mode: 0o200 }), "{path}");
        }
    }
    for absent in ["/sys/bus/iax", "/dev/iax", "/sys/bus/dsa/drivers/crypto"] {
        assert_eq!(kernel.entry(absent), Err(Errno::NOENT), "{absent}");
    }
    assert_eq!(kernel.entry("/dev/dsa/wq0.0"), Ok(Entry::Node { major: 511, minor: 0 }));
}

#[test]
fn the_bus_lists_links_that_contain_the_pci_address() {
    let kernel = fresh(Preset::Spr, Abi::V6_6);
    let entries = kernel.list("/sys/bus/dsa/devices").unwrap();
    assert!(entries.iter().all(|(_, entry)| matches!(entry, Entry::Link(_))));
    let with = |prefix: &str| entries.iter().filter(|(name, _)| name.starts_with(prefix)).count();
    assert_eq!((with("dsa"), with("wq0."), with("group0."), with("engine0.")), (1, 8, 4, 4));
    let Entry::Link(text) = &entries.iter().find(|(name, _)| name == "dsa0").unwrap().1 else { unreachable!() };
    let mut parts = text.rsplit('/');
    assert_eq!((parts.next(), parts.next()), (Some("dsa0"), Some("0000:6a:01.0")));
    assert!(text.starts_with("../"));
}

#[test]
fn a_queue_is_reachable_by_all_three_paths() {
    let mut kernel = brought(Preset::Spr, Abi::V6_6, Enabled);
    for way in [
        "/sys/bus/dsa/devices/wq0.0",
        "/sys/bus/dsa/devices/dsa0/wq0.0",
        "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0",
        "/sys/bus/pci/devices/0000:6a:01.0/dsa0/wq0.0",
        "/sys/bus/dsa/drivers/user/wq0.0",
    ] {
        assert_eq!(kernel.show(&format!("{way}/name")), Ok(b"one\n".to_vec()), "{way}");
    }
}

#[test]
fn no_attribute_reads_empty_and_each_fits_one_read() {
    // An empty read is an error for libaccel-config; it reads into 1024 bytes.
    for stage in [Stage::Found, Enabled] {
        let mut kernel = brought(Preset::Full, Abi::V6_12, stage);
        for object in ["dsa0", "group0.0", "group0.1", "engine0.0", "wq0.0", "wq0.1", "wq0.7"] {
            for name in names(
                &kernel,
                &format!("/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/{object}").replace("/dsa0/dsa0", "/dsa0"),
            ) {
                let attribute = path(&format!("{object}/{name}"));
                if !matches!(kernel.entry(&attribute), Ok(Entry::Attribute { .. })) {
                    continue;
                }
                match kernel.show(&attribute) {
                    Ok(text) => {
                        assert!((1..1024).contains(&text.len()), "{attribute}");
                        assert_eq!(text.last(), Some(&b'\n'), "{attribute}");
                    }
                    Err(errno) => {
                        let no_number = name == "cdev_minor" && errno == Errno::NXIO;
                        let dedicated = name == "enqcmds_retries" && errno == Errno::OPNOTSUPP;
                        assert!(no_number || dedicated, "{attribute}: {errno}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_values_parse_with_the_librarys_rules() {
    let mut kernel = brought(Preset::Spr, Abi::V6_12, Enabled);
    // The library reads one byte first; a failure would drop the device from the list.
    assert_eq!(kernel.store(&path("dsa0/cmd_status"), b"1"), Ok(1));
    let numbers = [
        "dsa0/max_groups",
        "dsa0/max_work_queues",
        "dsa0/max_engines",
        "dsa0/max_work_queues_size",
        "dsa0/numa_node",
        "dsa0/max_batch_size",
        "dsa0/max_transfer_size",
        "dsa0/gen_cap",
        "dsa0/configurable",
        "dsa0/pasid_enabled",
        "dsa0/max_read_buffers",
        "dsa0/read_buffer_limit",
        "dsa0/cdev_major",
        "dsa0/version",
        "dsa0/clients",
        "dsa0/cmd_status",
        "group0.0/read_buffers_reserved",
        "group0.0/read_buffers_allowed",
        "group0.0/use_read_buffer_limit",
        "group0.0/traffic_class_a",
        "group0.0/traffic_class_b",
        "wq0.0/group_id",
        "wq0.0/size",
        "wq0.0/priority",
        "wq0.0/block_on_fault",
        "wq0.0/cdev_minor",
        "wq0.0/threshold",
        "wq0.0/max_batch_size",
        "wq0.0/max_transfer_size",
        "wq0.0/ats_disable",
        "wq0.0/clients",
        "wq0.0/occupancy",
        "engine0.0/group_id",
    ];
    for attribute in numbers {
        let text = get(&mut kernel, attribute).unwrap();
        let digits = text.strip_prefix("0x");
        let parsed = digits.map_or_else(|| text.parse::<u64>().ok(), |digits| u64::from_str_radix(digits, 16).ok());
        assert!(parsed.is_some(), "{attribute}: {text}");
        // DTO reads 15 bytes, newline included.
        assert!(text.len() < 15, "{attribute}: {text}");
    }
    // A NULL type or mode crashes the library.
    for (attribute, value) in [("wq0.7/type", "none"), ("wq0.7/mode", "shared"), ("wq0.0/type", "user")] {
        assert_eq!(get(&mut kernel, attribute).as_deref(), Ok(value));
    }
    // numa_node names an existing node, never -1.
    assert_eq!(get(&mut kernel, "dsa0/numa_node").as_deref(), Ok("0"));
}

#[test]
fn gen_cap_and_the_attributes_agree() {
    for preset in Preset::ALL {
        let mut kernel = fresh(preset, Abi::V6_6);
        let gen_cap = get(&mut kernel, "dsa0/gen_cap").unwrap();
        let gen_cap = u64::from_str_radix(gen_cap.trim_start_matches("0x"), 16).unwrap();
        let number = |kernel: &mut Kernel, name: &str| get(kernel, name).unwrap().parse::<u64>().unwrap();
        assert_eq!(number(&mut kernel, "dsa0/max_transfer_size"), 1 << (gen_cap >> 16 & 31));
        assert_eq!(number(&mut kernel, "dsa0/max_batch_size"), 1 << (gen_cap >> 21 & 15));
        assert_eq!(number(&mut kernel, "dsa0/configurable"), gen_cap >> 31 & 1);
        assert_eq!(gen_cap & 0b111, 0b111, "block on fault, overlapping copies, cache control");
    }
}

#[test]
fn newlines_and_blanks_around_a_value_are_accepted() {
    let mut kernel = fresh(Preset::Spr, Abi::V6_12);
    for text in ["16", "16\n", " 16 ", "16 \n"] {
        assert_eq!(kernel.store(&path("wq0.0/size"), text.as_bytes()), Ok(text.len()), "{text:?}");
        assert_eq!(get(&mut kernel, "wq0.0/size").as_deref(), Ok("16"));
    }
    for (attribute, text) in [("wq0.0/mode", "dedicated\n"), ("wq0.0/type", " user"), ("wq0.0/name", "dpdk_a\n")] {
        assert_eq!(kernel.store(&path(attribute), text.as_bytes()), Ok(text.len()));
        assert_eq!(get(&mut kernel, attribute).as_deref(), Ok(text.trim()));
    }
}

#[test]
fn the_scripts_of_dpdk_and_of_the_kernels_documents_work() {
    // DPDK's order: group, type, mode, name, priority, batch, size.
    let mut kernel = fresh(Preset::Spr, Abi::V6_6);
    for queue in 0..2 {
        let size = "64";
        for (name, value) in [
            ("group_id", "0"),
            ("type", "user"),
            ("mode", "dedicated"),
            ("name", "dpdk_wq"),
            ("priority", "1"),
            ("max_batch_size", "1024"),
            ("size", size),
        ] {
            assert_eq!(write(&mut kernel, &path(&format!("dsa0/wq0.{queue}/{name}")), value), Ok(()), "{name}");
        }
    }
    write(&mut kernel, &path("dsa0/engine0.0/group_id"), "0").unwrap();
    bind(&mut kernel, "idxd", "dsa0").unwrap();
    bind(&mut kernel, "user", "wq0.0").unwrap();
    bind(&mut kernel, "user", "wq0.1").unwrap();
    assert_eq!(names(&kernel, "/dev/dsa"), ["wq0.0", "wq0.1"]);
}

#[test]
fn the_librarys_self_test_gets_its_refusals() {
    // observed clients: sizes over the total, batch and transfer size 0 or too large; 16 and 2^31 accepted.
    let mut kernel = fresh(Preset::Spr, Abi::V6_6);
    script(&mut kernel, &[("wq0.0/size", "64"), ("wq0.1/size", "64")]);
    for (attribute, value, expected) in [
        ("wq0.2/size", "1", Err(Errno::INVAL)),
        ("wq0.0/max_batch_size", "0", Err(Errno::INVAL)),
        ("wq0.0/max_batch_size", "2048", Err(Errno::INVAL)),
        ("wq0.0/max_batch_size", "16", Ok(())),
        ("wq0.0/max_transfer_size", "0", Err(Errno::INVAL)),
        ("wq0.0/max_transfer_size", "4294967296", Err(Errno::INVAL)),
        ("wq0.0/max_transfer_size", "16", Ok(())),
        ("wq0.0/max_transfer_size", "2147483648", Ok(())),
    ] {
        assert_eq!(set(&mut kernel, attribute, value), expected, "{attribute} {value}");
    }
}

#[test]
fn the_pci_function_is_complete() {
    let mut kernel = fresh(Preset::Spr, Abi::V6_6);
    kernel.set_cpuinfo("processor\t: 0\n\nprocessor\t: 1\n");
    let function = "/sys/bus/pci/devices/0000:6a:01.0";
    for (name, value) in [
        ("vendor", "0x8086\n"),
        ("device", "0x0b25\n"),
        ("subsystem_vendor", "0x8086\n"),
        ("subsystem_device", "0x0000\n"),
        ("class", "0x088000\n"),
        ("revision", "0x00\n"),
        ("numa_node", "0\n"),
        ("enable", "1\n"),
        ("driver_override", "(null)\n"),
        ("modalias", "pci:v00008086d00000B25sv00008086sd00000000bc08sc80i00\n"),
        ("local_cpulist", "0-1\n"),
        ("local_cpus", "3\n"),
        (
            "uevent",
            "DRIVER=idxd\nPCI_CLASS=88000\nPCI_ID=8086:0B25\nPCI_SUBSYS_ID=8086:0000\nPCI_SLOT_NAME=0000:6a:01.0\n\
             MODALIAS=pci:v00008086d00000B25sv00008086sd00000000bc08sc80i00\n",
        ),
    ] {
        assert_eq!(kernel.show(&format!("{function}/{name}")), Ok(value.into()), "{name}");
    }
    let resource = String::from_utf8(kernel.show(&format!("{function}/resource")).unwrap()).unwrap();
    assert!(resource.lines().count() >= 6);
    assert_eq!(kernel.entry(&format!("{function}/driver")), Ok(Entry::Link("../../../bus/pci/drivers/idxd".into())));
    assert_eq!(names(&kernel, "/sys/devices/pci0000:6a/0000:6a:01.0/msi_irqs").len(), 9);

    let config = format!("{function}/config");
    assert_eq!(kernel.entry(&format!("{config}/.")), Err(Errno::NOTDIR));
    assert_eq!(
        kernel.entry("/sys/devices/pci0000:6a/0000:6a:01.0/config"),
        Ok(Entry::Binary { mode: 0o644, size: 4096 })
    );
    assert_eq!(kernel.read_at(&config, 0, 4), Ok(vec![0x86, 0x80, 0x25, 0x0b]));
    let hints = kernel.read_at(&config, 0x168, 4).unwrap();
    assert_eq!(u32::from_le_bytes(hints.try_into().unwrap()) & 0x102, 0x102, "bits 8 and 1 (observed clients)");
    assert_eq!(kernel.write_at(&config, 4095, &[1, 2, 3]), Ok(1));
    assert_eq!(kernel.write_at(&config, 5000, &[1]), Ok(0));

    // The driver does not give up the function.
    let driver = "/sys/bus/pci/drivers/idxd";
    assert_eq!(write(&mut kernel, &format!("{driver}/unbind"), "0000:6a:01.0"), Err(Errno::BUSY));
    assert_eq!(write(&mut kernel, &format!("{driver}/bind"), "0000:00:00.0"), Err(Errno::NODEV));
    assert_eq!(write(&mut kernel, &format!("{function}/driver_override"), "vfio-pci"), Err(Errno::BUSY));
    assert_eq!(write(&mut kernel, &format!("{function}/reset"), "0"), Err(Errno::INVAL));
}

#[test]
fn modules_counters_and_processors_are_shown() {
    let mut kernel = fresh(Preset::Spr, Abi::V6_6);
    kernel.set_cpuinfo("processor\t: 0\nflags\t\t: fpu sse\n");
    for (path, text) in [
        ("/sys/module/idxd/initstate", "live\n"),
        ("/sys/module/idxd/refcnt", "0\n"),
        ("/sys/module/idxd/parameters/sva", "Y\n"),
        ("/sys/module/idxd/parameters/tc_override", "N\n"),
        ("/sys/module/idxd_bus/refcnt", "1\n"),
        ("/sys/bus/event_source/devices/dsa0/type", "1000\n"),
        ("/sys/bus/event_source/devices/dsa0/cpumask", "0\n"),
        ("/sys/bus/event_source/devices/dsa0/format/event_category", "config:0-3\n"),
        ("/sys/bus/event_source/devices/dsa0/format/filter_eng", "config1:52-59\n"),
        ("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse movdiri movdir64b waitpkg enqcmd\n"),
    ] {
        assert_eq!(kernel.show(path), Ok(text.into()), "{path}");
    }
    assert_eq!(
        kernel.entry("/sys/module/idxd/drivers/dsa:user"),
        Ok(Entry::Link("../../../bus/dsa/drivers/user".into()))
    );
    assert_eq!(kernel.store("/proc/cpuinfo", b"x"), Err(Errno::ACCESS));
}

#[test]
fn every_link_of_the_driver_leads_to_an_entry_of_the_driver() {
    let kernel = brought(Preset::Full, Abi::V6_12, Enabled);
    let outside = ["/sys/bus/pci", "/sys/bus/event_source"];
    let mut waiting = vec![String::from("/")];
    let mut links = 0;
    while let Some(directory) = waiting.pop() {
        for (name, entry) in kernel.list(&directory).unwrap() {
            let path = format!("{}/{name}", directory.trim_end_matches('/'));
            match entry {
                Entry::Directory => waiting.push(path),
                Entry::Link(text) => {
                    links += 1;
                    assert!(!text.starts_with('/'), "{path} is relative");
                    let found = kernel.list(&format!("{path}/.")).is_ok()
                        || kernel.entry(&format!("{path}/.")) == Err(Errno::NOTDIR);
                    assert!(
                        found || outside.iter().any(|bus| bus.ends_with(text.trim_start_matches("../"))),
                        "{path} -> {text}"
                    );
                }
                Entry::Attribute { .. } | Entry::Binary { .. } | Entry::Node { .. } => {}
            }
        }
    }
    assert!(links > 60, "{links}");
}

#[test]
fn the_roots_and_the_merged_directories() {
    let kernel = brought(Preset::Spr, Abi::V6_6, Enabled);
    let (roots, merged) = (kernel.roots(), kernel.merged());
    for root in
        ["/dev/dsa", "/sys/bus/dsa", "/sys/devices/pci0000:6a", "/sys/module/idxd", "/proc/cpuinfo", "/dev/char/511:1"]
    {
        assert!(roots.contains(&root.into()), "{root}");
    }
    for directory in ["/dev", "/dev/char", "/proc", "/sys/bus", "/sys/devices", "/sys/module", "/sys/bus/pci/devices"] {
        assert!(merged.contains(&directory.into()), "{directory}");
    }
    for root in &roots {
        assert!(!roots.iter().any(|other| root.starts_with(&format!("{other}/"))), "{root} is topmost");
        let parent = root.rsplit_once('/').unwrap().0;
        assert!(merged.iter().any(|directory| directory == parent), "{root}");
    }
}

#[test]
fn a_change_is_reported_by_its_directories() {
    let mut kernel = brought(Preset::Spr, Abi::V6_6, Stage::DeviceEnabled);
    kernel.changed();
    let before = kernel.structure();
    script(&mut kernel, &[("wq0.0/priority", "3")]);
    assert_eq!((kernel.structure(), kernel.changed()), (before, vec![]), "a new value does not change the structure");
    bind(&mut kernel, "user", "wq0.0").unwrap();
    assert_ne!(kernel.structure(), before);
    let queue = "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0";
    let changed = kernel.changed();
    for directory in ["/dev", "/dev/char", "/dev/dsa", "/sys/bus/dsa/drivers/user", "/sys/bus/dsa/devices", queue] {
        assert!(changed.contains(&directory.into()), "{directory}: {changed:?}");
    }
    assert!(kernel.changed().is_empty());
}
