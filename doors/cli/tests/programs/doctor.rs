//! `telpher doctor` under `telpher run`: a device that is configured step by step, and a machine recorded inside.

use crate::harness::{Run, TELPHER, View, in_both_views, lacking, test_folder};
use crate::schemas;
use serde_json::Value;

/// Stages about the device, not about the machine.
const OURS: [&str; 7] = ["device", "groups", "engines", "queues", "permissions", "submission", "instructions"];

/// Returns the findings about the device after the script has run.
fn findings(run: &Run, script: &str) -> Vec<Value> {
    let done = run.program(&["/bin/sh", "-c", &format!("{{ :\n{script}\n}} >&2\nexec {TELPHER} doctor --format json")]);
    assert!([0, 2, 3].contains(&done.code()), "{done}");
    let stdout = schemas::parse(&done.stdout);
    // The doctor must not report firmware and IOMMU if the device is virtual.
    let walk = stdout["walk"].as_array().expect("a walk");
    assert!(walk[..5].iter().all(|step| step["state"] == "skipped"), "{done}");
    let all = stdout["findings"].as_array().expect("findings").iter();
    all.filter(|finding| OURS.contains(&finding["stage"].as_str().expect("a stage"))).cloned().collect()
}

/// Returns the causes of these findings.
fn found(run: &Run, script: &str) -> Vec<String> {
    findings(run, script).iter().map(|finding| finding["id"].as_str().expect("a name").to_owned()).collect()
}

/// Configures a dedicated queue wq0.0 on all engines, applies the change, then binds everything.
fn configured_but(change: &str) -> String {
    format!(
        "D=/sys/bus/dsa/devices
         for e in 0 1 2 3; do echo 0 >$D/engine0.$e/group_id; done
         w=$D/wq0.0; echo 0 >$w/group_id; echo dedicated >$w/mode; echo 64 >$w/size; echo 10 >$w/priority
         echo 1 >$w/block_on_fault; echo user >$w/type; echo lane >$w/name; echo user >$w/driver_name
         echo 2147483648 >$w/max_transfer_size
         B=user
         {change}
         echo dsa0 >/sys/bus/dsa/drivers/idxd/bind; echo wq0.0 >/sys/bus/dsa/drivers/$B/bind"
    )
}

in_both_views! {
    fn a_configured_device_has_no_findings(view: View) {
        assert_eq!(found(&Run::new(view).with("--abi").with("6.12"), &configured_but("")), [""; 0]);
        let text = Run::new(view).with("--hardware").with("spr-1").success(&[TELPHER, "doctor"]);
        assert!(text.contains("enabled for programs") && text.contains("emulated by `telpher run`"), "{text}");
    }

    fn a_fresh_device_is_not_configured(view: View) {
        assert_eq!(found(&Run::new(view), ""), ["device-not-configured"]);
    }
}

/// Typical mistakes, and the cause that the doctor must find.
const FORGOTTEN: &[(&str, &str)] = &[
    ("for e in 0 1 2 3; do echo -1 >$D/engine0.$e/group_id; done", "group-without-engine"),
    ("echo 1 >$D/engine0.3/group_id", "group-without-queue"),
    ("echo -1 >$D/engine0.3/group_id", "engines-idle"),
    ("echo >$w/driver_name", "driver-name-missing"),
    ("echo dmaengine >$w/driver_name", "driver-name-mismatch"),
    // Removing the type removes the name too.
    ("echo kernel >$w/type; echo user >$w/type", "queue-without-name"),
    ("echo shared >$w/mode", "threshold-missing"),
    ("echo shared >$w/mode; echo 8 >$w/threshold", "threshold-low"),
    ("echo 0 >$w/priority", "priority-zero"),
    ("echo 0 >$w/block_on_fault", "block-on-fault-off"),
    ("echo 1 >$w/ats_disable", "address-cache-off"),
    ("echo 16384 >$w/max_transfer_size", "transfer-limit-low"),
    ("echo 8 >$w/max_batch_size", "batch-limit-low"),
    ("echo 16 >$w/size", "queue-small"),
    ("echo kernel >$w/type; echo k >$w/name; echo dmaengine >$w/driver_name; B=dmaengine", "only-kernel-queues"),
    ("echo 8 >$D/group0.0/read_buffers_allowed; echo 16 >$D/group0.0/read_buffers_allowed", "read-buffers-few"),
];

