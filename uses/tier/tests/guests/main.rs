//! Memory of three kinds for real: this crate's tests once more, in QEMU's machines of three NUMA nodes, of which one is as HBM is, one as DDR and
//! one as CXL, on a kernel that moves pages for us and on one that does it itself.
//!
//! This program is its own guest: it puts itself into the machine, where it runs the tests below [`inside`], and reads on the serial line what
//! became of them. None may be missing, and none may skip that has no reason to on that kernel. `ci/guests.sh` runs them.
#![allow(clippy::duplicate_mod, reason = "each of the tests brings along what they share, as it does by itself")]

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

/// The program with the crate's unit tests, which cargo has built: `ci/guests.sh` names it.
const UNITS: &str = "TELPHER_TIER_UNIT_TESTS";

/// A guest with the kernel of a folder; none, and said, where it cannot be had.
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

/// One whose kernel has `UFFDIO_MOVE`.
fn new_guest(test: &str) -> Option<Guest> {
    let guest = guest(test, "newest")?;
    assert!(guest.kernel.is_at_least((6, 8)), "ci/install.sh has downloaded Linux {}", guest.kernel.version);
    Some(guest)
}

/// One whose kernel has not.
fn old_guest(test: &str) -> Option<Guest> {
    let guest = guest(test, "")?;
    if guest.kernel.is_at_least((6, 8)) {
        skip::skip(test, &format!("this system has no kernel before 6.8, but {}", guest.kernel.version));
        return None;
    }
    Some(guest)
}

/// The names of the tests that a program has by these arguments.
fn listed(program: &Path, arguments: &[&str]) -> usize {
    let said = Command::new(program).args(arguments).arg("--list").output().expect("a program of cargo's").stdout;
    String::from_utf8_lossy(&said).lines().filter(|line| line.ends_with(": test")).count()
}

/// All tests of a program by these arguments pass in the guest, and no others skip than these.
fn all_pass(guest: &Guest, program: &Path, arguments: &[&str], may_skip: &[&str]) {
    let outcome: Outcome = guest.run(program, arguments);
    assert_eq!(outcome.kernel, guest.kernel.version);
    // Nanoseconds, as HMAT says them; nodes without processors, as the guest sees them.
    assert_eq!(outcome.latencies, machine::latencies(), "{}", outcome.said);
    let mut skipped = outcome.skipped.clone();
    skipped.retain(|name| !may_skip.contains(&name.as_str()));
    assert!(skipped.is_empty(), "{skipped:?} have skipped:\n{}", outcome.said);
    assert_eq!((outcome.passed, outcome.failed), (listed(program, arguments), 0), "{}", outcome.said);
    let (kernel, passed, skipped, seconds) = (outcome.kernel, outcome.passed, outcome.skipped.len(), outcome.seconds);
    let line =
        format!("Linux {kernel}, three nodes: {passed} tests passed, {skipped} of which skipped; {seconds:.0} s\n");
    // Past libtest's capture. Nothing can be done if standard error is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("a path")
}

#[test]
fn three_nodes_have_their_tiers_pages_by_userfaultfd() {
    let Some(guest) = new_guest("three_nodes_have_their_tiers_pages_by_userfaultfd") else { return };
    all_pass(&guest, &this_program(), &["inside::"], &[]);
}

#[test]
fn three_nodes_have_their_tiers_pages_by_the_kernel_where_it_is_older() {
    let Some(guest) = old_guest("three_nodes_have_their_tiers_pages_by_the_kernel_where_it_is_older") else { return };
    all_pass(&guest, &this_program(), &["inside::nodes::", "inside::shared::"], &[]);
}

#[test]
#[ignore = "a minute on emulated processors: `./soak` runs it"]
fn the_crates_own_tests_pass_on_its_kernel_too() {
    let test = "the_crates_own_tests_pass_on_its_kernel_too";
    let Some(units) = std::env::var_os(UNITS) else {
        return skip::skip(test, "where their program is, ci/guests.sh says");
    };
    let Some(guest) = new_guest(test) else { return };
    all_pass(&guest, Path::new(&units), &[], &[]);
}

#[test]
fn every_file_of_tests_is_inside() {
    let here = include_str!("inside.rs");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for entry in std::fs::read_dir(folder).expect("a folder of ours") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        // Models run nowhere else.
        let is_one = name.ends_with(".rs") && !name.starts_with("loom_");
        assert!(!is_one || here.contains(&format!("#[path = \"../{name}\"]")), "{name} is not inside");
    }
}
