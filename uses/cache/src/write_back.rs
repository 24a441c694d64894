//! A block that is modified in fast memory and copied back: everything that was written, or only what differs.

use std::fmt::{self, Debug};
use std::ops::{DerefMut, Range};
use telpher_mem::{Pool, PoolBuffer};
use telpher_mover::{JobError, Mover, Outcome};

/// Bytes that are compared and copied back together. Source: a page, the size from which devices are faster than a core
/// ([`Threshold`](telpher_mover::Threshold)'s default).
const GRAIN: usize = 4096;

/// How to find the bytes to copy back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Find {
    /// The bytes borrowed for writing since the last sync.
    #[default]
    Written,
    /// Of these, the bytes that differ from the home: reads both, and writes less. For memory that is slow to write, or
    /// wears out.
    Differing,
    /// All bytes that differ, also where other code has changed the home since.
    Anywhere,
}

/// What a [`WriteBack::sync`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Synced {
    /// Bytes that were compared.
    pub compared: usize,
    /// Bytes that were copied back.
    pub copied: usize,
}

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
    /// A bit for each grain that was borrowed for writing since the last sync.
    written: Vec<u64>,
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
            Ok(_) => {
                let written = vec![0; len.div_ceil(GRAIN).div_ceil(64)];
                Ok(WriteBack { mover: mover.clone(), fast, home, written })
            }
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
        let len = self.fast.len();
        assert!(range.start <= range.end && range.end <= len, "{range:?} lies in a block of {len} bytes");
        for grain in range.start / GRAIN..range.end.div_ceil(GRAIN) {
            self.written[grain / 64] |= 1 << (grain % 64);
        }
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
        (0..self.grains()).filter(|&grain| self.is_written(grain)).map(|grain| self.range(grain).len()).sum()
    }

    /// Updates the home, with all pages that need it at once.
    ///
    /// # Errors
    /// [`JobError`] of the first page that failed. Copied pages are not undone; the others are tried again at the next
    /// sync.
    pub fn sync(&mut self, find: Find) -> Result<Synced, JobError> {
        let looks: Vec<usize> =
            (0..self.grains()).filter(|&grain| find == Find::Anywhere || self.is_written(grain)).collect();
        let mut synced = Synced::default();
        let goes = match find {
            Find::Written => looks.clone(),
            Find::Differing | Find::Anywhere => {
                synced.compared = looks.iter().map(|&grain| self.range(grain).len()).sum();
                self.differing(&looks)?
            }
        };
        let (fast, mover) = (&self.fast, &self.mover);
        // Contiguous grains are one copy.
        let mut runs: Vec<Range<usize>> = Vec::new();
        for &grain in &goes {
            let range = self.range(grain);
            match runs.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => runs.push(range),
            }
        }
        let mut parts = Vec::with_capacity(runs.len());
        let (mut rest, mut at) = (&mut *self.home, 0);
        for run in runs {
            let part;
            (part, rest) = rest[run.start - at..].split_at_mut(run.len());
            at = run.end;
            parts.push((run, part));
        }
        let done: Vec<_> = mover.scope(|scope| {
            let jobs: Vec<_> =
                parts.into_iter().map(|(run, part)| (run.clone(), scope.copy(&fast[run], part))).collect();
            jobs.into_iter().map(|(run, job)| (run, job.wait().result)).collect()
        });
        let mut failed = None;
        let mut stays = vec![0; self.written.len()];
        for (run, result) in done {
            match result {
                Ok(_) => synced.copied += run.len(),
                Err(error) => {
                    failed.get_or_insert(error);
                    (run.start / GRAIN..run.end.div_ceil(GRAIN))
                        .for_each(|grain| stays[grain / 64] |= 1 << (grain % 64));
                }
            }
        }
        self.written = stays;
        failed.map_or(Ok(synced), Err)
    }

    /// Returns those of these grains that differ from the home.
    fn differing(&self, looks: &[usize]) -> Result<Vec<usize>, JobError> {
        let (fast, home): (&[u8], &[u8]) = (&self.fast, &self.home);
        self.mover.scope(|scope| {
            let compare = |&grain: &usize| (grain, scope.compare(&fast[self.range(grain)], &home[self.range(grain)]));
            let jobs: Vec<_> = looks.iter().map(compare).collect();
            let mut differing = Vec::new();
            for (grain, job) in jobs {
                if job.wait().result? != Outcome::Equal {
                    differing.push(grain);
                }
            }
            Ok(differing)
        })
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

    /// Returns the memory of the block, at the same address, and the home, without a sync.
    #[must_use = "bytes that were not synced are only in the memory"]
    pub fn into_parts(self) -> (PoolBuffer, B) {
        (self.fast, self.home)
    }

    fn grains(&self) -> usize {
        self.fast.len().div_ceil(GRAIN)
    }

    fn range(&self, grain: usize) -> Range<usize> {
        grain * GRAIN..((grain + 1) * GRAIN).min(self.fast.len())
    }

    fn is_written(&self, grain: usize) -> bool {
        self.written[grain / 64] & 1 << (grain % 64) != 0
    }
}

impl<B> Debug for WriteBack<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written: u32 = self.written.iter().map(|word| word.count_ones()).sum();
        f.debug_struct("WriteBack")
            .field("len", &self.fast.len())
            .field("written_pages", &written)
            .finish_non_exhaustive()
    }
}
