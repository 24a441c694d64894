//! Opens the backend of a namespace.

use crate::config::NamespaceConfig;
use crate::identity;
use crate::values::{Backend, Pages, Protected};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use telpher_mem::BlockPages;
use telpher_nvmf::file::{FileError, FilePool};
use telpher_nvmf::memory::{MemoryError, MemoryOptions};
use telpher_nvmf::namespace::{NamespaceError, NamespaceOptions};
use telpher_nvmf::protection::{Protection, stored_capacity};
use telpher_nvmf::target::Target;
use telpher_nvmf::{FileStorage, MemoryStorage, NullStorage, Storage};

/// Why a backend cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is too little memory.
    #[error(transparent)]
    TooLittle(#[from] telpher_os::MemoryError),
    /// The memory cannot be used.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// No backend can have the blocks and their tuples.
    #[error("{bytes} bytes with protection information are too many")]
    TooLarge {
        /// The size of the namespace.
        bytes: u64,
    },
}

/// A backend in use.
#[derive(Debug)]
struct Given {
    backend: Backend,
    access: Access,
}

/// What is to be said of how a backend is used.
#[derive(Debug)]
enum Access {
    /// The file's access, which may change while it is used.
    File(Weak<FileStorage>),
    /// A remark that stays true, if there is one.
    Remark(Option<String>),
}

/// A backend that was opened for a namespace.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The namespace's options.
    pub(crate) options: NamespaceOptions,
    given: Given,
}

impl Opened {
    /// What the user should know of the backend.
    pub(crate) fn remark(&self) -> Option<&str> {
        match &self.given.access {
            Access::Remark(remark) => remark.as_deref(),
            Access::File(_) => None,
        }
    }
}

/// Opens backends. All files share a `FilePool`: one io_uring, or threads.
#[derive(Debug)]
pub(crate) struct Backends {
    pool: Arc<FilePool>,
    /// How the backends of the namespaces were given, by NQN and NSID.
    given: Mutex<BTreeMap<(String, u32), Given>>,
}

impl Backends {
    pub(crate) fn new(pool: Arc<FilePool>) -> Backends {
        Backends { pool, given: Mutex::default() }
    }

    /// Refuses a namespace in memory that is larger than what is free: the kernel would kill the server when hosts fill
    /// it.
    fn check_memory(options: &MemoryOptions) -> Result<(), BackendError> {
        let bytes = options.capacity.saturating_add(options.reserve);
        Ok(telpher_os::check_memory("the namespace", bytes, None, "make it smaller, or put it into a file")?)
    }

    /// Checks a new size of a namespace, in bytes of its backend.
    pub(crate) fn check_size(&self, nqn: &str, nsid: u32, bytes: u64) -> Result<(), BackendError> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        match given.get(&(nqn.into(), nsid)).map(|given| &given.backend) {
            Some(Backend::Memory { pages, .. }) if *pages != Pages::Reserved => {
                Backends::check_memory(&memory_options(bytes, *pages))
            }
            _ => Ok(()),
        }
    }

    /// Opens the backend of a namespace. Sizes are those that hosts see; protection information needs more.
    pub(crate) fn open(&self, nqn: &str, nsid: u32, config: &NamespaceConfig) -> Result<Opened, BackendError> {
        let backend = config.backend.clone().unwrap_or(Backend::Null { bytes: 0 });
        let protection = match config.protection {
            Protected::No => None,
            Protected::InsertStrip => Some(Protection { application_tag: config.application_tag }),
        };
        let stored = |bytes: u64| stored_bytes(protection, bytes, config.block_bytes);
        let mut access = Access::Remark(None);
        let storage: Arc<dyn Storage> = match &backend {
            Backend::Memory { bytes, pages } => {
                let options = memory_options(stored(*bytes)?, *pages);
                // Free memory does not contain the pool of huge pages; the mapping reports their lack itself.
                if *pages != Pages::Reserved {
                    Backends::check_memory(&options)?;
                }
                let storage = MemoryStorage::anonymous(options)?;
                access = Access::Remark(storage.remark());
                Arc::new(storage)
            }
            Backend::MemoryFile { path, create_bytes } => Arc::new(match create_bytes {
                Some(bytes) if !path.exists() => {
                    let options = MemoryOptions::fixed(stored(*bytes)?);
                    if !is_on_huge_pages(path) {
                        Backends::check_memory(&options)?;
                    }
                    MemoryStorage::create(path, options)?
                }
                _ => MemoryStorage::open(path)?,
            }),
            Backend::Null { bytes } => Arc::new(NullStorage::new(stored(*bytes)?)),
            Backend::File { path, create_bytes } => {
                let storage = Arc::new(match create_bytes {
                    Some(bytes) if !path.exists() => FileStorage::create(path, stored(*bytes)?, &self.pool)?,
                    _ => FileStorage::open(path, &self.pool)?,
                });
                access = Access::File(Arc::downgrade(&storage));
                storage
            }
        };
        let options = NamespaceOptions {
            nsid,
            block_bytes: config.block_bytes,
            uuid: config.uuid.map_or_else(|| identity::uuid(nqn, nsid), |uuid| uuid.0),
            nguid: config.nguid.map_or_else(|| identity::nguid(nqn, nsid), |nguid| nguid.0),
            is_read_only: config.read_only,
            protection,
            storage,
        };
        Ok(Opened { options, given: Given { backend, access } })
    }

    /// Adds the namespace of an opened backend to the target.
    pub(crate) fn add(&self, target: &Target, nqn: &str, opened: Opened) -> Result<(), NamespaceError> {
        let Opened { options, given } = opened;
        let nsid = options.nsid;
        target.add_namespace(nqn, options)?;
        self.given.lock().unwrap_or_else(PoisonError::into_inner).insert((nqn.into(), nsid), given);
        Ok(())
    }

    /// How the backend of a namespace was given, and how it is used if there is something to say.
    pub(crate) fn given(&self, nqn: &str, nsid: u32) -> (String, Option<String>) {
        let all = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(given) = all.get(&(nqn.into(), nsid)) else { return (String::new(), None) };
        let access = match &given.access {
            Access::File(storage) => storage.upgrade().map(|storage| storage.access().to_string()),
            Access::Remark(remark) => remark.clone(),
        };
        (given.backend.to_string(), access)
    }

    /// How files are read and written.
    pub(crate) fn files(&self) -> String {
        self.pool.engine().to_string()
    }
}

/// The bytes of a backend for a namespace of `bytes` bytes.
pub(crate) fn stored_bytes(protection: Option<Protection>, bytes: u64, block_bytes: u32) -> Result<u64, BackendError> {
    match protection {
        Some(_) => stored_capacity(bytes, block_bytes).ok_or(BackendError::TooLarge { bytes }),
        None => Ok(bytes),
    }
}

/// The type of hugetlbfs. Source: Linux, include/uapi/linux/magic.h.
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Returns whether a new file has huge pages.
fn is_on_huge_pages(path: &Path) -> bool {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::statfs(folder).is_ok_and(|found| found.f_type == HUGETLBFS_MAGIC)
}

/// The options of a namespace in memory.
fn memory_options(bytes: u64, pages: Pages) -> MemoryOptions {
    match pages {
        Pages::Small => MemoryOptions::new(bytes),
        Pages::Transparent => MemoryOptions { pages: BlockPages::Transparent, ..MemoryOptions::new(bytes) },
        // All pages are allocated at once, so there are none to grow into.
        Pages::Reserved => MemoryOptions { pages: BlockPages::Reserved, ..MemoryOptions::fixed(bytes) },
    }
}
