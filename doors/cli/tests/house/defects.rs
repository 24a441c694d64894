//! The tables of defects of other software, and of difficult cases, name tests that exist.

use super::{files, root};

/// A table with a test for each defect or case.
struct Table {
    file: &'static str,
    /// What is before the number of a row.
    prefix: &'static str,
    rows: u32,
    /// Where the tests in Rust are.
    folders: &'static [&'static str],
    /// Where the cases in C are.
    cases: Option<&'static str>,
}

const TABLES: [Table; 3] = [
    Table {
        file: "hosts/offload/tests/defects.md",
        prefix: "B",
        rows: 25,
        folders: &["doors/cli/tests/programs", "hosts/offload-guest/src", "path/hw/src", "path/mover/tests/mover"],
        cases: None,
    },
    Table {
        file: "doors/ofi/tests/defects.md",
        prefix: "",
        rows: 19,
        folders: &["doors/ofi/tests", "uses/fabric/tests", "uses/fabric/src", "path/device/src", "path/mover/tests"],
        cases: Some("doors/ofi/tests"),
    },
    Table {
        file: "doors/ofi/tests/cases.md",
        prefix: "",
        rows: 33,
        folders: &["doors/ofi", "doors/mpi/tests", "uses/fabric"],
        cases: Some("doors/ofi/tests"),
    },
];

/// Returns the text of all files below these folders with this extension.
fn texts(folders: &[&str], extension: &str) -> String {
    let root = root();
    let is_meant = |path: &std::path::Path| {
        path.extension().is_some_and(|of| of == extension)
            && folders.iter().any(|folder| path.starts_with(root.join(folder)))
    };
    files().iter().filter(|path| is_meant(path)).map(|path| std::fs::read_to_string(path).expect("text")).collect()
}

/// Whether a function with this name has the attribute of a test, and no reason to be left out of `./test`.
fn is_test(name: &str, rust: &str) -> bool {
    rust.split_once(&format!("fn {name}()")).is_some_and(|(before, _)| {
        let attributes = before.lines().rev().skip_while(|line| line.trim().is_empty());
        let attributes: Vec<&str> = attributes.map(str::trim).take_while(|line| line.starts_with("#[")).collect();
        attributes.contains(&"#[test]") && !attributes.iter().any(|attribute| attribute.starts_with("#[ignore"))
    })
}

#[test]
fn each_row_of_the_tables_has_a_test() {
    for Table { file, prefix, rows: count, folders, cases } in TABLES {
        let rust = texts(folders, "rs");
        let c = cases.map(|folder| texts(&[folder], "c")).unwrap_or_default();
        let table = std::fs::read_to_string(root().join(file)).expect("text");
        let rows = table.lines().filter_map(|line| {
            let mut columns = line.strip_prefix("| ")?.strip_prefix(prefix)?.split(" | ");
            let number: u32 = columns.next()?.parse().ok()?;
            Some((number, columns.last()?))
        });
        let mut numbers = Vec::new();
        for (number, tests) in rows {
            numbers.push(number);
            // Every second part is between quotes.
            let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
            assert!(!names.is_empty(), "{file}: row {prefix}{number} has no test");
            for name in names {
                let exists = is_test(name, &rust) || c.contains(&format!("CASE({name})"));
                assert!(exists, "{file}: row {prefix}{number}: there is no test {name}");
            }
        }
        assert_eq!(numbers, (1..=count).collect::<Vec<u32>>(), "{file}");
    }
}
