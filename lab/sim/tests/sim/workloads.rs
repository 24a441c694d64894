//! The workloads of the repository run, and have the bottlenecks that their files state.

use std::fs;
use std::path::Path;
use telpher_device::Preset;
use telpher_sim::{Machine, Scenario, Workload, WorkloadHeader};

/// Name and text of every file.
fn all() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ending| ending == "toml")).collect();
    files.sort();
    let read = |path: &std::path::PathBuf| (path.display().to_string(), fs::read_to_string(path).unwrap());
    files.iter().map(read).collect()
}

#[test]
fn every_workload_has_its_stated_bottleneck() {
    let all = all();
    assert!(all.len() >= 6);
    let mut streams = 0;
    for (file, text) in all {
        let preface = WorkloadHeader::parse(&file, &text).unwrap();
        assert!(preface.why.split_whitespace().count() > 30, "{file} says why");
        let machine = Machine::built_in(&preface.profile.expect("a profile")).unwrap();
        let scenario = Scenario::parse(&file, &text, machine, Preset::Spr.capabilities(), None).unwrap();
        let outcome = scenario.simulate().unwrap_or_else(|error| panic!("{file}: {error}"));
        for (load, of) in scenario.loads.iter().zip(&outcome.loads) {
            match load.what {
                Workload::Stream(_) => {
                    streams += 1;
                    assert!(of.gigabytes_per_second() > 0.1, "{file}: {}", load.name);
                    let found = of.bottleneck.as_ref().unwrap();
                    assert!(load.expect.is_none_or(|limit| limit == found.limit), "{file}: {}: {found}", load.name);
                }
                _ => assert!(!of.measures.is_empty(), "{file}: {} has nothing to tell", load.name),
            }
        }
    }
    assert!(streams > 5);
}
