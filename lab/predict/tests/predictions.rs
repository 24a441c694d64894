//! A sweep, a file of loads, and advice, each on a built-in profile.

use std::path::{Path, PathBuf};
use telpher_abi::Opcode;
use telpher_predict::advise::{advise, tables};
use telpher_predict::{DEFAULT_PROFILE, PredictError, SweepOptions, WorkloadFile, machine, sweep, workload};
use telpher_sim::advise::{Objective, WorkRequest};
use telpher_sim::{AccessPattern, Library, NamedValue, SubmitBy, Wait};

/// Copies of 4 KiB by one thread, one at a time.
fn options(device: &str) -> SweepOptions {
    SweepOptions {
        ops: vec![Opcode::MemoryMove],
        sizes: vec![4096],
        depths: Some(vec![1]),
        batches: None,
        threads: 1,
        rate: None,
        count: 200,
        seconds: None,
        device: device.into(),
        wq_mode: None,
        wq_size: None,
        devices: None,
        groups: None,
        wqs: None,
        engines: None,
        bandwidth: [None; 2],
        to_cache: false,
        placement: None,
        core_node: 0,
        page_bytes: 4096,
        from_cache: false,
        footprint: None,
        walk: first::<AccessPattern>(),
        wait: first::<Wait>(),
        library: first::<Library>(),
        through: first::<SubmitBy>(),
        policy: Vec::new(),
    }
}

/// The first named value, which is the default of the command.
fn first<T: NamedValue>() -> T {
    T::NAMES[0].1
}

fn sweep_on(options: &SweepOptions) -> Result<telpher_report::simulation::RunResult, PredictError> {
    sweep(&machine(DEFAULT_PROFILE, &[]).unwrap(), options)
}

/// Writes a file for one test and returns its path.
fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("telpher-predict-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_sweep_has_a_point_for_the_cores_and_for_each_mode_of_the_device() {
    let result = sweep_on(&options("all")).unwrap();
    let devices: Vec<&str> = result.points.iter().map(|point| point.device.as_str()).collect();
    assert_eq!(devices, ["cpu", "model:spr"]);
    assert!(result.points.iter().all(|point| point.operations == 200 && point.bytes_per_s > 1e8), "{result:?}");
    let modes = sweep_on(&SweepOptions { depths: None, ..options("model:spr") }).unwrap();
    let modes: Vec<(u32, u32)> = modes.points.iter().map(|point| (point.depth, point.batch)).collect();
    assert_eq!(modes, [(1, 1), (32, 1), (2, 32)]);
}

#[test]
fn neither_the_device_nor_a_core_executes_dif_of_a_part_of_a_block() {
    // Blocks of 512 bytes, each with a tuple of 8 bytes.
    let checks = SweepOptions { ops: vec![Opcode::DifCheck], sizes: vec![4160, 4096], ..options("all") };
    let result = sweep_on(&checks).unwrap();
    let points: Vec<_> = result.points.iter().map(|point| (point.device.as_str(), point.size)).collect();
    assert_eq!(points, [("cpu", 4160), ("model:spr", 4160)]);
    let refused: Vec<_> = result.refused.iter().map(|refused| (refused.device.as_str(), refused.size)).collect();
    assert_eq!(refused, [("cpu", 4096), ("model:spr", 4096)]);
    assert!(result.refused[0].reason.contains("4096 bytes ends within a block"), "{:?}", result.refused[0]);
    let inserts = SweepOptions { ops: vec![Opcode::DifInsert], sizes: vec![4096], ..options("all") };
    assert!(sweep_on(&inserts).unwrap().refused.is_empty());
}

#[test]
fn more_threads_than_a_socket_has_cores_get_a_remark() {
    let remarks_of = |threads| {
        let many = SweepOptions { threads, count: 1, wq_mode: Some(telpher_device::WqMode::Shared), ..options("cpu") };
        sweep_on(&many).unwrap().remarks.join(" ")
    };
    assert!(
        remarks_of(200).starts_with("200 threads are more than the cores of a socket of spr-asplos, 56:"),
        "{}",
        remarks_of(200)
    );
    assert_eq!(remarks_of(56), "");
    let work = [WorkRequest { threads: 2, in_flight: 1, ..WorkRequest::of(Opcode::MemoryMove, 64) }];
    let one_core = machine(DEFAULT_PROFILE, &["software.cores=1".into()]).unwrap();
    let advice = advise(&one_core, &work, Objective::Latency).unwrap();
    assert!(tables::text(&advice, "").contains("2 threads are more than the cores of a socket of spr-asplos, 1:"));
}

