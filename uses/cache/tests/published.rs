//! What other processes can read of the caches of this one. The only test of its process, whose caches are summed.

use std::sync::Arc;
use telpher_cache::{Cache, Config, Stats};
use telpher_mem::{Pool, PoolOptions};
use telpher_metrics::{AtomicU64, RegionReader};
use telpher_mover::Mover;

/// Returns the sums over all caches of this process, by field and value of the label, as another process reads them.
fn published() -> Vec<(String, u64)> {
    let mut sums = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()) {
        let name = std::fs::read_link(&entry).unwrap_or_default();
        if name.to_str() != Some(&format!("/memfd:{} (deleted)", telpher_os::PUBLISHED)) {
            continue;
        }
        let bytes = std::fs::read(entry).unwrap();
        let words: Vec<AtomicU64> =
            bytes.as_chunks::<8>().0.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word))).collect();
        let reader = RegionReader::open(&words).unwrap();
        for (at, metric) in reader.metrics().iter().enumerate().filter(|(_, of)| of.name.starts_with("telpher_cache_"))
        {
            let sum = reader.snapshot().sets.iter().map(|set| set.values[at]).sum();
            let label = metric.label.as_ref().map(|(_, value)| format!(" {value}")).unwrap_or_default();
            sums.push((format!("{}{label}", metric.name), sum));
        }
    }
    sums
}

#[test]
fn other_processes_read_what_all_caches_have_done_and_those_that_ended_too() {
    let block: Arc<[u8]> = vec![7; 4096].into();
    let large: Arc<[u8]> = vec![7; 1 << 20].into();
    let pool = || Pool::new(PoolOptions::new(64 << 10)).unwrap();
    let caches = [(); 2].map(|()| Cache::new(Mover::cpu(), Config::new([pool()])).unwrap());
    for (rounds, cache) in [3, 5].into_iter().zip(&caches) {
        for _ in 0..rounds {
            cache.access(&block, 0..4096).unwrap().wait();
        }
    }
    // Larger than its memory: it stays in its source.
    caches[1].access(&large, 0..1 << 20).unwrap().wait();
    let all = caches[0].stats() + caches[1].stats();
    assert_eq!((all.hits, all.misses, all.bytes_copied, all.no_memory), (6, 3, 8192, 1));
    // The gauges of a cache are its own: a reader would not know when they were right.
    let counters = |stats: &Stats| {
        let counter = |(metric, value): (&telpher_metrics::Metric, u64)| {
            let label = metric.label.map(|(_, value)| format!(" {value}")).unwrap_or_default();
            (metric.kind == telpher_metrics::Kind::Counter).then(|| (format!("{}{label}", metric.name), value))
        };
        stats.values().filter_map(counter).collect::<Vec<_>>()
    };
    assert_eq!(published(), counters(&all));
    let [first, second] = caches;
    drop(first);
    second.access(&block, 10..20).unwrap();
    let mut all = all;
    all.hits += 1;
    assert_eq!(published(), counters(&all));
    // A new cache uses the cells of the one that has ended, and begins with nothing.
    let third: Cache<Arc<[u8]>> = Cache::new(Mover::cpu(), Config::new([pool()])).unwrap();
    assert_eq!(third.stats(), Stats::default());
    assert_eq!(published(), counters(&all));
}
