//! The files in memory that this process maps and shows to a peer, so that the peer reads long messages from them.
//!
//! ```text
//! each offered message   the kernel says which file the buffer shows now ─► shown already, or its descriptor is sent
//!                        one of the files that were shown is checked: the program has unmapped it ─► taken back
//! ```
//!
//! Nothing is remembered about addresses, so a buffer whose pages the program has replaced is never taken for what was
//! there before. The program may not replace them between the call of a send and its completion, as it may not change
//! them.

use crate::handshake::send_file;
use crate::offered::OfferedFile;
use crate::peer_files::MOST_FILES;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use telpher_os::{FileIdentity, SharedFiles, SharedRange};

/// Files that cannot be shown and are remembered. Source: chosen.
const MOST_HIDDEN: usize = 8;

/// The mappings of this process and their files, for all connections of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct OwnFiles {
    /// Opened when first needed; `None` if the kernel cannot tell.
    mappings: OnceLock<Option<SharedFiles>>,
    /// The files that peers were shown. All connections have one descriptor of each.
    opened: Mutex<Vec<(FileIdentity, Weak<OwnedFd>)>>,
}

impl OwnFiles {
    fn mappings(&self) -> Option<&SharedFiles> {
        self.mappings.get_or_init(|| SharedFiles::open().ok()).as_ref()
    }

    /// Opens the file of a mapping, unless it is open. While it is, no other file has its identity.
    fn open(&self, range: &SharedRange) -> Option<Arc<OwnedFd>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = opened.iter().filter(|(identity, _)| *identity == range.file);
        if let Some(file) = known.find_map(|(_, file)| file.upgrade()) {
            return Some(file);
        }
        let file = Arc::new(self.mappings()?.open_file(range)?);
        opened.retain(|(_, file)| file.strong_count() > 0);
        opened.push((range.file, Arc::downgrade(&file)));
        Some(file)
    }
}

/// A file that the peer was shown. The descriptor is kept so that no other file gets its identity.
#[derive(Debug)]
struct Shown {
    identity: FileIdentity,
    generation: u32,
    len: u64,
    /// Where it was mapped last.
    seen_at: u64,
    _file: Arc<OwnedFd>,
}

/// The files that one peer was shown.
#[derive(Debug)]
pub(crate) struct ShownFiles {
    own: Arc<OwnFiles>,
    socket: Option<Arc<OwnedFd>>,
    places: [Option<Shown>; MOST_FILES],
    last_generation: u32,
    next_place: usize,
    next_checked: usize,
    hidden: VecDeque<FileIdentity>,
}

impl ShownFiles {
    pub(crate) fn new(own: Arc<OwnFiles>) -> ShownFiles {
        ShownFiles {
            own,
            socket: None,
            places: [const { None }; MOST_FILES],
            last_generation: 0,
            next_place: 0,
            next_checked: 0,
            hidden: VecDeque::new(),
        }
    }

    /// The connection is open.
    pub(crate) fn connected(&mut self, socket: Option<Arc<OwnedFd>>) {
        self.socket = socket;
    }

    /// Returns which bytes of which file lie at an address, and shows the file. `None` if they are in no such file.
    pub(crate) fn offer(&mut self, address: u64, len: u64) -> Option<OfferedFile> {
        let own = Arc::clone(&self.own);
        let mappings = own.mappings()?;
        self.check_next(mappings);
        let range = mappings.at(address)?;
        if address.checked_add(len)? > range.end {
            return None;
        }
        let offset = range.offset + (address - range.start);
        let is_it = |shown: &Option<Shown>| shown.as_ref().is_some_and(|shown| shown.identity == range.file);
        let place = match self.places.iter().position(is_it) {
            Some(place) => place,
            None => self.show(&range)?,
        };
        let shown = self.places[place].as_mut()?;
        shown.seen_at = address;
        // The receiver maps whole pages, so the end of the last one counts.
        if offset.checked_add(len)? > shown.len.next_multiple_of(4096) {
            // It has grown. The next message shows it again, as long as it is by then.
            self.take_back(place);
            return None;
        }
        Some(OfferedFile { place: place.to_le_bytes()[0], generation: shown.generation, offset })
    }

    /// Takes the next file back if it is not mapped any more where it was seen last.
    fn check_next(&mut self, mappings: &SharedFiles) {
        self.next_checked = (self.next_checked + 1) % MOST_FILES;
        if let Some(shown) = &self.places[self.next_checked]
            && mappings.at(shown.seen_at).is_none_or(|now| now.file != shown.identity)
        {
            self.take_back(self.next_checked);
        }
    }

    /// Lets the peer unmap a file. Without room in the socket the file is taken back later.
    fn take_back(&mut self, place: usize) {
        if let (Some(shown), Some(socket)) = (&self.places[place], &self.socket)
            && send_file(socket.as_fd(), place.to_le_bytes()[0], shown.generation, None).is_ok()
        {
            self.places[place] = None;
        }
    }

    /// Sends the descriptor of a file to the peer, and returns its place.
    fn show(&mut self, range: &SharedRange) -> Option<usize> {
        let socket = self.socket.as_ref()?;
        if self.hidden.contains(&range.file) {
            return None;
        }
        let opened = self.own.open(range).and_then(|file| {
            let len = rustix::fs::fstat(&file).ok()?.st_size.cast_unsigned();
            Some((file, len))
        });
        let Some((file, len)) = opened else {
            self.hidden.truncate(MOST_HIDDEN - 1);
            self.hidden.push_front(range.file);
            return None;
        };
        let place = self.places.iter().position(Option::is_none).unwrap_or(self.next_place);
        let generation = self.last_generation.wrapping_add(1);
        send_file(socket.as_fd(), place.to_le_bytes()[0], generation, Some(file.as_fd())).ok()?;
        (self.last_generation, self.next_place) = (generation, (place + 1) % MOST_FILES);
        self.places[place] = Some(Shown { identity: range.file, generation, len, seen_at: range.start, _file: file });
        Some(place)
    }
}
