//! Third-party crates: each is documented, all have allowed licences, and versions are stated in one place.

use crate::licence::{ALLOWED, is_allowed};
use crate::metadata::{self, packages};
use crate::{none, root};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Returns the names of the list items `- **name**: sentence` of docs/dependencies.md.
fn documented() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("docs/dependencies.md")).expect("docs/dependencies.md");
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let Some((name, sentence)) = line.strip_prefix("- **").and_then(|rest| rest.split_once("**: ")) else {
            continue;
        };
        assert!(sentence.len() > 30, "{name} needs a sentence, not {sentence:?}");
        assert!(names.insert(name.to_owned()), "{name} stands there twice");
    }
    names
}

/// Returns the third-party crates that the workspace and the fuzz targets declare.
fn direct() -> BTreeSet<String> {
    let mut declared: Vec<_> = packages().iter().filter(|p| p.member).flat_map(|p| &p.dependencies).cloned().collect();
    let fuzz = root().join("fuzz/Cargo.toml");
    if fuzz.exists() {
        let targets = metadata::read(&fuzz, &["--no-deps"]);
        declared.extend(targets.iter().flat_map(|package| &package.dependencies).cloned());
    }
    declared.into_iter().map(|(name, _)| name).filter(|name| !name.starts_with("telpher-")).collect()
}

#[test]
fn exactly_the_direct_dependencies_are_documented() {
    let (documented, direct) = (documented(), direct());
    let without: Vec<_> = direct.difference(&documented).cloned().collect();
    none("without a sentence in docs/dependencies.md", &without);
    let gone: Vec<_> = documented.difference(&direct).cloned().collect();
    none("in docs/dependencies.md, but not used", &gone);
}

#[test]
fn licences_of_all_dependencies_are_free_of_copyleft() {
    let mut findings = Vec::new();
    for package in packages() {
        let licence = package.licence.as_deref().unwrap_or("none given");
        if !is_allowed(licence) {
            findings.push(format!("{} {}: {licence}", package.name, package.version));
        }
    }
    none("licences not on the list", &findings);
}

#[test]
fn deny_toml_allows_the_same_licences() {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let (_, list) = text.split_once("allow = [").expect("deny.toml has a list of licences");
    let (list, _) = list.split_once(']').expect("the list ends");
    let theirs: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    assert_eq!(theirs, ALLOWED.iter().copied().collect());
}

#[test]
fn versions_are_stated_once_in_the_workspace() {
    let mut findings = Vec::new();
    for package in packages().iter().filter(|package| package.member) {
        let manifest = format!("{}/Cargo.toml", package.folder);
        let text = std::fs::read_to_string(root().join(&manifest)).expect("a manifest");
        for key in ["version", "edition", "rust-version", "license", "repository"] {
            if !text.lines().any(|line| line == format!("{key}.workspace = true")) {
                findings.push(format!("{manifest}: {key} is not the workspace's"));
            }
        }
        if !text.contains("[lints]\nworkspace = true\n") {
            findings.push(format!("{manifest}: lints are not the workspace's"));
        }
        let mut in_dependencies = false;
        for line in text.lines() {
            if line.starts_with('[') {
                in_dependencies = line.ends_with("dependencies]");
                continue;
            }
            // A crate's tests may enable its own features, or need a crate that depends on it, without a version.
            let shared = line.contains("workspace = true") || line.contains("path = \".") && !line.contains("version");
            if in_dependencies && line.contains('=') && !line.starts_with('#') && !shared {
                findings.push(format!("{manifest}: `{line}` has a version of its own"));
            }
        }
    }
    none("stated twice", &findings);
}

/// Returns the packages that `cargo tree` lists, and for each the sets of features with which it is compiled.
fn compiled(arguments: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--prefix", "none", "--format", "{p}|{f}"])
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // `name v1.2.3 (folder)|features (*)`
        let Some((package, features)) = line.split_once('|') else { continue };
        let name = package.split(' ').next().expect("a name").to_owned();
        found.entry(name).or_default().insert(features.trim_end_matches(" (*)").to_owned());
    }
    found
}

/// The crates of which the preloaded libraries consist.
const PRELOADED: [&str; 5] = ["vdev-guest", "tier-guest", "offload-guest", "mpi", "ofi"];

/// What the release build of the command compiles.
fn command() -> BTreeMap<String, BTreeSet<String>> {
    compiled(&["-p", "telpher-cli", "-e", "normal,build"])
}

/// A release build compiles a crate once for the command and for the preloaded libraries, which are dependencies of a
/// build script, if both want the same features. Seen to fail without the features that `hosts/launch/Cargo.toml`
/// names.
#[test]
fn what_preloaded_libraries_share_with_the_command_is_compiled_once() {
    let packages = PRELOADED.map(|name| format!("telpher-{name}"));
    let mut arguments = vec!["-e", "normal,no-proc-macro"];
    arguments.extend(packages.iter().flat_map(|name| ["-p", name.as_str()]));
    let libraries = compiled(&arguments);
    let command = command();
    let findings: Vec<_> = libraries
        .keys()
        .filter(|name| command.get(*name).is_none_or(|features| features.len() != 1))
        .map(|name| format!("{name}: {:?}", command.get(name)))
        .collect();
    none("compiled twice by a release build, or not at all", &findings);
    assert!(libraries.len() > 30, "{} crates", libraries.len());
}

/// The preloaded libraries are as optimised in tests as in a release: those that replace memcpy would call themselves
/// otherwise. Cargo prefers the settings of a crate, and those of all third-party crates, to those of build scripts.
#[test]
fn preloaded_libraries_are_optimised_in_tests() {
    let packages = PRELOADED.map(|name| format!("telpher-{name}"));
    let mut arguments = vec!["-e", "normal,no-proc-macro"];
    arguments.extend(packages.iter().flat_map(|name| ["-p", name.as_str()]));
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("the workspace's manifest");
    let level = |name: &str| {
        let (_, settings) = manifest.split_once(&format!("[profile.dev.package.{name}]\n"))?;
        settings.lines().next()?.strip_prefix("opt-level = ")
    };
    let findings: Vec<_> = compiled(&arguments)
        .into_keys()
        .filter(|name| if name.starts_with("telpher-") { level(name) == Some("0") } else { level(name) != Some("3") })
        .collect();
    none("in a preloaded library, and not optimised in tests", &findings);
}

/// Procedural macros and build scripts do little, and are compiled without optimisation: a name for each crate that
/// only they use, because the preloaded libraries are dependencies of a build script, too.
#[test]
fn a_release_build_optimises_no_procedural_macro() {
    let linked = compiled(&["-p", "telpher-cli", "-e", "normal,no-proc-macro"]);
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("the workspace's manifest");
    let (_, settings) = manifest.split_once("[profile.release.package]\n").expect("settings of packages");
    let (settings, _) = settings.split_once("\n[").expect("the end of the settings");
    let command = command();
    let only_at_build = command.keys().filter(|name| !linked.contains_key(*name) && !name.starts_with("telpher-"));
    let findings: Vec<_> = only_at_build
        .filter(|name| !settings.lines().any(|line| line == format!("{name} = {{ opt-level = 0 }}")))
        .cloned()
        .collect();
    none("compiled with optimisation and not linked", &findings);
}
