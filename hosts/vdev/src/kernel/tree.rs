//! The files that exist at the moment. The driver adds and removes them with its devices, as in sysfs.

use super::attribute::{Attribute, Id};
use crate::tree::{Entry, Errno};
use std::collections::{BTreeMap, BTreeSet};

/// An entry of the tree, with its contents.
#[derive(Debug)]
pub(crate) enum Item {
    Directory(Directory),
    Link(String),
    Attribute(&'static Attribute, Id),
    Binary(Content, Id),
    Node { major: u32, minor: u32, id: Id },
}

/// The contents of a binary file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// PCI configuration space of a device.
    ConfigSpace,
    /// The processors.
    CpuInfo,
    /// A device's event log.
    EventLog,
}

/// A directory.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    entries: BTreeMap<String, Item>,
    /// Created by the driver; otherwise a directory of the machine in which the driver adds entries.
    ours: bool,
}

/// The whole tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    root: Directory,
    structure: u64,
    changed: BTreeSet<String>,
}

/// Most links followed in one path. Source: path_resolution(7).
const MAX_LINKS: u32 = 40;

fn parts(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// The path of an entry of a directory.
fn join(directory: &str, name: &str) -> String {
    if directory == "/" { format!("/{name}") } else { format!("{directory}/{name}") }
}

fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((directory, name)) => (directory, name),
        None => ("/", path),
    }
}

/// The relative link text in directory `from` for the target `to`; both absolute.
pub(crate) fn relative(from: &str, to: &str) -> String {
    let (from, to): (Vec<_>, Vec<_>) = (parts(from).collect(), parts(to).collect());
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..", from.len() - common);
    up.chain(to[common..].iter().copied()).collect::<Vec<_>>().join("/")
}

impl Tree {
    pub(crate) fn structure(&self) -> u64 {
        self.structure
    }

    pub(crate) fn take_changed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }

    /// Creates a directory of the driver; missing parents count as the machine's.
    pub(crate) fn directory(&mut self, path: &str) {
        match self.enter(path) {
            Some(directory) if directory.ours => return,
            Some(directory) => directory.ours = true,
            None => return,
        }
        self.note(split(path).0);
    }

    /// Adds or replaces a file.
    pub(crate) fn put(&mut self, path: &str, item: Item) {
        let (directory, name) = split(path);
        if let Some(directory) = self.enter(directory) {
            directory.entries.insert(name.into(), item);
            self.note(directory_of(path));
        }
    }

    /// Adds a link to another path of the tree or the machine, with the relative text as in sysfs.
    pub(crate) fn link(&mut self, path: &str, to: &str) {
        self.put(path, Item::Link(relative(split(path).0, to)));
    }

    /// Removes a file, or a directory with its contents.
    pub(crate) fn remove(&mut self, path: &str) {
        let (directory, name) = split(path);
        let removed = self.enter(directory).and_then(|directory| directory.entries.remove(name));
        if removed.is_some() {
            self.note(directory_of(path));
        }
    }

    /// True for a directory without entries.
    pub(crate) fn is_empty(&self, path: &str) -> bool {
        matches!(self.walk(path, false), Ok(Found::Directory(directory)) if directory.entries.is_empty())
    }

    fn note(&mut self, directory: &str) {
        self.structure += 1;
        self.changed.insert(directory.into());
    }

    /// The directory at a path without links; created if missing.
    fn enter(&mut self, path: &str) -> Option<&mut Directory> {
        let mut directory = &mut self.root;
        for part in parts(path) {
            let item = directory.entries.entry(part.into()).or_insert_with(|| Item::Directory(Directory::default()));
            let Item::Directory(next) = item else { return None };
            directory = next;
        }
        Some(directory)
    }

    /// The entry at a path. Links within the path are followed; a link at its end only if `follow` is set.
    fn walk(&self, path: &str, follow: bool) -> Result<Found<'_>, Errno> {
        let mut waiting: Vec<String> = parts(path).map(String::from).rev().collect();
        let mut trail: Vec<&Directory> = vec![&self.root];
        let mut links = 0;
        while let Some(part) = waiting.pop() {
            let directory = trail.last().copied().unwrap_or(&self.root);
            match part.as_str() {
                "." => continue,
                ".." => {
                    trail.truncate(trail.len().saturating_sub(1).max(1));
                    continue;
                }
                _ => {}
            }
            match directory.entries.get(&part) {
                None => return Err(Errno::NOENT),
                Some(Item::Directory(next)) => trail.push(next),
                Some(Item::Link(text)) if follow || !waiting.is_empty() => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP);
                    }
                    waiting.extend(parts(text).map(String::from).rev());
                }
                Some(_) if !waiting.is_empty() => return Err(Errno::NOTDIR),
                Some(item) => return Ok(Found::File(item)),
            }
        }
        Ok(Found::Directory(trail.last().copied().unwrap_or(&self.root)))
    }

    /// The file at a path; links are followed; EISDIR for a directory.
    pub(crate) fn file(&self, path: &str) -> Result<&Item, Errno> {
        match self.walk(path, true)? {
            Found::File(item) => Ok(item),
            Found::Directory(_) => Err(Errno::ISDIR),
        }
    }

    pub(crate) fn entry(&self, path: &str, size: impl Fn(Content, Id) -> u64) -> Result<Entry, Errno> {
        Ok(match self.walk(path, false)? {
            Found::Directory(_) => Entry::Directory,
            Found::File(item) => item.entry(&size),
        })
    }

    pub(crate) fn list(&self, path: &str, size: impl Fn(Content, Id) -> u64) -> Result<Vec<(String, Entry)>, Errno> {
        match self.walk(path, false)? {
            Found::Directory(directory) => {
                Ok(directory.entries.iter().map(|(name, item)| (name.clone(), item.entry(&size))).collect())
            }
            Found::File(_) => Err(Errno::NOTDIR),
        }
    }

    /// The topmost paths of the driver.
    pub(crate) fn roots(&self) -> Vec<String> {
        let mut roots = Vec::new();
        self.root.roots("/", &mut roots);
        roots
    }

    /// Directories of the machine that contain one of the roots.
    pub(crate) fn merged(&self) -> Vec<String> {
        let parents: BTreeSet<String> = self.roots().iter().map(|root| split(root).0.to_owned()).collect();
        parents.into_iter().collect()
    }
}

