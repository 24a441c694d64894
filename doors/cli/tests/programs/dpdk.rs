//! DPDK's `dmadev_autotest`, on queues configured by accel-config and by a Python script of ours.

use crate::harness::{Done, Run, View, in_both_views, lacking, source, test_folder};
use crate::skip::skip;
use std::fmt::Write as _;

/// Without huge pages, so it needs a second or two to touch its gigabyte. Without PCI, otherwise it probes the
/// machine's
/// own network device.
const AUTOTEST: &str = "dpdk-test --no-pci --no-huge -m 1024 --no-shconf --no-telemetry";

fn ready(test: &str, more: &[(&str, &str)]) -> bool {
    if lacking(test, more) || lacking(test, &[("dpdk-test", "dpdk-dev")]) {
        return false;
    }
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = available.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(u64::MAX);
    if kib < 1_500_000 {
        skip(test, "less than 1.5 GB of memory");
        return false;
    }
    true
}

/// Returns accel-config commands for two dedicated queues with names that DPDK's driver accepts.
pub(crate) fn by_accel_config() -> String {
    let mut script = String::new();
    for group in 0..2 {
        for engine in [2 * group, 2 * group + 1] {
            let _ = writeln!(script, "accel-config config-engine dsa0/engine0.{engine} --group-id={group}");
        }
        let _ = writeln!(
            script,
            "accel-config config-wq dsa0/wq0.{group} --group-id={group} --mode=dedicated --wq-size=64 --priority=1 \
             --type=user --driver-name=user --name=dpdk_{group} --max-batch-size=1024 --max-transfer-size=2097152"
        );
    }
    script + "accel-config enable-device dsa0\naccel-config enable-wq dsa0/wq0.0 dsa0/wq0.1\n"
}

fn autotest(view: View, name: &str, before: &str, after: &str, options: &[&str]) -> Done {
    let room = test_folder(&format!("{name}-{}", view.name()));
    let run = options.iter().fold(Run::new(view), |run, option| run.with(option));
    // A folder of its own for DPDK's run-time files.
    let run = run.variable("XDG_RUNTIME_DIR", &room).in_folder(&room).within(150);
    let script = format!("{before}\nDPDK_TEST=dmadev_autotest {AUTOTEST} </dev/null\n{after}\n");
    let done = run.program(&["/bin/sh", "-ec", &script]);
    done.expect_success();
    assert!(done.stdout.contains("Test OK") && !done.stdout.contains("Test Failed"), "{done}");
    // Both queues were found and used, not only the skeleton device that the test contains.
    for queue in ["wq0.0", "wq0.1"] {
        assert!(done.stdout.contains(queue) || done.stderr.contains(queue), "{queue} was not tested: {done}");
    }
    done
}

in_both_views! {
    fn dmadev_autotest_passes_on_queues_configured_by_accel_config(view: View) {
        let name = "dmadev_autotest_passes_on_queues_configured_by_accel_config";
        if ready(name, &[("accel-config", "accel-config")]) {
            let after = "accel-config disable-wq dsa0/wq0.0\naccel-config disable-wq dsa0/wq0.1\n\
                         accel-config disable-device dsa0";
            autotest(view, name, &by_accel_config(), after, &[]);
        }
    }

    fn dmadev_autotest_passes_on_queues_configured_by_a_python_script(view: View) {
        let name = "dmadev_autotest_passes_on_queues_configured_by_a_python_script";
        if ready(name, &[("/usr/bin/python3", "python3")]) {
            let script = format!("/usr/bin/python3 {}", source("configure_dpdk.py").display());
            autotest(view, name, &script, &format!("{script} undo"), &[]);
        }
    }
}

#[test]
fn dmadev_autotest_passes_under_lenient_residency_and_on_an_engine_thread() {
    let name = "dmadev_autotest_passes_under_lenient_residency_and_on_an_engine_thread";
    if ready(name, &[("accel-config", "accel-config")]) {
        autotest(View::Preload, name, &by_accel_config(), "", &["--residency", "lenient"]);
        autotest(View::Preload, name, &by_accel_config(), "", &["--runner", "threaded"]);
    }
}

#[test]
fn dmadev_autotest_causes_no_report() {
    let name = "dmadev_autotest_causes_no_report";
    if ready(name, &[("accel-config", "accel-config")]) {
        crate::check::expect_no_report(&autotest(View::Preload, name, &by_accel_config(), "", &["--check"]));
    }
}
