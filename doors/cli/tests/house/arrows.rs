//! Dependencies between crates point downwards; the table lists what each crate may use.

use crate::metadata::{Kind, members};
use crate::{files, none, relative, text};

/// A crate, its layer, the crates that it may use, and those that its tests may use in addition.
struct Rule {
    layer: &'static str,
    krate: &'static str,
    may_use: &'static [&'static str],
    tests_may_use: &'static [&'static str],
}

const fn rule(
    layer: &'static str,
    krate: &'static str,
    may_use: &'static [&'static str],
    tests_may_use: &'static [&'static str],
) -> Rule {
    Rule { layer, krate, may_use, tests_may_use }
}

/// The table of all crates. It has rows for planned crates, too, so that these are created in the right folder.
const CRATES: &[Rule] = &[
    rule("base", "abi", &[], &[]),
    rule("base", "os", &[], &["mem"]),
    rule("base", "mem", &["os"], &[]),
    rule("base", "ops", &["abi"], &["os"]),
    rule("base", "metrics", &[], &[]),
    rule("base", "recording", &[], &["os"]),
    rule("base", "interpose", &["abi"], &[]),
    // The path of one descriptor. The mover uses neither hw nor model, and device only for `Mover::open`.
    rule("path", "portal", &["abi"], &[]),
    rule("path", "model", &["portal", "ops", "mem", "os", "abi"], &[]),
    rule("path", "hw", &["portal", "mem", "os", "abi"], &[]),
    rule("path", "device", &["hw", "model", "portal", "mem", "os", "abi"], &[]),
    rule("path", "mover", &["device", "portal", "ops", "metrics", "mem", "os", "abi"], &[]),
    // Traffic on the mover. Two crates use another one of their layer: the switch is built on vhost's ports, and
    // queries prefetch their columns into the cache.
    rule("uses", "cache", &["mover", "metrics", "mem", "os", "abi"], &["device", "portal", "ops"]),
    rule("uses", "query", &["cache", "mem", "os", "abi"], &["mover", "device", "portal", "ops"]),
    rule("uses", "vhost", &["mover", "portal", "metrics", "mem", "os", "abi"], &["device", "ops"]),
    rule("uses", "switch", &["vhost", "mover", "metrics", "mem", "os", "abi"], &["device"]),
    rule("uses", "tier", &["mover", "metrics", "mem", "os", "abi"], &["device"]),
    rule("uses", "nvmf", &["mover", "metrics", "ops", "mem", "os", "abi"], &["device", "portal"]),
    rule("uses", "fabric", &["mover", "portal", "metrics", "mem", "os", "abi"], &["device"]),
    // Numbers and verdicts.
    rule("lab", "conformance", &["portal", "mem", "os", "abi"], &["device", "model"]),
    rule(
        "lab",
        "sim",
        &[
            "cache", "query", "vhost", "tier", "nvmf", "fabric", "mover", "device", "model", "portal", "ops", "mem",
            "os", "abi",
        ],
        &[],
    ),
    // Published results. The simulator must not use them. Of the mover, the defaults of memory calls.
    rule("lab", "claims", &["report", "sim", "mover", "device", "abi"], &[]),
    // What devices would give for some work, by simulation.
    rule("lab", "predict", &["report", "sim", "mover", "device", "recording", "os", "abi"], &[]),
    // Tables, charts and pages. It uses none of the crates whose results it shows; a recording is a file format.
    rule("lab", "report", &["recording", "os"], &[]),
    rule(
        "lab",
        "bench",
        &[
            "report", "claims", "sim", "cache", "query", "vhost", "switch", "tier", "nvmf", "fabric", "mover",
            "device", "hw", "portal", "ops", "mem", "os", "abi",
        ],
        &[],
    ),
    // Readers of counters, in other processes and of hardware.
    rule("lab", "telemetry", &["report", "device", "model", "metrics", "os", "abi"], &[]),
    rule("lab", "doctor", &["report", "hw", "portal", "mem", "os", "abi"], &[]),
    // Run programs and virtual machines of others. `launch` starts programs for the other hosts; a `-wire` crate has
    // what a host and its preloaded library share: layouts, and vdev's queue of an opened file.
    rule("hosts", "launch", &["interpose", "os"], &[]),
    rule("hosts", "vdev", &["launch", "vdev-wire", "model", "device", "portal", "interpose", "mem", "os", "abi"], &[]),
    rule("hosts", "vdev-guest", &["vdev-wire", "model", "device", "interpose", "portal", "mem", "os", "abi"], &[]),
    rule("hosts", "vdev-wire", &["device", "model", "portal", "mem", "abi"], &[]),
    rule("hosts", "switch-run", &["switch", "vhost", "device", "metrics", "mem", "os"], &[]),
    // Guests' memory is mapped as a vhost-user frontend's is.
    rule("hosts", "vfio", &["vhost", "model", "portal", "mem", "os", "abi"], &[]),
    rule("hosts", "nvmf-run", &["launch", "nvmf", "mover", "device", "portal", "mem", "metrics", "os"], &[]),
    rule("hosts", "tier-run", &["launch", "tier-wire", "tier", "device", "os"], &[]),
    rule("hosts", "tier-guest", &["tier-wire", "tier", "mover", "device", "interpose", "mem", "os", "abi"], &[]),
    rule("hosts", "tier-wire", &[], &[]),
    rule("hosts", "offload", &["launch", "offload-wire", "metrics", "device", "os"], &[]),
    rule(
        "hosts",
        "offload-guest",
        &["offload-wire", "mover", "device", "interpose", "metrics", "recording", "mem", "ops", "os"],
        &[],
    ),
    // The defaults of memory calls are the mover's.
    rule("hosts", "offload-wire", &["mover", "metrics", "recording", "os"], &[]),
    rule("hosts", "record", &["launch", "offload-wire", "recording", "ops", "mem", "os"], &[]),
    // Commands and libraries for users. They may use all layers below, but not each other.
    rule("doors", "cli", BELOW_DOORS, &[]),
    rule("doors", "capi", LIBRARIES, &[]),
    // A job of DML is a descriptor already, so it goes to the CPU or a queue without a mover.
    rule("doors", "dml", &["device", "hw", "model", "portal", "ops", "mem", "os", "abi"], &[]),
    rule("doors", "mpi", LIBRARIES, &["launch"]),
    rule("doors", "ofi", LIBRARIES, &["launch"]),
    rule("doors", "python", LIBRARIES, &[]),
];

