//! `telpher offload` within `telpher run`: the calls of a program go to queues of the virtual device. Both libraries
//! are in the program; the signals belong to the one of the run.

use crate::harness::{Done, Run, TELPHER, View, client, lacking, source, test_folder};
use crate::offload::{ALWAYS, sum};
use crate::schemas;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs a program in a run whose device has one shared queue, wq0.0, and one dedicated queue, wq0.1. Returns its
/// result, and the counters of its processes.
fn offload_in_run(name: &str, device: &str, inject: Option<&str>, program: &[&str]) -> (Done, Vec<Value>) {
    let json = test_folder(name).join("offload.json");
    let run = Run::new(View::Preload).with("--hardware").with(source("dto_defects.json"));
    let run = inject.into_iter().fold(run, |run, faults| run.with("--inject").with(faults));
    let output = ["--format", "json", "--output", json.to_str().expect("a path of text"), "--device", device];
    let words = [&[TELPHER, "offload"], &output[..], &ALWAYS[2..], &["--"], program].concat();
    let done = run.program(&words);
    let counters = std::fs::read(&json).map_or(Vec::new(), |json| schemas::list(json, "processes"));
    (done, counters)
}

fn word(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Regression: a fault that the program's handler leaves (`siglongjmp`) left a descriptor in the device for ever, since
/// the program's handler had replaced that of the run's library. A child of a bare clone(2) died at its exit.
#[test]
fn every_call_has_its_effect_on_queues_of_the_virtual_device() {
    let Some(calls) = client("offload_calls") else { return };
    let cases = [("hw:wq0.0", None), ("hw:wq0.1", Some("brief")), ("model:spr", Some("brief"))];
    for (device, brief) in cases {
        let program: Vec<&str> = [word(&calls)].into_iter().chain(brief).collect();
        let (done, processes) = offload_in_run("offload_in_run", device, None, &program);
        assert_eq!((done.code(), done.stdout.trim(), done.stderr.as_str()), (0, "ok", ""), "{device}: {done}");
        let bytes = if brief.is_some() { 100 << 20 } else { 1 << 30 };
        let (by_device, copied) = (sum(&processes, "device_calls"), sum(&processes, "device_bytes"));
        assert!(by_device > 1500 && copied > bytes, "{device}: {by_device} calls, {copied} bytes, {processes:?}");
    }
}

/// The device faults at pages that are there, and a full queue refuses descriptors.
#[test]
fn every_call_has_its_effect_on_a_device_with_injected_faults() {
    let Some(calls) = client("offload_calls") else { return };
    for (device, faults, counter) in
        [("hw:wq0.1", "fault=20%,seed=3", "faults"), ("hw:wq0.0", "retry=20%/burst:20,seed=1", "retries")]
    {
        let (done, processes) = offload_in_run("offload_injected", device, Some(faults), &[word(&calls), "brief"]);
        assert_eq!((done.code(), done.stdout.trim(), done.stderr.as_str()), (0, "ok", ""), "{faults}: {done}");
        assert!(sum(&processes, counter) > 100 && sum(&processes, "device_calls") > 1000, "{faults}: {processes:?}");
    }
}

/// A third of the pages fault although they are there, and unmodified programs check what they wrote.
#[test]
fn real_programs_write_the_same_bytes_on_a_device_with_injected_faults() {
    const NAME: &str = "real_programs_write_the_same_bytes_on_a_device_with_injected_faults";
    if lacking(NAME, &[("sqlite3", "sqlite3"), ("zstd", "zstd"), ("xz", "xz-utils"), ("perl", "perl")]) {
        return;
    }
    let folder = test_folder("offload_injected_programs");
    let plain: Vec<u8> =
        (0..1_000_000_u32).flat_map(|at| ((at / 5).wrapping_mul(2_654_435_761) >> 3).to_le_bytes()).collect();
    std::fs::write(folder.join("plain"), plain).unwrap();
    let sql = "pragma page_size=65536; create table t(k integer primary key, v text);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 200)
        insert into t select i, printf('%.*c', 20000 + i, char(97 + i % 26)) from n; delete from t where k % 7 = 0;
        vacuum; pragma integrity_check; select sum(v = printf('%.*c', 20000 + k, char(97 + k % 26))) from t;";
    let perl = "my $s = join '', map { chr(65 + $_ % 26) x 50000 } 1 .. 30; my $t = substr($s, 7) . $s; \
        print length($t), ' ', unpack('%32C*', $t), qq(\\n)";
    let script = format!(
        "set -e; cd {}; rm -f database plain.*; sqlite3 database \"{sql}\"; zstd -q -T1 -c plain > plain.zst; \
         sha256sum < plain.zst; zstd -q -d -c plain.zst | cmp - plain; xz -1 -c plain > plain.xz; \
         sha256sum < plain.xz; xz -d -c plain.xz | cmp - plain; perl -e \"{}\"",
        word(&folder),
        perl.replace('$', "\\$")
    );
    let program = ["sh", "-c", &script];
    let alone = Command::new("sh").args(&program[1..]).output().unwrap();
    let expected = String::from_utf8_lossy(&alone.stdout);
    assert!(alone.status.success() && expected.lines().count() == 5, "{expected}");
    let (done, processes) = offload_in_run("offload_injected_run", "hw:wq0.0", Some("fault=30%,seed=5"), &program);
    assert_eq!((done.code(), done.stdout.as_str()), (0, expected.as_ref()), "{done}");
    assert!(sum(&processes, "faults") > 100 && sum(&processes, "device_calls") > 300, "{processes:?}");
}

/// Each child opens a shared queue of its own.
#[test]
fn children_open_queues_of_the_virtual_device() {
    let Some(children) = client("offload_children") else { return };
    let (done, processes) = offload_in_run("offload_run_children", "hw:wq0.0", None, &[word(&children)]);
    assert_eq!((done.code(), done.stdout.lines().last()), (0, Some("ok")), "{done}");
    let with_device = processes.iter().filter(|process| process["device_calls"].as_u64() >= Some(10)).count();
    // The parent and sixteen children.
    assert_eq!(with_device, 17, "{done}\n{processes:?}");
}

/// The device of `telpher offload` is then a model in the program, beside the device of the run.
#[test]
fn a_run_within_offload_has_both_libraries_too() {
    let Some(calls) = client("offload_calls") else { return };
    let hardware = source("dto_defects.json");
    let program = [TELPHER, "run", "--hardware", word(&hardware), "--", word(&calls), "brief"];
    let (done, processes) = crate::offload::offload("offload_around_run", &ALWAYS, &program);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    assert!(processes.iter().any(|process| process["device_bytes"].as_u64() > Some(100 << 20)), "{processes:?}");
}
