//! The files that are there right now. The driver adds and removes them as its devices come and go, as it does in sysfs.

use super::attribute::{Attribute, Id};
use crate::tree::{Entry, Errno};
use std::collections::{BTreeMap, BTreeSet};

/// What stands at a path, with what is behind it.
#[derive(Debug)]
pub(crate) enum Item {
    Directory(Directory),
    Link(String),
    Attribute(&'static Attribute, Id),
    Binary(Content, Id),
    Node { major: u32, minor: u32, id: Id },
}

/// What a file of bytes holds.
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
    /// Made by the driver; else the machine's own, which gains entries.
    ours: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    root: Directory,
    structure: u64,
    changed: BTreeSet<String>,
}

/// Most links followed on one way. Source: path_resolution(7).
const MAX_LINKS: u32 = 40;

fn parts(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// The path of a directory's entry.
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

/// The text of a link in directory `from` that leads to `to`; both absolute.
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

    /// Makes a directory of ours; those above it that are missing are the machine's.
    pub(crate) fn directory(&mut self, path: &str) {
        match self.enter(path) {
            Some(directory) if directory.ours => return,
            Some(directory) => directory.ours = true,
            None => return,
        }
        self.note(split(path).0);
    }

    /// Puts a file; one that stands there is replaced.
    pub(crate) fn put(&mut self, path: &str, item: Item) {
        let (directory, name) = split(path);
        if let Some(directory) = self.enter(directory) {
            directory.entries.insert(name.into(), item);
            self.note(directory_of(path));
        }
    }

    /// Puts a link to another place of the tree or the machine, with the relative text sysfs gives it.
    pub(crate) fn link(&mut self, path: &str, to: &str) {
        self.put(path, Item::Link(relative(split(path).0, to)));
    }

    /// Takes away a file, or a directory with all that is in it.
    pub(crate) fn remove(&mut self, path: &str) {
        let (directory, name) = split(path);
        let removed = self.enter(directory).and_then(|directory| directory.entries.remove(name));
        if removed.is_some() {
            self.note(directory_of(path));
        }
    }

    /// True for a directory without entries.
    pub(crate) fn is_empty(&self, path: &str) -> bool {
        matches!(self.walk(path, false), Ok(Place::Directory(directory)) if directory.entries.is_empty())
    }

    fn note(&mut self, directory: &str) {
        self.structure += 1;
        self.changed.insert(directory.into());
    }

    /// The directory at a path without links in it; made if missing.
    fn enter(&mut self, path: &str) -> Option<&mut Directory> {
        let mut directory = &mut self.root;
        for part in parts(path) {
            let item = directory.entries.entry(part.into()).or_insert_with(|| Item::Directory(Directory::default()));
            let Item::Directory(next) = item else { return None };
            directory = next;
        }
        Some(directory)
    }

    /// What stands at a path. Links on the way are followed; one at its end only if asked for.
    fn walk(&self, path: &str, follow: bool) -> Result<Place<'_>, Errno> {
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
                Some(item) => return Ok(Place::File(item)),
            }
        }
        Ok(Place::Directory(trail.last().copied().unwrap_or(&self.root)))
    }

    /// The file at a path, links followed; EISDIR for a directory.
    pub(crate) fn file(&self, path: &str) -> Result<&Item, Errno> {
        match self.walk(path, true)? {
            Place::File(item) => Ok(item),
            Place::Directory(_) => Err(Errno::ISDIR),
        }
    }

    pub(crate) fn entry(&self, path: &str, size: impl Fn(Content, Id) -> u64) -> Result<Entry, Errno> {
        Ok(match self.walk(path, false)? {
            Place::Directory(_) => Entry::Directory,
            Place::File(item) => item.entry(&size),
        })
    }

    pub(crate) fn list(&self, path: &str, size: impl Fn(Content, Id) -> u64) -> Result<Vec<(String, Entry)>, Errno> {
        match self.walk(path, false)? {
            Place::Directory(directory) => {
                Ok(directory.entries.iter().map(|(name, item)| (name.clone(), item.entry(&size))).collect())
            }
            Place::File(_) => Err(Errno::NOTDIR),
        }
    }

    /// The topmost paths of ours.
    pub(crate) fn roots(&self) -> Vec<String> {
        let mut roots = Vec::new();
        self.root.roots("/", &mut roots);
        roots
    }

    /// Directories of the machine that hold one of the roots.
    pub(crate) fn merged(&self) -> Vec<String> {
        let parents: BTreeSet<String> = self.roots().iter().map(|root| split(root).0.to_owned()).collect();
        parents.into_iter().collect()
    }
}

/// The directory a path lies in.
fn directory_of(path: &str) -> &str {
    split(path).0
}

enum Place<'a> {
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
    fn a_wrong_way_has_the_right_errno() {
        let tree = sample();
        assert_eq!(tree.entry("/sys/bus/iax", |_, _| 0), Err(Errno::NOENT));
        assert_eq!(tree.entry("/dev/dsa/wq0.0/x", |_, _| 0), Err(Errno::NOTDIR));
        assert_eq!(tree.list("/dev/dsa/wq0.0", |_, _| 0), Err(Errno::NOTDIR));
        assert!(matches!(tree.file("/sys/bus/dsa"), Err(Errno::ISDIR)));
    }

    #[test]
    fn every_change_is_noted_once() {
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
    fn links_in_a_circle_end() {
        let mut tree = Tree::default();
        tree.link("/a/x", "/a/y");
        tree.link("/a/y", "/a/x");
        assert!(matches!(tree.file("/a/x"), Err(Errno::LOOP)));
    }
}
