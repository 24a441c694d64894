//! What state a device is in, and what a halt promises: from the moment it is seen and nothing is in hand, no engine takes
//! anything until a reset has emptied the queues. It comes from any side at any time, so no command may overwrite it.

use crate::sync::{Turn, Word};
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

    /// Changes the state if it is one of `from`, in one step: a halt that comes meanwhile stays. `false` if it was another.
    pub(crate) fn change(&self, from: &[DeviceState], to: DeviceState) -> bool {
        self.0.update(|word| from.contains(&DeviceState::from_code((word & 3) as u8)).then_some(to as u64))
    }

    /// What a reset ends with, whatever was before.
    pub(crate) fn reset(&self) {
        self.0.set(DeviceState::Disabled as u64);
    }

    /// Lets an engine take a descriptor, if it gets its group's turn; `None` in the inner place if the device has halted.
    #[inline]
    pub(crate) fn take<R>(&self, turn: &Turn, take: impl FnOnce() -> R) -> Option<Option<R>> {
        // Looked at under the turn: where `is_at_rest` has once seen a halt, whoever has the turn later sees it too.
        turn.try_with(|| (self.get() != DeviceState::Halted).then(take))
    }

    /// True if the device has halted and nothing of the group is in an engine's hand, now and from now on. May say `false` where
    /// somebody else has the turn.
    pub(crate) fn is_at_rest(&self, turn: &Turn, is_in_hand: impl FnOnce() -> bool) -> bool {
        // Under the turn in which engines take descriptors: what was taken before is marked, and after it nothing is taken.
        turn.try_with(|| self.get() == DeviceState::Halted && !is_in_hand()).unwrap_or(false)
    }
}
