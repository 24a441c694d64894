//! The bytes of a long message that the receiver reads where the sender has them.

use crate::buffer::{MOST_SEGMENTS, Segments};
use crate::copier::Copier;
use crate::incoming::Incoming;
use crate::offered::{Offered, OfferedMemory};
use crate::peer_files::PeerFile;
use crate::ways::PullFrom;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where bytes are read.
#[derive(Debug)]
pub(crate) enum Place {
    Process(OfferedMemory),
    /// The mapping stays while it is read, also if the sender takes the file back.
    File {
        file: Arc<PeerFile>,
        address: u64,
    },
}

impl Place {
    pub(crate) fn pull_from(&self) -> PullFrom {
        match self {
            Place::Process(_) => PullFrom::Process,
            Place::File { .. } => PullFrom::File,
        }
    }
}

/// The bytes of a message that are read, and how long that took so far.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) place: Place,
    pub(crate) since: Instant,
    pub(crate) time: Duration,
    /// True if a part was not copied.
    pub(crate) has_failed: bool,
}

impl Pull {
    /// `None` if the sender's file is not mapped here.
    pub(crate) fn of(offered: &Offered, len: u64, incoming: &Incoming) -> Option<Pull> {
        let place = match offered {
            Offered::Process(memory) => Place::Process(*memory),
            Offered::File(offered) => {
                let (file, address) = incoming.offered_bytes(offered, len)?;
                Place::File { file, address }
            }
        };
        Some(Pull { place, since: Instant::now(), time: Duration::ZERO, has_failed: false })
    }

    /// Reads `len` bytes from byte `done` on.
    pub(crate) fn read(&self, process: u32, copier: &Copier, into: &Segments, done: u64, len: u64) -> io::Result<()> {
        match &self.place {
            Place::Process(OfferedMemory { address, token_address, token }) => {
                let mut parts = [(0, 0); MOST_SEGMENTS];
                let mut count = 0;
                for (to, piece) in parts.iter_mut().zip(into.pieces(done, len)) {
                    *to = piece;
                    count += 1;
                }
                copier.local().read_process(process, address + done, &parts[..count], (*token_address, *token))
            }
            Place::File { file, address } => {
                let copied = copier.copy_out_at(address + done, into, done, len);
                // Checked after the copy: a page that was missing reads as zeros.
                if copied.is_ok() && file.is_whole() { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
            }
        }
    }

    /// True if no page was missing so far.
    pub(crate) fn is_whole(&self) -> bool {
        match &self.place {
            Place::Process(_) => true,
            Place::File { file, .. } => file.is_whole(),
        }
    }
}
