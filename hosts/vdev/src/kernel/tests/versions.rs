//! The attributes of each kernel version. Source: K612 `Documentation/ABI/stable/sysfs-driver-dma-idxd`
//! (KernelVersion), change logs.

use super::*;
use Abi::{V5_15, V6_1, V6_6, V6_12, V7_0};

/// First kernel version with an attribute, on a device with every capability.
const SINCE: &[(&str, Abi)] = &[
    ("dsa0/max_tokens", V5_15),
    ("dsa0/token_limit", V5_15),
    ("dsa0/max_read_buffers", V6_1),
    ("dsa0/read_buffer_limit", V6_1),
    ("dsa0/event_log_size", V6_6),
    ("group0.0/tokens_reserved", V5_15),
    ("group0.0/tokens_allowed", V5_15),
    ("group0.0/use_token_limit", V5_15),
    ("group0.0/read_buffers_reserved", V6_1),
    ("group0.0/read_buffers_allowed", V6_1),
    ("group0.0/use_read_buffer_limit", V6_1),
    ("group0.0/desc_progress_limit", V6_1),
    ("group0.0/batch_progress_limit", V6_1),
    ("wq0.0/ats_disable", V5_15),
    ("wq0.0/occupancy", V5_15),
    ("wq0.0/enqcmds_retries", V6_1),
    ("wq0.0/op_config", V6_1),
    ("wq0.0/prs_disable", V6_6),
    ("wq0.0/driver_name", V6_12),
];

#[test]
fn attributes_appear_with_their_kernel_version() {
    for abi in Abi::ALL {
        let kernel = fresh(Preset::Full, abi);
        for (attribute, since) in SINCE {
            assert_eq!(kernel.entry(&path(attribute)).is_ok(), abi >= *since, "{abi:?} {attribute}");
        }
        assert_eq!(kernel.entry("/sys/kernel/debug/idxd").is_ok(), abi >= V6_6);
    }
}

#[test]
fn op_cap_is_formatted_as_by_its_kernel_and_hides_batch_where_it_is_unsafe() {
    for (abi, expected) in [
        (V5_15, "0x1003f03ff 0 0 0"),
        (V6_1, "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f03fd"),
        (V6_12, "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f03fd"),
    ] {
        assert_eq!(get(&mut fresh(Preset::Spr, abi), "dsa0/op_cap").as_deref(), Ok(expected), "{abi:?}");
    }
    // Batch is hidden only in the text: it may be configured, and the hardware keeps it.
    let mut kernel = fresh(Preset::Full, V6_12);
    assert_eq!(set(&mut kernel, "wq0.0/op_config", "3"), Ok(()));
    assert!(get(&mut kernel, "wq0.0/op_config").unwrap().ends_with("00000001"));
}

#[test]
fn errors_are_formatted_as_by_their_kernel() {
    let words = "0x0000000000000000 0x0000000000000000 0x0000000000000000 0x0000000000000000";
    for abi in [V5_15, V6_1] {
        assert_eq!(get(&mut fresh(Preset::Spr, abi), "dsa0/errors").as_deref(), Ok(words));
    }
}

#[test]
fn kernel_queues_have_names_only_from_6_6_on() {
    for abi in Abi::ALL {
        let mut kernel = fresh(Preset::Spr, abi);
        script(&mut kernel, &[("wq0.0/type", "kernel")]);
        let expected = if abi >= V6_6 { Ok(()) } else { Err(Errno::OPNOTSUPP) };
        assert_eq!(set(&mut kernel, "wq0.0/name", "dma"), expected, "{abi:?}");
    }
}

#[test]
fn users_have_no_shared_queues_on_5_15() {
    let mut kernel = fresh(Preset::Spr, V5_15);
    assert_eq!(set(&mut kernel, "wq0.0/mode", "shared"), Err(Errno::INVAL));
    assert_eq!(set(&mut kernel, "wq0.0/mode", "dedicated"), Ok(()));
}

#[test]
fn the_driver_name_is_required_from_6_7_on() {
    for abi in [V6_1, V6_6, V6_12, V7_0] {
        let mut kernel = brought(Preset::Spr, abi, Stage::Configured);
        if abi >= V6_12 {
            script(&mut kernel, &[("wq0.0/driver_name", "someone")]);
        }
        bind(&mut kernel, "idxd", "dsa0").unwrap();
        let expected = if abi >= V6_12 { Err(Errno::NODEV) } else { Ok(()) };
        assert_eq!(bind(&mut kernel, "user", "wq0.0"), expected, "{abi:?}");
    }
}

/// Source: Linux 7.0 `sysfs.c`: DSACAP2, DSACAP1, DSACAP0. There is no attribute for the length of lists.
#[test]
fn devices_of_version_3_show_their_capabilities_from_7_0_on() {
    let shown = "000000000000f18d,00fa01ff01ff03ff,0014000e000007aa";
    for abi in Abi::ALL {
        let mut kernel = fresh(Preset::V3Full, abi);
        let expected = if abi >= V7_0 { Ok(shown) } else { Err(Errno::NOENT) };
        assert_eq!(get(&mut kernel, "dsa0/dsacaps").as_deref(), expected.as_ref().map(|text| *text), "{abi:?}");
        assert_eq!(kernel.entry(&path("dsa0/dsacaps")).is_ok(), abi >= V7_0, "{abi:?}");
        assert!(kernel.entry(&path("wq0.0/max_sgl_size")).is_err(), "{abi:?}");
        assert!(fresh(Preset::V2Full, abi).entry(&path("dsa0/dsacaps")).is_err(), "{abi:?}");
    }
    // Only the driver of 7.0 sets the queues' longest list.
    for (preset, abi, shift) in
        [(Preset::V3Full, V6_12, 0), (Preset::V3Full, V7_0, 10), (Preset::V2Full, V7_0, 0), (Preset::Spr, V7_0, 0)]
    {
        let kernel = brought(preset, abi, Stage::Enabled);
        let id = super::super::Id { device: 0, index: 0 };
        assert_eq!(kernel.dsa(id).registers.device().wq_cfg(0).max_sgl_shift(), shift, "{preset:?} {abi:?}");
    }
}

#[test]
fn kernel_versions_have_names_and_an_order() {
    for abi in Abi::ALL {
        assert_eq!(Abi::from_name(abi.name()), Some(abi));
    }
    assert_eq!(Abi::from_name("6.7"), None);
    assert_eq!(Abi::default(), V6_6);
    assert!(Abi::ALL.is_sorted());
}
