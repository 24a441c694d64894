//! The configuration of a cache and its load: CacheBench's JSON, or the built-in one of the paper.

use super::config_error::ConfigError;
use super::distribution::{Distribution, Operations, Popularity, ValueSizes, whole};
use super::fields::{Fields, without_comments};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use telpher_sim::CacheLoad;

/// The name of the built-in configuration.
pub const PAPER: &str = "paper";

/// Bytes of a slab. Source: CacheLib, `Slab::kSize`.
pub(super) const SLAB_BYTES: u64 = 4 << 20;

/// Sizes of the slots if a configuration says nothing. Source: CacheLib's defaults `allocFactor`, `minAllocSize` and
/// `maxAllocSize`.
const SLOT_FACTOR: f64 = 1.5;
const LEAST_SLOT: u64 = 64;
const MOST_SLOT: u64 = 1 << 20;

/// Most size classes. Source: CacheLib, `MemoryAllocator::kMaxClasses`.
const MOST_CLASSES: usize = 128;

/// Most keys, and most operations of a thread. Source: chosen; far more than a machine can serve in a day.
const MOST_KEYS: u64 = 1 << 36;

/// Bytes of memory for each value beside its slot: the slot's own fields and lock, its place in the list of its class,
/// and its entry in the index. Source: computed from the sizes of these types; an index has some room left.
const ENTRY_BYTES: u64 = 140;

/// Threads of the paper's load if the command line says nothing. Source: chosen, one of the pairs that the simulated
/// figure has.
const PAPER_THREADS: u32 = 8;

/// A cache and its load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CacheConfig {
    /// The name of the configuration, or its file.
    pub name: String,
    /// Bytes of all pools.
    pub cache_bytes: u64,
    /// The part of each pool; they sum to 1.
    pub pools: Vec<f64>,
    /// Bytes of the slots of each size class, ascending.
    pub slots: Vec<u64>,
    /// A get that finds no value is followed by a set.
    pub lookaside: bool,
    /// Different keys of all pools.
    pub keys: u64,
    /// Operations of each thread.
    pub operations: u64,
    /// Threads.
    pub threads: u32,
    /// The part of the keys that each pool has; they sum to 1.
    pub key_parts: Vec<f64>,
    /// The part of the operations that each pool has; they sum to 1.
    pub operation_parts: Vec<f64>,
    /// The values and operations of each pool, or one entry for all pools.
    pub distributions: Vec<Distribution>,
}

/// A configuration, and the fields of its file that have no effect.
#[derive(Clone, PartialEq, Debug)]
pub struct ReadConfig {
    /// The configuration.
    pub config: CacheConfig,
    /// Names of the fields without effect, such as `cache_config.htBucketPower`.
    pub without_effect: Vec<String>,
}

impl CacheConfig {
    /// Returns the paper's configuration, unscaled.
    #[must_use]
    pub fn paper() -> CacheConfig {
        let load = CacheLoad::PAPER;
        let per_hundred = |part: u32| f64::from(part) / 100.0;
        let operations = Operations {
            gets: per_hundred(load.gets),
            sets: per_hundred(load.sets),
            deletions: per_hundred(load.deletions),
        };
        let sizes = load.sizes().into_iter().map(|(size, part)| (f64::from(size), part)).collect();
        CacheConfig {
            name: PAPER.into(),
            cache_bytes: load.cache_bytes,
            pools: vec![1.0],
            slots: slots(SLOT_FACTOR, LEAST_SLOT, MOST_SLOT),
            lookaside: true,
            keys: load.keys,
            operations: load.gets_per_thread * 100 / u64::from(load.gets),
            threads: PAPER_THREADS,
            key_parts: vec![1.0],
            operation_parts: vec![1.0],
            distributions: vec![Distribution {
                sizes: ValueSizes::Discrete(sizes),
                popularity: Popularity::Normal,
                operations,
            }],
        }
    }

    /// Returns the built-in configuration, or reads that of a file.
    ///
    /// # Errors
    /// If the file cannot be read, or a field is invalid.
    pub fn read(name: &str) -> Result<ReadConfig, ConfigError> {
        if name == PAPER {
            return Ok(ReadConfig { config: CacheConfig::paper(), without_effect: Vec::new() });
        }
        parse(name, &json(Path::new(name))?)
    }

