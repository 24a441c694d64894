//! Debian's accel-config: every command, and the settings that it refuses.

use crate::harness::{Done, Run, View, in_both_views, lacking, source, test_folder};
use serde_json::Value;

const CONFIGURATION: &str = "/usr/libexec/accel-config/test/configs/2g2q_user_1.conf";

fn ready(test: &str) -> bool {
    !lacking(test, &[("accel-config", "accel-config"), (CONFIGURATION, "accel-config-test")])
}

/// Parses the output of `accel-config list`.
fn list(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the object with this `dev`, at any depth.
fn object<'a>(value: &'a Value, dev: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) if map.get("dev").is_some_and(|name| name == dev) => Some(value),
        Value::Object(map) => map.values().find_map(|inner| object(inner, dev)),
        Value::Array(items) => items.iter().find_map(|inner| object(inner, dev)),
        _ => None,
    }
}

/// Removes a key at any depth.
fn without(value: &mut Value, key: &str) {
    match value {
        Value::Object(map) => {
            map.remove(key);
            map.values_mut().for_each(|inner| without(inner, key));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| without(inner, key)),
        _ => {}
    }
}

/// Runs a command that must fail, after the commands in `before`.
fn refused(run: &Run, before: &str, command: &str) -> Done {
    let done = run.program(&["/bin/sh", "-ec", &format!("{before}\nset +e\naccel-config {command}\necho code $?")]);
    done.expect_success();
    assert!(!done.stdout.contains("code 0\n"), "{command} was taken: {done}");
    done
}