/// Changes to a configured machine.
fn changed_afterwards() -> Vec<(String, &'static str)> {
    let mut all: Vec<_> = FORGOTTEN.iter().map(|(change, cause)| (configured_but(change), *cause)).collect();
    // Bound and unbound: the driver has reset almost all attributes of the queue.
    all.push((configured_but("") + "\necho wq0.0 >/sys/bus/dsa/drivers/user/unbind", "queue-without-type"));
    // The queue, the device, or nothing was enabled.
    let bind = "echo wq0.0 >/sys/bus/dsa/drivers/$B/bind";
    all.push((configured_but("").replace(bind, ""), "queue-not-enabled"));
    let both = format!("echo dsa0 >/sys/bus/dsa/drivers/idxd/bind; {bind}");
    all.push((configured_but("").replace(&both, ""), "device-not-enabled"));
    all.push((":".into(), "device-not-configured"));
    all
}

/// The driver's refusals, each caused by a missing setting.
#[test]
fn missing_settings_are_found() {
    for (script, cause) in changed_afterwards() {
        let run = Run::new(View::Preload).with("--abi").with("6.12");
        assert_eq!(found(&run, &script), [cause], "{script}");
    }
}

/// Running the remedy word for word leaves no finding.
#[test]
fn the_doctors_remedies_work() {
    if lacking("the_doctors_remedies_work", &[("accel-config", "accel-config")]) {
        return;
    }
    let folder = test_folder("doctor-remedies");
    let mut wrong = Vec::new();
    for (script, cause) in changed_afterwards() {
        let run = || Run::new(View::Preload).with("--abi").with("6.12").in_folder(&folder);
        let before = findings(&run(), &script);
        let steps = before[0]["remedy"].as_array().expect("steps").iter().filter_map(Value::as_str);
        // The other lines are sentences, not commands.
        let is_command =
            |step: &&str| ["accel-config ", "echo ", "for e in "].iter().any(|start| step.starts_with(start));
        let typed: Vec<&str> = steps.filter(is_command).collect();
        let after = found(&run(), &format!("{script}\n{}", typed.join("\n")));
        if typed.is_empty() || !after.is_empty() {
            wrong.push(format!("{cause}: still {after:?} after\n  {}", typed.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_unmappable_portal_and_a_busy_queue_are_found() {
    let run = Run::new(View::Preload).with("--hardware").with("spr-1").with("--abi").with("6.12").with("--no-rawio");
    assert!(found(&run, "").contains(&"rawio-missing".to_owned()));
    // The shell keeps the queue open.
    let run = Run::new(View::Preload).with("--abi").with("6.12");
    let held = configured_but("") + "\nexec 9<>/dev/dsa/wq0.0";
    assert_eq!(found(&run, &held), ["queue-busy"]);
}

#[test]
fn a_machine_recorded_inside_is_examined_outside() {
    let bundle = test_folder("doctor").join("inside.json");
    let run = Run::new(View::Preload).with("--abi").with("6.12");
    let script =
        format!("{}\nexec {TELPHER} doctor --record {}", configured_but("echo >$w/driver_name"), bundle.display());
    let done = run.program(&["/bin/sh", "-c", &script]);
    assert_eq!(done.code(), 0, "{done}");
    let output =
        std::process::Command::new(TELPHER).args(["doctor", "--format", "json", "--bundle"]).arg(&bundle).output();
    let stdout = schemas::parse(output.expect("the binary runs").stdout);
    let ids: Vec<&str> =
        stdout["findings"].as_array().expect("findings").iter().filter_map(|f| f["id"].as_str()).collect();
    assert!(ids.contains(&"driver-name-missing"), "{stdout:#}");
}