#[test]
fn more_engines_copy_faster() {
    let with = |engines| {
        let many = SweepOptions { depths: Some(vec![32]), engines: Some(engines), count: 2000, ..options("model:spr") };
        sweep_on(&many).unwrap().points[0].bytes_per_s
    };
    assert!(with(4) >= with(1));
}

#[test]
fn options_that_contradict_each_other_are_usage_errors() {
    let two_nodes = SweepOptions { placement: Some((9, 0)), ..options("all") };
    let threads = SweepOptions { threads: 100, ..options("model:spr") };
    let policy = SweepOptions { policy: vec!["speed=1".into()], ..options("model:spr") };
    for (options, remarks_of) in [
        (two_nodes, "--placement's source is node 9"),
        (threads, "100 threads need a dedicated queue each"),
        (policy, "--policy takes NAME=VALUE"),
        (options("hw:wq0.0"), "hw:wq0.0 is hardware"),
    ] {
        let error = sweep_on(&options).unwrap_err();
        assert!(error.is_usage() && error.to_string().starts_with(remarks_of), "{error}");
    }
    let error = machine("no-such", &[]).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains(DEFAULT_PROFILE), "{error}");
    assert!(!machine("./no-such.toml", &[]).unwrap_err().is_usage());
}

#[test]
fn an_error_in_a_configuration_file_names_the_line() {
    let text = "[{\"dev\":\"dsa0\",\"groups\":[{\"dev\":\"group0.0\",\n\"grouped_workqueues\":[\n\
                {\"dev\":\"wq0.0\",\"mode\":\"shared\",\"size\":100},\n\
                {\"dev\":\"wq0.1\",\"mode\":\"shared\",\"size\":100}],\n\
                \"grouped_engines\":[{\"dev\":\"engine0.0\"}]}]}]";
    let path = file("wide.json", text);
    let error = sweep_on(&options(&format!("model:{}", path.display()))).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.contains("wide.json, line 4: dsa0: "), "{error}");
}

#[test]
fn a_file_of_loads_has_a_point_for_each_load() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/one-at-a-time.toml");
    let file = WorkloadFile::load(&path).unwrap();
    assert_eq!(file.profile(), Some("spr-asplos"));
    let machine = machine(file.profile().unwrap(), &[]).unwrap();
    let result = workload(file, machine, "all").unwrap();
    let loads: Vec<&str> = result.points.iter().map(|point| point.load.as_str()).collect();
    assert!(loads.starts_with(&["by the device", "by the core"]), "{loads:?}");
}

#[test]
fn advice_is_the_same_as_text_csv_and_a_page() {
    let machine = machine(DEFAULT_PROFILE, &[]).unwrap();
    let work = WorkRequest { in_flight: 1, ..WorkRequest::of(Opcode::MemoryMove, 64 << 10) };
    let result = advise(&machine, &[work], Objective::Latency).unwrap();
    assert!(result.gain >= 1.0 && !result.choices.is_empty(), "{result:?}");
    let csv = tables::csv(&result);
    assert_eq!(csv.lines().count(), 1 + result.choices.len());
    for shown in [tables::text(&result, "[]"), tables::html(&result, "[]"), csv] {
        assert!(result.choices.iter().all(|choice| shown.contains(&choice.what)), "{shown}");
    }
}

#[test]
fn options_that_make_no_sense_for_a_machine_get_a_sentence() {
    let old = machine("ice-lake-cbdma", &[]).unwrap();
    let batches = SweepOptions { batches: Some(vec![1, 32]), ..options("all") };
    let message = sweep(&old, &batches).unwrap_err().to_string();
    assert!(message.contains("--batch is 32") && message.contains("ice-lake-cbdma take no batches"), "{message}");
    // The modes that are not named leave batches out.
    let modes = sweep(&old, &SweepOptions { depths: None, ..options("all") }).unwrap();
    assert!(modes.points.iter().all(|point| point.batch <= 1), "{modes:?}");
    let asleep = |depth| SweepOptions { wait: Wait::Sleep, depths: Some(vec![depth]), ..options("all") };
    let remarks = sweep_on(&asleep(32)).unwrap().remarks;
    assert!(remarks.len() == 1 && remarks[0].starts_with("--wait sleep with 32 in flight"), "{remarks:?}");
    assert!(sweep_on(&asleep(1)).unwrap().remarks.is_empty());
}
