//! The perf PMU of the virtual device: Debian's `perf`, unmodified, and the system call itself.

use crate::harness::{Run, TELPHER, View, client, in_both_views, lacking};
use crate::schemas;
use std::collections::BTreeMap;

/// Parses the lines of `perf stat -x,`: counts by the name of their event.
fn counts(text: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        Some(((*fields.get(2)?).to_owned(), fields[0].to_owned()))
    };
    text.lines().filter(|text| !text.starts_with('#')).filter_map(line).collect()
}

/// Runs `perf stat` with these events around a client that copies 5 × 1000 bytes and asks for 6 No-ops.
fn stat(view: View, test: &str, events: &[&str]) -> Option<BTreeMap<String, String>> {
    if lacking(test, &[("perf", "linux-perf")]) {
        return None;
    }
    let program = client("counted")?;
    let program = program.to_str().expect("UTF-8");
    let events: Vec<String> = events.iter().map(|event| format!("-e '{event}'")).collect();
    let events = events.join(" ");
    let script = format!("perf stat -a -x, {events} -o /dev/stderr -- {program} 5 1000 6 true >/dev/null");
    let done = Run::on_two_queues(view).program(&["/bin/sh", "-ec", &script]);
    done.expect_success();
    Some(counts(&done.stderr))
}

in_both_views! {
    fn perf_stat_counts_named_events(view: View) {
        let names = [
            "op_memmove", "op_noop", "engine_from_wq", "engine_from_batch", "done_success", "done_error",
            "swq_accepted_limited", "dwq_accepted", "engine_output",
        ];
        let events = names.map(|name| format!("dsa0/{name}/"));
        let Some(counts) = stat(view, "perf_stat_counts_named_events", &events.each_ref().map(String::as_str)) else {
            return;
        };
        let count = |name: &str| counts.get(&format!("dsa0/{name}/")).map(String::as_str);
        let expected = ["5", "6", "11", "0", "11", "0", "11", "0"];
        for (name, expected) in names.iter().zip(expected) {
            assert_eq!(count(name), Some(expected), "{name} of {counts:?}");
        }
        // Each copy writes 32 units of 32 bytes.
        let bytes: f64 = count("engine_output").unwrap().parse().unwrap();
        assert!((bytes - 5.0 * 1024.0).abs() < 0.5, "{counts:?}");
    }

    fn perf_stat_takes_numbers_filters_and_groups(view: View) {
        let events = [
            "dsa0/event_category=0x3,event=0x9,name=both/",
            "dsa0/event_category=0x3,event=0x9,filter_wq=0x2,name=other_queue/",
            "{dsa0/op_memmove,name=in_group/,dsa0/op_noop,name=beside/}",
            "dsa0/event_category=0x4,event=0x20,name=records/",
        ];
        let Some(counts) = stat(view, "perf_stat_takes_numbers_filters_and_groups", &events) else { return };
        let expected = [
            ("both", "11"), ("other_queue", "0"), ("in_group", "5"), ("beside", "6"), ("records", "<not supported>"),
        ];
        for (name, expected) in expected {
            assert_eq!(counts.get(name).map(String::as_str), Some(expected), "{name} of {counts:?}");
        }
    }

    fn perf_event_open_answers_as_the_driver_does(view: View) {
        let Some(program) = client("perf_events") else { return };
        let program = program.to_str().expect("UTF-8");
        let run = Run::on_two_queues(view);
        run.shell(&format!("{program} $(cat /sys/bus/event_source/devices/dsa0/type)"));
    }

    fn the_view_of_hardware_counts_with_the_virtual_pmu(view: View) {
        let Some(program) = client("counted") else { return };
        let program = program.to_str().expect("UTF-8");
        // Inside of the run, its devices are hardware. The view's first reading opens the counters, and the second one
        // comes after the client: it waits for a first line.
        let script = format!(
            "{TELPHER} top --count 2 --every 5 --format json > /tmp/perf-top-$$ & \
             while ! [ -s /tmp/perf-top-$$ ]; do sleep 0.1; done; \
             {program} 5 1000 6 true > /dev/null; wait; tail -n 1 /tmp/perf-top-$$; rm /tmp/perf-top-$$"
        );
        let printed = Run::on_two_queues(view).shell(&script);
        let snapshots = schemas::list(&printed, "snapshots");
        let devices = snapshots[0]["devices"].as_array().expect("devices");
        let device = devices.iter().find(|row| row["source"] == "hardware").expect("a device");
        let of = |name: &str| device[name].as_u64().unwrap_or_else(|| panic!("{name} of {device}"));
        assert_eq!((of("descriptors"), of("members"), of("faults"), of("errors")), (11, 0, 0, 0));
        // Units of 32 bytes.
        assert_eq!((of("read_bytes"), of("written_bytes")), (5 * 1024, 5 * 1024));
    }
}

#[test]
fn perf_lists_the_events_of_the_device() {
    if lacking("perf_lists_the_events_of_the_device", &[("perf", "linux-perf")]) {
        return;
    }
    let listed = Run::on_two_queues(View::Preload).shell("perf list --raw-dump pmu 2>/dev/null || perf list pmu");
    for name in ["dsa0/op_memmove/", "dsa0/swq_retry_limited/"] {
        assert!(listed.contains(name), "{listed}");
    }
}