    /// Returns the values and operations of a pool.
    pub(super) fn distribution(&self, pool: usize) -> &Distribution {
        // `read` allows one entry for all pools, or one for each.
        self.distributions.get(pool).unwrap_or(&self.distributions[0])
    }

    /// Returns the first key of a pool; that of the pool behind the last one is the number of keys.
    pub(super) fn first_key(&self, pool: usize) -> u64 {
        let before: f64 = self.key_parts[..pool].iter().sum();
        // Rounded, so that parts such as thirds sum to all keys.
        whole((self.keys as f64 * before).round())
    }

    /// Returns the bytes of the slots that values of all keys would need.
    pub(super) fn data_bytes(&self) -> f64 {
        (0..self.pools.len()).map(|pool| self.keys_of(pool) as f64 * self.mean_slot(pool)).sum()
    }

    /// Returns the number of keys of a pool.
    fn keys_of(&self, pool: usize) -> u64 {
        self.first_key(pool + 1).saturating_sub(self.first_key(pool))
    }

    /// Returns the mean bytes of the slots of a pool's values.
    fn mean_slot(&self, pool: usize) -> f64 {
        self.distribution(pool).sizes.mean(|size| self.slot_of(size).unwrap_or(size))
    }

    /// Returns about how many values a pool has when it is full, or has all of its keys.
    fn values_of(&self, pool: usize) -> u64 {
        let room = self.cache_bytes as f64 * self.pools[pool] / self.mean_slot(pool);
        self.keys_of(pool).min(whole(room.ceil()))
    }

    /// Returns the keys that a thread sets to fill a pool. All threads together set as many keys as fit, spread evenly
    /// over all keys of the pool.
    pub(super) fn filling(&self, pool: usize, thread: u64) -> impl Iterator<Item = u64> + use<> {
        let (first, keys, values) = (self.first_key(pool), self.keys_of(pool), self.values_of(pool));
        let threads = usize::try_from(self.threads).unwrap_or(1).max(1);
        // Wide enough for the product of both numbers.
        let key = move |value: u64| u128::from(value) * u128::from(keys) / u128::from(values);
        // Cannot fail: the quotient is less than the number of keys.
        (thread..values).step_by(threads).map(move |value| first + u64::try_from(key(value)).unwrap_or(0))
    }

    /// Returns about how many bytes of memory the full cache takes, with its index.
    pub(super) fn memory_bytes(&self) -> u64 {
        let values = (0..self.pools.len()).map(|pool| self.values_of(pool)).sum::<u64>();
        self.cache_bytes.saturating_add(values.saturating_mul(ENTRY_BYTES))
    }

    /// Returns the bytes of all pools so that cache and index together take `memory` bytes.
    fn cache_bytes_in(&self, memory: u64) -> u64 {
        let of_value = self.data_bytes() / self.keys as f64;
        let if_full = whole(memory as f64 * of_value / (of_value + ENTRY_BYTES as f64));
        // An index has no more entries than there are keys.
        if_full.max(memory.saturating_sub(self.keys.saturating_mul(ENTRY_BYTES)))
    }

    /// Returns the fewest bytes to which the cache is scaled, and why, as a part of a sentence.
    pub(super) fn least_bytes(&self) -> (u64, String) {
        let (classes, pools) = (self.slots.len() as u64, self.pools.len() as u64);
        let why = format!("a slab of 4 MiB for each of {classes} size classes in each of {pools} pools");
        (SLAB_BYTES * classes * pools, why)
    }

    /// Returns the bytes of the slot of a value; `None` if it is too long for all slots.
    fn slot_of(&self, size: f64) -> Option<f64> {
        self.slots.iter().map(|slot| *slot as f64).find(|slot| *slot >= size)
    }

    /// Returns the gets of each thread among its operations, if each pool has its part of the operations.
    #[must_use]
    pub fn gets(&self) -> u64 {
        whole((self.operations as f64 * self.share_of_gets()).round())
    }

