//! `telpher list` and `telpher bench` on the virtual device, as on hardware.

use crate::harness::{Run, TELPHER, View, in_both_views, lacking, test_folder};
use crate::schemas;
use serde_json::Value;

/// Returns the output of `telpher ARGS` on one shared and one dedicated queue.
fn on_two_queues(view: View, args: &[&str]) -> String {
    Run::on_two_queues(view).success(&[&[TELPHER], args].concat())
}

fn json(text: &str) -> Value {
    schemas::parse(text)
}

/// Returns the queues of the first device in a listing.
fn queues(listing: &Value) -> Vec<&Value> {
    let groups = listing[0]["groups"].as_array().expect("groups");
    groups.iter().flat_map(|group| group["grouped_workqueues"].as_array().expect("queues")).collect()
}

/// Removes the nodes' numbers: they follow the order in which queues are enabled, which no configuration contains.
fn without_minors(mut listing: Value) -> Value {
    for group in listing[0]["groups"].as_array_mut().expect("groups") {
        for queue in group["grouped_workqueues"].as_array_mut().expect("queues") {
            queue.as_object_mut().expect("a queue").remove("cdev_minor");
        }
    }
    listing
}

/// Arguments of a short bench of copies with CSV output.
const BENCH: [&str; 9] = ["bench", "--op", "move", "--seconds", "0.3", "--no-html", "--format", "csv", "--size"];

