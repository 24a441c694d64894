//! A namespace: an identity, a block size, and a backend.

use crate::engine::JobId;
use crate::limits::MOST_NAMESPACES;
use crate::protection::{Protection, TUPLE_BYTES, stored_capacity};
use crate::range_lock::RangeLock;
use crate::status::Status;
use crate::storage::{Started, Storage, StorageRequest};
use std::sync::Arc;
use telpher_mem::BlockRun;

/// How a namespace is created.
#[derive(Clone, Debug)]
pub struct NamespaceOptions {
    /// NSID, from 1.
    pub nsid: u32,
    /// Bytes of a block, as the host sees it: 512 or 4096.
    pub block_bytes: u32,
    /// The UUID. Linux rejects a namespace whose identifiers changed, so it must be the same after a restart.
    pub uuid: [u8; 16],
    /// The NGUID; as stable as the UUID.
    pub nguid: [u8; 16],
    /// Writes are refused.
    pub is_read_only: bool,
    /// The backend's blocks have tuples of 8 bytes, which the host does not see; `None` for blocks without.
    pub protection: Option<Protection>,
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
    /// The application tag has a special meaning.
    #[error("the application tag {tag:#x} is reserved: use 1 to 0xfffe")]
    ApplicationTag {
        /// The tag.
        tag: u16,
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
    range_lock: RangeLock,
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
        if let Some(Protection { application_tag: tag }) =
            options.protection.filter(|protection| !protection.is_valid())
        {
            return Err(NamespaceError::ApplicationTag { tag });
        }
        let namespace = Namespace { options, range_lock: RangeLock::default() };
        if namespace.blocks() == 0 {
            return Err(NamespaceError::Empty { bytes: namespace.options.storage.capacity() });
        }
        Ok(namespace)
    }

    /// Its options.
    #[must_use]
    pub fn options(&self) -> &NamespaceOptions {
        &self.options
    }

    /// What keeps other commands from the blocks of a command that must be alone on them.
    #[must_use]
    pub fn range_lock(&self) -> &RangeLock {
        &self.range_lock
    }

    /// Bytes of a block, as the host sees it.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.options.block_bytes.into()
    }

    /// Bytes of a block in the backend.
    fn stored_block_bytes(&self) -> u64 {
        self.block_bytes() + if self.options.protection.is_some() { u64::from(TUPLE_BYTES) } else { 0 }
    }

    /// The bytes that whole blocks of `bytes` bytes take in the backend. The blocks are in the namespace.
    fn stored(&self, bytes: u64) -> u64 {
        stored_capacity(bytes, self.options.block_bytes).expect("at most the backend's capacity, which is a u64")
    }

    /// The number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.options.storage.capacity() / self.stored_block_bytes()
    }

    /// Changes the capacity, in bytes that the host sees.
    ///
    /// # Errors
    /// [`NamespaceError`] if there is no block left, or the backend cannot have this size.
    pub fn resize(&self, bytes: u64) -> Result<(), NamespaceError> {
        if bytes < self.block_bytes() {
            return Err(NamespaceError::Empty { bytes });
        }
        let is_protected = self.options.protection.is_some();
        let stored = if is_protected { stored_capacity(bytes, self.options.block_bytes) } else { Some(bytes) };
        let resized = match stored {
            Some(stored) => self.options.storage.resize(stored),
            None => Err(Status::CAPACITY_EXCEEDED),
        };
        resized.map_err(|status| NamespaceError::Resize { bytes, status })
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
        // The blocks of a protected namespace are not those that the host sent.
        if self.options.protection.is_some() { None } else { self.options.storage.place(start, len) }
    }

    /// Starts a request of the backend. Positions are bytes that the host sees; the data has the form of the backend.
    pub fn start(&self, id: JobId, mut request: StorageRequest) -> Started {
        if self.options.protection.is_some() {
            match &mut request {
                StorageRequest::Read { start, len } | StorageRequest::WriteZeroes { start, len, .. } => {
                    (*start, *len) = (self.stored(*start), self.stored(*len));
                }
                StorageRequest::Write { start, .. } => *start = self.stored(*start),
                StorageRequest::Deallocate { ranges } => {
                    for (start, len) in ranges {
                        (*start, *len) = (self.stored(*start), self.stored(*len));
                    }
                }
                StorageRequest::Flush => {}
            }
        }
        self.options.storage.start(id, request)
    }
}
