//! Hardware from presets and files: the devices and queues that are enabled, and the errors. Source: ACCFG
//! `accfg/config.c`.

use super::*;
use crate::hardware::HardwareError;
use std::error::Error;

fn load(text: &str, abi: Abi) -> Result<Kernel, HardwareError> {
    Kernel::new(&Hardware::from_text(text, "my.json")?, abi, false)
}

#[test]
fn every_preset_loads_on_every_kernel_version() {
    let counts = [
        ("spr-1", 1),
        ("spr-2", 2),
        ("spr-4", 4),
        ("spr-8", 8),
        ("xeon-max-8", 8),
        ("full-1", 1),
        ("srf-1", 1),
        ("v2-full-1", 1),
        ("v3-full-1", 1),
    ];
    assert_eq!(Hardware::presets(), counts.map(|(name, _)| name));
    for (name, devices) in counts {
        for abi in Abi::ALL {
            let hardware = Hardware::from_name(name).unwrap();
            let mut kernel =
                Kernel::new(&hardware, abi, false).unwrap_or_else(|error| panic!("{name} {abi:?}: {error}"));
            let enabled: Vec<_> = kernel.queues().into_iter().filter(|(.., enabled)| *enabled).collect();
            assert_eq!(enabled.len(), 2 * devices, "{name} {abi:?}");
            for device in 0..devices {
                let shared = if abi == Abi::V5_15 { "dedicated" } else { "shared" };
                for (attribute, value) in [
                    (format!("dsa{device}/state"), "enabled"),
                    (format!("wq{device}.0/mode"), shared),
                    (format!("wq{device}.0/block_on_fault"), "1"),
                    (format!("wq{device}.1/mode"), "dedicated"),
                    (format!("wq{device}.1/max_transfer_size"), "2147483648"),
                    (format!("wq{device}.1/name"), "dpdk_dedicated"),
                ] {
                    assert_eq!(get(&mut kernel, &attribute).as_deref(), Ok(value), "{name} {abi:?} {attribute}");
                }
                assert!(kernel.entry(&format!("/dev/dsa/wq{device}.1")).is_ok());
            }
            let minors: std::collections::BTreeSet<_> =
                kernel.list("/dev/char").unwrap().into_iter().map(|(name, _)| name).collect();
            assert_eq!(minors.len(), 2 * devices);
        }
    }
}

#[test]
fn the_default_is_one_unconfigured_device() {
    let mut kernel = Kernel::new(&Hardware::default(), Abi::default(), false).unwrap();
    assert_eq!(get(&mut kernel, "dsa0/state").as_deref(), Ok("disabled"));
    assert_eq!(kernel.entry("/dev/dsa"), Err(Errno::NOENT));
    assert!(kernel.queues().iter().all(|(.., enabled)| !enabled));
}

/// The file packaged with accel-config's test runner.
const RUNNER: &str = r#"[{"dev":"dsa0","read_buffer_limit":0,"groups":[
  {"dev":"group0.0","read_buffers_reserved":0,"use_read_buffer_limit":0,"read_buffers_allowed":8,
   "grouped_workqueues":[{"dev":"wq0.0","mode":"shared","size":16,"group_id":0,"priority":10,"block_on_fault":1,
     "type":"user","driver_name":"user","name":"app1","threshold":15}],
   "grouped_engines":[{"dev":"engine0.0","group_id":0},{"dev":"engine0.1","group_id":0}]},
  {"dev":"group0.1","read_buffers_reserved":0,"use_read_buffer_limit":0,"read_buffers_allowed":8,
   "grouped_workqueues":[{"dev":"wq0.1","mode":"dedicated","size":16,"group_id":1,"priority":10,"block_on_fault":1,
     "type":"user","driver_name":"user","name":"app2","threshold":0}],
   "grouped_engines":[{"dev":"engine0.2","group_id":1},{"dev":"engine0.3","group_id":1}]},
  {"dev":"group0.2","read_buffers_allowed":8},{"dev":"group0.3","read_buffers_allowed":8}],
  "ungrouped_workqueues":[],"ungrouped_engines":[]}]"#;

