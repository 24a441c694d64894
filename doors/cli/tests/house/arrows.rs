//! Arrows point down: which room may depend on which.

use crate::metadata::{Kind, members};
use crate::none;

/// A room, its floor, what it may depend on, and what its tests may use besides.
struct Rule {
    floor: &'static str,
    room: &'static str,
    may_use: &'static [&'static str],
    tests_may_use: &'static [&'static str],
}

const fn rule(
    floor: &'static str,
    room: &'static str,
    may_use: &'static [&'static str],
    tests_may_use: &'static [&'static str],
) -> Rule {
    Rule { floor, room, may_use, tests_may_use }
}

/// The table of the house. Rows for rooms that are not built yet stand here so that they are built in the right place.
const HOUSE: &[Rule] = &[
    rule("base", "abi", &[], &[]),
    rule("base", "os", &[], &["mem"]),
    rule("base", "mem", &["os"], &[]),
    rule("base", "ops", &["abi"], &[]),
    rule("base", "interpose", &[], &[]),
    // The way of one descriptor. The mover never sees hw or model.
    rule("path", "portal", &["abi"], &[]),
    rule("path", "model", &["portal", "ops", "mem", "os", "abi"], &[]),
    rule("path", "hw", &["portal", "mem", "os", "abi"], &[]),
    rule("path", "device", &["hw", "model", "portal", "mem", "os", "abi"], &[]),
    rule("path", "mover", &["portal", "ops", "mem", "os", "abi"], &["device"]),
    // Traffic on the mover. Only the switch uses another crate of its layer: it is built on vhost's ports.
    rule("uses", "cache", &["mover", "mem", "os", "abi"], &["device", "portal", "ops"]),
    rule("uses", "vhost", &["mover", "portal", "mem", "os", "abi"], &["device", "ops"]),
    rule("uses", "switch", &["vhost", "mover", "mem", "os", "abi"], &["device"]),
    rule("uses", "tier", &["mover", "mem", "os", "abi"], &["device"]),
    rule("uses", "nvmf", &["mover", "mem", "os", "abi"], &["device"]),
    rule("uses", "fabric", &["mover", "mem", "os", "abi"], &["device"]),
    // Numbers and verdicts.
    rule("lab", "conformance", &["portal", "mem", "os", "abi"], &["device", "model"]),
    rule(
        "lab",
        "sim",
        &["cache", "vhost", "tier", "nvmf", "fabric", "mover", "device", "model", "portal", "ops", "mem", "os", "abi"],
        &[],
    ),
    // What was published, beside the simulator, which must never see it.
    rule("lab", "claims", &["sim", "device", "abi"], &[]),
    // Tables, charts and pages: knows none of the crates whose results it shows.
    rule("lab", "report", &["os"], &[]),
    rule(
        "lab",
        "bench",
        &[
            "report", "claims", "sim", "cache", "vhost", "switch", "tier", "nvmf", "fabric", "mover", "device", "hw",
            "portal", "ops", "mem", "os", "abi",
        ],
        &[],
    ),
    rule("lab", "doctor", &["report", "hw", "portal", "mem", "os", "abi"], &[]),
    // Programs and virtual machines that are not ours. `launch` starts programs for the others; a `-wire` crate has the layouts that a host and
    // its preloaded library share.
    rule("hosts", "launch", &["interpose", "os"], &[]),
    rule("hosts", "vdev", &["launch", "vdev-wire", "model", "device", "portal", "interpose", "mem", "os", "abi"], &[]),
    rule("hosts", "vdev-guest", &["vdev-wire", "model", "device", "interpose", "portal", "mem", "os", "abi"], &[]),
    rule("hosts", "vdev-wire", &["device", "abi"], &[]),
    rule("hosts", "tier-run", &["launch", "tier-wire", "tier", "device", "os"], &[]),
    rule("hosts", "tier-guest", &["tier-wire", "tier", "mover", "device", "interpose", "mem", "os", "abi"], &[]),
    rule("hosts", "tier-wire", &[], &[]),
    // What users type or link: on all below, never on each other.
    rule("doors", "cli", BELOW_DOORS, &[]),
    rule("doors", "capi", LIBRARIES, &[]),
    rule("doors", "python", LIBRARIES, &[]),
];