    /// Sets the number of operations so that each thread has this many gets.
    pub fn set_gets(&mut self, gets: u64) {
        self.operations = whole((gets as f64 / self.share_of_gets()).round());
    }

    fn share_of_gets(&self) -> f64 {
        let of_pool = |(pool, part): (usize, &f64)| part * self.distribution(pool).operations.gets;
        // `read` refuses a load without gets.
        self.operation_parts.iter().enumerate().map(of_pool).sum()
    }

    /// Makes the cache with its index fit into this many bytes. A cache into which the values of all keys fit keeps its
    /// keys as long as they fit; otherwise the keys shrink with the cache. Returns what was scaled, as a sentence.
    pub(super) fn scale(&mut self, most_bytes: u64) -> Option<String> {
        let (least, why) = self.least_bytes();
        let wanted = self.cache_bytes_in(most_bytes);
        let bytes = wanted.max(least) / SLAB_BYTES * SLAB_BYTES;
        if self.cache_bytes <= bytes {
            return None;
        }
        let (of, keys) = (self.cache_bytes, self.keys);
        // Slots of a class may be unused, so data may take this part of a cache.
        let fits = |bytes: u64, data: f64| data <= 0.75 * bytes as f64;
        let factor = bytes as f64 / of as f64;
        self.cache_bytes = bytes;
        if !fits(bytes, self.data_bytes()) {
            let factor = if fits(of, self.data_bytes()) { 0.75 * bytes as f64 / self.data_bytes() } else { factor };
            self.keys = whole(keys as f64 * factor).max(self.pools.len() as u64);
        }
        let size = telpher_report::units::size;
        let floor = if wanted < least { format!(" It is not smaller, because it needs {why}.") } else { String::new() };
        Some(format!(
            "Scaled to the memory of this machine: a cache of {} instead of {}, with {} of {keys} keys.{floor}",
            size(bytes),
            size(of),
            self.keys
        ))
    }
}

/// Returns the slots' sizes, each larger by the factor, in multiples of 8 bytes, as CacheLib generates them.
fn slots(factor: f64, least: u64, most: u64) -> Vec<u64> {
    let mut slots = Vec::new();
    let mut size = least;
    while size < most {
        slots.push(size);
        size = (whole(size as f64 * factor) / 8 * 8).max(size + 8);
    }
    slots.push(most);
    slots
}

/// Reads a file of JSON with comments.
fn json(path: &Path) -> Result<Value, ConfigError> {
    let name = || path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: name(), source })?;
    serde_json::from_str(&without_comments(&text)).map_err(|source| ConfigError::Parse { path: name(), source })
}