#[test]
fn the_runners_file_loads_on_every_kernel_version_with_shared_queues() {
    for abi in [Abi::V6_1, Abi::V6_6, Abi::V6_12] {
        let mut kernel = load(RUNNER, abi).unwrap();
        for (attribute, value) in [
            ("wq0.0/state", "enabled"),
            ("wq0.1/state", "enabled"),
            ("wq0.0/threshold", "15"),
            ("wq0.1/group_id", "1"),
            ("group0.2/read_buffers_allowed", "8"),
            ("group0.1/engines", "engine0.2 engine0.3"),
        ] {
            assert_eq!(get(&mut kernel, attribute).as_deref(), Ok(value), "{attribute}");
        }
    }
    let error = load(RUNNER, Abi::V5_15).unwrap_err().to_string();
    assert!(error.contains("my.json: wq0.0: mode shared: ") && error.contains("5.15 has no shared"), "{error}");
}

#[test]
fn a_saved_file_with_read_only_keys_and_unused_queues_loads() {
    let text = r#"[{"dev":"iax1","groups":[]},{"dev":"dsa2","token_limit":0,"max_groups":4,"max_work_queues":8,"max_engines":4,
      "work_queue_size":128,"numa_node":0,"op_cap":["0x1"],"gen_cap":"0x40915f010f","version":"0x100","state":"enabled",
      "max_tokens":96,"configurable":1,"pasid_enabled":1,"cdev_major":511,"clients":0,"event_log_size":0,
      "groups":[{"dev":"group2.0","traffic_class_a":1,"traffic_class_b":1,"use_token_limit":0,
        "grouped_workqueues":[{"dev":"wq2.3","mode":"dedicated","size":8,"priority":10,"block_on_fault":false,
          "cdev_minor":0,"type":"user","name":"x","driver_name":"user","threshold":0,"state":"enabled","clients":0,
          "ats_disable":0,"prs_disable":0,"max_transfer_size":"0x1000"}],
        "grouped_engines":[{"dev":"engine2.1"}]}],
      "ungrouped_workqueues":[{"dev":"wq2.0","mode":"shared","size":0,"group_id":-1,"priority":0,"block_on_fault":0,
        "type":"none","name":"","threshold":0,"max_transfer_size":2097152,"ats_disable":0,"state":"disabled"}],
      "ungrouped_engines":[{"dev":"engine2.0","group_id":-1}]}]"#;
    let mut kernel = load(text, Abi::V6_12).unwrap();
    assert_eq!(kernel.queues()[3], (2, 3, true));
    assert_eq!(kernel.queues().iter().filter(|(.., enabled)| *enabled).count(), 1);
    assert_eq!(get(&mut kernel, "wq2.3/max_transfer_size").as_deref(), Ok("4096"));
    assert_eq!(get(&mut kernel, "engine2.1/group_id").as_deref(), Ok("0"), "from its membership in the group");
    assert!(kernel.entry("/sys/devices/pci0000:6a/0000:6a:01.0/dsa2").is_ok());
}

#[test]
fn keys_are_applied_in_file_order() {
    let queue = |keys: &str| {
        format!(
            r#"[{{"dev":"dsa0","groups":[{{"dev":"group0.0","grouped_workqueues":[{{"dev":"wq0.0",{keys}}}],
                "grouped_engines":[{{"dev":"engine0.0"}}]}}]}}]"#
        )
    };
    let good = r#""mode":"shared","size":16,"threshold":8,"priority":10,"type":"user","name":"a""#;
    load(&queue(good), Abi::V6_6).unwrap();
    // Each line: the wrong key, and the parts of the message.
    for (keys, parts) in [
        (
            r#""threshold":8,"mode":"shared","size":16"#,
            ["wq0.0: threshold 8:", "Invalid argument", "mode and size must come before"],
        ),
        (r#""size":129"#, ["wq0.0: size 129:", "Invalid argument", "max_work_queues_size"]),
        (r#""group_id":4"#, ["wq0.0: group_id 4:", "Invalid argument", "number of a group"]),
        (
            r#""mode":"shared","size":16,"threshold":8,"priority":10,"name":"a","type":"user""#,
            ["wq0.0: bind to user:", "os error 6", "after type, which clears it"],
        ),
        (
            r#""mode":"shared","size":16,"priority":10,"type":"user","name":"a""#,
            ["wq0.0: bind to user:", "os error 6", "needs a threshold"],
        ),
        (
            r#""mode":"dedicated","size":16,"type":"user","name":"a""#,
            ["wq0.0: bind to user:", "os error 6", "0x23: the WQ's priority is zero"],
        ),
        (
            r#""mode":"shared","size":16,"threshold":8,"priority":10"#,
            ["dsa0: bind to idxd:", "os error 6", "PASIDs, ENQCMD and a type"],
        ),
        (r#""prs_disable":1"#, ["wq0.0: prs_disable 1:", "No such file", "on devices that can"]),
        (r#""priority":[1]"#, ["wq0.0: priority:", "Invalid argument", "a number or a text"]),
    ] {
        let error = load(&queue(keys), Abi::V6_6).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part) && error.starts_with("my.json: "), "{keys}: {error} has no '{part}'");
        }
    }
    let error = load(&queue(good), Abi::V6_12).unwrap_err().to_string();
    assert!(error.contains("driver_name is not the name of the driver"), "{error}");
}

