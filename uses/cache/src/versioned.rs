//! Data that changes, and blocks of it: who writes has it alone, so that no reader ever has a copy of before.
//!
//! The thesis names the type and leaves it to others (Fürst, §4.2, `CacheMutWrapper`): a time stamp and the promise of whoever writes to
//! invalidate and to wait. Here the promise is kept by types. Readers hold a shared lock as long as they have blocks. A writer has the
//! lock alone, forgets all entries, and waits until the last owner of the bytes besides itself is gone, a copy under way among them;
//! only then is there a `&mut`.

use crate::cache::Cache;
use crate::error::AccessError;
use crate::handle::{Handle, Location};
use crate::source::Readable;
use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::Poll;
use telpher_mem::StableBufMut;

/// Bytes that are read through a cache and written in place.
///
/// ```
/// use std::sync::Arc;
/// use telpher_cache::{Cache, Config, Versioned};
/// use telpher_mem::{Pool, PoolOptions};
/// use telpher_mover::Mover;
///
/// let cache = Cache::new(Mover::cpu(), Config::new([Pool::new(PoolOptions::new(1 << 20))?]))?;
/// let prices = Versioned::new(&cache, vec![1; 100_000]);
/// let (sum, version) = {
///     let reading = prices.read();
///     let block = reading.access(0..1000)?;
///     (block.wait().iter().map(|&price| u32::from(price)).sum::<u32>(), reading.version())
/// };
/// prices.write()[500] = 9;
/// assert_eq!(prices.read().access(0..1000)?.wait()[500], 9);
/// assert!((sum, version) == (1000, 0) && prices.version() == 1); // what was summed is of before
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Versioned<B: StableBufMut + Sync>
where
    Arc<B>: Readable,
{
    cache: Cache<Arc<B>>,
    state: RwLock<State<B>>,
}

struct State<B> {
    data: Arc<B>,
    version: u64,
}

impl<B: StableBufMut + Sync> Versioned<B>
where
    Arc<B>: Readable,
{
    /// Bytes whose blocks this cache holds. The cache may have other sources, too.
    #[must_use]
    pub fn new(cache: &Cache<Arc<B>>, data: B) -> Self {
        Versioned { cache: cache.clone(), state: RwLock::new(State { data: Arc::new(data), version: 0 }) }
    }

    /// Reads, beside other readers, until the guard is dropped. Waits for a writer.
    pub fn read(&self) -> Reading<'_, B> {
        Reading { cache: &self.cache, state: self.state.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Writes, alone. Waits until no reader is left and every copy of it that is under way has ended; all its entries are forgotten.
    ///
    /// A reader's block that was leaked, or a device that neither ends a copy nor says that it has stopped, keeps it waiting: what they read
    /// must not change.
    pub fn write(&self) -> Writing<'_, B> {
        // Poisoned: a writer panicked, which may have left half of what it meant to write, under a new version.
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let len = state.data.len();
        if len > 0 {
            let forgotten = self.cache.invalidate(&state.data, 0..len);
            debug_assert!(forgotten.is_ok(), "all of it is in it");
        }
        let mover = self.cache.mover();
        // Nobody gets another: readers are locked out, and the last entries that have one were forgotten.
        mover.wait(|| {
            if Arc::get_mut(&mut state.data).is_some() {
                return Poll::Ready(());
            }
            mover.drive();
            Poll::Pending
        });
        Writing { state }
    }

    /// How often it was written.
    ///
    /// **Staleness**: a writer may be at it. [`Reading::version`] holds as long as the guard.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state.read().unwrap_or_else(PoisonError::into_inner).version
    }

    /// The bytes, and no entries of them.
    #[must_use]
    pub fn into_inner(self) -> B {
        drop(self.write());
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        Arc::into_inner(state.data).expect("the writer before was alone, and nobody could read since")
    }
}

impl<B: StableBufMut + Sync> Debug for Versioned<B>
where
    Arc<B>: Readable,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Versioned").field("version", &self.version()).finish_non_exhaustive()
    }
}

/// A reader's view of [`Versioned`] bytes: they do not change as long as it is there.
pub struct Reading<'a, B: StableBufMut + Sync>
where
    Arc<B>: Readable,
{
    cache: &'a Cache<Arc<B>>,
    state: RwLockReadGuard<'a, State<B>>,
}

impl<B: StableBufMut + Sync> Reading<'_, B>
where
    Arc<B>: Readable,
{
    /// How often they were written before.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state.version
    }

    /// All of them, where they lie.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.state.data.bytes()
    }

    /// A block, as from [`Cache::access`]; it goes before this guard does.
    ///
    /// # Errors
    /// As [`Cache::access`].
    pub fn access(&self, range: Range<usize>) -> Result<Lent<'_, B>, AccessError> {
        Ok(Lent { handle: self.cache.access(&self.state.data, range)?, reading: PhantomData })
    }
}

impl<B: StableBufMut + Sync> Debug for Reading<'_, B>
where
    Arc<B>: Readable,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("version", &self.state.version).finish_non_exhaustive()
    }
}

/// A block of bytes that do not change while it is there. From [`Reading::access`].
#[derive(Clone)]
pub struct Lent<'a, B: StableBufMut + Sync>
where
    Arc<B>: Readable,
{
    handle: Handle<Arc<B>>,
    reading: PhantomData<&'a ()>,
}

impl<B: StableBufMut + Sync> Lent<'_, B>
where
    Arc<B>: Readable,
{
    /// Where the bytes are at the moment.
    #[must_use]
    pub fn location(&self) -> Location<'_> {
        self.handle.location()
    }

    /// Looks once; see [`Handle::is_settled`].
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.handle.is_settled()
    }

    /// Waits, and gives the bytes.
    pub fn wait(&self) -> Location<'_> {
        self.handle.wait()
    }

    /// The same for executors.
    pub async fn arrive(&self) -> Location<'_> {
        (&self.handle).await
    }
}

impl<B: StableBufMut + Sync> Debug for Lent<'_, B>
where
    Arc<B>: Readable,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}

/// A writer's hold of [`Versioned`] bytes; itself those bytes.
///
/// # On drop
///
/// The bytes have a new version, whether one of them was written or not.
pub struct Writing<'a, B> {
    state: RwLockWriteGuard<'a, State<B>>,
}

const ALONE: &str = "it waited until it was alone, and nobody has read since";

impl<B: Deref<Target = [u8]>> Deref for Writing<'_, B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.state.data
    }
}

impl<B: DerefMut<Target = [u8]>> DerefMut for Writing<'_, B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        Arc::get_mut(&mut self.state.data).expect(ALONE)
    }
}

impl Writing<'_, Vec<u8>> {
    /// The bytes as they are owned, to make them more or fewer.
    pub fn owned(&mut self) -> &mut Vec<u8> {
        Arc::get_mut(&mut self.state.data).expect(ALONE)
    }
}

impl<B> Drop for Writing<'_, B> {
    fn drop(&mut self) {
        // Cannot wrap: as many writes take centuries.
        self.state.version += 1;
    }
}

impl<B> Debug for Writing<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writing").field("version", &self.state.version).finish_non_exhaustive()
    }
}
