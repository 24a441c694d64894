//! The device state, and the guarantee of a halt. Once the halt is seen and no descriptor is in progress, no engine
//! takes a descriptor until a reset has emptied the queues. A halt can come from any thread at any time, so no command
//! may overwrite it.

use crate::sync::{TryLock, Word};
use telpher_abi::registers::DeviceState;

/// The device's state.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct State(Word);

impl State {
    #[inline]
    pub(crate) fn get(&self) -> DeviceState {
        DeviceState::from_code((self.0.get() & 3) as u8)
    }

    /// Changes the state in one step if it is one of `from`, so that a concurrent halt is kept. Returns `false` if the
    /// state was another.
    pub(crate) fn change(&self, from: &[DeviceState], to: DeviceState) -> bool {
        self.0.update(|word| from.contains(&DeviceState::from_code((word & 3) as u8)).then_some(to as u64))
    }

    /// Sets the state at the end of a reset, whatever it was before.
    pub(crate) fn reset(&self) {
        self.0.set(DeviceState::Disabled as u64);
    }

    /// Lets an engine take a descriptor under its group's lock. Returns `None` if the lock is taken, `Some(None)` if
    /// the device has halted.
    #[inline]
    pub(crate) fn take<R>(&self, lock: &TryLock, take: impl FnOnce() -> R) -> Option<Option<R>> {
        // The state is read under the lock: once `is_at_rest` has seen a halt, every later lock holder sees it, too.
        lock.try_with(|| (self.get() != DeviceState::Halted).then(take))
    }

    /// True if the device has halted and no descriptor of the group is in progress, now and from now on. May return
    /// `false` if another thread holds the lock.
    pub(crate) fn is_at_rest(&self, lock: &TryLock, in_progress: impl FnOnce() -> bool) -> bool {
        // Engines take descriptors under this lock: those taken before are marked as in progress, and no more are taken
        // after it.
        lock.try_with(|| self.get() == DeviceState::Halted && !in_progress()).unwrap_or(false)
    }
}
