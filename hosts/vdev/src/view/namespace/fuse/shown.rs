//! The entries of the file system: the driver's, the directories of the plan, and the machine's links beside the
//! driver's.

use super::super::plan::{Layout, name, parent};
use super::super::tree::Tree;
use crate::tree::{Entry, Errno};
use std::path::Path;
use std::sync::Arc;

/// The tree with the entries that the plan adds.
#[derive(Debug)]
pub(super) struct Shown<T> {
    tree: Arc<T>,
    layout: Layout,
}

impl<T: Tree> Shown<T> {
    pub(super) fn new(tree: Arc<T>, layout: Layout) -> Self {
        Shown { tree, layout }
    }

    /// The entry at a path.
    pub(super) fn entry(&self, path: &str) -> Result<Entry, Errno> {
        let answer = self.tree.entry(path);
        if answer.is_ok() {
            return answer;
        }
        if self.layout.fixed.contains(path) {
            return Ok(Entry::Directory);
        }
        if self.layout.whole.contains(parent(path)) {
            return link_of_the_machine(Path::new(path)).or(answer);
        }
        answer
    }

    /// A directory's entries.
    pub(super) fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        let mut entries = match self.tree.list(path) {
            Err(_) if self.layout.fixed.contains(path) => Vec::new(),
            answer => answer?,
        };
        let fixed = self.layout.fixed.iter().filter(|other| *other != "/" && parent(other) == path);
        let fixed = fixed.map(|other| (name(other).to_owned(), Entry::Directory));
        let whole = self.layout.whole.contains(path).then(|| links_of_the_machine(path));
        for (name, entry) in fixed.chain(whole.into_iter().flatten()) {
            if entries.iter().all(|(other, _)| *other != name) {
                entries.push((name, entry));
            }
        }
        Ok(entries)
    }
}

/// A link of the machine as it is now; ENOENT also if its text is not UTF-8.
fn link_of_the_machine(path: &Path) -> Result<Entry, Errno> {
    let text = path.read_link().map_err(|_| Errno::NOENT)?;
    text.into_os_string().into_string().map(Entry::Link).map_err(|_| Errno::NOENT)
}

fn links_of_the_machine(directory: &str) -> Vec<(String, Entry)> {
    let links = Path::new(directory).read_dir().into_iter().flatten().flatten();
    links
        .filter_map(|link| Some((link.file_name().into_string().ok()?, link_of_the_machine(&link.path()).ok()?)))
        .collect()
}