/// Reads a configuration.
fn parse(name: &str, json: &Value) -> Result<ReadConfig, ConfigError> {
    let mut top = Fields::of(name, "", json)?;
    let (cache_json, test_json) = (top.required("cache_config")?, top.required("test_config")?);
    let mut cache = Fields::of(name, "cache_config", cache_json)?;
    let mut test = Fields::of(name, "test_config", test_json)?;

    let cache_bytes = cache.count("cacheSizeMB", 1..=1 << 24)?.ok_or_else(|| cache.missing("cacheSizeMB"))? << 20;
    let pools = cache.parts("poolSizes")?.unwrap_or_else(|| vec![1.0]);
    if cache.count("numPools", 1..=64)?.is_some_and(|number| number != pools.len() as u64) {
        return Err(cache.wrong("numPools", "is not the number of poolSizes"));
    }
    let slots = read_slots(&mut cache)?;
    let least = SLAB_BYTES * pools.len() as u64;
    if cache_bytes < least {
        return Err(cache.wrong("cacheSizeMB", "is too small; each pool needs a slab of 4 MiB"));
    }

    refuse_other_generators(&mut test)?;
    let lookaside = test.flag("enableLookaside")?.unwrap_or(false);
    // What they ask for always happens: values are filled, and all that is read is checked.
    let _ = (test.flag("populateItem")?, test.flag("checkConsistency")?);
    let keys = test.count("numKeys", 1..=MOST_KEYS)?.ok_or_else(|| test.missing("numKeys"))?;
    let operations = test.count("numOps", 1..=MOST_KEYS)?.ok_or_else(|| test.missing("numOps"))?;
    let threads = test.count("numThreads", 1..=1024)?.ok_or_else(|| test.missing("numThreads"))?;
    let key_parts = pool_parts(&mut test, "keyPoolDistribution", pools.len())?;
    let operation_parts = pool_parts(&mut test, "opPoolDistribution", pools.len())?;
    if keys < pools.len() as u64 {
        return Err(test.wrong("numKeys", "is less than the number of pools"));
    }

    let mut without_effect = Vec::new();
    // `read_slots` returns one class at least.
    let largest = slots.last().copied().unwrap_or(MOST_SLOT);
    let distributions = match test.list("poolDistributions")? {
        None => vec![distribution(name, &mut test, largest, &mut without_effect)?],
        Some(each) if each.len() == 1 || each.len() == pools.len() => {
            let mut distributions = Vec::new();
            for (pool, json) in each.iter().enumerate() {
                let mut fields = Fields::of(name, &format!("test_config.poolDistributions[{pool}]"), json)?;
                distributions.push(distribution(name, &mut fields, largest, &mut without_effect)?);
                without_effect.extend(fields.unread());
            }
            distributions
        }
        Some(_) => return Err(test.wrong("poolDistributions", "needs one entry, or one for each pool")),
    };
    for fields in [top, cache, test] {
        without_effect.extend(fields.unread());
    }
    let config = CacheConfig {
        name: name.into(),
        cache_bytes,
        pools,
        slots,
        lookaside,
        keys,
        operations,
        // Cannot fail: at most 1024.
        threads: u32::try_from(threads).unwrap_or(u32::MAX),
        key_parts,
        operation_parts,
        distributions,
    };
    if config.share_of_gets() == 0.0 {
        return Err(ConfigError::Field {
            path: name.into(),
            field: "test_config.getRatio".into(),
            problem: "is 0; a load without gets cannot be measured".into(),
        });
    }
    Ok(ReadConfig { config, without_effect })
}

/// Reads the sizes of slots: a list, or the first, the last and a factor.
fn read_slots(cache: &mut Fields<'_>) -> Result<Vec<u64>, ConfigError> {
    let range = 16..=SLAB_BYTES;
    let least = cache.count("minAllocSize", range.clone())?.unwrap_or(LEAST_SLOT);
    let most = cache.count("maxAllocSize", range.clone())?.unwrap_or(MOST_SLOT);
    let factor = cache.number("allocFactor")?.unwrap_or(SLOT_FACTOR);
    let too_many = format!("makes more than {MOST_CLASSES} size classes");
    if let Some(mut listed) = cache.numbers("allocSizes")?.filter(|sizes| !sizes.is_empty()) {
        listed.sort_by(f64::total_cmp);
        let mut sizes: Vec<u64> = listed.iter().map(|size| whole(*size)).collect();
        sizes.dedup();
        if !sizes.iter().all(|size| range.contains(size)) {
            return Err(cache.wrong("allocSizes", "has a size outside 16 bytes to 4 MiB"));
        }
        if sizes.len() > MOST_CLASSES {
            return Err(cache.wrong("allocSizes", &too_many));
        }
        return Ok(sizes);
    }
    if least > most {
        return Err(cache.wrong("minAllocSize", "is above maxAllocSize"));
    }
    if !(1.0 < factor && factor <= 16.0) {
        return Err(cache.wrong("allocFactor", "is not a number above 1 and up to 16"));
    }
    let sizes = slots(factor, least, most);
    if sizes.len() > MOST_CLASSES {
        return Err(cache.wrong("allocFactor", &too_many));
    }
    Ok(sizes)
}

/// Reads the part of each pool. CacheBench's default is one part for one pool; here the parts are equal.
fn pool_parts(test: &mut Fields<'_>, field: &'static str, pools: usize) -> Result<Vec<f64>, ConfigError> {
    let parts = test.parts(field)?.unwrap_or_else(|| vec![1.0 / pools as f64; pools]);
    if parts.len() == pools { Ok(parts) } else { Err(test.wrong(field, "needs a number for each pool")) }
}

