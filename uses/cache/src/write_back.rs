//! A block that is worked on in fast memory and goes back to where it belongs: all that was written, or only what differs.

use std::fmt::{self, Debug};
use std::ops::{DerefMut, Range};
use telpher_mem::{Piece, Pool};
use telpher_mover::{JobError, Mover, Outcome};

/// Bytes that are compared, and go back, together. Source: a page, as small as devices are ahead of a core
/// ([`Threshold`](telpher_mover::Threshold)'s default).
const GRAIN: usize = 4096;

/// How what goes back is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Find {
    /// What was borrowed for writing since.
    #[default]
    Written,
    /// Of that, what differs from what is there: reads both, and writes less. For memory that is slow to write, or wears.
    Differing,
    /// Whatever differs, also where somebody else has changed what is there since.
    Anywhere,
}

/// What a [`WriteBack::sync`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Synced {
    /// Bytes that were compared.
    pub compared: usize,
    /// Bytes that went back.
    pub copied: usize,
}

/// Why a block could not be fetched, with its home.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError<B> {
    /// No gap of the pool is long enough.
    #[error("no {len} bytes in a row are free in the pool; let go of blocks, or give it more memory")]
    NoRoom {
        /// Asked for.
        len: usize,
        /// What was to be fetched.
        home: B,
    },
    /// It was not copied.
    #[error("the block was not fetched")]
    Copy {
        /// Why.
        #[source]
        error: JobError,
        /// What was to be fetched.
        home: B,
    },
}

/// A replica in fast memory of bytes that belong elsewhere. It is read and written; the home is what it was until
/// [`sync`](WriteBack::sync).
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
/// What was not synced is lost; [`into_home`](WriteBack::into_home) syncs.
pub struct WriteBack<B> {
    mover: Mover,
    fast: Piece,
    home: B,
    /// A bit for each grain: borrowed for writing since the last sync.
    written: Vec<u64>,
}

impl<B: DerefMut<Target = [u8]>> WriteBack<B> {
    /// Copies `home` to memory of the pool.
    ///
    /// # Errors
    /// [`FetchError`], with `home`: no room, or the copy failed.
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

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.fast
    }

    /// Bytes to write; they go back at the next sync.
    ///
    /// # Panics
    /// If the range does not lie in the block.
    pub fn write(&mut self, range: Range<usize>) -> &mut [u8] {
        let len = self.fast.len();
        assert!(range.start <= range.end && range.end <= len, "{range:?} lies in a block of {len} bytes");
        for grain in range.start / GRAIN..range.end.div_ceil(GRAIN) {
            self.written[grain / 64] |= 1 << (grain % 64);
        }
        &mut self.fast[range]
    }

    /// Where they belong.
    #[must_use]
    pub fn home(&self) -> &[u8] {
        &self.home
    }

    /// Bytes that a sync has to look at, in whole pages but the last.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        (0..self.grains()).filter(|&grain| self.is_written(grain)).map(|grain| self.range(grain).len()).sum()
    }

    /// Brings the home up to date, all pages that need it in one go.
    ///
    /// # Errors
    /// [`JobError`] of the first page that did not go; those that went are not gone back for, the others are tried again next time.
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
        // Neighbours go in one copy.
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

    /// Of these grains, those that are not the same at home.
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

    /// Syncs what was written, and gives the home back.
    ///
    /// # Errors
    /// As [`sync`](WriteBack::sync), with the block: nothing is lost.
    pub fn into_home(mut self) -> Result<B, (JobError, Self)> {
        match self.sync(Find::Written) {
            Ok(_) => Ok(self.home),
            Err(error) => Err((error, self)),
        }
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
