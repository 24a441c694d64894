//! The memory of each PASID on a modelled device.

use std::fmt::Debug;
use std::sync::OnceLock;
use telpher_mem::{Fault, Space, WriteHint};
use telpher_model::{AddressSpaces, Window};

/// The memory of windows, for a device that has a copy of another device's table: the memory behind an entry of that
/// table is not in this process.
pub trait WindowSpaces: Debug + Send + Sync {
    /// Calls `act` with the memory that a descriptor accesses through a window that it has looked up.
    fn with(&self, window: &Window, act: &mut dyn FnMut(&dyn Space));
}

/// The most address spaces of one modelled device. Source: chosen; one process needs one.
const MAX_SPACES: usize = 64;

/// Address spaces by PASID; spaces are added, never removed.
#[derive(Debug)]
pub(crate) struct SpaceTable {
    spaces: [OnceLock<(u32, Box<dyn Space>)>; MAX_SPACES],
    windows: OnceLock<Box<dyn WindowSpaces>>,
}

impl SpaceTable {
    pub(crate) fn new() -> Self {
        SpaceTable { spaces: [const { OnceLock::new() }; MAX_SPACES], windows: OnceLock::new() }
    }

    /// Gives all windows their memory; returns `false` if they have it already.
    pub(crate) fn set_windows(&self, windows: Box<dyn WindowSpaces>) -> bool {
        self.windows.set(windows).is_ok()
    }

    /// Assigns memory to a PASID; returns `false` if the table is full or the PASID already has memory.
    pub(crate) fn add(&self, pasid: u32, space: Box<dyn Space>) -> bool {
        let mut entry = (pasid, space);
        for place in &self.spaces {
            match place.set(entry) {
                Ok(()) => return true,
                Err(back) if place.get().is_some_and(|(taken, _)| *taken == back.0) => return false,
                Err(back) => entry = back,
            }
        }
        false
    }
}

impl AddressSpaces for SpaceTable {
    #[inline]
    fn space(&self, pasid: Option<u32>) -> &dyn Space {
        // Requests without a PASID are the device's own; here they use the memory of the first space's process.
        self.spaces
            .iter()
            .map_while(OnceLock::get)
            .find(|(known, _)| pasid.is_none_or(|pasid| pasid == *known))
            .map_or(&UnmappedSpace as &dyn Space, |(_, space)| space.as_ref())
    }

    fn with_window(&self, window: &Window, act: &mut dyn FnMut(&dyn Space)) {
        match self.windows.get() {
            Some(windows) => windows.with(window, act),
            None => act(self.space(Some(window.pasid))),
        }
    }
}

/// The memory of an unknown PASID: every access faults.
#[derive(Debug)]
pub(crate) struct UnmappedSpace;

fn fault(address: u64, write: bool) -> Result<(), Fault> {
    Err(Fault { address, write, done: 0 })
}

impl Space for UnmappedSpace {
    fn read(&self, address: u64, _: &mut [u8]) -> Result<(), Fault> {
        fault(address, false)
    }
    fn write(&self, address: u64, _: &[u8], _: WriteHint) -> Result<(), Fault> {
        fault(address, true)
    }
    fn move_forward(&self, _: u64, src: u64, _: u64, _: WriteHint) -> Result<(), Fault> {
        fault(src, false)
    }
    fn move_backward(&self, _: u64, src: u64, len: u64, _: WriteHint) -> Result<(), Fault> {
        fault(src.wrapping_add(len).wrapping_sub(1), false)
    }
    fn fill(&self, dst: u64, _: [u64; 2], _: u64, _: WriteHint) -> Result<(), Fault> {
        fault(dst, true)
    }
    fn compare(&self, a: u64, _: u64, _: u64) -> Result<Option<u64>, Fault> {
        fault(a, false).map(|()| None)
    }
    fn compare_pattern(&self, a: u64, _: u64, _: u64) -> Result<Option<u64>, Fault> {
        fault(a, false).map(|()| None)
    }
    fn flush(&self, address: u64, _: u64) -> Result<(), Fault> {
        fault(address, false)
    }
    fn write_record(&self, address: u64, _: &[u64; 4]) -> Result<(), Fault> {
        fault(address, true)
    }
    fn page_request(&self, _: u64, _: bool) -> bool {
        false
    }
}
