//! Readers and a writer of bytes that another language owns, so that no reader has bytes of another version.
//!
//! For bytes that Rust owns there is [`Versioned`](crate::Versioned), whose types enforce this. Here the program has to
//! follow the permits: it reads the bytes only while it has a permit to read, and writes them only while it has the
//! permit to write. Permits may go from thread to thread.

use crate::sync::{Condvar, Mutex, MutexGuard};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The version of some bytes, and the permits to use them: any number to read, or one to write.
///
/// A waiting writer comes before new readers. So a thread with a permit must not wait for another one: it would wait
/// for itself. And writers that follow each other without a pause keep readers away: while one writes, the next one
/// waits.
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
        self.register_writer().wait(at_most).ok()
    }

    /// Keeps new readers away from now on, for a caller that waits for the permit to write in several steps.
    pub fn register_writer(&self) -> WaitingWriter {
        self.0.lock().waiting += 1;
        WaitingWriter(Some(Arc::clone(&self.0)))
    }
}

/// A writer that waits, which comes before new readers.
///
/// # On drop
///
/// The readers go on.
#[derive(Debug)]
#[must_use = "dropping it lets readers in"]
pub struct WaitingWriter(
    /// `None` once it has the permit.
    Option<Arc<Inner>>,
);

impl WaitingWriter {
    /// Waits until no permit is left; for at most a time, if one is given: then the writer is returned.
    ///
    /// # Errors
    /// The writer, which keeps its place.
    pub fn wait(mut self, at_most: Option<Duration>) -> Result<WritePermit, WaitingWriter> {
        let Some(gate) = self.0.clone() else { unreachable!("it has no permit, which takes the value") };
        let (mut state, is_free) = gate.wait(gate.lock(), at_most, |state| !state.is_writing && state.readers == 0);
        if !is_free {
            drop(state);
            return Err(self);
        }
        state.waiting -= 1;
        state.is_writing = true;
        drop(state);
        self.0 = None;
        Ok(WritePermit(gate))
    }
}

impl Drop for WaitingWriter {
    fn drop(&mut self) {
        let Some(gate) = &self.0 else { return };
        gate.lock().waiting -= 1;
        // Wake the readers that waited for this writer.
        gate.changed.notify_all();
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

    /// Returns what tells whether a clone of this permit is left, without keeping writers away.
    #[must_use]
    pub fn probe(&self) -> ReadProbe {
        ReadProbe(Arc::downgrade(&self.0))
    }
}

/// Tells whether a [`ReadPermit`] has ended.
#[derive(Debug)]
pub struct ReadProbe(Weak<HeldRead>);

impl ReadProbe {
    /// Returns true if the last clone of the permit was dropped.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.strong_count() == 0
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
    fn a_writer_keeps_its_place_between_two_waits_and_lets_readers_in_when_it_gives_up() {
        let gate = VersionGate::default();
        let reader = gate.read(None).unwrap();
        let mut writer = gate.register_writer();
        for _ in 0..3 {
            writer = writer.wait(NOW).expect_err("a reader has a permit");
            assert!(gate.read(NOW).is_none(), "a writer waits");
        }
        std::thread::scope(|scope| {
            let begin = Instant::now();
            let second = scope.spawn(|| gate.read(Some(Duration::from_secs(120))).is_some());
            drop(writer);
            assert!(second.join().unwrap() && begin.elapsed() < Duration::from_secs(110), "the reader was not woken");
        });
        let probe = reader.probe();
        assert!(!probe.has_ended());
        drop(reader);
        assert!(probe.has_ended() && gate.register_writer().wait(NOW).is_ok());
        assert_eq!(gate.read(NOW).unwrap().version(), 1);
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
