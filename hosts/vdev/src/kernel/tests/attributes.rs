//! Every attribute: its first value, the values it accepts, and the errno of every misuse. Source: K612 `sysfs.c`.

use super::*;
use Stage::{Configured, DeviceEnabled, Enabled, Found};

/// The value of an attribute of a newly found device. Source: K612 `sysfs.c`, SPEC §9.2.
const FIRST: &[(Preset, &str, Result<&str, Errno>)] = &[
    (Preset::Spr, "dsa0/version", Ok("0x100")),
    (Preset::Spr, "dsa0/max_groups", Ok("4")),
    (Preset::Spr, "dsa0/max_work_queues", Ok("8")),
    (Preset::Spr, "dsa0/max_work_queues_size", Ok("128")),
    (Preset::Spr, "dsa0/max_engines", Ok("4")),
    (Preset::Spr, "dsa0/max_batch_size", Ok("1024")),
    (Preset::Spr, "dsa0/max_transfer_size", Ok("2147483648")),
    (Preset::Spr, "dsa0/max_read_buffers", Ok("96")),
    (Preset::Spr, "dsa0/max_tokens", Ok("96")),
    (Preset::Spr, "dsa0/read_buffer_limit", Ok("0")),
    (Preset::Spr, "dsa0/token_limit", Ok("0")),
    (Preset::Spr, "dsa0/numa_node", Ok("0")),
    (Preset::Spr, "dsa0/gen_cap", Ok("0x40915f010f")),
    (Preset::SprFw2, "dsa0/gen_cap", Ok("0x40915f0107")),
    (Preset::SprFw2, "dsa0/op_cap", Ok("00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f027d")),
    (Preset::Spr, "dsa0/configurable", Ok("1")),
    (Preset::Spr, "dsa0/clients", Ok("0")),
    (Preset::Spr, "dsa0/pasid_enabled", Ok("1")),
    (Preset::Spr, "dsa0/state", Ok("disabled")),
    (Preset::Spr, "dsa0/errors", Ok("00000000,00000000,00000000,00000000,00000000,00000000,00000000,00000000")),
    (Preset::Spr, "dsa0/cdev_major", Ok("511")),
    (Preset::Spr, "dsa0/cmd_status", Ok("0")),
    (Preset::Spr, "dsa0/event_log_size", Err(Errno::NOENT)),
    (Preset::Full, "dsa0/event_log_size", Ok("64")),
    (Preset::Spr, "dsa0/iaa_cap", Err(Errno::NOENT)),
    (Preset::Spr, "dsa0/dsacaps", Err(Errno::NOENT)),
    (Preset::Spr, "group0.0/work_queues", Ok("")),
    (Preset::Spr, "group0.0/engines", Ok("")),
    (Preset::Spr, "group0.0/use_read_buffer_limit", Ok("0")),
    (Preset::Spr, "group0.0/use_token_limit", Ok("0")),
    (Preset::Spr, "group0.0/read_buffers_reserved", Ok("0")),
    (Preset::Spr, "group0.0/tokens_reserved", Ok("0")),
    (Preset::Spr, "group0.0/read_buffers_allowed", Ok("96")),
    (Preset::Spr, "group0.0/tokens_allowed", Ok("96")),
    (Preset::Spr, "group0.0/traffic_class_a", Ok("1")),
    (Preset::Spr, "group0.0/traffic_class_b", Ok("1")),
    (Preset::Spr, "group0.0/desc_progress_limit", Err(Errno::NOENT)),
    (Preset::Full, "group0.0/desc_progress_limit", Ok("0")),
    (Preset::Full, "group0.0/batch_progress_limit", Ok("0")),
    (Preset::Spr, "engine0.3/group_id", Ok("-1")),
    (Preset::Spr, "wq0.7/state", Ok("disabled")),
    (Preset::Spr, "wq0.7/clients", Ok("0")),
    (Preset::Spr, "wq0.7/group_id", Ok("-1")),
    (Preset::Spr, "wq0.7/mode", Ok("shared")),
    (Preset::Spr, "wq0.7/size", Ok("0")),
    (Preset::Spr, "wq0.7/priority", Ok("0")),
    (Preset::Spr, "wq0.7/block_on_fault", Ok("0")),
    (Preset::Spr, "wq0.7/threshold", Ok("0")),
    (Preset::Spr, "wq0.7/type", Ok("none")),
    (Preset::Spr, "wq0.7/name", Ok("")),
    (Preset::Spr, "wq0.7/driver_name", Ok("")),
    (Preset::Spr, "wq0.7/cdev_minor", Err(Errno::NXIO)),
    (Preset::Spr, "wq0.7/max_transfer_size", Ok("2097152")),
    (Preset::Spr, "wq0.7/max_batch_size", Ok("32")),
    (Preset::Spr, "wq0.7/ats_disable", Ok("0")),
    (Preset::Spr, "wq0.7/prs_disable", Err(Errno::NOENT)),
    (Preset::Full, "wq0.7/prs_disable", Ok("0")),
    (Preset::Spr, "wq0.7/occupancy", Ok("0")),
    (Preset::Spr, "wq0.7/enqcmds_retries", Ok("32")),
    (Preset::Spr, "wq0.7/op_config", Err(Errno::NOENT)),
    (Preset::Spr, "wq0.8/size", Err(Errno::NOENT)),
    (Preset::Spr, "group0.4/engines", Err(Errno::NOENT)),
];