/// Refuses loads that CacheBench reads from traces.
fn refuse_other_generators(test: &mut Fields<'_>) -> Result<(), ConfigError> {
    match test.text("generator")?.as_deref() {
        None | Some("" | "online" | "workload") => Ok(()),
        Some(_) => Err(test.wrong("generator", "is not online or workload; traces cannot be replayed here")),
    }
}

/// Operations of CacheBench that this driver does not have.
const OTHER_OPERATIONS: [&str; 5] =
    ["addChainedRatio", "loneGetRatio", "loneSetRatio", "updateRatio", "couldExistRatio"];

/// Reads the values and the operations of one pool or of all. `largest` is the size of the largest slot. Adds the names
/// of the fields without effect in other files.
fn distribution(
    path: &str,
    fields: &mut Fields<'_>,
    largest: u64,
    without_effect: &mut Vec<String>,
) -> Result<Distribution, ConfigError> {
    for name in OTHER_OPERATIONS {
        if fields.number(name)?.is_some_and(|ratio| ratio != 0.0) {
            return Err(fields.wrong(name, "is not 0; this driver has gets, sets and deletions only"));
        }
    }
    let mut ratio = |name| match fields.number(name)? {
        Some(ratio) if ratio < 0.0 => Err(fields.wrong(name, "is below 0")),
        ratio => Ok(ratio.unwrap_or(0.0)),
    };
    let (gets, sets, deletions) = (ratio("getRatio")?, ratio("setRatio")?, ratio("delRatio")?);
    let all = gets + sets + deletions;
    if all <= 0.0 {
        return Err(fields.wrong("getRatio", "is 0, as are setRatio and delRatio"));
    }
    let operations = Operations { gets: gets / all, sets: sets / all, deletions: deletions / all };
    let sizes = match fields.text("valSizeDistFile")?.filter(|name| !name.is_empty()) {
        None => value_sizes(fields, largest)?,
        Some(name) => in_file(path, &name, without_effect, |fields| value_sizes(fields, largest))?,
    };
    let popularity = match fields.text("popDistFile")?.filter(|name| !name.is_empty()) {
        None => popularity(fields)?,
        Some(name) => in_file(path, &name, without_effect, |fields| match popularity(fields)? {
            // The main file means this distribution if it names no file.
            Popularity::Normal => Err(fields.missing("popularityBuckets")),
            buckets => Ok(buckets),
        })?,
    };
    Ok(Distribution { sizes, popularity, operations })
}

/// Reads a part of the configuration from another file, whose name is relative to the first one's folder. Adds the
/// names of its fields without effect.
fn in_file<T>(
    path: &str,
    name: &str,
    without_effect: &mut Vec<String>,
    read: impl FnOnce(&mut Fields<'_>) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let file = Path::new(path).parent().unwrap_or(Path::new("")).join(name);
    let json = json(&file)?;
    let mut fields = Fields::of(&file.display().to_string(), "", &json)?;
    let part = read(&mut fields)?;
    without_effect.extend(fields.unread().into_iter().map(|field| format!("{name}: {field}")));
    Ok(part)
}

/// Reads value sizes: each with its probability, or ranges with theirs. All must fit in the largest slot.
fn value_sizes(fields: &mut Fields<'_>, largest: u64) -> Result<ValueSizes, ConfigError> {
    let sizes = fields.numbers("valSizeRange")?.ok_or_else(|| fields.missing("valSizeRange"))?;
    let weights = fields.parts("valSizeRangeProbability")?.ok_or_else(|| fields.missing("valSizeRangeProbability"))?;
    let longest = SLAB_BYTES as f64;
    if sizes.is_empty() || !sizes.iter().all(|size| (0.0..=longest).contains(size)) {
        return Err(fields.wrong("valSizeRange", "has a size outside 0 bytes to 4 MiB"));
    }
    if let Some(size) = sizes.iter().find(|size| **size > largest as f64) {
        let problem = format!(
            "has values of {size} bytes, and the largest slot has {largest}; raise maxAllocSize or allocSizes in \
             cache_config"
        );
        return Err(fields.wrong("valSizeRange", &problem));
    }
    if sizes.len() == weights.len() {
        return Ok(ValueSizes::Discrete(sizes.into_iter().zip(weights).collect()));
    }
    if sizes.len() != weights.len() + 1 {
        let problem = "needs a number for each size in valSizeRange, or for each range between two of them";
        return Err(fields.wrong("valSizeRangeProbability", problem));
    }
    if sizes.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(fields.wrong("valSizeRange", "is not ascending"));
    }
    Ok(ValueSizes::Ranges(sizes.windows(2).map(|pair| (pair[0], pair[1])).zip(weights).collect()))
}

