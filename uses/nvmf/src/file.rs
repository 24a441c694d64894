//! A namespace in a file or on a block device, read and written by a pool of threads.
//!
//! ```text
//! FileStorage::start ─► FilePool: a thread calls pread, pwrite, fdatasync, fallocate ─► Loops ─► the connection's loop
//! ```
//!
//! Data that was acknowledged is in the page cache, and survives the end of this process. After a Flush, or with FUA,
//! it survives a crash of the machine. A write of several blocks is not atomic: a crash may leave a part of it.

use crate::engine::{JobId, Segment};
use crate::loops::Loops;
use crate::status::Status;
use crate::storage::{Started, Storage, StorageRequest, StorageResult};
use crate::subsystem::lock;
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use telpher_os::spawn_unsignalled;

/// Zeroes that are written at once where the file system cannot make holes.
const ZEROES: usize = 64 << 10;

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
    /// Another process has locked the file.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

/// A file, and the bytes of it that the namespace has. Requests hold the capacity's lock while they use the file, so
/// that none of them makes the file longer again after it was cut.
#[derive(Debug)]
struct Contents {
    file: File,
    capacity: RwLock<u64>,
}

/// A backend in a file.
#[derive(Debug)]
pub struct FileStorage {
    contents: Arc<Contents>,
    pool: Arc<FilePool>,
}

impl FileStorage {
    /// Opens a file or a block device; its capacity is its size. The file is locked against other servers.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn open(path: &Path, pool: &Arc<FilePool>) -> Result<FileStorage, FileError> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        FileStorage::of(opened.map_err(failed("open", path))?, path, pool)
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
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FileError::InUse { path: path.into() }),
            Err(TryLockError::Error(error)) => return Err(failed("lock", path)(error)),
        }
        // The metadata of a block device has no size.
        let capacity = (&file).seek(SeekFrom::End(0)).map_err(failed("find the size of", path))?;
        let contents = Arc::new(Contents { file, capacity: RwLock::new(capacity) });
        Ok(FileStorage { contents, pool: Arc::clone(pool) })
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    move |source| FileError::Call { action, path: path.into(), source }
}

impl Storage for FileStorage {
    fn start(&self, id: JobId, request: StorageRequest) -> Started {
        self.pool.push(Task { contents: Arc::clone(&self.contents), id, request });
        Started::Later
    }

    fn cancel(&self, id: JobId) -> bool {
        self.pool.cancel(id)
    }

    fn capacity(&self) -> u64 {
        *self.contents.capacity.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn resize(&self, bytes: u64) -> Result<(), Status> {
        let mut capacity = self.contents.capacity.write().unwrap_or_else(PoisonError::into_inner);
        let file = &self.contents.file;
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            file.set_len(bytes).map_err(|error| write_status(&error))?;
        } else {
            // A device has the size that it has; the namespace may use a part of it.
            let mut device = file;
            let size = device.seek(SeekFrom::End(0)).map_err(|_| Status::INTERNAL_ERROR)?;
            if bytes > size {
                return Err(Status::CAPACITY_EXCEEDED);
            }
        }
        *capacity = bytes;
        Ok(())
    }
}

impl Contents {
    fn execute(&self, request: StorageRequest) -> StorageResult {
        let capacity = self.capacity.read().unwrap_or_else(PoisonError::into_inner);
        let check = |start: u64, len: u64| match start.checked_add(len) {
            Some(end) if end <= *capacity => Ok(()),
            _ => Err(Status::LBA_RANGE),
        };
        match request {
            StorageRequest::Read { start, len } => {
                check(start, len)?;
                let mut bytes = vec![0; usize::try_from(len).map_err(|_| Status::INTERNAL_ERROR)?];
                self.file.read_exact_at(&mut bytes, start).map_err(|_| Status::READ_ERROR)?;
                return Ok(vec![Segment::whole(bytes)]);
            }
            StorageRequest::Write { start, pieces, force } => {
                check(start, pieces.iter().map(|piece| piece.len() as u64).sum())?;
                let mut position = start;
                for slice in pieces.iter().flat_map(|piece| piece.slices()) {
                    self.file.write_all_at(slice, position).map_err(|error| write_status(&error))?;
                    position += slice.len() as u64;
                }
                self.flush_if(force)?;
            }
            StorageRequest::Flush => self.flush_if(true)?,
            StorageRequest::WriteZeroes { start, len, force } => {
                check(start, len)?;
                self.write_zeroes(start, len)?;
                self.flush_if(force)?;
            }
            StorageRequest::Deallocate { ranges } => {
                for &(start, len) in &ranges {
                    check(start, len)?;
                }
                for (start, len) in ranges {
                    // It is a hint: a file system that cannot make holes keeps the blocks.
                    let _ = self.make_hole(start, len);
                }
            }
        }
        Ok(Vec::new())
    }