/// The parent directory of a path.
fn directory_of(path: &str) -> &str {
    split(path).0
}

enum Found<'a> {
    Directory(&'a Directory),
    File(&'a Item),
}

impl Item {
    fn entry(&self, size: &impl Fn(Content, Id) -> u64) -> Entry {
        match self {
            Item::Directory(_) => Entry::Directory,
            Item::Link(text) => Entry::Link(text.clone()),
            Item::Attribute(attribute, _) => Entry::Attribute { mode: attribute.mode },
            Item::Binary(content, id) => Entry::Binary { mode: content.mode(), size: size(*content, *id) },
            Item::Node { major, minor, .. } => Entry::Node { major: *major, minor: *minor },
        }
    }
}

impl Content {
    fn mode(self) -> u16 {
        match self {
            Content::ConfigSpace => 0o644,
            Content::CpuInfo => 0o444,
            Content::EventLog => 0o400,
        }
    }
}

impl Directory {
    fn roots(&self, path: &str, roots: &mut Vec<String>) {
        for (name, item) in &self.entries {
            let below = join(path, name);
            match item {
                Item::Directory(directory) if !directory.ours => directory.roots(&below, roots),
                _ => roots.push(below),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Tree {
        let mut tree = Tree::default();
        tree.directory("/sys/bus/dsa");
        tree.directory("/sys/devices/pci0000:6a");
        tree.directory("/sys/devices/pci0000:6a/0000:6a:01.0/dsa0");
        tree.link("/sys/bus/dsa/devices/dsa0", "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0");
        tree.put("/dev/dsa/wq0.0", Item::Node { major: 511, minor: 0, id: Id::default() });
        tree
    }

    #[test]
    fn a_link_leads_from_its_directory_to_its_target() {
        assert_eq!(relative("/sys/bus/dsa/devices", "/sys/devices/x/dsa0"), "../../../devices/x/dsa0");
        assert_eq!(relative("/dev/char", "/dev/dsa/wq0.0"), "../dsa/wq0.0");
        assert_eq!(relative("/a", "/a/b"), "b");
        let tree = sample();
        let text = "../../../devices/pci0000:6a/0000:6a:01.0/dsa0";
        assert_eq!(tree.entry("/sys/bus/dsa/devices/dsa0", |_, _| 0), Ok(Entry::Link(text.into())));
        assert_eq!(tree.entry("/sys/bus/dsa/devices/dsa0/.", |_, _| 0), Ok(Entry::Directory));
        assert_eq!(tree.entry("/sys/bus/dsa/devices/dsa0/..", |_, _| 0), Ok(Entry::Directory));
    }

    #[test]
    fn roots_are_topmost_and_merged_directories_hold_them() {
        let tree = sample();
        assert_eq!(tree.roots(), ["/dev/dsa/wq0.0", "/sys/bus/dsa", "/sys/devices/pci0000:6a"]);
        assert_eq!(tree.merged(), ["/dev/dsa", "/sys/bus", "/sys/devices"]);
    }

    #[test]
    fn an_invalid_path_has_the_right_errno() {
        let tree = sample();
        assert_eq!(tree.entry("/sys/bus/iax", |_, _| 0), Err(Errno::NOENT));
        assert_eq!(tree.entry("/dev/dsa/wq0.0/x", |_, _| 0), Err(Errno::NOTDIR));
        assert_eq!(tree.list("/dev/dsa/wq0.0", |_, _| 0), Err(Errno::NOTDIR));
        assert!(matches!(tree.file("/sys/bus/dsa"), Err(Errno::ISDIR)));
    }

    #[test]
    fn every_change_is_recorded_once() {
        let mut tree = sample();
        tree.take_changed();
        let before = tree.structure();
        tree.remove("/dev/dsa/wq0.1");
        tree.directory("/sys/bus/dsa");
        assert_eq!((tree.structure(), tree.take_changed()), (before, vec![]));
        tree.remove("/dev/dsa/wq0.0");
        assert_ne!(tree.structure(), before);
        assert_eq!(tree.take_changed(), ["/dev/dsa"]);
        assert!(tree.is_empty("/dev/dsa"));
    }

    #[test]
    fn a_cycle_of_links_ends_with_eloop() {
        let mut tree = Tree::default();
        tree.link("/a/x", "/a/y");
        tree.link("/a/y", "/a/x");
        assert!(matches!(tree.file("/a/x"), Err(Errno::LOOP)));
    }
}