in_both_views! {
    fn list_shows_an_idle_device_only_if_requested(view: View) {
        if !ready("list_shows_an_idle_device_only_if_requested") {
            return;
        }
        let done = Run::new(view).program(&["accel-config", "list"]);
        assert!(!done.stdout.contains("dsa0"), "{done}");
        let listed = list(&Run::new(view).success(&["accel-config", "list", "-i"]));
        let device = object(&listed, "dsa0").expect("dsa0");
        for (key, value) in [("max_groups", 4), ("max_work_queues", 8), ("max_engines", 4), ("work_queue_size", 128),
            ("numa_node", 0), ("max_batch_size", 1024), ("configurable", 1), ("pasid_enabled", 1), ("clients", 0)] {
            assert_eq!(device[key], value, "{key} in {device}");
        }
        assert_eq!(device["max_transfer_size"], 1u64 << 31, "{device}");
        assert_eq!(device["state"], "disabled");
        assert!(device["cdev_major"].as_u64().is_some_and(|major| major > 0), "{device}");
        assert_eq!(device["ungrouped workqueues"].as_array().map(Vec::len), Some(8), "{device}");
    }

    fn load_config_sets_the_values_of_the_file(view: View) {
        if !ready("load_config_sets_the_values_of_the_file") {
            return;
        }
        let script = format!("accel-config load-config -c {CONFIGURATION} >&2; accel-config list -i");
        let listed = list(&Run::new(view).shell(&script));
        let shared = object(&listed, "wq0.0").expect("wq0.0");
        for (key, value) in
            [("size", 16), ("group_id", 0), ("priority", 10), ("block_on_fault", 1), ("threshold", 15)] {
            assert_eq!(shared[key], value, "{key} in {shared}");
        }
        for (key, value) in [("mode", "shared"), ("type", "user"), ("name", "app1"), ("state", "disabled")] {
            assert_eq!(shared[key], value, "{key} in {shared}");
        }
        let dedicated = object(&listed, "wq0.1").expect("wq0.1");
        assert_eq!((&dedicated["mode"], &dedicated["group_id"]), (&"dedicated".into(), &1.into()), "{dedicated}");
        assert_eq!(object(&listed, "group0.2").expect("group0.2")["read_buffers_allowed"], 8);
        assert_eq!(object(&listed, "group0.1").expect("group0.1")["grouped_engines"].as_array().map(Vec::len), Some(2));
    }

    fn load_config_enables_if_requested_and_again_if_forced(view: View) {
        if !ready("load_config_enables_if_requested_and_again_if_forced") {
            return;
        }
        // No number in the forced file is 0: after reading a 0, the tool checks errno, which still has the value that
        // the C
        // library's realpath() set when the tool disabled the device.
        let script = format!(
            "accel-config load-config -c {CONFIGURATION} -e >&2\nls /dev/dsa\n\
             accel-config load-config -c {} -f -e >&2\nls /dev/dsa\naccel-config list",
            source("forced.json").display()
        );
        let output = Run::new(view).shell(&script);
        let text = output.strip_prefix("wq0.0\nwq0.1\nwq0.1\n").unwrap_or_else(|| panic!("{output}"));
        let listed = list(text);
        assert_eq!(object(&listed, "dsa0").expect("dsa0")["state"], "enabled");
        let wq = object(&listed, "wq0.1").expect("wq0.1");
        assert_eq!((&wq["name"], &wq["state"]), (&"forced".into(), &"enabled".into()), "{wq}");
        assert!(wq["cdev_minor"].as_u64().is_some(), "{wq}");
    }

    fn a_saved_configuration_loads_unchanged(view: View) {
        if !ready("a_saved_configuration_loads_unchanged") {
            return;
        }
        let room = test_folder(&format!("save-config-{}", view.name()));
        let first = format!(
            "accel-config load-config -c {CONFIGURATION} -e >&2\naccel-config save-config -s saved.conf >&2\n\
             accel-config disable-device dsa0 >&2\naccel-config load-config -c saved.conf -e >&2\n\
             accel-config save-config -s again.conf >&2\naccel-config list"
        );
        let listed = Run::new(view).in_folder(&room).shell(&first);
        let read = |name: &str| std::fs::read_to_string(room.join(name)).expect("a saved configuration");
        assert_eq!(read("saved.conf"), read("again.conf"));
        // A machine that starts with the saved file has the same configuration.
        let later = Run::new(view).with("--hardware").with(room.join("saved.conf")).success(&["accel-config", "list"]);
        // Only the minor numbers differ, since the tool enables queues in its own order.
        let (mut later, mut listed) = (list(&later), list(&listed));
        without(&mut later, "cdev_minor");
        without(&mut listed, "cdev_minor");
        assert_eq!(later, listed);
    }

    fn single_settings_and_enabling_work(view: View) {
        if !ready("single_settings_and_enabling_work") {
            return;
        }
        let output = Run::new(view).shell(
            "exec 3>&1 >&2\n\
             accel-config config-device dsa0 --read-buffer-limit=10\n\
             accel-config config-engine dsa0/engine0.2 --group-id=1\n\
             accel-config config-engine dsa0/engine0.3 --group-id=1\n\
             accel-config config-engine dsa0/engine0.3 --group-id=-1\n\
             accel-config config-group dsa0/group0.1 --read-buffers-reserved=4 --use-read-buffer-limit=1 \
                 --read-buffers-allowed=20\n\
             accel-config config-wq dsa0/wq0.4 --group-id=1 --mode=shared --wq-size=20 --threshold=17 --priority=9 \
                 --block-on-fault=1 --type=user --driver-name=user --name=by_hand --max-batch-size=16 \
                 --max-transfer-size=16384\n\
             accel-config enable-device dsa0\n\
             accel-config enable-wq dsa0/wq0.4\n\
             accel-config list >&3\n\
             accel-config disable-wq dsa0/wq0.4\n\
             accel-config disable-device dsa0\n\
             cat /sys/bus/dsa/devices/dsa0/state >&3\n",
        );
        let text = output.strip_suffix("disabled\n").unwrap_or_else(|| panic!("{output}"));
        let listed = list(text);
        assert_eq!(object(&listed, "dsa0").expect("dsa0")["read_buffer_limit"], 10);
        let group = object(&listed, "group0.1").expect("group0.1");
        for (key, value) in [("read_buffers_reserved", 4), ("use_read_buffer_limit", 1), ("read_buffers_allowed", 20)] {
            assert_eq!(group[key], value, "{key} in {group}");
        }
        assert_eq!(group["grouped_engines"].as_array().map(Vec::len), Some(1), "{group}");
        let wq = object(&listed, "wq0.4").expect("wq0.4");
        for (key, value) in [("size", 20), ("threshold", 17), ("priority", 9), ("max_batch_size", 16),
            ("max_transfer_size", 16384)] {
            assert_eq!(wq[key], value, "{key} in {wq}");
        }
        assert_eq!((&wq["name"], &wq["state"]), (&"by_hand".into(), &"enabled".into()), "{wq}");
    }

    fn invalid_settings_are_refused_and_change_nothing(view: View) {
        if !ready("invalid_settings_are_refused_and_change_nothing") {
            return;
        }
        let run = Run::new(view);
        // From the library's own self test: sizes over the total, batch and transfer sizes of 0 or too large.
        let queue = "accel-config config-wq dsa0/wq0.0 --mode=dedicated --wq-size=100 --max-batch-size=16 \
                     --max-transfer-size=2147483648";
        for (command, attribute, value) in [
            ("config-wq dsa0/wq0.1 --wq-size=29", "wq0.1/size", "0"),
            ("config-wq dsa0/wq0.0 --wq-size=129", "wq0.0/size", "100"),
            ("config-wq dsa0/wq0.0 --max-batch-size=0", "wq0.0/max_batch_size", "16"),
            ("config-wq dsa0/wq0.0 --max-batch-size=1025", "wq0.0/max_batch_size", "16"),
            ("config-wq dsa0/wq0.0 --max-transfer-size=0", "wq0.0/max_transfer_size", "2147483648"),
            ("config-wq dsa0/wq0.0 --max-transfer-size=2147483649", "wq0.0/max_transfer_size", "2147483648"),
            ("config-wq dsa0/wq0.0 --priority=16", "wq0.0/priority", "0"),
            ("config-wq dsa0/wq0.0 --group-id=4", "wq0.0/group_id", "-1"),
            ("config-wq dsa0/wq0.0 --mode=split", "wq0.0/mode", "dedicated"),
            ("config-wq dsa0/wq0.0 --threshold=5", "wq0.0/threshold", "0"),
            ("config-wq dsa0/wq0.2 --threshold=1", "wq0.2/threshold", "0"),
            ("config-engine dsa0/engine0.0 --group-id=4", "engine0.0/group_id", "-1"),
            ("config-group dsa0/group0.0 --read-buffers-reserved=97", "group0.0/read_buffers_reserved", "0"),
            ("config-device dsa0 --read-buffer-limit=97", "dsa0/read_buffer_limit", "0"),
        ] {
            let after = format!("{queue}\nset +e");
            let done = refused(&run, &after, &format!("{command}; cat /sys/bus/dsa/devices/{attribute}; false"));
            assert!(done.stdout.lines().any(|line| line == value), "{command}: {attribute} is not {value}: {done}");
        }
    }

    fn enabling_an_incomplete_configuration_is_refused_with_the_drivers_code(view: View) {
        if !ready("enabling_an_incomplete_configuration_is_refused_with_the_drivers_code") {
            return;
        }
        let run = Run::new(view);
        let wq = "accel-config config-wq dsa0/wq0.0 --group-id=0 --wq-size=16 --priority=10 --type=user \
                  --driver-name=user";
        let engine = "accel-config config-engine dsa0/engine0.0 --group-id=0";
        let on = "accel-config enable-device dsa0";
        for (before, command, code, what) in [
            ("true".to_owned(), "enable-device dsa0", "0x800d0000", "no queue in a group"),
            (format!("{wq} --mode=dedicated --name=a"), "enable-device dsa0", "", "no engine in the queue's group"),
            (format!("{wq} --mode=dedicated --name=a"), "enable-wq dsa0/wq0.0", "", "the device is not enabled"),
            (format!("{engine}\n{wq} --mode=shared --threshold=0 --name=a\n{on}"), "enable-wq dsa0/wq0.0", "0x80060000",
                "a shared queue without threshold"),
            (format!("{engine}\n{wq} --mode=dedicated\n{on}"), "enable-wq dsa0/wq0.0", "0x80040000", "no name"),
            (format!("{engine}\n{wq} --mode=dedicated --name=a --priority=0\n{on}"), "enable-wq dsa0/wq0.0", "0x23",
                "a priority of 0, which the device refuses"),
            (format!("{engine}\n{wq} --mode=dedicated --name=a\n{on}"), "enable-wq dsa0/wq0.1", "0x80030000",
                "a queue in no group"),
        ] {
            let before = before.replace("--threshold=0 ", "");
            // The tool's own query clears the device's code, so the shell reads the code instead.
            let queue = command.split('/').nth(1).unwrap_or("wq0.0");
            let bind = match command.split(' ').next() {
                Some("enable-wq") => format!("echo {queue} >/sys/bus/dsa/drivers/user/bind"),
                _ => "echo dsa0 >/sys/bus/dsa/drivers/idxd/bind".to_owned(),
            };
            refused(&run, &before, command);
            let script = format!(
                "{before}\nset +e\n{bind}\n\
                 cat /sys/bus/dsa/devices/dsa0/cmd_status /sys/bus/dsa/devices/wq0.0/state"
            );
            let done = run.program(&["/bin/sh", "-ec", &script]);
            assert!(code.is_empty() || done.stdout.lines().any(|line| line == code), "{what}: not {code}: {done}");
            assert!(done.stdout.ends_with("disabled\n"), "{what}: {done}");
        }
    }

    fn disabling_under_clients_is_refused_unless_forced(view: View) {
        if !ready("disabling_under_clients_is_refused_unless_forced") {
            return;
        }
        // The shell itself holds the queue open.
        let output = Run::on_two_queues(view).shell(
            "exec 9<>/dev/dsa/wq0.0\nset +e\ncat /sys/bus/dsa/devices/wq0.0/clients /sys/bus/dsa/devices/dsa0/clients\n\
             accel-config disable-wq dsa0/wq0.0 && echo disabled-under-a-client\n\
             accel-config disable-device dsa0 && echo disabled-under-a-client\n\
             cat /sys/bus/dsa/devices/wq0.0/state\n\
             accel-config disable-wq -f dsa0/wq0.0 || echo not-forced\n\
             cat /sys/bus/dsa/devices/wq0.0/state\nexec 9>&-\ncat /sys/bus/dsa/devices/dsa0/clients\n\
             accel-config disable-device dsa0\ncat /sys/bus/dsa/devices/dsa0/state /sys/bus/dsa/devices/wq0.1/state",
        );
        let is_detail = |line: &&str| line.contains("dsa0") || line.contains("wq(s)");
        let lines: Vec<&str> = output.lines().filter(|line| !is_detail(line)).collect();
        assert_eq!(lines, ["1", "1", "enabled", "disabled", "0", "disabled", "disabled"], "{output}");
    }

    fn state_persists_between_programs(view: View) {
        if !ready("state_persists_between_programs") {
            return;
        }
        let output = Run::new(view).shell(
            "accel-config config-wq dsa0/wq0.2 --wq-size=11\n\
             /usr/bin/env bash -c 'cat /sys/bus/dsa/devices/wq0.2/size'\n\
             echo 5 >/sys/bus/dsa/devices/wq0.2/size\n\
             accel-config list -i",
        );
        let text = output.strip_prefix("11\n").unwrap_or_else(|| panic!("{output}"));
        assert_eq!(object(&list(text), "wq0.2").expect("wq0.2")["size"], 5);
    }

    fn presets_start_configured_and_enabled(view: View) {
        if !ready("presets_start_configured_and_enabled") {
            return;
        }
        for (preset, devices) in [("spr-1", 1), ("spr-4", 4), ("xeon-max-8", 8)] {
            let listed = list(&Run::new(view).with("--hardware").with(preset).success(&["accel-config", "list"]));
            let listed = listed.as_array().expect("devices").clone();
            assert_eq!(listed.len(), devices, "{preset}");
            for device in &listed {
                assert_eq!(device["state"], "enabled", "{preset}: {device}");
                let groups = device["groups"].as_array().expect("groups");
                let queues =
                    groups.iter().flat_map(|group| group["grouped_workqueues"].as_array().into_iter().flatten());
                assert!(
                    queues.clone().count() > 0 && queues.clone().all(|wq| wq["state"] == "enabled"),
                    "{preset}: {device}"
                );
            }
        }
    }
}

#[test]
fn the_configuration_of_our_clients_loads_into_accel_config() {
    if ready("the_configuration_of_our_clients_loads_into_accel_config") {
        let file = source("two-queues.json");
        let script = format!("accel-config load-config -c {} -e >&2; ls /dev/dsa", file.display());
        assert_eq!(Run::new(View::Preload).shell(&script), "wq0.0\nwq0.1\n");
    }
}
