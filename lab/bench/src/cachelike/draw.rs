//! What a thread does next: which operation on which key.

use super::config::CacheConfig;
use super::distribution::{Distribution, LEAST_VALUE, Operations, pick, unit};
use telpher_os::Random;

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// Copy the value out of the cache.
    Get,
    /// Copy a new value into the cache.
    Set,
    /// Remove the value.
    Delete,
}

/// One pool, as an operation needs it.
#[derive(Debug)]
struct Pool<'a> {
    distribution: &'a Distribution,
    first_key: u64,
    keys: u64,
}

/// Draws the operations of a thread.
#[derive(Debug)]
pub(super) struct Draw<'a> {
    pools: Vec<Pool<'a>>,
    /// The pools with their parts of the operations.
    parts: Vec<(usize, f64)>,
    random: Random,
}

impl<'a> Draw<'a> {
    pub(super) fn new(config: &'a CacheConfig, seed: u64) -> Self {
        let pool = |pool| {
            let (first_key, end) = (config.first_key(pool), config.first_key(pool + 1));
            Pool { distribution: config.distribution(pool), first_key, keys: end.saturating_sub(first_key).max(1) }
        };
        Draw {
            pools: (0..config.pools.len()).map(pool).collect(),
            parts: config.operation_parts.iter().copied().enumerate().collect(),
            // Mixed, so that threads with neighbouring seeds draw different numbers.
            random: Random::new(Random::new(seed).next()),
        }
    }

    /// Returns the pool, the key and the operation.
    pub(super) fn next(&mut self) -> (usize, u64, Operation) {
        let (number, _) = pick(&self.parts, unit(self.random.next()));
        let pool = &self.pools[number];
        let key = pool.first_key + pool.distribution.popularity.draw(pool.keys, &mut self.random);
        let Operations { gets, sets, .. } = pool.distribution.operations;
        let operation = match unit(self.random.next()) {
            at if at < gets => Operation::Get,
            at if at < gets + sets => Operation::Set,
            _ => Operation::Delete,
        };
        (number, key, operation)
    }
}

/// Returns the largest size of all values.
pub(super) fn largest_value(config: &CacheConfig) -> usize {
    config.distributions.iter().map(|distribution| distribution.sizes.most()).max().unwrap_or(LEAST_VALUE)
}

#[cfg(test)]
mod tests {
    use super::super::distribution::Popularity;
    use super::*;
    use telpher_sim::CacheLoad;

    /// The driver's copies have the shares that KUPER appendix B prints, as the simulator's have.
    #[test]
    fn the_copies_of_the_paper_have_its_shares() {
        let config = CacheConfig::paper();
        let mut draw = Draw::new(&config, 1);
        let (mut long, mut long_bytes, mut copies, mut bytes) = (0, 0, 0, 0);
        for _ in 0..400_000 {
            let (pool, key, operation) = draw.next();
            if operation == Operation::Delete {
                continue;
            }
            let size = config.distribution(pool).sizes.of_key(key) as u64;
            copies += 1;
            bytes += size;
            if size >= CacheLoad::PAPER.threshold {
                long += 1;
                long_bytes += size;
            }
        }
        let share = |part: u64, of: u64| part as f64 / of as f64 * 100.0;
        assert!((share(long, copies) - 4.8).abs() < 0.3, "{} % of calls", share(long, copies));
        assert!((share(long_bytes, bytes) - 96.4).abs() < 0.4, "{} % of bytes", share(long_bytes, bytes));
    }

    #[test]
    fn operations_keys_and_pools_have_their_parts() {
        let paper = CacheConfig::paper();
        let buckets = Popularity::Buckets(vec![((0.0, 0.1), 0.8), ((0.1, 1.0), 0.2)]);
        let one = Distribution { popularity: buckets, ..paper.distributions[0].clone() };
        let parts = vec![0.25, 0.75];
        let config = CacheConfig {
            keys: 1000,
            pools: vec![0.5, 0.5],
            key_parts: vec![0.4, 0.6],
            operation_parts: parts,
            distributions: vec![one],
            ..paper
        };
        let mut draw = Draw::new(&config, 7);
        let drawn: Vec<_> = (0..100_000).map(|_| draw.next()).collect();
        let share = |of: &dyn Fn(&(usize, u64, Operation)) -> bool| {
            drawn.iter().filter(|each| of(each)).count() as f64 / drawn.len() as f64
        };
        for (name, seen, expected) in [
            ("the second pool", share(&|it| it.0 == 1), 0.75),
            ("popular keys of the first pool", share(&|it| it.1 < 40), 0.25 * 0.8),
            ("popular keys of the second pool", share(&|it| (400..460).contains(&it.1)), 0.75 * 0.8),
            ("gets", share(&|it| it.2 == Operation::Get), 0.9),
            ("sets", share(&|it| it.2 == Operation::Set), 0.05),
        ] {
            assert!((seen - expected).abs() < 0.01, "{name}: {seen}, not {expected}");
        }
        assert!(drawn.iter().all(|(pool, key, _)| (*pool == 1) == (*key >= 400) && *key < 1000));
    }
}
