//! Readers and a writer of bytes that another language owns, so that no reader has bytes of another version.
//!
//! For bytes that Rust owns there is [`Versioned`](crate::Versioned), whose types enforce this. Here the program has to
//! follow the permits: it reads the bytes only while it has a permit to read, and writes them only while it has the
//! permit to write. Permits may go from thread to thread.

use crate::sync::{Condvar, Mutex, MutexGuard};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The version of some bytes, and the permits to use them: any number to read, or one to write.
///
/// A waiting writer comes before new readers. So a thread with a permit must not wait for another one: it would wait
/// for itself.
///
/// ```
/// use telpher_cache::VersionGate;
///
/// let gate = VersionGate::default();
/// let reading = gate.read(None).expect("no limit");
/// assert!(gate.write(Some(std::time::Duration::ZERO)).is_none());
/// drop(reading);
/// drop(gate.write(None));
/// assert_eq!(gate.version(), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct VersionGate(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How often the bytes were written.
    version: u64,
    /// Permits to read, without their clones.
    readers: usize,
    is_writing: bool,
    /// Writers that wait.
    waiting: usize,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it has the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a condition holds; for at most a time, if one is given. Returns the state, and whether it holds.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        at_most: Option<Duration>,
        holds: impl Fn(&State) -> bool,
    ) -> (MutexGuard<'a, State>, bool) {
        // A time that the clock cannot express is no limit.
        let end = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        while !holds(&state) {
            let Some(end) = end else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return (state, false);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        (state, true)
    }
}

impl VersionGate {
    /// Returns how often the bytes were written.
    ///
    /// **Staleness**: a writer may be active. [`ReadPermit::version`] holds as long as the permit.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.lock().version
    }

    /// Waits until no writer writes or waits; for at most a time, if one is given: then `None`.
    #[must_use]
    pub fn read(&self, at_most: Option<Duration>) -> Option<ReadPermit> {
        let (mut state, is_free) = self.0.wait(self.0.lock(), at_most, |state| !state.is_writing && state.waiting == 0);
        is_free.then(|| {
            state.readers += 1;
            ReadPermit(Arc::new(HeldRead { gate: Arc::clone(&self.0), version: state.version }))
        })
    }

    /// Waits until no permit is left; for at most a time, if one is given: then `None`.
    #[must_use]
    pub fn write(&self, at_most: Option<Duration>) -> Option<WritePermit> {
        let mut state = self.0.lock();
        state.waiting += 1;
        let (mut state, is_free) = self.0.wait(state, at_most, |state| !state.is_writing && state.readers == 0);
        state.waiting -= 1;
        if is_free {
            state.is_writing = true;
            return Some(WritePermit(Arc::clone(&self.0)));
        }
        drop(state);
        // Readers that waited for this writer.
        self.0.changed.notify_all();
        None
    }
}

/// Permission to read. A clone is the same permit: it ends when the last one is dropped.
#[derive(Clone, Debug)]
pub struct ReadPermit(Arc<HeldRead>);

#[derive(Debug)]
struct HeldRead {
    gate: Arc<Inner>,
    version: u64,
}

impl ReadPermit {
    /// Returns how often the bytes were written before.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.version
    }

    /// Returns true if it has no clone.
    ///
    /// **Staleness**: another thread may drop a clone meanwhile. It cannot make one.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Drop for HeldRead {
    fn drop(&mut self) {
        self.gate.lock().readers -= 1;
        self.gate.changed.notify_all();
    }
}

/// Permission to write.
///
/// # On drop
///
/// The bytes get a new version, whether any byte was written or not.
#[derive(Debug)]
pub struct WritePermit(Arc<Inner>);

impl Drop for WritePermit {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        // Cannot wrap: that many writes take centuries.
        state.version += 1;
        state.is_writing = false;
        drop(state);
        self.0.changed.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let gate = VersionGate::default();
        let (first, second) = (gate.read(None).unwrap(), gate.read(NOW).unwrap());
        assert!(gate.write(NOW).is_none());
        let clone = first.clone();
        assert!(!first.is_alone());
        drop((first, second));
        assert!(clone.is_alone() && gate.write(NOW).is_none(), "the clone is the first permit");
        drop(clone);
        let writer = gate.write(NOW).unwrap();
        assert!(gate.read(NOW).is_none() && gate.write(NOW).is_none());
        drop(writer);
        assert_eq!((gate.version(), gate.read(NOW).unwrap().version()), (1, 1));
    }

    #[test]
    fn a_writer_that_gives_up_lets_readers_in() {
        let gate = VersionGate::default();
        let reader = gate.read(None).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| gate.write(Some(Duration::from_millis(50))).is_none());
            assert!(writer.join().unwrap());
            assert!(scope.spawn(|| gate.read(Some(Duration::from_secs(60))).is_some()).join().unwrap());
        });
        drop(reader);
    }

    #[test]
    fn every_reader_sees_whole_versions() {
        let (gate, words) = (VersionGate::default(), [(); 64].map(|()| std::sync::atomic::AtomicU64::new(0)));
        let order = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (gate, words) = (&gate, &words);
                scope.spawn(move || {
                    for turn in 0..496 {
                        if (turn + 2 * thread) % 8 == 0 {
                            let permit = gate.write(None).unwrap();
                            words.iter().for_each(|word| word.store(word.load(order) + 1, order));
                            drop(permit);
                        } else {
                            let permit = gate.read(None).unwrap();
                            assert!(words.iter().all(|word| word.load(order) == permit.version()));
                        }
                    }
                });
            }
        });
        assert_eq!(gate.version(), 4 * 62);
    }
}
