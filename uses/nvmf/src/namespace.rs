//! A namespace: an identity, a block size, and a backend.

use crate::engine::JobId;
use crate::limits::MOST_NAMESPACES;
use crate::status::Status;
use crate::storage::{Started, Storage, StorageRequest};
use std::sync::Arc;
use telpher_mem::BlockRun;

/// How a namespace is created.
#[derive(Clone, Debug)]
pub struct NamespaceOptions {
    /// NSID, from 1.
    pub nsid: u32,
    /// Bytes of a block: 512 or 4096.
    pub block_bytes: u32,
    /// The UUID. Linux rejects a namespace whose identifiers changed, so it must be the same after a restart.
    pub uuid: [u8; 16],
    /// The NGUID; as stable as the UUID.
    pub nguid: [u8; 16],
    /// Writes are refused.
    pub is_read_only: bool,
    /// Where the blocks are.
    pub storage: Arc<dyn Storage>,
}

/// Why a namespace is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// The identifier is 0 or too large.
    #[error("namespace {nsid} does not exist: identifiers are 1 to {MOST_NAMESPACES}")]
    Identifier {
        /// The identifier.
        nsid: u32,
    },
    /// The block size is not supported.
    #[error("blocks of {bytes} bytes are not supported; use 512 or 4096")]
    BlockSize {
        /// The size.
        bytes: u32,
    },
    /// The backend has less than one block.
    #[error("the backend's {bytes} bytes are less than one block")]
    Empty {
        /// The backend's capacity.
        bytes: u64,
    },
    /// The subsystem has a namespace with this identifier.
    #[error("namespace {nsid} exists")]
    Exists {
        /// The identifier.
        nsid: u32,
    },
    /// The subsystem has no namespace with this identifier.
    #[error("there is no namespace {nsid}")]
    Missing {
        /// The identifier.
        nsid: u32,
    },
    /// There is no such subsystem.
    #[error("there is no subsystem {nqn}")]
    Subsystem {
        /// The NQN.
        nqn: String,
    },
    /// The backend cannot have this size.
    #[error("the backend cannot have {bytes} bytes ({status:?})")]
    Resize {
        /// The size asked for.
        bytes: u64,
        /// What the backend said.
        status: Status,
    },
}

/// A namespace.
#[derive(Debug)]
pub struct Namespace {
    options: NamespaceOptions,
}

impl Namespace {
    /// Creates a namespace.
    ///
    /// # Errors
    /// [`NamespaceError`] if the options are invalid.
    pub fn new(options: NamespaceOptions) -> Result<Namespace, NamespaceError> {
        let NamespaceOptions { nsid, block_bytes, .. } = options;
        if nsid == 0 || nsid > MOST_NAMESPACES {
            return Err(NamespaceError::Identifier { nsid });
        }
        if block_bytes != 512 && block_bytes != 4096 {
            return Err(NamespaceError::BlockSize { bytes: block_bytes });
        }
        let bytes = options.storage.capacity();
        if bytes < u64::from(block_bytes) {
            return Err(NamespaceError::Empty { bytes });
        }
        Ok(Namespace { options })
    }

    /// Its options.
    #[must_use]
    pub fn options(&self) -> &NamespaceOptions {
        &self.options
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.options.block_bytes.into()
    }

    /// The number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.options.storage.capacity() / self.block_bytes()
    }

    /// Returns the byte position and length of `count` blocks from `first`.
    ///
    /// # Errors
    /// LBA Out of Range if they are not all in the namespace.
    pub fn bytes_of(&self, first: u64, count: u64) -> Result<(u64, u64), Status> {
        // The products cannot overflow: both are at most the capacity, which is a u64.
        match first.checked_add(count) {
            Some(end) if end <= self.blocks() => Ok((first * self.block_bytes(), count * self.block_bytes())),
            _ => Err(Status::LBA_RANGE.do_not_retry()),
        }
    }

    /// Free blocks of the backend for the data of a write.
    #[must_use]
    pub fn place(&self, start: u64, len: usize) -> Option<Vec<BlockRun>> {
        self.options.storage.place(start, len)
    }

    /// Starts a request of the backend.
    pub fn start(&self, id: JobId, request: StorageRequest) -> Started {
        self.options.storage.start(id, request)
    }
}