/// What a library for other languages is built on.
const LIBRARIES: &[&str] =
    &["mover", "device", "cache", "vhost", "switch", "tier", "nvmf", "fabric", "portal", "mem", "os", "abi"];

/// All crates below the doors that are linked; the preloaded libraries are not.
const BELOW_DOORS: &[&str] = &[
    "launch",
    "vdev",
    "tier-run",
    "tier-wire",
    "conformance",
    "sim",
    "claims",
    "report",
    "bench",
    "doctor",
    "cache",
    "vhost",
    "switch",
    "tier",
    "nvmf",
    "fabric",
    "mover",
    "device",
    "hw",
    "model",
    "portal",
    "interpose",
    "ops",
    "mem",
    "os",
    "abi",
];

/// The layers from the ground up.
const FLOORS: [&str; 6] = ["base", "path", "uses", "lab", "hosts", "doors"];
/// The order of the path: each may use those before it.
const PATH: [&str; 5] = ["portal", "model", "hw", "device", "mover"];

fn rule_of(room: &str) -> &'static Rule {
    HOUSE.iter().find(|rule| rule.room == room).unwrap_or_else(|| panic!("the table of the house has no room {room}"))
}

#[test]
fn every_package_is_a_room_on_its_floor() {
    let mut findings = Vec::new();
    for (room, package) in members() {
        if package.name != format!("telpher-{room}") {
            findings.push(format!("{} is not named telpher-ROOM", package.name));
        }
        match HOUSE.iter().find(|rule| rule.room == room) {
            None => findings.push(format!("{room} is not in the table of the house")),
            Some(rule) if package.folder != format!("{}/{room}", rule.floor) => {
                findings.push(format!("{room} lies in {}, not in {}/{room}", package.folder, rule.floor));
            }
            Some(_) => {}
        }
    }
    none("rooms in the wrong place", &findings);
}

#[test]
fn dependencies_follow_the_arrows() {
    let mut findings = Vec::new();
    for (room, package) in members() {
        let rule = rule_of(room);
        for (name, kind) in &package.dependencies {
            let Some(other) = name.strip_prefix("telpher-") else { continue };
            // A package's tests may switch on its own features.
            let allowed = rule.may_use.contains(&other)
                || *kind == Kind::Dev && (other == room || rule.tests_may_use.contains(&other));
            if !allowed {
                findings.push(format!("{room} -> {other} ({kind:?})"));
            }
        }
    }
    none("arrows that point the wrong way", &findings);
}

/// The table itself keeps the sentences it was made from.
#[test]
fn the_table_lets_no_arrow_point_up() {
    let height = |floor: &str| FLOORS.iter().position(|f| *f == floor).expect("one of the layers");
    let mut findings = Vec::new();
    for rule in HOUSE {
        for other in rule.may_use {
            let below = rule_of(other);
            let fine = match (rule.floor, below.floor) {
                ("base", "base") => [("ops", "abi"), ("mem", "os")].contains(&(rule.room, *other)),
                ("path", "path") => {
                    let step = |room| PATH.iter().position(|r| *r == room).expect("a room of the path");
                    step(*other) < step(rule.room) && !(rule.room == "mover" && ["hw", "model"].contains(other))
                }
                ("hosts", "hosts") => *other == "launch" || other.ends_with("-wire"),
                // A bench measures hosts by starting programs, and hosts need no numbers.
                ("hosts", "lab") => false,
                ("lab", "lab") => {
                    *other == "report"
                        || [("claims", "sim"), ("bench", "sim"), ("bench", "claims")].contains(&(rule.room, *other))
                }
                ("uses", "uses") => (rule.room, *other) == ("switch", "vhost"),
                ("uses", _) if ["hw", "model"].contains(other) => false,
                (from, to) => height(from) > height(to),
            };
            if !fine {
                findings.push(format!("{} -> {other}", rule.room));
            }
        }
    }
    none("rows that contradict the floors", &findings);
}
