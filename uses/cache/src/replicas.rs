//! Replicas of blocks in a file that survives.
//!
//! ```text
//! file:  shape │ headers: generation, key, length, checksum, checksum of the header │ places, one for each header
//!
//! replicate: bytes to a free place ──durable──► its header ──durable──► the former place of the key is free
//! open:      headers whose checksum is right ──► for each key the highest generation
//! ```
//!
//! A header is written after its bytes are durable, and never over that of the replica it replaces. So a process that
//! is killed leaves, for each key, the last replica that it had acknowledged, or a later one, and always a whole one.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use telpher_mover::{CrcMode, DurableFile, DurableFileError, JobError, Mover, Outcome, Persistence, StoreError};

/// Begins the file: "telphrep".
const MAGIC: u64 = u64::from_le_bytes(*b"telphrep");
/// Bytes to which headers and places are aligned, so that they are stored page by page.
const ALIGN: u64 = 4096;
/// Bytes of a header, and of the file's shape.
const HEADER: usize = 64;
/// Words of a header in front of its checksum.
const WORDS: usize = 4;

/// A replica cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] DurableFileError),
    /// The bytes are not known to be durable. Replicas made before are whole.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The checksum could not be computed.
    #[error("the checksum of a replica could not be computed")]
    Checksum(#[from] JobError),
    /// The file is no file of replicas, or its shape is damaged.
    #[error("the file has no valid shape of replicas; create it anew")]
    NotReplicas,
    /// No place, or places without bytes, or more than a file can have.
    #[error("{places} places of {bytes} bytes make no file of replicas; there must be two or more")]
    Shape {
        /// The places.
        places: u32,
        /// Bytes of each.
        bytes: u64,
    },
    /// The block does not fit a place.
    #[error("a block of {len} bytes does not fit a place of {most} bytes")]
    TooLong {
        /// Bytes of the block.
        len: u64,
        /// Bytes of a place.
        most: u64,
    },
    /// Each place has the last replica of some key.
    #[error("all {places} places are in use; remove a replica, or create the file with one place more than keys")]
    Full {
        /// The places.
        places: u32,
    },
    /// The bytes of a replica are not those that were made durable.
    #[error("the replica of {key:#x} is damaged: its checksum does not match")]
    Damaged {
        /// Its key.
        key: u64,
    },
}

/// Where the parts of the file are.
#[derive(Clone, Copy, Debug)]
struct Shape {
    places: u32,
    bytes: u64,
}

impl Shape {
    /// The header of a place.
    fn header(self, place: u32) -> u64 {
        ALIGN + u64::from(place) * HEADER as u64
    }

    /// Bytes between the begins of two places.
    fn stride(self) -> Option<u64> {
        self.bytes.checked_next_multiple_of(ALIGN)
    }

    fn first(self) -> u64 {
        ALIGN + (u64::from(self.places) * HEADER as u64).next_multiple_of(ALIGN)
    }

    /// The bytes of a place. It does not overflow for a shape with a [`size`](Shape::size).
    fn place(self, place: u32) -> u64 {
        self.first() + u64::from(place) * self.stride().unwrap_or(0)
    }

    /// The bytes of the file; `None` if no file has them.
    fn size(self) -> Option<u64> {
        let bytes = self.stride()?.checked_mul(self.places.into())?.checked_add(self.first())?;
        (self.places >= 2 && self.bytes > 0 && i64::try_from(bytes).is_ok()).then_some(bytes)
    }
}

/// A place with the last replica of a key.
#[derive(Clone, Copy, Debug)]
struct Replica {
    place: u32,
    generation: u64,
    len: u64,
    checksum: u64,
}

