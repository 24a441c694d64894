//! Runs this crate's tests on three real kinds of memory: in QEMU machines with three NUMA nodes, one like HBM, one
//! like DDR and one like CXL, with a kernel that has `UFFDIO_MOVE` and one that has only `move_pages`.
//!
//! This program is its own guest: it puts itself into the machine, runs the tests below [`inside`] there, and reads the
//! results from the serial line. No test may be missing, and none may skip without a reason on that kernel.
//! `ci/guests.sh` runs them.
#![allow(clippy::duplicate_mod, reason = "each test file includes the shared helpers itself")]

#[path = "../../../../ci/guest.rs"]
mod debian;
mod inside;
mod machine;
mod outcome;
#[path = "../../../../ci/skip.rs"]
mod skip;

use debian::Kernel;
use machine::{Guest, Room, packages};
use outcome::Outcome;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program with the crate's unit tests, built by cargo: `ci/guests.sh` sets it.
const UNITS: &str = "TELPHER_TIER_UNIT_TESTS";

/// Creates a guest with the kernel of a folder; reports a skip and returns none where that is not possible.
fn guest(test: &str, folder: &str) -> Option<Guest> {
    let room = Room::take();
    let kernel = machine::missing()
        .map_or_else(|| Kernel::of_package(&packages(folder), &room.file("package"), &machine::MODULES), Err);
    match kernel {
        Ok(kernel) => Some(Guest { kernel, room }),
        Err(why) => {
            skip::skip(test, &why);
            None
        }
    }
}

/// Creates a guest whose kernel has `UFFDIO_MOVE`.
fn new_guest(test: &str) -> Option<Guest> {
    let guest = guest(test, "newest")?;
    assert!(guest.kernel.is_at_least((6, 8)), "ci/install.sh has downloaded Linux {}", guest.kernel.version);
    Some(guest)
}

/// Creates a guest whose kernel lacks `UFFDIO_MOVE`.
fn old_guest(test: &str) -> Option<Guest> {
    let guest = guest(test, "")?;
    if guest.kernel.is_at_least((6, 8)) {
        skip::skip(test, &format!("this system has no kernel before 6.8, but {}", guest.kernel.version));
        return None;
    }
    Some(guest)
}

/// Returns the number of tests that a program has with these arguments.
fn listed(program: &Path, arguments: &[&str]) -> usize {
    let stdout = Command::new(program).args(arguments).arg("--list").output().expect("cargo built the program").stdout;
    String::from_utf8_lossy(&stdout).lines().filter(|line| line.ends_with(": test")).count()
}

/// Asserts that all tests of a program pass in the guest with these arguments, and that only the tests in `may_skip`
/// skip.
fn all_pass(guest: &Guest, program: &Path, arguments: &[&str], may_skip: &[&str]) {
    let outcome: Outcome = guest.run(program, arguments);
    assert_eq!(outcome.kernel, guest.kernel.version);
    // Nanoseconds, from HMAT; nodes without processors, as the guest sees them.
    assert_eq!(outcome.latencies, machine::latencies(), "{}", outcome.output);
    let mut skipped = outcome.skipped.clone();
    skipped.retain(|name| !may_skip.contains(&name.as_str()));
    assert!(skipped.is_empty(), "{skipped:?} have skipped:\n{}", outcome.output);
    assert_eq!((outcome.passed, outcome.failed), (listed(program, arguments), 0), "{}", outcome.output);
    let (kernel, passed, skipped, seconds) = (outcome.kernel, outcome.passed, outcome.skipped.len(), outcome.seconds);
    let line =
        format!("Linux {kernel}, three nodes: {passed} tests passed, {skipped} of which skipped; {seconds:.0} s\n");
    // Bypasses libtest's capture. If standard error is closed, the line is lost.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("a path")
}

#[test]
fn tests_pass_on_three_nodes_with_userfaultfd() {
    let Some(guest) = new_guest("tests_pass_on_three_nodes_with_userfaultfd") else { return };
    all_pass(&guest, &this_program(), &["inside::"], &[]);
}

#[test]
fn tests_pass_on_three_nodes_with_move_pages() {
    let Some(guest) = old_guest("tests_pass_on_three_nodes_with_move_pages") else { return };
    all_pass(&guest, &this_program(), &["inside::nodes::", "inside::shared::"], &[]);
}

#[test]
#[ignore = "a minute on emulated processors: `./soak` runs it"]
fn unit_tests_pass_on_the_guests_kernel() {
    let test = "unit_tests_pass_on_the_guests_kernel";
    let Some(units) = std::env::var_os(UNITS) else {
        return skip::skip(test, "run it with ci/guests.sh, which sets the path of the unit test program");
    };
    let Some(guest) = new_guest(test) else { return };
    all_pass(&guest, Path::new(&units), &[], &[]);
}

#[test]
fn every_test_file_is_in_the_guest() {
    let here = include_str!("inside.rs");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for entry in std::fs::read_dir(folder).expect("the folder exists") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        // Loom models do not run in guests.
        let is_one = name.ends_with(".rs") && !name.starts_with("loom_");
        assert!(!is_one || here.contains(&format!("#[path = \"../{name}\"]")), "{name} is not in inside.rs");
    }
}