/// Reads how often keys are used.
fn popularity(fields: &mut Fields<'_>) -> Result<Popularity, ConfigError> {
    let buckets = fields.numbers("popularityBuckets")?.unwrap_or_default();
    let weights = fields.parts("popularityWeights")?.unwrap_or_default();
    if buckets.is_empty() && weights.is_empty() {
        return Ok(Popularity::Normal);
    }
    if buckets.len() != weights.len() {
        return Err(fields.wrong("popularityWeights", "needs a number for each of popularityBuckets"));
    }
    let all: f64 = buckets.iter().sum();
    if all <= 0.0 || buckets.iter().any(|keys| *keys < 0.0) {
        return Err(fields.wrong("popularityBuckets", "has no keys, or a number below 0"));
    }
    let mut before = 0.0;
    let ranges = buckets.into_iter().map(|keys| {
        let from = before / all;
        before += keys;
        (from, before / all)
    });
    Ok(Popularity::Buckets(ranges.zip(weights).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DTO's own configuration of CacheBench, with the comments that CacheLib's examples have.
    const OF_DTO: &str = r#"// @nolint
    {
      "cache_config": { "cacheSizeMB": 40960, "numPools": 2, "poolSizes": [0.5, 0.5], "htBucketPower": 25 },
      "test_config": {
        "enableLookaside": true, "numOps": 2500000, "numThreads": 32, "numKeys": 1000000,
        "keySizeRange": [8, 64], "keySizeRangeProbability": [1.0], /* not "used" */
        "valSizeRange": [64, 256, 32240, 80155, 128248, 205196],
        "valSizeRangeProbability": [0.05, 0.05, 0.1, 0.4, 0.4],
        "getRatio": 0.9, "setRatio": 0.05, "delRatio": 0.05,
        "keyPoolDistribution": [0.5, 0.5], "opPoolDistribution": [0.5, 0.5], "opRatePerSec": 300000
      }
    }"#;

    fn read(text: &str) -> Result<ReadConfig, ConfigError> {
        parse("my.json", &serde_json::from_str(&without_comments(text)).unwrap())
    }

    #[test]
    fn the_configuration_of_dto_is_read_and_fields_without_effect_are_named() {
        let ReadConfig { config, without_effect } = read(OF_DTO).unwrap();
        assert_eq!((config.cache_bytes, config.pools.len(), config.threads), (40 << 30, 2, 32));
        assert_eq!((config.operations, config.gets(), config.keys), (2_500_000, 2_250_000, 1_000_000));
        assert_eq!((config.first_key(0), config.first_key(1), config.first_key(2)), (0, 500_000, 1_000_000));
        assert!(config.lookaside && config.slots.first() == Some(&64) && config.slots.last() == Some(&(1 << 20)));
        let mean = config.distribution(1).sizes.mean(|size| size);
        let expected = [(160.0, 0.05), (16_248.0, 0.05), (56_197.5, 0.1), (104_201.5, 0.4), (166_722.0, 0.4)];
        assert!((mean - expected.iter().map(|(size, part)| size * part).sum::<f64>()).abs() < 1e-6, "{mean}");
        let ignored = ["cache_config.htBucketPower", "test_config.keySizeRange"];
        assert!(ignored.iter().all(|field| without_effect.iter().any(|other| other == field)), "{without_effect:?}");
        assert_eq!(without_effect.len(), 4, "{without_effect:?}");
    }

    #[test]
    fn an_invalid_field_is_refused_by_its_name() {
        for (from, to, field) in [
            ("\"numKeys\": 1000000", "\"numKeys\": \"many\"", "test_config.numKeys"),
            ("\"numKeys\": 1000000,", "", "test_config.numKeys"),
            ("\"numPools\": 2", "\"numPools\": 3", "cache_config.numPools"),
            ("\"cacheSizeMB\": 40960", "\"cacheSizeMB\": 0.5", "cache_config.cacheSizeMB"),
            ("\"cacheSizeMB\": 40960", "\"cacheSizeMB\": 7", "cache_config.cacheSizeMB"),
            ("\"getRatio\": 0.9", "\"getRatio\": -1", "test_config.getRatio"),
            ("\"getRatio\": 0.9", "\"getRatio\": 0", "test_config.getRatio"),
            ("0.1, 0.4, 0.4]", "0.9]", "test_config.valSizeRangeProbability"),
            ("[64, 256,", "[640, 256,", "test_config.valSizeRange"),
            ("\"delRatio\": 0.05", "\"updateRatio\": 0.05", "test_config.updateRatio"),
            ("\"enableLookaside\": true", "\"enableLookaside\": 1", "test_config.enableLookaside"),
            ("\"numOps\"", "\"generator\": \"replay\", \"numOps\"", "test_config.generator"),
            ("\"opPoolDistribution\": [0.5, 0.5]", "\"opPoolDistribution\": [1]", "test_config.opPoolDistribution"),
            ("\"test_config\"", "\"config\"", "test_config"),
            ("\"numPools\": 2", "\"numPools\": 2, \"allocFactor\": 1", "cache_config.allocFactor"),
            ("\"numPools\": 2", "\"numPools\": 2, \"allocFactor\": 1.000001", "cache_config.allocFactor"),
            ("\"numPools\": 2", "\"numPools\": 2, \"maxAllocSize\": 131072", "test_config.valSizeRange"),
            ("\"numKeys\": 1000000", "\"numKeys\": 1099511627776", "test_config.numKeys"),
            ("\"numOps\": 2500000", "\"numOps\": 1099511627776", "test_config.numOps"),
        ] {
            let text = OF_DTO.replacen(from, to, 1);
            assert_ne!(text, OF_DTO, "{from}");
            let error = read(&text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("my.json: {field}: ")), "{field}: {error}");
        }
    }

    #[test]
    fn a_cache_has_128_size_classes_at_most() {
        let of = |number: u64| {
            let sizes: Vec<String> = (1..=number).map(|size| (size * 2048).to_string()).collect();
            read(
                &OF_DTO.replace("\"numPools\": 2", &format!("\"numPools\": 2, \"allocSizes\": [{}]", sizes.join(", "))),
            )
        };
        assert_eq!(of(128).unwrap().config.slots.len(), 128);
        let error = of(129).unwrap_err().to_string();
        assert_eq!(error, "my.json: cache_config.allocSizes: makes more than 128 size classes");
    }

    #[test]
    fn fields_of_other_files_are_named_and_a_popularity_needs_buckets() {
        let folder = crate::folder::Folder::new().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.file(name), text).unwrap();
        write("sizes.json", r#"{ "valSizeRange": [100, 200], "valSizeRangeProbability": [1], "unit": "bytes" }"#);
        write("keys.json", r#"{ "popularityBuckets": [10, 90], "popularityWeights": [0.9, 0.1], "seed": 7 }"#);
        let files = r#""valSizeDistFile": "sizes.json", "popDistFile": "keys.json", "getRatio""#;
        write("load.json", &OF_DTO.replace("\"getRatio\"", files));
        let path = folder.file("load.json").display().to_string();
        let ReadConfig { config, without_effect } = CacheConfig::read(&path).unwrap();
        assert!(matches!(config.distribution(0).popularity, Popularity::Buckets(_)), "{config:?}");
        for field in ["sizes.json: unit", "keys.json: seed"] {
            assert!(without_effect.iter().any(|other| other == field), "{field}: {without_effect:?}");
        }
        write("keys.json", r#"{ "popularityBukets": [10, 90] }"#);
        let error = CacheConfig::read(&path).unwrap_err().to_string();
        assert!(error.ends_with("keys.json: popularityBuckets: is missing"), "{error}");
    }

    #[test]
    fn threads_fill_as_many_different_keys_as_fit() {
        let paper = CacheConfig { threads: 3, keys: MOST_KEYS, cache_bytes: 1 << 30, ..CacheConfig::paper() };
        let keys = |config: &CacheConfig| {
            let mut keys: Vec<u64> = (0..3).flat_map(|thread| config.filling(0, thread)).collect();
            let number = keys.len();
            keys.sort_unstable();
            keys.dedup();
            assert!(keys.len() == number && keys.iter().all(|key| *key < config.keys));
            keys
        };
        let some = keys(&paper);
        let bytes = some.len() as f64 * paper.mean_slot(0) / paper.cache_bytes as f64;
        assert!((1.0..1.01).contains(&bytes), "{bytes}");
        // Spread over all keys.
        assert!(some[some.len() / 2].abs_diff(MOST_KEYS / 2) < MOST_KEYS / 100);
        assert_eq!(keys(&CacheConfig { keys: 1000, ..paper }), (0..1000).collect::<Vec<u64>>());
    }

    #[test]
    fn the_load_of_the_paper_is_the_simulator_s() {
        let (config, load) = (CacheConfig::paper(), CacheLoad::PAPER);
        assert_eq!((config.gets(), config.keys), (load.gets_per_thread, load.keys));
        assert!((config.distribution(0).sizes.mean(|size| size) - load.mean_bytes()).abs() < 1e-6);
        assert!(config.data_bytes() < config.cache_bytes as f64);
    }

    #[test]
    fn a_cache_is_scaled_to_memory_and_keeps_its_keys_while_they_fit() {
        let mut config = CacheConfig::paper();
        assert_eq!(config.scale(1 << 40), None);
        let scaled = config.scale(4 << 30).unwrap();
        assert!(scaled.contains("instead of 64 GiB, with 1000000 of 1000000 keys"), "{scaled}");
        // The index of a million values takes 134 MiB, and the rest are whole slabs.
        assert!(config.memory_bytes() <= 4 << 30 && config.memory_bytes() > (4 << 30) - SLAB_BYTES, "{config:?}");
        config.scale(1 << 30).unwrap();
        assert!(config.keys < 1_000_000 && config.data_bytes() <= 0.76 * f64::from(1 << 30), "{}", config.keys);
        // Values that do not fit into the unscaled cache do not fit into the scaled one.
        let mut full = CacheConfig { cache_bytes: 1 << 30, ..CacheConfig::paper() };
        full.scale(1 << 29).unwrap();
        let part = full.cache_bytes as f64 / f64::from(1 << 30);
        assert!(part < 0.5 && full.memory_bytes() <= 1 << 29, "{full:?}");
        assert!((full.keys as f64 - 1e6 * part).abs() < 1.0, "{}", full.keys);
    }

    #[test]
    fn small_values_need_more_memory_than_their_slots() {
        let mut config = CacheConfig { keys: 1 << 30, cache_bytes: 8 << 30, ..CacheConfig::paper() };
        config.distributions[0].sizes = ValueSizes::Discrete(vec![(64.0, 1.0)]);
        assert_eq!(config.memory_bytes(), (8 << 30) / 64 * (64 + ENTRY_BYTES));
        config.scale(1 << 30).unwrap();
        assert!(config.memory_bytes() <= 1 << 30 && config.cache_bytes > 300 << 20, "{config:?}");
    }

    #[test]
    fn a_cache_keeps_a_slab_for_each_class_and_says_so() {
        let mut config = CacheConfig::paper();
        let classes = config.slots.len() as u64;
        let scaled = config.scale(1 << 20).unwrap();
        assert_eq!(config.cache_bytes, classes * SLAB_BYTES);
        assert!(scaled.contains(&format!("a slab of 4 MiB for each of {classes} size classes")), "{scaled}");
    }

    #[test]
    fn gets_of_a_thread_are_a_part_of_its_operations() {
        let mut config = CacheConfig::paper();
        config.set_gets(900);
        assert_eq!((config.operations, config.gets()), (1000, 900));
    }
}
