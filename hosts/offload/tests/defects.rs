//! `defects.md` names a test for each known defect of Intel's DTO. They exist.

use std::path::Path;

/// The table.
const TABLE: &str = include_str!("defects.md");

/// Where the tests are.
const FOLDERS: [&str; 4] =
    ["doors/cli/tests/programs", "hosts/offload-guest/src", "path/hw/src", "path/mover/tests/mover"];

/// Adds the text of all files with tests.
fn add_sources(folder: &Path, sources: &mut String) {
    for entry in std::fs::read_dir(folder).expect("it is a folder").map(|entry| entry.expect("readable")) {
        let path = entry.path();
        if path.is_dir() {
            add_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&std::fs::read_to_string(&path).expect("it is text"));
        }
    }
}

/// Whether a function with this name has the attribute of a test, and no reason to be left out of `./test`.
fn is_test(name: &str, sources: &str) -> bool {
    sources.split_once(&format!("fn {name}()")).is_some_and(|(before, _)| {
        let attributes = before.lines().rev().skip_while(|line| line.trim().is_empty());
        let attributes: Vec<&str> = attributes.map(str::trim).take_while(|line| line.starts_with("#[")).collect();
        attributes.contains(&"#[test]") && !attributes.iter().any(|attribute| attribute.starts_with("#[ignore"))
    })
}

#[test]
fn each_of_the_25_defects_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = String::new();
    for folder in FOLDERS {
        add_sources(&root.join(folder), &mut sources);
    }
    let rows = TABLE.lines().filter_map(|line| {
        let mut columns = line.strip_prefix("| B")?.split(" | ");
        let number: u32 = columns.next()?.parse().ok()?;
        Some((number, columns.last()?))
    });
    let mut numbers = Vec::new();
    for (number, tests) in rows {
        numbers.push(number);
        // Every second part is between quotes.
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "defect B{number} has no test");
        for name in names {
            assert!(is_test(name, &sources), "defect B{number}: there is no test {name}");
        }
    }
    assert_eq!(numbers, (1..=25).collect::<Vec<u32>>());
}
