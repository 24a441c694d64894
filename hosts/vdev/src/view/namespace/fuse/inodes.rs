//! Inode numbers. A number is a hash of the path, so a path has the same number at every lookup.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

/// Inode number of the root. Source: FUSE's protocol.
pub(super) const ROOT: u64 = 1;

/// The file type, which is part of the hash: the kernel treats it as an error if a number changes its type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Type {
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A file.
    File,
    /// A character device.
    Device,
}

#[derive(Debug)]
struct Known {
    path: Arc<str>,
    kind: Type,
    /// Lookups that the kernel has not yet forgotten.
    lookups: u64,
}

/// The inode numbers that the kernel knows, and their paths.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    known: RwLock<HashMap<u64, Known>>,
}

impl Inodes {
    /// The number of a path, for a listing; nothing is stored.
    pub(super) fn number(&self, path: &str, kind: Type) -> u64 {
        find(&self.known.read().unwrap_or_else(PoisonError::into_inner), path, kind)
    }

    /// The number of a path for a lookup; stored until the kernel forgets it.
    pub(super) fn learn(&self, path: &str, kind: Type) -> u64 {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let number = find(&known, path, kind);
        let entry = known.entry(number).or_insert_with(|| Known { path: Arc::from(path), kind, lookups: 0 });
        entry.lookups = entry.lookups.saturating_add(1);
        number
    }

    /// Subtracts lookups that the kernel has forgotten.
    pub(super) fn forget(&self, number: u64, lookups: u64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = known.get_mut(&number) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            if entry.lookups == 0 {
                known.remove(&number);
            }
        }
    }

    /// True if the kernel knows this number as a character device.
    pub(super) fn is_device(&self, number: u64) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&number).is_some_and(|known| known.kind == Type::Device)
    }

    /// The path of a number that the kernel uses.
    pub(super) fn path(&self, number: u64) -> Option<Arc<str>> {
        if number == ROOT {
            return Some(Arc::from("/"));
        }
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(&number).map(|known| Arc::clone(&known.path))
    }
}

/// The hash of the path, or the next number that no other path has.
fn find(known: &HashMap<u64, Known>, path: &str, kind: Type) -> u64 {
    if path == "/" {
        return ROOT;
    }
    let mut hasher = DefaultHasher::new();
    (path, kind).hash(&mut hasher);
    let mut number = hasher.finish();
    loop {
        let taken = known.get(&number).is_some_and(|other| (&*other.path, other.kind) != (path, kind));
        // 0 is not a valid inode number.
        if number > ROOT && !taken {
            return number;
        }
        number = number.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_number_as_a_file_and_another_one_as_a_device() {
        let inodes = Inodes::default();
        let path: Arc<str> = "/dev/dsa/wq0.0".into();
        let (file, device) = (inodes.learn(&path, Type::File), inodes.learn(&path, Type::Device));
        assert!(file != device && inodes.is_device(device) && !inodes.is_device(file) && !inodes.is_device(ROOT));
    }

    #[test]
    fn a_path_keeps_its_number_when_it_is_forgotten() {
        let inodes = Inodes::default();
        let number = inodes.learn("/sys/a", Type::File);
        assert_eq!(inodes.learn("/sys/a", Type::File), number);
        assert_eq!(inodes.number("/sys/a", Type::File), number, "a listing says the same");
        assert_eq!(inodes.path(number).as_deref(), Some("/sys/a"));
        inodes.forget(number, 1);
        assert_eq!(inodes.path(number).as_deref(), Some("/sys/a"), "it was learned twice");
        inodes.forget(number, 1);
        assert_eq!(inodes.path(number), None);
        assert_eq!(inodes.learn("/sys/a", Type::File), number);
    }

    #[test]
    fn another_type_has_another_number() {
        let inodes = Inodes::default();
        let numbers = [Type::Directory, Type::Link, Type::File].map(|kind| inodes.learn("/dev/x", kind));
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2]);
    }

    #[test]
    fn two_paths_never_share_a_number() {
        let inodes = Inodes::default();
        let number = inodes.number("/sys/a", Type::File);
        // Simulates another path with the same hash.
        let other = Known { path: Arc::from("/sys/b"), kind: Type::File, lookups: 1 };
        inodes.known.write().unwrap().insert(number, other);
        assert_eq!(inodes.learn("/sys/a", Type::File), number + 1);
        assert_eq!(inodes.path(number).as_deref(), Some("/sys/b"));
    }

    #[test]
    fn the_root_is_always_known() {
        let inodes = Inodes::default();
        assert_eq!(inodes.path(ROOT).as_deref(), Some("/"));
        assert_eq!(inodes.number("/", Type::Directory), ROOT);
    }
}
