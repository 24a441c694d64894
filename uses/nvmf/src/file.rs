//! A namespace in a file or on a block device.
//!
//! ```text
//! FileStorage::start ─► Queue ─► FilePool: an io_uring, or threads ─► Loops ─► the connection's loop
//! ```
//!
//! # What survives
//!
//! Data that was acknowledged survives the end of this process. After a Flush, or with FUA, it survives a crash of the
//! machine, as far as the file system and the device keep their promises.
//!
//! # Several commands on the same blocks
//!
//! A write of several blocks is not atomic: a crash, and another command on the same blocks at the same time, may find
//! a part of it. Of two such writes, each sector of the device then has the bytes of one of them.
//!
//! # Memory
//!
//! Requests that wait hold only the data of their writes, which [`Limits`](crate::Limits) bound. A request that is
//! executed has one buffer of its length and at most 4095 bytes more. An io_uring executes at most 255 requests at a
//! time, so with transfers of 128 KiB its buffers have at most 33 MiB; threads execute one request each. The answer to
//! a read takes its buffer over. Each thread keeps at most 8 MiB of the buffers of writes for the next ones.

mod buffer;
mod contents;
mod queue;
mod ring;
mod threads;
mod uring;

pub use contents::{Access, Alignment, PageCacheReason};

use crate::engine::JobId;
use crate::loops::Loops;
use crate::status::Status;
use crate::storage::{Started, Storage, StorageRequest};
use contents::Contents;
use queue::{Queue, Task};
use ring::Waker;
use rustix::fs::OFlags;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long opening a file waits until it is free. The kernel ends the operations of a killed process after it, and
/// keeps its files until then.
const PATIENCE: Duration = Duration::from_millis(500);

/// The time between two attempts.
const INTERVAL: Duration = Duration::from_millis(5);

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The kernel refused a call.
    #[error("cannot {action} {}", path.display())]
    Call {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Another process has locked the file, or the device is mounted.
    #[error("{} is in use by another process, or mounted", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

/// A backend in a file.
#[derive(Debug)]
pub struct FileStorage {
    contents: Arc<Contents>,
    pool: Arc<FilePool>,
}

impl FileStorage {
    /// Opens a file or a block device; its capacity is its size. A file is locked against other servers. A device must
    /// not be mounted or in use.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn open(path: &Path, pool: &Arc<FilePool>) -> Result<FileStorage, FileError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
            options.custom_flags(OFlags::EXCL.bits().cast_signed());
        }
        let file = when_free(path, || match options.open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(None),
            Err(error) => Err(failed("open", path)(error)),
        })?;
        FileStorage::of(file, path, pool)
    }

    /// Creates a file of `capacity` bytes without allocating them.
    ///
    /// # Errors
    /// [`FileError`], also if the file exists.
    pub fn create(path: &Path, capacity: u64, pool: &Arc<FilePool>) -> Result<FileStorage, FileError> {
        let created = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = created.map_err(failed("create", path))?;
        file.set_len(capacity).map_err(failed("set the size of", path))?;
        FileStorage::of(file, path, pool)
    }

    fn of(file: File, path: &Path, pool: &Arc<FilePool>) -> Result<FileStorage, FileError> {
        when_free(path, || match file.try_lock() {
            Ok(()) => Ok(Some(())),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed("lock", path)(error)),
        })?;
        let contents = Contents::new(file, pool.is_direct).map_err(failed("find the size of", path))?;
        Ok(FileStorage { contents: Arc::new(contents), pool: Arc::clone(pool) })
    }

    /// How the file is accessed now.
    #[must_use]
    pub fn access(&self) -> Access {
        self.contents.access()
    }
}

/// Repeats a call that returns `None` while another process has the file.
fn when_free<T>(path: &Path, mut call: impl FnMut() -> Result<Option<T>, FileError>) -> Result<T, FileError> {
    let since = Instant::now();
    loop {
        if let Some(done) = call()? {
            return Ok(done);
        }
        if since.elapsed() >= PATIENCE {
            return Err(FileError::InUse { path: path.into() });
        }
        std::thread::sleep(INTERVAL);
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    move |source| FileError::Call { action, path: path.into(), source }
}

impl Storage for FileStorage {
    /// Starts the request. Only the first request that O_DIRECT cannot execute waits here, for those before it.
    fn start(&self, id: JobId, request: StorageRequest) -> Started {
        match self.contents.admit(&request) {
            Ok(admitted) => {
                self.pool.push(Task { admitted, id, request });
                Started::Later
            }
            Err(status) => Started::Done(Err(status)),
        }
    }

    fn cancel(&self, id: JobId) -> bool {
        self.pool.cancel(id)
    }

    fn capacity(&self) -> u64 {
        self.contents.capacity()
    }

    fn resize(&self, bytes: u64) -> Result<(), Status> {
        self.contents.resize(bytes)
    }
}

/// Which calls read and write files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FileEngine {
    /// An io_uring if `direct` is set, unless the kernel refuses it; else threads. Files that then cannot use O_DIRECT
    /// stay with this engine.
    #[default]
    Auto,
    /// An io_uring only.
    Uring,
    /// Threads only.
    Threads,
}

