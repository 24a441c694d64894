//! Numbers of files. A number is made from the path, so a path has the same one whenever it is looked up.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

/// Number of the root. Source: FUSE's protocol.
pub(super) const ROOT: u64 = 1;

/// What distinguishes files that stand at one path one after the other: the kernel takes a number that changes its type for an
/// error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Type {
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A file.
    File,
}

#[derive(Debug)]
struct Known {
    path: Arc<str>,
    kind: Type,
    /// How often the kernel has been told the number and has not yet forgotten it.
    lookups: u64,
}

/// The numbers the kernel knows, and the paths they stand for.
#[derive(Debug, Default)]
pub(super) struct Inodes {
    known: RwLock<HashMap<u64, Known>>,
}

impl Inodes {
    /// The number of a path, for a listing: nothing is remembered.
    pub(super) fn number(&self, path: &str, kind: Type) -> u64 {
        find(&self.known.read().unwrap_or_else(PoisonError::into_inner), path, kind)
    }

    /// The number of a path that the kernel will use until it forgets it.
    pub(super) fn learn(&self, path: &str, kind: Type) -> u64 {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let number = find(&known, path, kind);
        let entry = known.entry(number).or_insert_with(|| Known { path: Arc::from(path), kind, lookups: 0 });
        entry.lookups = entry.lookups.saturating_add(1);
        number
    }

    /// The kernel has forgotten a number so many times.
    pub(super) fn forget(&self, number: u64, lookups: u64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = known.get_mut(&number) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            if entry.lookups == 0 {
                known.remove(&number);
            }
        }
    }

    /// The path of a number that the kernel uses.
    pub(super) fn path(&self, number: u64) -> Option<Arc<str>> {
        if number == ROOT {
            return Some(Arc::from("/"));
        }
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(&number).map(|known| Arc::clone(&known.path))
    }
}

/// The path's own number, or the next that no other path has.
fn find(known: &HashMap<u64, Known>, path: &str, kind: Type) -> u64 {
    if path == "/" {
        return ROOT;
    }
    let mut hasher = DefaultHasher::new();
    (path, kind).hash(&mut hasher);
    let mut number = hasher.finish();
    loop {
        let taken = known.get(&number).is_some_and(|other| (&*other.path, other.kind) != (path, kind));
        // 0 is no number, as in directories of old.
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
    fn what_changes_its_type_changes_its_number() {
        let inodes = Inodes::default();
        let numbers = [Type::Directory, Type::Link, Type::File].map(|kind| inodes.learn("/dev/x", kind));
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2]);
    }

    #[test]
    fn two_paths_never_share_a_number() {
        let inodes = Inodes::default();
        let number = inodes.number("/sys/a", Type::File);
        // As if another path had the same hash.
        let other = Known { path: Arc::from("/sys/b"), kind: Type::File, lookups: 1 };
        inodes.known.write().unwrap().insert(number, other);
        assert_eq!(inodes.learn("/sys/a", Type::File), number + 1);
        assert_eq!(inodes.path(number).as_deref(), Some("/sys/b"));
    }

    #[test]
    fn the_root_needs_no_learning() {
        let inodes = Inodes::default();
        assert_eq!(inodes.path(ROOT).as_deref(), Some("/"));
        assert_eq!(inodes.number("/", Type::Directory), ROOT);
    }
}