#[test]
fn a_newly_found_device_shows_its_capabilities_and_defaults() {
    for (preset, attribute, expected) in FIRST {
        let mut kernel = fresh(*preset, Abi::V6_12);
        assert_eq!(get(&mut kernel, attribute), expected.map(String::from), "{preset:?} {attribute}");
    }
}

/// A write and its result: the value that the attribute shows afterwards, or the errno.
type Case = (Preset, Stage, &'static str, &'static str, Result<&'static str, Errno>);

const SPR: Preset = Preset::Spr;
const FULL: Preset = Preset::Full;

const CASES: &[Case] = &[
    // Device.
    (SPR, Found, "dsa0/read_buffer_limit", "96", Ok("96")),
    (SPR, Found, "dsa0/read_buffer_limit", "97", Err(Errno::INVAL)),
    (SPR, Found, "dsa0/read_buffer_limit", "-1", Err(Errno::INVAL)),
    (SPR, Found, "dsa0/read_buffer_limit", "many", Err(Errno::INVAL)),
    (SPR, DeviceEnabled, "dsa0/read_buffer_limit", "96", Err(Errno::PERM)),
    (SPR, Found, "dsa0/token_limit", "12", Ok("12")),
    (SPR, Found, "dsa0/token_limit", "97", Err(Errno::INVAL)),
    (SPR, DeviceEnabled, "dsa0/token_limit", "12", Err(Errno::PERM)),
    (SPR, Found, "dsa0/cmd_status", "1", Ok("0")),
    (SPR, Enabled, "dsa0/cmd_status", "anything", Ok("0")),
    (FULL, Found, "dsa0/event_log_size", "64", Ok("64")),
    (FULL, Found, "dsa0/event_log_size", "65535", Ok("65535")),
    (FULL, Found, "dsa0/event_log_size", "63", Err(Errno::INVAL)),
    (FULL, Found, "dsa0/event_log_size", "65536", Err(Errno::INVAL)),
    (FULL, Found, "dsa0/event_log_size", "x", Err(Errno::INVAL)),
    (FULL, DeviceEnabled, "dsa0/event_log_size", "128", Err(Errno::PERM)),
    (SPR, Found, "dsa0/event_log_size", "64", Err(Errno::NOENT)),
    (SPR, Found, "dsa0/state", "enabled", Err(Errno::ACCESS)),
    (SPR, Found, "dsa0/op_cap", "0", Err(Errno::ACCESS)),
    // Group.
    (SPR, Found, "group0.0/use_read_buffer_limit", "1", Err(Errno::PERM)),
    (SPR, Found, "group0.0/use_read_buffer_limit", "x", Err(Errno::INVAL)),
    (SPR, DeviceEnabled, "group0.0/use_read_buffer_limit", "1", Err(Errno::PERM)),
    (SPR, Found, "group0.0/use_token_limit", "1", Err(Errno::PERM)),
    (SPR, Found, "group0.0/read_buffers_reserved", "96", Ok("96")),
    (SPR, Found, "group0.0/read_buffers_reserved", "97", Err(Errno::INVAL)),
    (SPR, Found, "group0.0/read_buffers_reserved", "-1", Err(Errno::INVAL)),
    (SPR, DeviceEnabled, "group0.0/read_buffers_reserved", "8", Err(Errno::PERM)),
    (SPR, Found, "group0.0/tokens_reserved", "8", Ok("8")),
    (SPR, Found, "group0.0/tokens_reserved", "97", Err(Errno::INVAL)),
    (SPR, Found, "group0.0/read_buffers_allowed", "8", Ok("8")),
    (SPR, Found, "group0.0/read_buffers_allowed", "97", Err(Errno::INVAL)),
    (SPR, Configured, "group0.0/read_buffers_allowed", "16", Ok("16")),
    (SPR, Configured, "group0.0/read_buffers_allowed", "15", Err(Errno::INVAL)),
    (SPR, DeviceEnabled, "group0.0/read_buffers_allowed", "16", Err(Errno::PERM)),
    (SPR, Found, "group0.0/tokens_allowed", "8", Ok("8")),
    (SPR, Found, "group0.0/tokens_allowed", "x", Err(Errno::INVAL)),
    (SPR, Found, "group0.0/traffic_class_a", "1", Err(Errno::PERM)),
    (SPR, Found, "group0.0/traffic_class_a", "x", Err(Errno::INVAL)),
    (SPR, Found, "group0.0/traffic_class_b", "8", Err(Errno::PERM)),
    (FULL, Found, "group0.0/desc_progress_limit", "3", Ok("3")),
    (FULL, Found, "group0.0/desc_progress_limit", "4", Err(Errno::INVAL)),
    (FULL, Found, "group0.0/batch_progress_limit", "3", Ok("3")),
    (FULL, Found, "group0.0/batch_progress_limit", "-1", Err(Errno::INVAL)),
    (SPR, Found, "group0.0/desc_progress_limit", "0", Err(Errno::NOENT)),
    (SPR, Found, "group0.0/engines", "engine0.0", Err(Errno::ACCESS)),
    // Engine.
    (SPR, Found, "engine0.0/group_id", "3", Ok("3")),
    (SPR, Found, "engine0.0/group_id", "4", Err(Errno::INVAL)),
    (SPR, Found, "engine0.0/group_id", "-2", Err(Errno::INVAL)),
    (SPR, Found, "engine0.0/group_id", "", Err(Errno::INVAL)),
    (SPR, Configured, "engine0.0/group_id", "-1", Ok("-1")),
    // The driver does not check the device's state; the value takes effect when it is enabled next.
    (SPR, Enabled, "engine0.0/group_id", "1", Ok("1")),
    // Queue.
    (SPR, Found, "wq0.0/group_id", "3", Ok("3")),
    (SPR, Found, "wq0.0/group_id", "4", Err(Errno::INVAL)),
    (SPR, Found, "wq0.0/group_id", "-2", Err(Errno::INVAL)),
    (SPR, Configured, "wq0.0/group_id", "-1", Ok("-1")),
    (SPR, DeviceEnabled, "wq0.0/group_id", "1", Ok("1")),
    (SPR, Enabled, "wq0.0/group_id", "1", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/mode", "dedicated", Ok("dedicated")),
    (SPR, Configured, "wq0.1/mode", "shared", Ok("shared")),
    (SPR, Found, "wq0.0/mode", "private", Err(Errno::INVAL)),
    (SPR, Enabled, "wq0.0/mode", "shared", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/size", "128", Ok("128")),
    (SPR, Found, "wq0.0/size", "129", Err(Errno::INVAL)),
    (SPR, Found, "wq0.0/size", "0", Ok("0")),
    (SPR, Found, "wq0.0/size", "0x10", Err(Errno::INVAL)),
    (SPR, Configured, "wq0.2/size", "96", Ok("96")),
    (SPR, Configured, "wq0.2/size", "97", Err(Errno::INVAL)),
    (SPR, Configured, "wq0.0/size", "112", Ok("112")),
    (SPR, Configured, "wq0.0/size", "113", Err(Errno::INVAL)),
    (SPR, Configured, "wq0.2/size", "18446744073709551615", Err(Errno::INVAL)),
    (SPR, DeviceEnabled, "wq0.2/size", "16", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/priority", "15", Ok("15")),
    (SPR, Found, "wq0.0/priority", "0", Ok("0")),
    (SPR, Found, "wq0.0/priority", "16", Err(Errno::INVAL)),
    (SPR, DeviceEnabled, "wq0.0/priority", "1", Ok("1")),
    (SPR, Enabled, "wq0.0/priority", "1", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/block_on_fault", "1", Ok("1")),
    (SPR, Found, "wq0.0/block_on_fault", "yes", Ok("1")),
    (SPR, Found, "wq0.0/block_on_fault", "2", Err(Errno::INVAL)),
    (SPR, Enabled, "wq0.0/block_on_fault", "1", Err(Errno::NXIO)),
    (SPR, Configured, "wq0.0/threshold", "16", Ok("16")),
    (SPR, Configured, "wq0.0/threshold", "0x8", Ok("8")),
    (SPR, Configured, "wq0.0/threshold", "17", Err(Errno::INVAL)),
    (SPR, Configured, "wq0.0/threshold", "0", Err(Errno::INVAL)),
    (SPR, Configured, "wq0.1/threshold", "8", Err(Errno::INVAL)),
    (SPR, Found, "wq0.0/threshold", "1", Err(Errno::INVAL)),
    (SPR, Enabled, "wq0.0/threshold", "4", Err(Errno::NXIO)),
    (SPR, Enabled, "wq0.0/threshold", "17", Err(Errno::INVAL)),
    (SPR, Found, "wq0.0/type", "user", Ok("user")),
    (SPR, Found, "wq0.0/type", "kernel", Ok("kernel")),
    (SPR, Configured, "wq0.0/type", "none", Ok("none")),
    (SPR, Found, "wq0.0/type", "mdev", Err(Errno::INVAL)),
    (SPR, Enabled, "wq0.0/type", "kernel", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/name", "  spaced out ", Ok("spaced out")),
    (SPR, Found, "wq0.0/name", "", Ok("")),
    (SPR, Enabled, "wq0.0/name", "other", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/max_transfer_size", "4096", Ok("4096")),
    (SPR, Found, "wq0.0/max_transfer_size", "0x1001", Ok("8192")),
    (SPR, Found, "wq0.0/max_transfer_size", "2147483648", Ok("2147483648")),
    (SPR, Found, "wq0.0/max_transfer_size", "2147483649", Err(Errno::INVAL)),
    (SPR, Found, "wq0.0/max_transfer_size", "18446744073709551615", Err(Errno::INVAL)),
    (SPR, Found, "wq0.0/max_transfer_size", "0", Err(Errno::INVAL)),
    (SPR, Enabled, "wq0.0/max_transfer_size", "4096", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/max_batch_size", "1024", Ok("1024")),
    (SPR, Found, "wq0.0/max_batch_size", "17", Ok("32")),
    (SPR, Found, "wq0.0/max_batch_size", "1025", Err(Errno::INVAL)),
    (SPR, Found, "wq0.0/max_batch_size", "0", Err(Errno::INVAL)),
    (SPR, Enabled, "wq0.0/max_batch_size", "16", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/ats_disable", "1", Ok("1")),
    (SPR, Found, "wq0.0/ats_disable", "x", Err(Errno::INVAL)),
    (SPR, Enabled, "wq0.0/ats_disable", "1", Err(Errno::PERM)),
    (FULL, Found, "wq0.0/prs_disable", "1", Ok("1")),
    (FULL, Found, "wq0.0/prs_disable", "x", Err(Errno::INVAL)),
    (FULL, Enabled, "wq0.0/prs_disable", "1", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/prs_disable", "1", Err(Errno::NOENT)),
    (SPR, Found, "wq0.0/enqcmds_retries", "0", Ok("0")),
    (SPR, Found, "wq0.0/enqcmds_retries", "65", Ok("64")),
    (SPR, Found, "wq0.0/enqcmds_retries", "-1", Err(Errno::INVAL)),
    (SPR, Configured, "wq0.1/enqcmds_retries", "1", Err(Errno::OPNOTSUPP)),
    (SPR, Enabled, "wq0.0/enqcmds_retries", "8", Ok("8")),
    (
        FULL,
        Found,
        "wq0.0/op_config",
        "00000001,003f0009",
        Ok("00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f0009"),
    ),
    (FULL, Found, "wq0.0/op_config", "2,00000000", Err(Errno::INVAL)),
    (FULL, Found, "wq0.0/op_config", "zz", Err(Errno::INVAL)),
    (FULL, Found, "wq0.0/op_config", "123456789", Err(Errno::OVERFLOW)),
    (FULL, Enabled, "wq0.0/op_config", "1", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/op_config", "1", Err(Errno::NOENT)),
    (SPR, Found, "wq0.0/driver_name", "user", Ok("user")),
    (SPR, Found, "wq0.0/driver_name", "", Ok("")),
    (SPR, Enabled, "wq0.0/driver_name", "dmaengine", Err(Errno::PERM)),
    (SPR, Found, "wq0.0/state", "enabled", Err(Errno::ACCESS)),
    (SPR, Found, "wq0.0/occupancy", "1", Err(Errno::ACCESS)),
];

#[test]
fn every_write_is_accepted_or_refused_as_by_the_driver() {
    for (preset, stage, attribute, value, expected) in CASES {
        let mut kernel = brought(*preset, Abi::V6_12, *stage);
        let before = get(&mut kernel, attribute);
        let written = set(&mut kernel, attribute, value);
        let what = format!("{preset:?} {stage:?}: echo {value} > {attribute}");
        match expected {
            Ok(shown) => {
                assert_eq!(written, Ok(()), "{what}");
                assert_eq!(get(&mut kernel, attribute).as_deref(), Ok(*shown), "{what}");
            }
            Err(errno) => {
                assert_eq!(written, Err(*errno), "{what}");
                assert_eq!(get(&mut kernel, attribute), before, "{what}: nothing changes");
            }
        }
    }
}

#[test]
fn every_attribute_that_can_be_written_has_a_case() {
    use super::super::rows;
    let tables = [
        ("dsa0", rows::device::ROWS),
        ("group0.", rows::group::ROWS),
        ("engine0.", rows::engine::ROWS),
        ("wq0.", rows::wq::ROWS),
    ];
    for (object, rows) in tables {
        for row in rows.iter().filter(|row| row.mode & 0o222 != 0) {
            let cases = CASES.iter().filter(|(_, _, attribute, ..)| {
                attribute.starts_with(object) && attribute.split_once('/').is_some_and(|(_, name)| name == row.name)
            });
            let refusals = cases.clone().filter(|case| case.4.is_err()).count();
            // cmd_status accepts any text.
            let enough = if row.name == "cmd_status" { cases.count() > 0 } else { refusals > 0 };
            assert!(enough, "{object} {}", row.name);
        }
        for row in rows {
            let shown = FIRST.iter().any(|(_, attribute, _)| {
                attribute.starts_with(object) && attribute.split_once('/').is_some_and(|(_, name)| name == row.name)
            });
            let only_full = matches!(row.name, "op_config");
            assert!(shown || only_full, "{object} {} shows something at first", row.name);
        }
    }
}

#[test]
fn names_have_a_maximum_length() {
    let mut kernel = fresh(SPR, Abi::V6_12);
    for (attribute, most) in [("wq0.0/name", 1024), ("wq0.0/driver_name", 128)] {
        let longest = "n".repeat(most);
        assert_eq!(write(&mut kernel, &path(attribute), &longest), Ok(()));
        assert_eq!(get(&mut kernel, attribute), Ok(longest));
        assert_eq!(write(&mut kernel, &path(attribute), &"n".repeat(most + 1)), Err(Errno::INVAL));
    }
}

#[test]
fn an_attribute_accepts_at_most_a_page_and_an_empty_write_does_nothing() {
    let mut kernel = fresh(SPR, Abi::V6_12);
    assert_eq!(kernel.store(&path("dsa0/cmd_status"), &[b'1'; 5000]), Ok(4096));
    assert_eq!(kernel.store(&path("wq0.0/size"), b""), Ok(0));
    assert_eq!(kernel.store(&path("wq0.0/size"), b" 16 \0rubbish"), Ok(12));
    assert_eq!(get(&mut kernel, "wq0.0/size").as_deref(), Ok("16"));
}

#[test]
fn a_device_whose_tables_are_fixed_refuses_to_be_configured() {
    // The model has no such device, so only the check is tested.
    let refused = super::super::rows::CONFIGURABLE;
    let kernel = fresh(SPR, Abi::V6_12);
    let input = super::super::attribute::Input { number: 0, text: "" };
    assert!((refused.holds)(&kernel, super::super::Id::default(), &input));
    assert_eq!(refused.errno, Errno::PERM);
}

#[test]
fn missing_capabilities_have_their_errno() {
    let spr = SPR.capabilities();
    let without = |capabilities| with(capabilities, Abi::V6_12);
    let mut kernel = without(Capabilities { gen_cap: spr.gen_cap.with_block_on_fault(false), ..spr });
    assert_eq!(set(&mut kernel, "wq0.0/block_on_fault", "0"), Err(Errno::OPNOTSUPP));
    let mut kernel = without(Capabilities { wq_cap: spr.wq_cap.with_occupancy(false), ..spr });
    assert_eq!(get(&mut kernel, "wq0.0/occupancy"), Err(Errno::OPNOTSUPP));
    let mut kernel = without(Capabilities { wq_cap: spr.wq_cap.with_ats_disable(false), ..spr });
    assert_eq!(get(&mut kernel, "wq0.0/ats_disable"), Err(Errno::NOENT));
    let mut kernel = without(Capabilities { grp_cap: spr.grp_cap.with_global_read_buffer_limit(false), ..spr });
    assert_eq!(set(&mut kernel, "dsa0/read_buffer_limit", "1"), Err(Errno::PERM));
    let mut kernel = without(Capabilities { wq_cap: spr.wq_cap.with_shared_mode(false), ..spr });
    assert_eq!(set(&mut kernel, "wq0.0/mode", "shared"), Err(Errno::INVAL));
}

#[test]
fn settings_change_others_as_in_the_driver() {
    let mut kernel = brought(FULL, Abi::V6_12, Configured);
    script(&mut kernel, &[("wq0.0/mode", "dedicated"), ("wq0.0/mode", "shared")]);
    assert_eq!(get(&mut kernel, "wq0.0/threshold").as_deref(), Ok("0"), "dedicated zeroes it");
    script(&mut kernel, &[("wq0.0/type", "user")]);
    assert_eq!(get(&mut kernel, "wq0.0/name").as_deref(), Ok("one"), "the same type keeps it");
    script(&mut kernel, &[("wq0.0/type", "none")]);
    assert_eq!(get(&mut kernel, "wq0.0/name").as_deref(), Ok(""), "another type clears it");
    script(&mut kernel, &[("wq0.0/block_on_fault", "1"), ("wq0.0/prs_disable", "1")]);
    assert_eq!(get(&mut kernel, "wq0.0/block_on_fault").as_deref(), Ok("0"));
    assert_eq!(set(&mut kernel, "wq0.0/block_on_fault", "1"), Err(Errno::OPNOTSUPP));
    assert_eq!(set(&mut kernel, "wq0.0/block_on_fault", "0"), Ok(()));
}

#[test]
fn groups_share_the_read_buffers() {
    let mut kernel = brought(SPR, Abi::V6_12, Configured);
    script(&mut kernel, &[("group0.0/read_buffers_reserved", "90")]);
    assert_eq!(set(&mut kernel, "group0.1/read_buffers_reserved", "7"), Err(Errno::INVAL));
    script(&mut kernel, &[("group0.1/read_buffers_reserved", "6"), ("group0.0/read_buffers_reserved", "40")]);
    assert_eq!(set(&mut kernel, "group0.1/read_buffers_allowed", "57"), Err(Errno::INVAL));
    script(&mut kernel, &[("group0.1/read_buffers_allowed", "56"), ("dsa0/read_buffer_limit", "16")]);
    script(&mut kernel, &[("group0.0/use_read_buffer_limit", "7")]);
    assert_eq!(get(&mut kernel, "group0.0/use_token_limit").as_deref(), Ok("1"));
}

#[test]
fn traffic_classes_are_writable_with_the_modules_override() {
    let mut kernel = fresh(SPR, Abi::V6_12);
    assert_eq!(kernel.show("/sys/module/idxd/parameters/tc_override"), Ok(b"N\n".to_vec()));
    write(&mut kernel, "/sys/module/idxd/parameters/tc_override", "1").unwrap();
    script(&mut kernel, &[("group0.0/traffic_class_a", "0"), ("group0.0/traffic_class_b", "7")]);
    assert_eq!(set(&mut kernel, "group0.0/traffic_class_a", "8"), Err(Errno::INVAL));
    assert_eq!(set(&mut kernel, "group0.0/traffic_class_b", "-1"), Err(Errno::INVAL));
    assert_eq!(get(&mut kernel, "group0.0/traffic_class_b").as_deref(), Ok("7"));
}

#[test]
fn groups_list_their_members() {
    let mut kernel = brought(SPR, Abi::V6_12, Configured);
    script(&mut kernel, &[("engine0.2/group_id", "1")]);
    assert_eq!(get(&mut kernel, "group0.0/work_queues").as_deref(), Ok("wq0.0 wq0.1"));
    assert_eq!(get(&mut kernel, "group0.0/engines").as_deref(), Ok("engine0.0 engine0.1 engine0.3"));
    assert_eq!(get(&mut kernel, "group0.1/engines").as_deref(), Ok("engine0.2"));
}

#[test]
fn occupancy_is_the_last_value_set() {
    let mut kernel = fresh(SPR, Abi::V6_12);
    kernel.set_occupancy(0, 3, 11);
    kernel.set_occupancy(0, 99, 11);
    kernel.set_occupancy(9, 0, 11);
    assert_eq!(get(&mut kernel, "wq0.3/occupancy").as_deref(), Ok("11"));
    assert_eq!(get(&mut kernel, "wq0.0/occupancy").as_deref(), Ok("0"));
}

#[test]
fn modes_apply_to_all_callers() {
    let mut kernel = fresh(SPR, Abi::V6_12);
    assert_eq!(kernel.show("/sys/bus/dsa/drivers/user/bind"), Err(Errno::ACCESS));
    assert_eq!(kernel.store(&path("dsa0/version"), b"1"), Err(Errno::ACCESS));
    assert_eq!(kernel.show(&path("dsa0")), Err(Errno::ISDIR));
    assert_eq!(kernel.store(&path("dsa0"), b"1"), Err(Errno::ISDIR));
    assert_eq!(kernel.show("/sys/nowhere"), Err(Errno::NOENT));
}