/// Replicas of blocks in a file of persistent memory (DAX) or on a disk, found again by their keys.
///
/// ```
/// use std::sync::Arc;
/// use telpher_cache::Replicas;
/// use telpher_mover::Mover;
///
/// let path = std::env::temp_dir().join(format!("telpher-replicas-{}", std::process::id()));
/// // An error if the temporary folder is in memory.
/// if let Ok(mut replicas) = Replicas::create(Mover::cpu(), &path, 4, 1 << 16) {
///     replicas.replicate(7, b"a block of the cache")?;
///     drop(replicas);
///     let replicas = Replicas::open(Mover::cpu(), &path)?;
///     let block: Option<Arc<[u8]>> = replicas.restore(7)?; // a source for `Cache::access`
///     assert_eq!(block.as_deref(), Some(&b"a block of the cache"[..]));
///     std::fs::remove_file(path).ok();
/// }
/// # Ok::<(), telpher_cache::ReplicaError>(())
/// ```
#[derive(Debug)]
pub struct Replicas {
    mover: Mover,
    file: DurableFile,
    shape: Shape,
    /// The last replica of each key.
    last: HashMap<u64, Replica>,
    /// The places without the last replica of a key.
    free: BTreeSet<u32>,
    /// The generation of the next replica.
    next: u64,
}

impl Replicas {
    /// Creates a file with this many places, each for a block of at most `bytes` bytes. A file for `n` keys needs `n +
    /// 1` places, because a replica never overwrites the one before it.
    ///
    /// # Errors
    ///
    /// [`ReplicaError`], also if the file exists.
    pub fn create(mover: Mover, path: &Path, places: u32, bytes: u64) -> Result<Replicas, ReplicaError> {
        let shape = Shape { places, bytes };
        let size = shape.size().ok_or(ReplicaError::Shape { places, bytes })?;
        let mut file = DurableFile::create(path, size)?;
        let words = [MAGIC, places.into(), bytes, 0];
        let header = sealed(&mover, words)?;
        mover.store(&header, &mut file, 0)?;
        Ok(Replicas { mover, file, shape, last: HashMap::new(), free: (0..places).collect(), next: 1 })
    }

    /// Opens a file and finds the last replica of each key. Their bytes are checked when they are restored.
    ///
    /// # Errors
    ///
    /// [`ReplicaError`]
    pub fn open(mover: Mover, path: &Path) -> Result<Replicas, ReplicaError> {
        let file = DurableFile::open(path)?;
        let [magic, places, bytes, _] = unsealed(&mover, file.bytes(), 0)?.ok_or(ReplicaError::NotReplicas)?;
        let shape = Shape { places: u32::try_from(places).unwrap_or(0), bytes };
        if magic != MAGIC || shape.size() != Some(file.len() as u64) {
            return Err(ReplicaError::NotReplicas);
        }
        let mut last: HashMap<u64, Replica> = HashMap::new();
        let mut next = 1;
        for place in 0..shape.places {
            let Some([generation, key, len, checksum]) = unsealed(&mover, file.bytes(), shape.header(place))? else {
                continue;
            };
            next = next.max(generation.saturating_add(1));
            let found = Replica { place, generation, len, checksum };
            let is_later = last.get(&key).is_none_or(|before| before.generation < generation);
            if generation > 0 && len <= shape.bytes && is_later {
                last.insert(key, found);
            }
        }
        let mut free: BTreeSet<u32> = (0..shape.places).collect();
        last.values().for_each(|replica| {
            free.remove(&replica.place);
        });
        Ok(Replicas { mover, file, shape, last, free, next })
    }

    /// Makes a durable replica of a block, and returns when it survives. It replaces the one that the key had before.
    ///
    /// # Errors
    ///
    /// [`ReplicaError`]; the key then has the replica that it had before.
    pub fn replicate(&mut self, key: u64, block: &[u8]) -> Result<(), ReplicaError> {
        let len = block.len() as u64;
        if len > self.shape.bytes {
            return Err(ReplicaError::TooLong { len, most: self.shape.bytes });
        }
        let places = self.shape.places;
        let place = self.free.first().copied().ok_or(ReplicaError::Full { places })?;
        // A header that an earlier replica left in the place must not vouch for the bytes that replace its own.
        self.clear(place)?;
        let checksum = checksum(&self.mover, block)?;
        self.mover.store(block, &mut self.file, self.shape.place(place))?;
        let generation = self.next;
        let header = sealed(&self.mover, [generation, key, len, checksum])?;
        self.mover.store(&header, &mut self.file, self.shape.header(place))?;
        self.next = generation.saturating_add(1);
        self.free.remove(&place);
        if let Some(before) = self.last.insert(key, Replica { place, generation, len, checksum }) {
            self.free.insert(before.place);
        }
        Ok(())
    }

