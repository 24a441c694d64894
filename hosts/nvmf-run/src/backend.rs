//! Opens the backend of a namespace.

use crate::config::NamespaceConfig;
use crate::identity;
use crate::values::Backend;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use telpher_nvmf::file::{FileError, FilePool};
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::{FileStorage, MemoryStorage, NullStorage, Storage};

/// Opens backends. All files share a pool of threads.
#[derive(Debug)]
pub(crate) struct Backends {
    pool: Arc<FilePool>,
    /// How the backends of the namespaces were given, by NQN and NSID.
    given: Mutex<BTreeMap<(String, u32), Backend>>,
}

impl Backends {
    pub(crate) fn new(pool: Arc<FilePool>) -> Backends {
        Backends { pool, given: Mutex::default() }
    }

    /// Opens the backend of a namespace, and returns the namespace's options.
    pub(crate) fn open(&self, nqn: &str, nsid: u32, config: &NamespaceConfig) -> Result<NamespaceOptions, FileError> {
        let backend = config.backend.clone().unwrap_or(Backend::Null { bytes: 0 });
        let storage: Arc<dyn Storage> = match &backend {
            Backend::Memory { bytes } => Arc::new(MemoryStorage::new(*bytes)),
            Backend::Null { bytes } => Arc::new(NullStorage::new(*bytes)),
            Backend::File { path, create_bytes } => Arc::new(match create_bytes {
                Some(bytes) if !path.exists() => FileStorage::create(path, *bytes, &self.pool)?,
                _ => FileStorage::open(path, &self.pool)?,
            }),
        };
        Ok(NamespaceOptions {
            nsid,
            block_bytes: config.block_bytes,
            uuid: config.uuid.map_or_else(|| identity::uuid(nqn, nsid), |uuid| uuid.0),
            nguid: config.nguid.map_or_else(|| identity::nguid(nqn, nsid), |nguid| nguid.0),
            is_read_only: config.read_only,
            storage,
        })
    }

    /// Remembers how the backend of a namespace was given.
    pub(crate) fn added(&self, nqn: &str, nsid: u32, backend: &Backend) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.insert((nqn.into(), nsid), backend.clone());
    }

    /// How the backend of a namespace was given.
    pub(crate) fn given(&self, nqn: &str, nsid: u32) -> String {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.get(&(nqn.into(), nsid)).map_or_else(String::new, Backend::to_string)
    }
}
