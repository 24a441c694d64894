//! `defects.md` names a test for each defect of libfabric's shm provider. They exist.

use std::path::Path;

/// The table.
const TABLE: &str = include_str!("defects.md");

/// Where the tests are.
const FOLDERS: [&str; 5] =
    ["doors/ofi/tests", "uses/fabric/tests", "uses/fabric/src", "path/device/src", "path/mover/tests"];

/// Adds the text of all files with tests in Rust and C.
fn add_sources(folder: &Path, sources: &mut String) {
    for entry in std::fs::read_dir(folder).expect("it is a folder").map(|entry| entry.expect("readable")) {
        let path = entry.path();
        if path.is_dir() {
            add_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "c") {
            sources.push_str(&std::fs::read_to_string(&path).expect("it is text"));
        }
    }
}

/// Whether a function in Rust with this name has the attribute of a test, or a case in C has this name.
fn is_test(name: &str, sources: &str) -> bool {
    let in_rust = sources.split_once(&format!("fn {name}()")).is_some_and(|(before, _)| {
        let attributes = before.lines().rev().skip_while(|line| line.trim().is_empty());
        attributes.take_while(|line| line.trim().starts_with("#[")).any(|line| line.trim() == "#[test]")
    });
    in_rust || sources.contains(&format!("CASE({name})"))
}

#[test]
fn each_of_the_nineteen_defects_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = String::new();
    for folder in FOLDERS {
        add_sources(&root.join(folder), &mut sources);
    }
    let rows = TABLE.lines().filter_map(|line| {
        let mut columns = line.strip_prefix("| ")?.split(" | ");
        let number: u32 = columns.next()?.parse().ok()?;
        Some((number, columns.last()?))
    });
    let mut numbers = Vec::new();
    for (number, tests) in rows {
        numbers.push(number);
        // Every second part is between quotes.
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "defect {number} has no test");
        for name in names {
            assert!(is_test(name, &sources), "defect {number}: there is no test {name}");
        }
    }
    assert_eq!(numbers, (1..=19).collect::<Vec<u32>>());
}