/// Crates that a library for other languages may use.
const LIBRARIES: &[&str] =
    &["mover", "device", "cache", "vhost", "switch", "tier", "nvmf", "fabric", "portal", "mem", "os", "abi"];

/// The packages of the preloaded libraries, outside of the workspace. They travel as files inside `launch`, whose build
/// script has them as dependencies so that cargo builds them; no code of theirs is linked.
const CARRIED: &[&str] = &["library-vdev", "library-offload", "library-tier", "library-fabric", "library-collectives"];

/// All crates below the doors that the command links; the preloaded libraries are not linked.
const BELOW_DOORS: &[&str] = &[
    "launch",
    "vdev",
    "switch-run",
    "vfio",
    "nvmf-run",
    "tier-run",
    "tier-wire",
    "offload",
    "offload-wire",
    "record",
    "conformance",
    "sim",
    "claims",
    "predict",
    "telemetry",
    "report",
    "bench",
    "doctor",
    "cache",
    "query",
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
    "metrics",
    "recording",
    "ops",
    "mem",
    "os",
    "abi",
];

/// The layers from bottom to top.
const LAYERS: [&str; 6] = ["base", "path", "uses", "lab", "hosts", "doors"];
/// The order within the path layer: each crate may use those before it.
const PATH: [&str; 5] = ["portal", "model", "hw", "device", "mover"];

fn rule_of(krate: &str) -> &'static Rule {
    CRATES.iter().find(|rule| rule.krate == krate).unwrap_or_else(|| panic!("the table has no crate {krate}"))
}