    /// Writes an empty header to a place, if it has another one.
    fn clear(&mut self, place: u32) -> Result<(), ReplicaError> {
        let at = self.shape.header(place);
        if header_bytes(self.file.bytes(), at).is_none_or(|header| header.iter().any(|&byte| byte != 0)) {
            self.mover.store(&[0; HEADER], &mut self.file, at)?;
        }
        Ok(())
    }

    /// Returns the last replica of a key, with its checksum checked: a source for
    /// [`Cache::access`](crate::Cache::access). `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Damaged`], if the file's bytes were changed by something else.
    pub fn restore(&self, key: u64) -> Result<Option<Arc<[u8]>>, ReplicaError> {
        let Some(replica) = self.last.get(&key) else { return Ok(None) };
        // Places and lengths were checked against the file when it was opened, or come from `replicate`.
        let start = usize::try_from(self.shape.place(replica.place)).unwrap_or(usize::MAX);
        let len = usize::try_from(replica.len).unwrap_or(usize::MAX);
        let bytes = self.file.bytes().get(start..).and_then(|bytes| bytes.get(..len));
        let bytes = bytes.ok_or(ReplicaError::Damaged { key })?;
        let block: Arc<[u8]> = bytes.into();
        if checksum(&self.mover, &block)? != replica.checksum {
            return Err(ReplicaError::Damaged { key });
        }
        Ok(Some(block))
    }

    /// Removes the replica of a key, durably; returns false if there is none.
    ///
    /// # Errors
    ///
    /// [`ReplicaError`]; it is then not known whether the replica survives.
    pub fn remove(&mut self, key: u64) -> Result<bool, ReplicaError> {
        let Some(replica) = self.last.get(&key).copied() else { return Ok(false) };
        // Older replicas of the key may have left their headers. They must not come back.
        for place in (0..self.shape.places).filter(|place| *place != replica.place) {
            let header = unsealed(&self.mover, self.file.bytes(), self.shape.header(place))?;
            if header.is_some_and(|[_, older, ..]| older == key) {
                self.clear(place)?;
            }
        }
        self.clear(replica.place)?;
        self.last.remove(&key);
        self.free.insert(replica.place);
        Ok(true)
    }

    /// The keys that have a replica, in no order.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.last.keys().copied()
    }

    /// What makes the replicas durable.
    #[must_use]
    pub fn persistence(&self) -> Persistence {
        self.file.persistence()
    }
}

/// Computes the checksum of bytes: the CRC of 64 bits that NVMe uses.
fn checksum(mover: &Mover, bytes: &[u8]) -> Result<u64, JobError> {
    if bytes.is_empty() {
        return Ok(0);
    }
    let outcome = mover.scope(|scope| scope.crc64(bytes, 0, CrcMode::default()).wait().result)?;
    Ok(if let Outcome::Crc64(checksum) = outcome { checksum } else { unreachable!("a CRC has this outcome") })
}

/// Returns words and their checksum as a header.
fn sealed(mover: &Mover, words: [u64; WORDS]) -> Result<[u8; HEADER], JobError> {
    let mut header = [0; HEADER];
    let parts = header.as_chunks_mut::<8>().0;
    for (place, word) in parts.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    let sum = checksum(mover, &header[..8 * WORDS])?;
    header[8 * WORDS..8 * WORDS + 8].copy_from_slice(&sum.to_le_bytes());
    Ok(header)
}

fn header_bytes(file: &[u8], at: u64) -> Option<&[u8; HEADER]> {
    file.get(usize::try_from(at).ok()?..)?.first_chunk()
}

/// Returns the words of a header; `None` if its checksum is wrong, as it is where no header was written.
fn unsealed(mover: &Mover, file: &[u8], at: u64) -> Result<Option<[u64; WORDS]>, JobError> {
    let Some(header) = header_bytes(file, at) else { return Ok(None) };
    let (parts, _) = header.as_chunks::<8>();
    let word = |index: usize| u64::from_le_bytes(parts[index]);
    let is_valid = checksum(mover, &header[..8 * WORDS])? == word(WORDS) && header.iter().any(|&byte| byte != 0);
    Ok(is_valid.then(|| std::array::from_fn(word)))
}
