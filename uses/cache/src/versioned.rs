//! Data that changes, and blocks of it: a writer has exclusive access, so that no reader ever has an outdated copy.
//!
//! The thesis names the type and leaves it to others (Fürst, §4.2, `CacheMutWrapper`): a time stamp, and the writer's
//! promise to invalidate and to wait. Here types enforce the promise. Readers hold a shared lock as long as they have
//! blocks. A writer takes the lock exclusively, removes all entries, and waits until the last other owner of the bytes
//! is gone, including copies in flight. Only then is there a `&mut`.

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
/// assert!((sum, version) == (1000, 0) && prices.version() == 1); // the sum is of the old version
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
    /// Creates versioned bytes whose blocks this cache holds. The cache may have other sources as well.
    #[must_use]
    pub fn new(cache: &Cache<Arc<B>>, data: B) -> Self {
        Versioned { cache: cache.clone(), state: RwLock::new(State { data: Arc::new(data), version: 0 }) }
    }

    /// Reads concurrently with other readers, until the guard is dropped. Waits for a writer.
    pub fn read(&self) -> Reading<'_, B> {
        Reading { cache: &self.cache, state: self.state.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Takes exclusive access for writing. Waits until no reader is left and every copy of the bytes in flight has
    /// ended; all their entries are removed.
    ///
    /// It waits forever for a leaked block of a reader, and for a device that neither ends a copy nor reports that it
    /// has stopped: what they read must not change.
    pub fn write(&self) -> Writing<'_, B> {
        // Poisoned: a writer panicked and may have written only a part, under a new version.
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let len = state.data.len();
        if len > 0 {
            let forgotten = self.cache.invalidate(&state.data, 0..len);
            debug_assert!(forgotten.is_ok(), "the range is the whole source");
        }
        let mover = self.cache.mover();
        // No new owner can appear: readers are locked out, and the entries that own the bytes were removed.
        mover.wait(|| {
            if Arc::get_mut(&mut state.data).is_some() {
                return Poll::Ready(());
            }
            mover.drive();
            Poll::Pending
        });
        Writing { state }
    }

    /// Returns how often the bytes were written.
    ///
    /// **Staleness**: a writer may be active. [`Reading::version`] holds as long as the guard.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state.read().unwrap_or_else(PoisonError::into_inner).version
    }

    /// Returns the bytes, after removing all their entries.
    #[must_use]
    pub fn into_inner(self) -> B {
        drop(self.write());
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        Arc::into_inner(state.data).expect("the last writer had exclusive access, and no reader has come since")
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

/// A reader's view of [`Versioned`] bytes, which do not change as long as it exists.
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
    /// Returns how often the bytes were written before.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state.version
    }

    /// Returns all bytes, in place.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.state.data.bytes()
    }

    /// Returns a block, like [`Cache::access`]; the block cannot outlive this guard.
    ///
    /// # Errors
    /// As [`Cache::access`].
    pub fn access(&self, range: Range<usize>) -> Result<VersionedHandle<'_, B>, AccessError> {
        Ok(VersionedHandle { handle: self.cache.access(&self.state.data, range)?, reading: PhantomData })
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

/// A block of bytes that do not change while it exists. From [`Reading::access`].
#[derive(Clone)]
pub struct VersionedHandle<'a, B: StableBufMut + Sync>
where
    Arc<B>: Readable,
{
    handle: Handle<Arc<B>>,
    reading: PhantomData<&'a ()>,
}

impl<B: StableBufMut + Sync> VersionedHandle<'_, B>
where
    Arc<B>: Readable,
{
    /// Returns the present location of the bytes.
    #[must_use]
    pub fn location(&self) -> Location<'_> {
        self.handle.location()
    }

    /// Checks once; see [`Handle::copy_has_ended`].
    #[must_use]
    pub fn copy_has_ended(&self) -> bool {
        self.handle.copy_has_ended()
    }

    /// Waits, and returns the bytes.
    pub fn wait(&self) -> Location<'_> {
        self.handle.wait()
    }

    /// Waits for the bytes in an executor.
    pub async fn arrive(&self) -> Location<'_> {
        (&self.handle).await
    }
}

impl<B: StableBufMut + Sync> Debug for VersionedHandle<'_, B>
where
    Arc<B>: Readable,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}

/// A writer's exclusive access to [`Versioned`] bytes; dereferences to the bytes.
///
/// # On drop
///
/// The bytes get a new version, whether any byte was written or not.
pub struct Writing<'a, B> {
    state: RwLockWriteGuard<'a, State<B>>,
}

const ALONE: &str = "the writer waited for exclusive access, and no reader has come since";

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
    /// Returns the owned bytes, to change their length.
    pub fn owned(&mut self) -> &mut Vec<u8> {
        Arc::get_mut(&mut self.state.data).expect(ALONE)
    }
}

impl<B> Drop for Writing<'_, B> {
    fn drop(&mut self) {
        // Cannot wrap: that many writes take centuries.
        self.state.version += 1;
    }
}

impl<B> Debug for Writing<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writing").field("version", &self.state.version).finish_non_exhaustive()
    }
}
