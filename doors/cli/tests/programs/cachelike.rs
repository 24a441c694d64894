//! `telpher bench cachelike`: the sides have the same load, and the device executes the long copies. Rates and
//! latencies are not checked here; that needs a quiet machine.

use crate::harness::{Done, TELPHER, finish, test_folder};
use crate::offload::{offload, sum};
use crate::schemas;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A small cache with two pools, as CacheBench describes it. A tenth of the values is long.
const LOAD: &str = r#"// The pools are of different sizes.
{
  "cache_config": { "cacheSizeMB": 96, "numPools": 2, "poolSizes": [0.25, 0.75], "htBucketPower": 20 },
  "test_config": {
    "enableLookaside": true, "numOps": 4000, "numThreads": 2, "numKeys": 2000,
    "keyPoolDistribution": [0.25, 0.75], "opPoolDistribution": [0.5, 0.5],
    "valSizeRange": [100, 20000], "valSizeRangeProbability": [0.9, 0.1],
    "getRatio": 0.8, "setRatio": 0.1, "delRatio": 0.1, "opRatePerSec": 1000000
  }
}"#;

/// Writes a load into a folder of its own.
fn file(test: &str, load: &str) -> PathBuf {
    let file = test_folder(test).join("load.json");
    std::fs::write(&file, load).unwrap();
    file
}

fn bench(load: &PathBuf, options: &[&str]) -> Done {
    let mut command = Command::new(TELPHER);
    command.args(["bench", "cachelike", "--no-html", "--load"]).arg(load).args(options);
    finish(&mut command, None, Duration::from_secs(120))
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[test]
fn all_sides_have_the_same_load_and_the_device_executes_the_long_copies() {
    let done = bench(&file("cachelike_sides", LOAD), &["--format", "json"]);
    done.expect_success();
    let warning = "fields without effect in";
    assert_eq!(done.stderr.lines().filter(|line| line.contains(warning)).count(), 1, "{done}");
    assert!(done.stderr.contains("cache_config.htBucketPower, test_config.opRatePerSec"), "{done}");
    let result = schemas::parse(&done.stdout);
    assert!(result["remarks"].to_string().contains("The device is modelled"), "{result}");
    let sides = result["sides"].as_array().expect("sides");
    let names: Vec<_> = sides.iter().map(|side| side["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["off", "always", "learned"]);
    for side in sides {
        let counts = &side["counts"];
        // The operations are drawn from seeds, so each side has the same gets and deletions.
        for name in ["gets", "deletions"] {
            assert_eq!(number(counts, name), number(&sides[0]["counts"], name), "{name}: {side}");
        }
        assert_eq!((number(counts, "wrong"), number(counts, "refused_sets")), (0, 0), "{side}");
        assert!(number(counts, "hits") > number(counts, "gets") / 2, "{side}");
        let copies = number(counts, "hits") + number(counts, "sets");
        assert_eq!(number(counts, "copies"), copies, "{side}");
        let long = number(counts, "long_copies");
        assert!(long > copies / 20 && number(counts, "long_bytes") == long * 20_000, "{side}");
        // Each side fills its cache with the same values.
        let filling = &side["filling"];
        assert!(number(filling, "long_copies") > 0 && *filling == sides[0]["filling"], "{side}");
        assert_eq!(number(filling, "long_bytes"), 20_000 * number(filling, "long_copies"), "{side}");
        let samples = (number(&side["gets"], "samples"), number(&side["sets"], "samples"));
        assert_eq!(samples, (number(counts, "gets"), number(counts, "sets")), "{side}");
        assert!(side["gets"]["ns"][1].is_number() && side["gets"]["ns"][4].is_null(), "{side}");
    }
    let (off, always, learned) = (&sides[0], &sides[1], &sides[2]);
    assert!(off["offload"].is_null(), "{off}");
    let long = &always["counts"];
    // The filling of the cache has long copies, too.
    assert!(number(&always["offload"], "device_calls") > number(long, "long_copies"), "{always}");
    assert!(number(&always["offload"], "device_bytes") > number(long, "long_bytes"), "{always}");
    assert_eq!(number(&always["offload"], "cached_calls"), 0, "{always}");
    let seen = ["device_calls", "cached_calls", "timed_calls"].map(|name| number(&learned["offload"], name));
    assert!(seen.iter().sum::<u64>() > number(&learned["counts"], "long_copies") && seen[2] > 0, "{learned}");
}

#[test]
fn table_and_csv_have_a_column_or_line_for_each_side() {
    let load = file("cachelike_formats", LOAD);
    let text = bench(&load, &["--only", "off,always", "--gets", "500"]);
    text.expect_success();
    for words in ["against off", "get p99.999", "copies by the device", "with 500 gets", "sets without room"] {
        assert!(text.stdout.contains(words), "{words}: {text}");
    }
    assert!(!text.stdout.contains("learned  "), "{text}");
    let csv = bench(&load, &["--only", "off", "--gets", "500", "--format", "csv"]);
    csv.expect_success();
    let lines: Vec<Vec<&str>> = csv.stdout.lines().map(|line| line.split(',').collect()).collect();
    assert!(lines.len() == 2 && lines[0].len() == lines[1].len() && lines[1][0] == "off", "{csv}");
}

#[test]
fn a_driver_under_offload_shows_its_copies_to_the_library() {
    let load = file("cachelike_alone", LOAD);
    let load = load.to_str().unwrap();
    let options = ["--device", "model:spr", "--threshold", "8k", "--always"];
    let json = test_folder("cachelike_result").join("result.json");
    let program = [
        TELPHER,
        "bench",
        "cachelike",
        "--alone",
        "--no-html",
        "--load",
        load,
        "--format",
        "json",
        "--output",
        json.to_str().unwrap(),
    ];
    let (done, processes) = offload("cachelike_under_offload", &options, &program);
    done.expect_success();
    let result = schemas::parse(std::fs::read(&json).unwrap());
    let side = &result["sides"][0];
    assert_eq!((side["name"].as_str(), number(&side["counts"], "wrong")), (Some("as it is"), 0), "{side}");
    let long = number(&side["counts"], "long_copies");
    assert!(long > 0 && sum(&processes, "device_calls") > long, "{long} long copies: {processes:?}");
}

#[test]
fn a_wrong_load_is_refused_by_the_name_of_its_field() {
    let wrong = file("cachelike_wrong", &LOAD.replace("\"numKeys\": 2000", "\"numKeys\": \"all\""));
    let done = bench(&wrong, &[]);
    assert_eq!(done.code(), 1, "{done}");
    assert!(done.stderr.contains("test_config.numKeys: is \"all\", not a whole number from 1"), "{done}");
    let missing = bench(&wrong.with_file_name("none.json"), &[]);
    assert_eq!(missing.code(), 1, "{missing}");
    assert!(missing.stderr.contains("name a file in CacheBench's JSON format, or paper"), "{missing}");
    let side = bench(&file("cachelike_side", LOAD), &["--only", "on"]);
    assert_eq!((side.code(), side.stderr.contains("use off, always, learned")), (2, true), "{side}");
}
