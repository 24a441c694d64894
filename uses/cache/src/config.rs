//! The configuration of a cache: its tiers, and the policies, which are values.

use std::fmt::{self, Debug};
use std::sync::Arc;
use telpher_mem::{MapError, Pool, PoolOptions};

/// A tier of fast memory, and the node that it is near.
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// The memory for its blocks.
    pub pool: Pool,
    /// The NUMA node of the memory, or the node that it belongs to ([`Placement::Near`]); none for no particular node.
    pub near: Option<u32>,
}

impl TierConfig {
    /// Creates a pool of memory of one node, whatever node `options` names. High-bandwidth memory is often a node
    /// without cores; threads of nearby nodes find it by distance.
    ///
    /// ```no_run
    /// use telpher_cache::{Config, TierConfig};
    /// use telpher_mem::{PageSize, PoolOptions};
    ///
    /// // The four HBM nodes of a socket, 1 GiB of huge pages each, if there are any.
    /// let options = PoolOptions { pages: PageSize::Huge, ..PoolOptions::new(1 << 30) };
    /// let tiers: Result<Vec<_>, _> = (8..12).map(|node| TierConfig::on_node(node, options)).collect();
    /// let config = Config::new(tiers?);
    /// # Ok::<(), telpher_mem::MapError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn on_node(node: u32, options: PoolOptions) -> Result<TierConfig, MapError> {
        let pool = Pool::new(PoolOptions { node: Some(node), ..options })?;
        Ok(TierConfig { pool, near: Some(node) })
    }
}

impl From<Pool> for TierConfig {
    fn from(pool: Pool) -> Self {
        TierConfig { pool, near: None }
    }
}

/// The argument of a custom placement function ([`Placement::Chosen`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PlacementRequest {
    /// The address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub len: u64,
    /// The NUMA node of the accessing thread, if it is known.
    pub node: Option<u32>,
}

/// The tier in which a block is placed and searched.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Placement {
    /// Always this tier.
    Fixed(usize),
    /// The tier nearest to the node of the accessing thread, by the firmware's distances ([`TierConfig::near`]), the
    /// first of equals; the first tier if none has a node.
    #[default]
    Near,
    /// Interleaved by address, in stripes of this many bytes: a block is placed in the tier of its first byte. Its
    /// parts are found there.
    Interleaved {
        /// Bytes of a stripe; 0 means 1.
        bytes: u64,
    },
    /// Chosen by a custom function (Fürst, §4.1.1) that returns the number of a tier; a number that is too large means
    /// the last tier. It is called at each access and must not use the cache.
    Chosen(Arc<dyn Fn(&PlacementRequest) -> usize + Send + Sync>),
}

impl Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Fixed(tier) => f.debug_tuple("Fixed").field(tier).finish(),
            Placement::Near => f.write_str("Near"),
            Placement::Interleaved { bytes } => f.debug_struct("Interleaved").field("bytes", bytes).finish(),
            Placement::Chosen(_) => f.write_str("Chosen(_)"),
        }
    }
}

/// What an eviction policy knows of an unused entry ([`Eviction::Worth`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Resident {
    /// The address of the first byte in its source.
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The number of entries created since its last use or its creation.
    pub age: u32,
    /// It was prefetched and has not been used yet.
    pub unread: bool,
}

/// The order in which unused entries are evicted when memory is needed. Entries that were prefetched and not used yet
/// go last with every policy.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Eviction {
    /// The entry not used for the longest time.
    #[default]
    LeastRecentlyUsed,
    /// The oldest entry.
    FirstCome,
    /// The largest entry.
    Largest,
    /// The entry with the least worth, by a custom function. It is called while a block waits for memory; it may
    /// inspect the cache, but must not access blocks or wait for any. If it panics, the accessing thread panics and the
    /// block stays where it is.
    Worth(Arc<dyn Fn(&Resident) -> u64 + Send + Sync>),
}

impl Debug for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Eviction::LeastRecentlyUsed => "LeastRecentlyUsed",
            Eviction::FirstCome => "FirstCome",
            Eviction::Largest => "Largest",
            Eviction::Worth(_) => "Worth(_)",
        })
    }
}

/// The configuration of a cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// The tiers; at least one.
    pub tiers: Vec<TierConfig>,
    /// Where blocks are placed.
    pub placement: Placement,
    /// What is evicted when memory is needed.
    pub eviction: Eviction,
    /// The most copies in flight, not counting those that threads wait for. More copies than the queues hold would be
    /// made by the CPU of the accessing thread. 0 means 1.
    pub in_flight: usize,
}

/// Source: assumed; half of the 128 entries of a device (SPEC §9.2), so that others find room in its queues.
const IN_FLIGHT: usize = 64;

impl Config {
    /// Creates a configuration with these tiers and default policies.
    #[must_use]
    pub fn new(tiers: impl IntoIterator<Item = impl Into<TierConfig>>) -> Self {
        Config {
            tiers: tiers.into_iter().map(Into::into).collect(),
            placement: Placement::default(),
            eviction: Eviction::default(),
            in_flight: IN_FLIGHT,
        }
    }
}