    fn flush_if(&self, is_wanted: bool) -> Result<(), Status> {
        if is_wanted { self.file.sync_data().map_err(|error| write_status(&error)) } else { Ok(()) }
    }

    fn make_hole(&self, start: u64, len: u64) -> rustix::io::Result<()> {
        // fallocate refuses a length of 0.
        if len == 0 {
            return Ok(());
        }
        fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, len)
    }

    fn write_zeroes(&self, start: u64, len: u64) -> Result<(), Status> {
        if self.make_hole(start, len).is_ok() {
            return Ok(());
        }
        let zeroes = vec![0; ZEROES];
        let mut position = start;
        let end = start + len;
        while position < end {
            let part = usize::try_from(end - position).unwrap_or(usize::MAX).min(ZEROES);
            self.file.write_all_at(&zeroes[..part], position).map_err(|error| write_status(&error))?;
            position += part as u64;
        }
        Ok(())
    }
}

fn write_status(error: &io::Error) -> Status {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Status::CAPACITY_EXCEEDED,
        _ => Status::WRITE_FAULT,
    }
}

#[derive(Debug)]
struct Task {
    contents: Arc<Contents>,
    id: JobId,
    request: StorageRequest,
}

#[derive(Debug, Default)]
struct Queue {
    tasks: VecDeque<Task>,
    is_stopping: bool,
}

#[derive(Debug)]
struct PoolState {
    queue: Mutex<Queue>,
    ready: Condvar,
    loops: Arc<Loops>,
}

/// Threads that execute the requests of files. The queue is bounded by the open commands of all connections.
#[derive(Debug)]
pub struct FilePool {
    state: Arc<PoolState>,
    threads: Vec<JoinHandle<()>>,
}

impl FilePool {
    /// Starts `threads` threads, at least one. Their answers go through `loops`, those of the target.
    ///
    /// # Errors
    /// The kernel's error if it cannot start a thread.
    pub fn start(threads: usize, loops: &Arc<Loops>) -> io::Result<Arc<FilePool>> {
        let queue = Mutex::new(Queue::default());
        let state = Arc::new(PoolState { queue, ready: Condvar::new(), loops: Arc::clone(loops) });
        let mut pool = FilePool { state, threads: Vec::with_capacity(threads) };
        for number in 0..threads.max(1) {
            let state = Arc::clone(&pool.state);
            pool.threads.push(spawn_unsignalled(&format!("nvmf-file-{number}"), move || state.run())?);
        }
        Ok(Arc::new(pool))
    }

    fn push(&self, task: Task) {
        lock(&self.state.queue).tasks.push_back(task);
        self.state.ready.notify_one();
    }

    fn cancel(&self, id: JobId) -> bool {
        let mut queue = lock(&self.state.queue);
        let found = queue.tasks.iter().position(|task| task.id == id);
        found.and_then(|index| queue.tasks.remove(index)).is_some()
    }
}

impl PoolState {
    /// Executes tasks until the pool stops and none is left.
    fn run(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(Task { contents, id, request }) = queue.tasks.pop_front() {
                drop(queue);
                let result = contents.execute(request);
                self.loops.answer(id, result);
                queue = lock(&self.queue);
            } else if queue.is_stopping {
                return;
            } else {
                queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for FilePool {
    fn drop(&mut self) {
        lock(&self.state.queue).is_stopping = true;
        self.state.ready.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing to report here.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::LoopInbox;
    use std::sync::mpsc::{Sender, channel};

    #[derive(Debug)]
    struct Answers(Mutex<Sender<u32>>);

    impl LoopInbox for Answers {
        fn answer(&self, id: JobId, _result: StorageResult) {
            lock(&self.0).send(id.slot).unwrap();
        }

        fn target_changed(&self) {}
    }

    #[test]
    fn a_request_is_taken_back_until_a_thread_begins_it() {
        let path = std::env::temp_dir().join(format!("telpher-nvmf-{}-cancel", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let (sender, answers) = channel();
        let loops = Arc::new(Loops::default());
        loops.register(1, Arc::new(Answers(Mutex::new(sender))));
        let pool = FilePool::start(1, &loops).unwrap();
        let storage = FileStorage::create(&path, 4096, &pool).unwrap();
        let id = |slot| JobId { connection: 1, slot, generation: 0, part: 0 };
        // The thread waits in the first request as long as the file's size is being changed.
        let resizing = storage.contents.capacity.write().unwrap();
        for slot in 0..3 {
            let _ = storage.start(id(slot), StorageRequest::Read { start: 0, len: 512 });
        }
        while lock(&pool.state.queue).tasks.len() > 2 {
            std::thread::yield_now();
        }
        assert!(!storage.cancel(id(0)) && storage.cancel(id(1)) && !storage.cancel(id(1)));
        drop(resizing);
        assert_eq!((answers.recv(), answers.recv()), (Ok(0), Ok(2)));
        assert!(!storage.cancel(id(2)));
        std::fs::remove_file(&path).unwrap();
    }
}
