//! Open files, by the handle that the kernel uses.

use super::inodes::Type;
use super::portal_advice::PortalAdvice;
use crate::tree::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// An open file.
#[derive(Debug)]
pub(super) enum File {
    /// A directory.
    Directory {
        /// Its path.
        path: Arc<str>,
        /// Its listing, as of the last read from the beginning.
        names: Mutex<Vec<Name>>,
    },
    /// An attribute.
    Attribute {
        /// Its path.
        path: Arc<str>,
        /// The text for the following reads.
        text: Mutex<Text>,
    },
    /// A binary file.
    Binary {
        /// Its path.
        path: Arc<str>,
        /// Its size.
        size: u64,
    },
    /// A queue's node.
    Node {
        /// The host's number of the open file.
        open: u64,
        /// Set if the program may want to map a portal, which is impossible here.
        advice: Option<PortalAdvice>,
    },
}

/// One name of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) kind: Type,
}

/// An attribute's text between the reads of one open file. As in sysfs, the first read generates it, and so does every
/// read at offset 0 or at another offset than the end of the last read.
#[derive(Debug, Default)]
pub(super) struct Text {
    bytes: Vec<u8>,
    /// The end offset of the last read.
    next: u64,
}

impl Text {
    /// Reads from the text; `show` generates it.
    pub(super) fn read(
        &mut self,
        offset: u64,
        size: usize,
        show: impl FnOnce() -> Result<Vec<u8>, Errno>,
    ) -> Result<&[u8], Errno> {
        if offset == 0 || offset != self.next {
            self.bytes = show()?;
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let end = start.saturating_add(size).min(self.bytes.len());
        // Cannot overflow in practice: at most a text's length beyond the offset; `saturating_add` covers the rest.
        self.next = offset.saturating_add((end - start) as u64);
        Ok(&self.bytes[start..end])
    }
}

/// Open files by handle.
#[derive(Debug, Default)]
pub(super) struct Files {
    last: AtomicU64,
    open: RwLock<HashMap<u64, Arc<File>>>,
}

impl Files {
    /// Stores an open file; returns its handle.
    pub(super) fn insert(&self, file: File) -> u64 {
        // Relaxed: the number publishes nothing; the map's lock orders the file.
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(file));
        handle
    }

    /// The file with this handle.
    pub(super) fn get(&self, handle: u64) -> Result<Arc<File>, Errno> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned().ok_or(Errno::BADF)
    }

    /// Removes the file of a handle that the kernel will not use again.
    pub(super) fn remove(&self, handle: u64) -> Option<Arc<File>> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }

    /// Removes all open files.
    pub(super) fn take_all(&self) -> Vec<Arc<File>> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).drain().map(|(_, file)| file).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_generated_at_offset_zero_and_kept_for_the_rest() {
        let mut text = Text::default();
        let mut made = 0;
        let mut read = |offset, size| {
            text.read(offset, size, || {
                made += 1;
                Ok(format!("text {made}\n").into_bytes())
            })
            .map(<[u8]>::to_vec)
        };
        assert_eq!(read(0, 3).unwrap(), b"tex");
        assert_eq!(read(3, 100).unwrap(), b"t 1\n");
        assert_eq!(read(7, 100).unwrap(), b"", "the end, of the same text");
        assert_eq!(read(0, 100).unwrap(), b"text 2\n", "lseek to 0: a new text");
        assert_eq!(read(5, 1).unwrap(), b"3", "pread elsewhere: a new text too");
        assert_eq!(read(u64::MAX, 1).unwrap(), b"");
    }

    #[test]
    fn an_error_of_the_attribute_is_an_error_of_the_read() {
        let mut text = Text::default();
        assert_eq!(text.read(0, 10, || Err(Errno::OPNOTSUPP)).unwrap_err(), Errno::OPNOTSUPP);
        assert_eq!(text.read(0, 10, || Ok(b"1\n".to_vec())).unwrap(), b"1\n");
    }

    #[test]
    fn a_handle_that_was_released_names_no_file() {
        let files = Files::default();
        let handle = files.insert(File::Directory { path: Arc::from("/"), names: Mutex::default() });
        assert!(files.get(handle).is_ok());
        assert!(files.remove(handle).is_some());
        assert_eq!(files.get(handle).unwrap_err(), Errno::BADF);
        assert!(files.remove(handle).is_none());
    }
}