in_both_views! {
    fn the_listing_begins_with_the_hardware_and_shows_usable_queues(view: View) {
        let listing = json(&on_two_queues(view, &["list", "--format", "json"]));
        let [hardware, model] = listing.as_array().expect("devices").as_slice() else { panic!("{listing}") };
        assert_eq!((&hardware["dev"], &hardware["modelled"]), (&"dsa0".into(), &false.into()));
        assert_eq!((&hardware["numa_node"], &hardware["state"]), (&0.into(), &"enabled".into()));
        assert!(hardware["pci_address"].as_str().is_some_and(|address| address.ends_with(":01.0")), "{hardware}");
        assert_eq!(model["modelled"], true);
        let facts: Vec<_> =
            queues(&listing).iter().map(|q| [&q["dev"], &q["mode"], &q["threshold"], &q["unusable"]]).collect();
        let fact = |name: &str, mode: &str, threshold: u32| [name.into(), mode.into(), threshold.into(), Value::Null];
        assert_eq!(facts, [fact("wq0.0", "shared", 15).each_ref(), fact("wq0.1", "dedicated", 0).each_ref()]);
        let text = on_two_queues(view, &["list"]);
        for words in
            ["dsa0 (hw): a Data Streaming", "NUMA node 0", "hw:wq0.1 can be used", "dsa0 (model:spr)", "engine0.2"] {
            assert!(text.contains(words), "{words} is missing in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 132), "{text}");
    }

    fn a_queue_that_cannot_be_used_is_listed_with_the_reason(view: View) {
        let script = format!("exec 3<>/dev/dsa/wq0.1; {TELPHER} list --device hw:wq0.0 --format json");
        let taken = json(&Run::on_two_queues(view).shell(&script));
        assert_eq!(taken.as_array().map(Vec::len), Some(1), "the device of the queue alone: {taken}");
        let why = queues(&taken)[1]["unusable"].as_str().unwrap_or_default().to_owned();
        assert!(why.contains("/dev/dsa/wq0.1: it is dedicated and in use"), "{taken}");
        let script = format!("echo wq0.0 > /sys/bus/dsa/drivers/user/unbind; {TELPHER} list");
        let text = Run::on_two_queues(view).shell(&script);
        assert!(text.contains("hw:wq0.0 cannot be used: cannot open wq0.0: it is disabled"), "{text}");
    }

    fn an_unconfigured_device_and_no_device_are_distinguished(view: View) {
        let text = Run::new(view).success(&[TELPHER, "list"]);
        assert!(text.contains("No queue is configured") && text.contains("accel-config load-config"), "{text}");
        let done = Run::new(view).program(&[TELPHER, "list", "--device", "hw:wq3.0"]);
        assert!(done.code() == 1 && done.stderr.contains("there is no wq3.0 on this machine"), "{done}");
    }

    fn a_listing_of_hardware_is_a_configuration_for_accel_config(view: View) {
        if lacking("a_listing_of_hardware_is_a_configuration", &[("accel-config", "accel-config")]) {
            return;
        }
        let list = format!("{TELPHER} list --device hw:wq0.0 --format json");
        let file = test_folder(&format!("listed-{}", view.name())).join("dsa.json");
        let file = file.display();
        let output = Run::on_two_queues(view).shell(&format!(
            "{list} > {file}; cat {file}; echo ====
             accel-config disable-device dsa0 >&2; {TELPHER} list >&2
             accel-config load-config -c {file} -e >&2; {list}; echo ====
             {TELPHER} list --device model:{file} --format json"
        ));
        let [before, after, model] = output.split("====\n").collect::<Vec<_>>()[..] else { panic!("{output}") };
        let (before, after, model) = (without_minors(json(before)), without_minors(json(after)), json(model));
        assert_eq!(before, after);
        // The same file configures a modelled device.
        let shape = |listing: &Value| -> Vec<_> {
            queues(listing)
                .iter()
                .map(|q| [&q["dev"], &q["mode"], &q["size"], &q["group_id"], &q["threshold"]].map(Value::clone))
                .collect()
        };
        assert_eq!(shape(&before), shape(&model));
    }

    fn a_listing_of_a_model_is_a_configuration_for_accel_config(view: View) {
        if lacking("a_listing_of_a_model_is_a_configuration", &[("accel-config", "accel-config")]) {
            return;
        }
        let file = test_folder(&format!("modelled-{}", view.name())).join("dsa.json");
        let file = file.display();
        let output = Run::new(view).shell(&format!(
            "{TELPHER} list --device model:spr --format json > {file}; cat {file}; echo ====
             accel-config load-config -c {file} -e >&2; {TELPHER} list --device hw:wq0.0 --format json"
        ));
        let [model, hardware] = output.split("====\n").collect::<Vec<_>>()[..] else { panic!("{output}") };
        let shape = |listing: &Value| -> Vec<_> {
            queues(listing).iter().map(|q| [&q["dev"], &q["mode"], &q["size"], &q["state"]].map(Value::clone)).collect()
        };
        assert_eq!(shape(&json(model)), shape(&json(hardware)));
    }

    fn bench_measures_a_hardware_queue_and_the_cpu(view: View) {
        for queue in ["wq0.0", "wq0.1"] {
            let name = format!("hw:{queue}");
            let csv = on_two_queues(view, &[&BENCH[..], &["4k", "--device", &name]].concat());
            assert_eq!(csv.matches("\nmove,4096,cpu,,1,1,").count(), 1, "{csv}");
            for mode in ["1,1", "32,1", "2,32"] {
                let row = format!("\nmove,4096,{name},hardware,{mode},1,");
                assert_eq!(csv.matches(&row).count(), 1, "{row} is missing in\n{csv}");
            }
        }
    }
}

#[test]
fn every_operation_of_the_device_is_correct_on_hardware() {
    let args = ["bench", "--op", "all", "--size", "4k", "--seconds", "0.5", "--no-html", "--format", "json"];
    let result = json(&on_two_queues(View::Preload, &[&args[..], &["--device", "hw:wq0.1"]].concat()));
    let points = result["points"].as_array().expect("points");
    for op in ["move", "fill", "compare", "crc", "copy-crc", "dualcast", "dif-insert", "create-delta", "cache-flush"] {
        assert!(points.iter().any(|point| point["op"] == op && point["runner"] == "hardware"), "{op} is missing");
    }
    let remarks = result["remarks"].as_array().expect("remarks");
    let has_remark =
        |words: &str| remarks.iter().any(|remark| remark.as_str().is_some_and(|remark| remark.contains(words)));
    assert!(has_remark("the virtual device of `telpher run`"), "{remarks:?}");
}

#[test]
fn the_device_all_measures_hardware_model_and_cpu() {
    let csv = on_two_queues(View::Preload, &[&BENCH[..], &["4k", "--device", "all"]].concat());
    for route in [",cpu,,", ",model:spr,inline,", ",model:spr,threaded,", ",hw:wq0.1,hardware,"] {
        assert!(csv.contains(route), "{route} is missing in\n{csv}");
    }
    // Two threads: there is no dedicated queue for each, so both use the shared one.
    let csv = on_two_queues(View::Preload, &[&BENCH[..], &["4k", "--device", "all", "--threads", "2"]].concat());
    assert!(csv.contains(",hw:wq0.0,hardware,1,1,2,"), "{csv}");
    let csv = on_two_queues(View::Preload, &[&BENCH[..], &["4k", "--device", "all", "--wq-mode", "shared"]].concat());
    assert!(csv.contains(",hw:wq0.0,hardware,"), "{csv}");
}

#[test]
fn a_busy_queue_is_left_out_of_all_with_the_reason() {
    let script = format!(
        "exec 3<>/dev/dsa/wq0.1; {TELPHER} bench --op move --size 4k --seconds 0.3 --no-html --format json --device all"
    );
    let result = json(&Run::on_two_queues(View::Preload).shell(&script));
    let remarks = result["remarks"].to_string();
    assert!(remarks.contains("hw:wq0.1 is left out: cannot open /dev/dsa/wq0.1"), "{remarks}");
    assert!(result["points"].to_string().contains("hw:wq0.0"));
}

#[test]
fn a_kernel_that_refuses_the_portal_is_measured_by_write_without_batches() {
    for queue in ["hw:wq0.0", "hw:wq0.1"] {
        let run = || Run::on_two_queues(View::Preload).with("--abi").with("6.12").with("--no-rawio");
        let args = ["bench", "--op", "move", "--size", "4k", "--seconds", "0.3", "--no-html", "--device", queue];
        let result = json(&run().success(&[&[TELPHER], &args[..], &["--format", "json"]].concat()));
        let remarks = result["remarks"].to_string();
        assert!(remarks.contains("takes no batches from this program: batches of 32 are left out"), "{remarks}");
        let points = result["points"].as_array().expect("points");
        let depths: Vec<_> = points.iter().filter(|p| p["runner"] == "hardware").map(|p| p["depth"].as_u64()).collect();
        assert_eq!(depths, [Some(1), Some(32)], "{queue}");
        let done = run().program(&[&[TELPHER], &args[..], &["--batch", "32"]].concat());
        assert!(done.code() == 1 && done.stderr.contains("takes no batches"), "{done}");
    }
}

#[test]
fn unsupported_options_of_a_hardware_queue_are_errors() {
    for (args, words) in [
        (&["--device", "hw:wq0.1", "--threads", "2"][..], "hw:wq0.1 is dedicated and has one client"),
        (&["--device", "hw:wq0.0", "--engines", "2"], "hw:wq0.0 has its own queues and engines"),
        (&["--device", "hw:wq0.7"], "cannot open wq0.7: "),
        (&["--device", "hw:wq7.0"], "the driver has no device dsa7"),
    ] {
        let all = [&[TELPHER, "bench", "--op", "move", "--size", "4k", "--no-html"], args].concat();
        let done = Run::on_two_queues(View::Preload).program(&all);
        assert!(done.code() == 1 && done.stderr.contains(words), "{args:?}: {done}");
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn pollution_is_measured_through_a_hardware_queue() {
    if std::thread::available_parallelism().is_ok_and(|n| n.get() == 1) {
        return crate::skip::skip("pollution_is_measured_through_a_hardware_queue", "one core");
    }
    let args = ["bench", "pollution", "--working-set", "64k", "--seconds", "0.5", "--no-html", "--format", "json"];
    let result = json(&on_two_queues(View::Preload, &[&args[..], &["--device", "hw:wq0.1"]].concat()));
    assert_eq!(result["device"], "hw:wq0.1");
    let rows = result["rows"].as_array().expect("rows");
    let copied = rows.iter().find(|row| row["copies"] == "device").and_then(|row| row["copied_per_s"].as_f64());
    assert!(copied.is_some_and(|bytes| bytes > 0.0), "{rows:?}");
}
