//! A bundle that tests can change.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// One change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// A file has this content and a line end.
    Text(&'static str, &'static str),
    /// A path is missing, also in the folder above it.
    Gone(&'static str),
    /// A folder has these names.
    Names(&'static str, &'static [&'static str]),
    /// A folder has one more name.
    With(&'static str, &'static str),
    /// A folder lacks a name.
    Without(&'static str, &'static str),
    /// A link has another target.
    Link(&'static str, &'static str),
    /// A queue's node answers this error number to `stat`, `open` or `map`.
    Node(&'static str, &'static str, i32),
    /// A queue's node is not a device.
    NoDevice(&'static str),
    /// The user names this process.
    Program(u32),
}

/// A bundle.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    bundle: Value,
    changed: BTreeSet<String>,
}

impl Tree {
    pub(crate) fn healthy() -> Self {
        let bundle = serde_json::from_str(include_str!("healthy.json")).expect("the fixture is JSON");
        Tree { bundle, changed: BTreeSet::new() }
    }

    pub(crate) fn empty() -> Self {
        Tree { bundle: json!({"telpher_bundle": 1}), changed: BTreeSet::new() }
    }

    pub(crate) fn text(&self) -> String {
        self.bundle.to_string()
    }

    fn files(&mut self) -> &mut Map<String, Value> {
        self.bundle["files"].as_object_mut().expect("files")
    }

    /// Returns the real path of a file in the bundle: buses show devices as links.
    fn real(&self, path: &str) -> String {
        for bus in ["/sys/bus/dsa/devices/", "/sys/bus/pci/devices/", "/sys/class/iommu/"] {
            let Some((name, rest)) = path.strip_prefix(bus).and_then(|inside| inside.split_once('/')) else { continue };
            let target = self.bundle["files"][format!("{bus}{name}")]["link"].as_str().expect("a link of a bus");
            return format!("/sys/{}/{rest}", target.trim_start_matches("../"));
        }
        path.to_owned()
    }

    /// Returns the healthy bundle with changes.
    pub(crate) fn with(changes: &[&[Change]]) -> Self {
        let mut tree = Tree::healthy();
        changes.iter().flat_map(|some| some.iter()).for_each(|change| tree.change(change));
        tree
    }

    pub(crate) fn change(&mut self, change: &Change) {
        let (path, value) = match *change {
            Change::Text(path, text) => (path, json!({"text": format!("{text}\n")})),
            Change::Names(path, names) => (path, json!({"names": names})),
            Change::Link(path, target) => (path, json!({"link": target})),
            Change::With(folder, name) => {
                let names = self.files()[folder]["names"].as_array_mut().expect("a folder");
                names.push(json!(name));
                self.changed.insert(folder.into());
                return;
            }
            Change::Without(folder, name) => {
                let names = self.files()[folder]["names"].as_array_mut().expect("a folder");
                names.retain(|known| known != name);
                self.changed.insert(folder.into());
                return;
            }
            Change::Gone(path) => {
                let real = self.real(path);
                self.files().insert(real.clone(), json!({"error": 2}));
                self.changed.insert(real);
                return;
            }
            Change::Node(queue, call, errno) => {
                let path = format!("/dev/dsa/{queue}");
                self.bundle["nodes"][&path][call] = json!(errno);
                self.changed.insert(path);
                return;
            }
            Change::Program(pid) => {
                self.bundle["program"] = json!(pid);
                return;
            }
            Change::NoDevice(queue) => {
                let path = format!("/dev/dsa/{queue}");
                self.bundle["nodes"][&path]["device"] = json!(false);
                self.changed.insert(path);
                return;
            }
        };
        let real = self.real(path);
        self.files().insert(real.clone(), value);
        self.changed.insert(real);
    }

    /// Returns true if evidence comes from a changed path. For nodes the source starts with the call.
    pub(crate) fn changed(&self, source: &str) -> bool {
        let path = source.rsplit(' ').next().unwrap_or(source);
        self.changed.contains(&self.real(path)) || self.changed.contains(path)
    }

    /// Sets a file's content.
    pub(crate) fn say(&mut self, path: &str, text: &str) {
        self.files().insert(path.into(), json!({"text": text}));
    }

    /// Sets a link's target.
    pub(crate) fn point(&mut self, path: &str, target: &str) {
        self.files().insert(path.into(), json!({"link": target}));
    }

    /// Returns a bundle whose bus has this many devices.
    pub(crate) fn crowd(devices: u32) -> Self {
        let mut tree = Tree::healthy();
        let names: Vec<String> = (0..devices).map(|number| format!("dsa{number}")).collect();
        tree.files().insert("/sys/bus/dsa/devices".into(), json!({"names": names}));
        tree
    }

    /// Returns a bundle whose log has this many lines.
    pub(crate) fn chatty(lines: usize) -> Self {
        let mut tree = Tree::healthy();
        tree.bundle["messages"] = json!(vec!["idxd"; lines]);
        tree
    }

    pub(crate) fn with_all_texts(&self, text: &str) -> Self {
        self.with_each(|value| {
            if value.get("text").is_some() {
                *value = json!({"text": text});
            }
        })
    }

    pub(crate) fn with_all_errors(&self, errno: i32) -> Self {
        self.with_each(|value| {
            if value.get("text").is_some() {
                *value = json!({"error": errno});
            }
        })
    }

    pub(crate) fn with_links_in_circles(&self) -> Self {
        self.with_each(|value| {
            if value.get("link").is_some() {
                *value = json!({"link": "/sys/bus/dsa/devices/dsa0/x"});
            }
        })
    }

    fn with_each(&self, change: impl Fn(&mut Value)) -> Self {
        let mut tree = self.clone();
        tree.files().values_mut().for_each(change);
        tree
    }

    pub(crate) fn without_every_tenth(&self, left_out: usize) -> Self {
        let mut tree = self.clone();
        let files = tree.files();
        let gone: Vec<String> = files.keys().skip(left_out).step_by(10).cloned().collect();
        for path in gone {
            files.remove(&path);
        }
        tree
    }
}
