//! A loop in chunks, on several threads.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Calls `work` for chunks of the numbers below `end`, on some threads; returns the sum of what it returns.
///
/// # Errors
/// The first error of a thread. Other threads complete their chunks.
pub(super) fn sum<E: Send>(
    threads: NonZero<usize>,
    end: usize,
    chunk: usize,
    work: impl Fn(Range<usize>) -> Result<u64, E> + Sync,
) -> Result<u64, E> {
    let next = AtomicUsize::new(0);
    let (next, work) = (&next, &work);
    let one_thread = move || {
        let mut sum = 0u64;
        loop {
            // Relaxed: each chunk is taken once, and the threads are joined before results are read.
            let start = next.fetch_add(chunk, Ordering::Relaxed);
            if start >= end {
                return Ok(sum);
            }
            let part = work(start..end.min(start + chunk));
            // An error ends the other threads, too.
            sum = sum.wrapping_add(part.inspect_err(|_| next.store(end, Ordering::Relaxed))?);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.get()).map(|_| scope.spawn(one_thread)).collect();
        let sums = workers.into_iter().map(|worker| worker.join().expect("errors are returned"));
        sums.collect::<Vec<_>>().into_iter().try_fold(0u64, |all, sum| Ok(all.wrapping_add(sum?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_visited_once_and_an_error_is_returned() {
        for threads in [1, 3].map(|threads| NonZero::new(threads).unwrap()) {
            for end in [0, 1, 63, 64, 65, 1000] {
                let seen = sum(threads, end, 64, |range| Ok::<u64, ()>(range.map(|number| number as u64 + 1).sum()));
                assert_eq!(seen, Ok((end * (end + 1) / 2) as u64));
            }
            let failed = sum(threads, 1000, 10, |range| if range.contains(&55) { Err(range.start) } else { Ok(0) });
            assert_eq!(failed, Err(50));
        }
    }
}