#[test]
fn every_package_is_listed_and_in_the_folder_of_its_layer() {
    let mut findings = Vec::new();
    for (krate, package) in members() {
        if package.name != format!("telpher-{krate}") {
            findings.push(format!("{} is not named telpher-CRATE", package.name));
        }
        match CRATES.iter().find(|rule| rule.krate == krate) {
            None => findings.push(format!("{krate} is not in the table")),
            Some(rule) if package.folder != format!("{}/{krate}", rule.layer) => {
                findings.push(format!("{krate} is in {}, not in {}/{krate}", package.folder, rule.layer));
            }
            Some(_) => {}
        }
    }
    none("crates in the wrong place", &findings);
}

#[test]
fn dependencies_follow_the_arrows() {
    let mut findings = Vec::new();
    for (krate, package) in members() {
        let rule = rule_of(krate);
        for (name, kind) in &package.dependencies {
            let Some(other) = name.strip_prefix("telpher-") else { continue };
            // A package's tests may enable its own features.
            let allowed = rule.may_use.contains(&other)
                || *kind == Kind::Build && krate == "launch" && CARRIED.contains(&other)
                || *kind == Kind::Dev && (other == krate || rule.tests_may_use.contains(&other));
            if !allowed {
                findings.push(format!("{krate} -> {other} ({kind:?})"));
            }
        }
    }
    none("arrows that point the wrong way", &findings);
}

/// The table itself must obey the rules between layers.
#[test]
fn the_table_allows_no_upward_dependency() {
    let height = |layer: &str| LAYERS.iter().position(|f| *f == layer).expect("one of the layers");
    let mut findings = Vec::new();
    for rule in CRATES {
        for other in rule.may_use {
            let below = rule_of(other);
            let fine = match (rule.layer, below.layer) {
                ("base", "base") => {
                    [("ops", "abi"), ("mem", "os"), ("interpose", "abi")].contains(&(rule.krate, *other))
                }
                ("path", "path") => {
                    let step = |krate| PATH.iter().position(|r| *r == krate).expect("a crate of the path");
                    step(*other) < step(rule.krate) && !(rule.krate == "mover" && ["hw", "model"].contains(other))
                }
                ("hosts", "hosts") => *other == "launch" || other.ends_with("-wire"),
                // Hosts need no results of the lab; the bench measures hosts by starting programs.
                ("hosts", "lab") => false,
                ("lab", "lab") => {
                    *other == "report"
                        || [("claims", "sim"), ("predict", "sim"), ("bench", "sim"), ("bench", "claims")]
                            .contains(&(rule.krate, *other))
                }
                ("uses", "uses") => [("switch", "vhost"), ("query", "cache")].contains(&(rule.krate, *other)),
                ("uses", _) if ["hw", "model"].contains(other) => false,
                (from, to) => height(from) > height(to),
            };
            if !fine {
                findings.push(format!("{} -> {other}", rule.krate));
            }
        }
    }
    none("rows that contradict the layers", &findings);
}

/// `Mover::open` is for programs. In the project, only doors and hosts choose a device, so that no crate of `uses`
/// links hw and model because of the mover.
#[test]
fn the_project_uses_the_mover_without_the_device() {
    let mut findings = Vec::new();
    let mut seen = 0;
    for path in files().iter().filter(|path| path.ends_with("Cargo.toml")) {
        let (name, text) = (relative(path), text(path).expect("UTF-8"));
        if name == "fuzz/Cargo.toml" {
            continue;
        }
        for line in text.lines().filter(|line| line.starts_with("telpher-mover = ")) {
            seen += 1;
            let inherits = line == "telpher-mover = { workspace = true }";
            let defines = name == "Cargo.toml" && line.contains("default-features = false");
            if !inherits && !defines {
                findings.push(format!("{name}: {line}"));
            }
        }
    }
    assert!(seen > 5, "only {seen} manifests name the mover");
    none("manifests that may enable the mover's feature `device`", &findings);
}
