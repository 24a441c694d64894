//! How a cache is made: its tiers, and the policies, which are values.

use crate::entry::Resident;
use std::fmt::{self, Debug};
use std::sync::Arc;
use telpher_mem::{MapError, Pool, PoolOptions};

/// Fast memory of one kind, and the node it is near to.
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// Where its blocks lie.
    pub pool: Pool,
    /// The NUMA node it is on, or belongs to ([`Placement::Near`]); nothing if to none in particular.
    pub near: Option<u32>,
}

impl TierConfig {
    /// A pool of memory of one node, whatever `options` says of that, and near to it. High-bandwidth memory is often a node without cores:
    /// threads of the nodes it is near to find it by distance.
    ///
    /// ```no_run
    /// use telpher_cache::{Config, TierConfig};
    /// use telpher_mem::{PageSize, PoolOptions};
    ///
    /// // The four HBM nodes of a socket, a gigabyte of huge pages each, if there are any.
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

/// What a placement of one's own is asked about ([`Placement::Chosen`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Asked {
    /// Address of the first byte that is asked for.
    pub address: u64,
    /// Bytes that are asked for.
    pub len: u64,
    /// The NUMA node of the asking thread, if it is known.
    pub node: Option<u32>,
}

/// In which tier a block is placed, and looked for.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Placement {
    /// In one, always.
    Fixed(usize),
    /// In the one that is nearest to the node of the asking thread, as the firmware tells distances ([`TierConfig::near`]), the first of
    /// equals; in the first of all if none is near any node.
    #[default]
    Near,
    /// By address, in turns of so many bytes: a block is placed in the tier of its first byte. Its parts are found there.
    Interleaved {
        /// Bytes of a turn; 0 is 1.
        bytes: u64,
    },
    /// Where a function of one's own says (Fürst, §4.1.1): the number of a tier, the last for one that is too large. It is asked at
    /// each access, and must not use the cache.
    Chosen(Arc<dyn Fn(&Asked) -> usize + Send + Sync>),
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

/// Which unused entry goes first when memory is needed. Entries that were fetched ahead and not used yet go after all others,
/// whatever the policy says.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Eviction {
    /// The one not used for longest.
    #[default]
    LeastRecentlyUsed,
    /// The one that came first.
    FirstCome,
    /// The largest.
    Largest,
    /// The one with the least worth, by a function of one's own. It is asked while a block waits for memory, and may look at the cache but
    /// must not ask it for blocks, nor wait for any. If it panics, so does whoever asked, and the block stays where it is.
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

/// What a cache is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its tiers; at least one.
    pub tiers: Vec<TierConfig>,
    /// Where blocks are placed.
    pub placement: Placement,
    /// What goes when memory is needed.
    pub eviction: Eviction,
    /// Copies that may be under way at a time, not counting those somebody waits for: more than the queues hold would be done by the
    /// CPU of whoever asks. 0 is 1.
    pub in_flight: usize,
}

/// Source: assumed; half of the 128 entries a device has (SPEC §9.2), so that others find room in its queues.
const IN_FLIGHT: usize = 64;

impl Config {
    /// One tier, or several; everything else as it is by default.
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