/// Options of a [`FilePool`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileOptions {
    /// The calls.
    pub engine: FileEngine,
    /// Threads, at least one, if there is no io_uring.
    pub threads: usize,
    /// Opens files with O_DIRECT where the file system has it.
    pub direct: bool,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions { engine: FileEngine::Auto, threads: 4, direct: true }
    }
}

/// The engine that a [`FilePool`] uses.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineInUse {
    /// An io_uring.
    Uring,
    /// Threads.
    Threads {
        /// Their number.
        count: usize,
        /// Why there is no io_uring; `None` if the options choose threads.
        refusal: Option<io::Error>,
    },
}

impl fmt::Display for EngineInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineInUse::Uring => write!(f, "one thread reads and writes with io_uring"),
            EngineInUse::Threads { count, refusal } => {
                if let Some(refusal) = refusal {
                    write!(f, "io_uring is refused: {refusal}; ")?;
                }
                if *count == 1 {
                    write!(f, "1 thread reads and writes")
                } else {
                    write!(f, "{count} threads read and write")
                }
            }
        }
    }
}

/// Executes the requests of files. When the last storage that uses it is dropped, it waits for the requests that were
/// accepted.
#[derive(Debug)]
pub struct FilePool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    /// Calls the thread of the io_uring.
    waker: Option<Waker>,
    engine: EngineInUse,
    is_direct: bool,
}

impl FilePool {
    /// Starts a pool with the default options: an io_uring, or `threads` threads if the kernel refuses it.
    ///
    /// # Errors
    /// As [`FilePool::with_options`].
    pub fn start(threads: usize, loops: &Arc<Loops>) -> io::Result<Arc<FilePool>> {
        FilePool::with_options(FileOptions { threads, ..FileOptions::default() }, loops)
    }

    /// Starts a pool. Its answers go through `loops`, those of the target.
    ///
    /// # Errors
    /// The kernel refuses a thread, or the io_uring that the options require.
    pub fn with_options(options: FileOptions, loops: &Arc<Loops>) -> io::Result<Arc<FilePool>> {
        let queue = Arc::default();
        let uring = match options.engine {
            FileEngine::Auto if options.direct => Some(uring::start(&queue, loops)),
            FileEngine::Uring => Some(uring::start(&queue, loops)),
            FileEngine::Auto | FileEngine::Threads => None,
        };
        let refusal = match uring {
            Some(Ok((thread, waker))) => {
                let (threads, waker, engine) = (vec![thread], Some(waker), EngineInUse::Uring);
                return Ok(Arc::new(FilePool { queue, threads, waker, engine, is_direct: options.direct }));
            }
            Some(Err(error)) if options.engine == FileEngine::Uring => return Err(error),
            Some(Err(error)) => Some(error),
            None => None,
        };
        let count = options.threads.max(1);
        let engine = EngineInUse::Threads { count, refusal };
        let mut pool = FilePool { queue, threads: Vec::new(), waker: None, engine, is_direct: options.direct };
        for number in 0..count {
            pool.threads.push(threads::start(number, &pool.queue, loops)?);
        }
        Ok(Arc::new(pool))
    }

    /// The engine in use, and why it is not another one.
    #[must_use]
    pub fn engine(&self) -> &EngineInUse {
        &self.engine
    }

    fn cancel(&self, id: JobId) -> bool {
        self.queue.cancel(id)
    }

    fn push(&self, task: Task) {
        if self.queue.push(task) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

impl Drop for FilePool {
    fn drop(&mut self) {
        self.queue.stop();
        self.wake();
        for thread in self.threads.drain(..) {
            // An answer of one of these threads may drop the last storage. That thread cannot wait for its own end,
            // which comes when it has executed the requests that are left.
            if thread.thread().id() != std::thread::current().id() {
                // A thread that panicked has nothing to report here.
                let _ = thread.join();
            }
        }
    }
}
