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
    // words · bytes · meaning · hooks
    rule("base", "abi", &[], &[]),
    rule("base", "mem", &[], &[]),
    rule("base", "ops", &["abi"], &[]),
    rule("base", "interpose", &[], &[]),
    // the way of one request; the mover never sees hw or model
    rule("path", "portal", &["abi"], &[]),
    rule("path", "model", &["portal", "ops", "mem", "abi"], &[]),
    rule("path", "hw", &["portal", "mem", "abi"], &[]),
    rule("path", "device", &["hw", "model", "portal", "mem", "abi"], &[]),
    rule("path", "mover", &["portal", "ops", "mem", "abi"], &["device"]),
    // who rides on it: never on each other, never on hw or model
    rule("uses", "cache", &["mover", "mem", "abi"], &["device", "portal", "ops"]),
    rule("uses", "vhost", &["mover", "portal", "mem", "abi"], &["device", "ops"]),
    rule("uses", "tier", &["mover", "mem", "abi"], &["device"]),
    rule("uses", "digest", &["mover", "mem", "abi"], &["device"]),
    rule("uses", "fabric", &["mover", "mem", "abi"], &["device"]),
    // where it is proved
    rule("lab", "conformance", &["portal", "mem", "abi"], &["device", "model"]),
    rule(
        "lab",
        "sim",
        &["cache", "vhost", "tier", "digest", "fabric", "mover", "device", "model", "portal", "ops", "mem", "abi"],
        &[],
    ),
    // what was published, beside the simulator that must never see it
    rule("lab", "claims", &["sim", "device", "abi"], &[]),
    // what outsiders touch: on all below, never on each other
    rule("doors", "cli", BELOW_DOORS, &[]),
    rule(
        "doors",
        "capi",
        &["mover", "device", "cache", "vhost", "tier", "digest", "fabric", "portal", "mem", "abi"],
        &[],
    ),
    rule(
        "doors",
        "python",
        &["mover", "device", "cache", "vhost", "tier", "digest", "fabric", "portal", "mem", "abi"],
        &[],
    ),
    rule("doors", "preload", &["mover", "device", "interpose", "mem", "abi"], &[]),
    // the virtual device: its host, the part inside a program, and the words between the two (decision 0003)
    rule("doors", "vdev", &["vdev-wire", "model", "device", "portal", "interpose", "mem", "abi"], &[]),
    rule("doors", "vdev-guest", &["vdev-wire", "model", "device", "interpose", "portal", "mem", "abi"], &[]),
    rule("doors", "vdev-wire", &["device", "abi"], &[]),
    // the same two for programs whose memory is managed; their host is the command
    rule("doors", "tier-guest", &["tier-wire", "tier", "mover", "device", "interpose", "mem", "abi"], &[]),
    rule("doors", "tier-wire", &[], &[]),
];

/// All rooms below the doors, the one door behind which the command finds a subcommand's whole work, and the words of another.
const BELOW_DOORS: &[&str] = &[
    "vdev",
    "tier-wire",
    "conformance",
    "sim",
    "claims",
    "cache",
    "vhost",
    "tier",
    "digest",
    "fabric",
    "mover",
    "device",
    "hw",
    "model",
    "portal",
    "interpose",
    "ops",
    "mem",
    "abi",
];

/// The floors from the ground up.
const FLOORS: [&str; 5] = ["base", "path", "uses", "lab", "doors"];
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
    let height = |floor: &str| FLOORS.iter().position(|f| *f == floor).expect("one of the five floors");
    let mut findings = Vec::new();
    for rule in HOUSE {
        for other in rule.may_use {
            let below = rule_of(other);
            let fine = match (rule.floor, below.floor) {
                ("base", "base") => (rule.room, *other) == ("ops", "abi"),
                ("path", "path") => {
                    let step = |room| PATH.iter().position(|r| *r == room).expect("a room of the path");
                    step(*other) < step(rule.room) && !(rule.room == "mover" && ["hw", "model"].contains(other))
                }
                ("doors", "doors") => {
                    (rule.room, *other) == ("cli", "vdev") || ["vdev-wire", "tier-wire"].contains(other)
                }
                ("lab", "lab") => (rule.room, *other) == ("claims", "sim"),
                ("uses", "uses") => false,
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
