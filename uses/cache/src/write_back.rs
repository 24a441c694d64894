//! A block that is modified in fast memory and copied back: everything that was written, or only what differs.

use crate::written_pages::{Find, SyncHome, Synced, WrittenPages};
use std::fmt::{self, Debug};
use std::ops::{DerefMut, Range};
use telpher_mem::{Pool, PoolBuffer};
use telpher_mover::{JobError, Mover, Outcome};

/// Why a block could not be fetched; returns its home.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError<B> {
    /// The pool has no gap that is long enough.
    #[error("the pool has no {len} contiguous free bytes; drop blocks, or give it more memory")]
    NoRoom {
        /// The length of the block in bytes.
        len: usize,
        /// The home of the block.
        home: B,
    },
    /// The copy failed.
    #[error("the block could not be fetched")]
    Copy {
        /// The cause.
        #[source]
        error: JobError,
        /// The home of the block.
        home: B,
    },
}

/// A replica in fast memory of bytes that belong elsewhere (the home). Reads and writes use the replica; the home is
/// unchanged until [`sync`](WriteBack::sync).
///
/// ```
/// use telpher_cache::{Find, WriteBack};
/// use telpher_mem::{Pool, PoolOptions};
/// use telpher_mover::Mover;
///
/// let fast = Pool::new(PoolOptions::new(1 << 20))?;
/// let mut block = WriteBack::fetch(&Mover::cpu(), &fast, vec![0; 100_000])?;
/// block.write(50_000..50_010).fill(7);
/// assert_eq!(block.home()[50_000], 0);
/// assert_eq!(block.sync(Find::Written)?.copied, 4096);
/// assert_eq!(block.home()[50_000..50_010], [7; 10]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # On drop
///
/// Bytes that were not synced are lost; [`into_home`](WriteBack::into_home) syncs.
pub struct WriteBack<B> {
    mover: Mover,
    fast: PoolBuffer,
    home: B,
    written: WrittenPages,
}

impl<B: DerefMut<Target = [u8]>> WriteBack<B> {
    /// Copies `home` to memory of the pool.
    ///
    /// # Errors
    /// [`FetchError`], with `home`: no room, or a failed copy.
    pub fn fetch(mover: &Mover, pool: &Pool, home: B) -> Result<Self, FetchError<B>> {
        let len = home.len();
        let Some(mut fast) = pool.obtain(len) else { return Err(FetchError::NoRoom { len, home }) };
        match mover.copy_slices(&home, &mut fast) {
            Ok(_) => Ok(WriteBack { mover: mover.clone(), fast, home, written: WrittenPages::new(len) }),
            Err(error) => Err(FetchError::Copy { error, home }),
        }
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.fast
    }

    /// Returns bytes for writing; the next sync copies them back.
    ///
    /// # Panics
    /// If the range is not inside the block.
    pub fn write(&mut self, range: Range<usize>) -> &mut [u8] {
        self.written.mark(&range);
        &mut self.fast[range]
    }

    /// Returns the home.
    #[must_use]
    pub fn home(&self) -> &[u8] {
        &self.home
    }

    /// Returns the bytes that a sync has to check, in whole pages except the last.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.written.unsynced()
    }

    /// Updates the home, with all pages that need it at once.
    ///
    /// # Errors
    /// [`JobError`] of the first page that failed. Copied pages are not undone; the others are tried again at the next
    /// sync.
    pub fn sync(&mut self, find: Find) -> Result<Synced, JobError> {
        let WriteBack { mover, fast, home, written } = self;
        written.sync(find, &mut Slices { mover, fast, home })
    }

    /// Syncs the written bytes, and returns the home.
    ///
    /// # Errors
    /// As for [`sync`](WriteBack::sync), with the block: nothing is lost.
    pub fn into_home(mut self) -> Result<B, (JobError, Self)> {
        match self.sync(Find::Written) {
            Ok(_) => Ok(self.home),
            Err(error) => Err((error, self)),
        }
    }
}

/// A block and its home during a sync.
struct Slices<'a> {
    mover: &'a Mover,
    fast: &'a [u8],
    home: &'a mut [u8],
}

impl SyncHome for Slices<'_> {
    fn differing(&mut self, ranges: &[Range<usize>]) -> Result<Vec<bool>, JobError> {
        let (fast, home): (&[u8], &[u8]) = (self.fast, self.home);
        self.mover.scope(|scope| {
            let compare = |range: &Range<usize>| scope.compare(&fast[range.clone()], &home[range.clone()]);
            let jobs: Vec<_> = ranges.iter().map(compare).collect();
            jobs.into_iter().map(|job| Ok(job.wait().result? != Outcome::Equal)).collect()
        })
    }

    fn copy(&mut self, ranges: &[Range<usize>]) -> Vec<Result<Outcome, JobError>> {
        let mut parts = Vec::with_capacity(ranges.len());
        let (mut rest, mut at) = (&mut *self.home, 0);
        for range in ranges {
            let part;
            (part, rest) = rest[range.start - at..].split_at_mut(range.len());
            at = range.end;
            parts.push((&self.fast[range.clone()], part));
        }
        self.mover.scope(|scope| {
            let jobs: Vec<_> = parts.into_iter().map(|(fast, home)| scope.copy(fast, home)).collect();
            jobs.into_iter().map(|job| job.wait().result).collect()
        })
    }
}

impl<B> Debug for WriteBack<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBack")
            .field("len", &self.fast.len())
            .field("unsynced", &self.written.unsynced())
            .finish_non_exhaustive()
    }
}
