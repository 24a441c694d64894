//! The memory of a sender that offers it, and the proof that it is the sender's.
//!
//! A receiver knows its peer by the number of a process. That number could name another process: after the peer has
//! ended, or if the two sides count their processes differently. So each process has a random word of its own, the
//! *token*. A sender says where it is and what it is, and the receiver reads it in the same system call, after the
//! bytes.
//!
//! Memory that other processes can map is offered as a part of its file.

use crate::error::FabricError;
use crate::ways::PullFrom;
use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::atomic::{AtomicU64, Ordering};

static TOKEN: AtomicU64 = AtomicU64::new(0);

/// Bytes of a sender's memory that a receiver may read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfferedMemory {
    /// The address of the first byte of the message, which is in one piece.
    pub address: u64,
    /// The address of the token.
    pub token_address: u64,
    /// The token; not 0.
    pub token: u64,
}

impl OfferedMemory {
    /// Offers memory of this process from `address` on.
    ///
    /// # Errors
    /// [`FabricError::System`] if the system gives no random number.
    pub fn here(address: u64) -> Result<OfferedMemory, FabricError> {
        // Relaxed: only the value matters.
        let mut token = TOKEN.load(Ordering::Relaxed);
        if token == 0 {
            let mut random = [0; 8];
            let failed =
                |error: rustix::io::Errno| FabricError::System { action: "get a random number", source: error.into() };
            getrandom(&mut random, GetRandomFlags::empty()).map_err(failed)?;
            let fresh = u64::from_ne_bytes(random) | 1;
            // If several threads race, one stores its number and all use it.
            let stored = TOKEN.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed);
            token = stored.err().unwrap_or(fresh);
        }
        Ok(OfferedMemory { address, token_address: TOKEN.as_ptr().expose_provenance() as u64, token })
    }
}

/// Bytes of a file that the sender maps and has shown to the receiver; see `shown_files`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfferedFile {
    /// The place of the file among those that the sender shows.
    pub place: u8,
    /// Which file it is, of those that had this place.
    pub generation: u32,
    /// The position of the message's first byte in the file.
    pub offset: u64,
}

/// Where the bytes of an offered message are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offered {
    /// In the sender's memory.
    Process(OfferedMemory),
    /// In a file in memory that both processes can map.
    File(OfferedFile),
}

impl Offered {
    /// Returns where these bytes are read.
    pub(crate) fn pull_from(&self) -> PullFrom {
        match self {
            Offered::Process(_) => PullFrom::Process,
            Offered::File(_) => PullFrom::File,
        }
    }
}
