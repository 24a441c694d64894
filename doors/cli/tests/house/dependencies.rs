//! Third-party crates: each is documented, all have allowed licences, and versions are stated in one place.

use crate::licence::{ALLOWED, is_allowed};
use crate::metadata::{self, packages};
use crate::{none, root};
use std::collections::BTreeSet;

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