#[test]
fn the_error_of_an_invalid_file_names_the_reason() {
    for (text, part) in [
        ("", "my.json is not JSON"),
        ("{}", "not an array of devices"),
        ("[]", "it has 0 DSA devices"),
        ("[1]", "a device is not an object"),
        ("[{}]", "no \"dev\""),
        (r#"[{"dev":"gpu0"}]"#, "\"gpu0\" is not a device"),
        (r#"[{"dev":"dsa0"},{"dev":"dsa0"}]"#, "dsa0 is listed twice"),
        (r#"[{"dev":"dsa0","capabilities":"all"}]"#, "use spr, spr-fw2, full, srf, v2-full or v3-full"),
        (r#"[{"dev":"dsa0","capabilities":1}]"#, "is not a text"),
        (r#"[{"dev":"dsa0","groups":{}}]"#, "\"groups\" is not a list"),
        (r#"[{"dev":"dsa0","groups":[1]}]"#, "entry that is not an object"),
        (r#"[{"dev":"dsa0","groups":[{}]}]"#, "has no \"dev\""),
        (r#"[{"dev":"dsa0","groups":[{"dev":"group1.0"}]}]"#, "\"group1.0\" is no group of dsa0"),
        (r#"[{"dev":"dsa0","groups":[{"dev":"group0.4"}]}]"#, "\"group0.4\" is no group of dsa0"),
        (r#"[{"dev":"dsa0","ungrouped_engines":[{"dev":"wq0.0"}]}]"#, "\"wq0.0\" is no engine of dsa0"),
    ] {
        let error = load(text, Abi::V6_6).unwrap_err();
        assert!(error.to_string().contains(part), "{text}: {error}");
        assert_eq!(error.source().is_some(), text.is_empty(), "{text}");
    }
}

#[test]
fn capabilities_can_be_named_in_a_file() {
    let device = |name: &str| format!(r#"[{{"dev":"dsa0","capabilities":"{name}","event_log_size":128}}]"#);
    let text = device("full").replace(
        "}]",
        r#","groups":[{"dev":"group0.0","grouped_workqueues":[{"dev":"wq0.0","size":4,
        "mode":"dedicated","priority":1,"type":"user","name":"a"}],"grouped_engines":[{"dev":"engine0.0"}]}]}]"#,
    );
    let mut kernel = load(&text, Abi::V6_6).unwrap();
    assert_eq!(get(&mut kernel, "dsa0/event_log_size").as_deref(), Ok("128"));
    let error = load(&device("spr"), Abi::V6_6).unwrap_err().to_string();
    assert!(error.contains("dsa0: event_log_size 128:") && error.contains("else leave it out"), "{error}");
}

#[test]
fn an_unknown_name_lists_the_presets() {
    let error = Hardware::from_name("spr-3").unwrap_err().to_string();
    assert!(error.contains("spr-1, spr-2, spr-4, spr-8, xeon-max-8"), "{error}");
    let error = Hardware::from_name("/nowhere/x.json").unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nowhere/x.json");
    assert!(error.source().is_some());
}

#[test]
fn devices_avoid_the_buses_of_the_machine() {
    let mut hardware = Hardware::from_name("spr-2").unwrap();
    hardware.avoid(|_| false);
    assert_eq!(hardware.devices[1].address, "0000:6f:01.0");
    hardware.avoid(|root| root == "pci0000:6f" || root == "pci0001:6a");
    assert_eq!(hardware.devices[0].address, "0002:6a:01.0");
    let kernel = Kernel::new(&hardware, Abi::V6_6, true).unwrap();
    assert!(kernel.roots().contains(&"/sys/devices/pci0002:6f".to_owned()));
}
