//! The parts of `cargo metadata` that the rules need.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Kind of a dependency.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// For building and running.
    Normal,
    /// For tests only.
    Dev,
    /// For the build script.
    Build,
}

/// A package of the workspace or a third-party one.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: Option<String>,
    pub(crate) description: Option<String>,
    /// Folder relative to the root, for members.
    pub(crate) folder: String,
    /// Declared dependencies.
    pub(crate) dependencies: Vec<(String, Kind)>,
    /// True for a member of the workspace.
    pub(crate) member: bool,
}

impl Package {
    /// Returns the crate's name without `telpher-`.
    pub(crate) fn room(&self) -> &str {
        self.name.strip_prefix("telpher-").unwrap_or(&self.name)
    }
}

/// Returns all packages of the workspace and its lock file, for all systems.
pub(crate) fn packages() -> &'static [Package] {
    static PACKAGES: OnceLock<Vec<Package>> = OnceLock::new();
    PACKAGES.get_or_init(|| read(&crate::root().join("Cargo.toml"), &[]))
}

/// Returns the members of the workspace by their names without `telpher-`.
pub(crate) fn members() -> BTreeMap<&'static str, &'static Package> {
    packages().iter().filter(|p| p.member).map(|p| (p.room(), p)).collect()
}

/// Returns the packages that a manifest leads to.
pub(crate) fn read(manifest: &Path, options: &[&str]) -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .args(options)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let members: Vec<&Value> = array(&value["workspace_members"]).collect();
    array(&value["packages"]).map(|package| parse(package, &members)).collect()
}

fn parse(package: &Value, members: &[&Value]) -> Package {
    let string = |key: &str| package[key].as_str().map(str::to_owned);
    let manifest = string("manifest_path").expect("every package has a manifest");
    let folder = Path::new(&manifest).parent().expect("a manifest lies in a folder");
    let dependencies = array(&package["dependencies"]).map(|dependency| {
        let kind = match dependency["kind"].as_str() {
            None => Kind::Normal,
            Some("dev") => Kind::Dev,
            Some("build") => Kind::Build,
            Some(other) => panic!("cargo has a new kind of dependency: {other}"),
        };
        (dependency["name"].as_str().expect("a name").to_owned(), kind)
    });
    Package {
        name: string("name").expect("a name"),
        version: string("version").expect("a version"),
        licence: string("license"),
        description: string("description"),
        folder: folder.strip_prefix(crate::root()).unwrap_or(folder).to_string_lossy().into_owned(),
        dependencies: dependencies.collect(),
        member: members.contains(&&package["id"]),
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
