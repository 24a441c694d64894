//! The windows between the run's processes: the inter-domain permissions table of each device, as the driver that Intel
//! keeps outside of Linux fills it.
//!
//! A process never gets another one's memory. It asks the host for each access, and the host checks the window as it is
//! at that moment. So a window that was closed, or moved, gives nothing any more.
//!
//! ```text
//! owner ──create──► Window{limits, submitters, the owner's memory} ◄──attach── submitter
//! submitter ──access──► passage ─► limits, submitters ─► memory
//! owner ──update──► limits, then waits for the passage
//! ```

use super::files::lock;
use crate::tree::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use telpher_abi::WindowFlags;
use telpher_abi::registers::IdCap;
use telpher_mem::ProcessMemory;
use telpher_vdev_wire::message::{WINDOW_OWN, WINDOW_SECRET, WINDOW_USABLE, WindowCreate, WindowEntry, WindowUpdate};

/// Marks a window's number in the epoll instance of the files.
pub(super) const WINDOW: u64 = 1 << 62;

/// The number of the window whose end has hung up, if it was a window's.
pub(super) fn number_of(data: u64) -> Option<u64> {
    (data >> 62 == 1).then_some(data & !WINDOW)
}

/// IDXD_WIN_CREATE's type of a window for several submitters (SAMS); 0 is for a single one (SASS).
const SEVERAL: u32 = 1;

/// An open file as the windows see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Client {
    /// Number of the open file.
    pub(super) file: u64,
    pub(super) device: u32,
    pub(super) pasid: u32,
    /// The number of its address space.
    pub(super) space: u64,
}

/// What a window gives access to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub(super) base: u64,
    pub(super) size: u64,
    pub(super) flags: WindowFlags,
}

impl Limits {
    /// Checks the arguments of IDXD_WIN_CREATE.
    ///
    /// # Errors
    /// EOPNOTSUPP without the capability, EINVAL for flags and ranges that make no window.
    pub(super) fn of_create(create: &WindowCreate, id_cap: IdCap) -> Result<Limits, Errno> {
        let WindowCreate { base, size, kind, flags } = *create;
        let has_kind = match kind {
            0 => id_cap.single_submitter(),
            SEVERAL => id_cap.submitter_bitmap(),
            _ => false,
        };
        if !has_kind {
            return Err(Errno::OPNOTSUPP);
        }
        // A range that ends with the address space wraps for the driver, which adds in 64 bits.
        if base.checked_add(size).is_none() {
            return Err(Errno::INVAL);
        }
        Limits::checked(base, size, flags, id_cap)
    }

    fn checked(base: u64, size: u64, flags: u32, id_cap: IdCap) -> Result<Limits, Errno> {
        // Every unknown bit is refused here, so none is lost below.
        if flags > 0xf {
            return Err(Errno::INVAL);
        }
        let flags = WindowFlags::from_bits_truncate(u8::try_from(flags).unwrap_or_default());
        let (limited, by_offset) = (flags.contains(WindowFlags::ENABLE), flags.contains(WindowFlags::OFFSET_MODE));
        if by_offset && !id_cap.offset_mode() {
            return Err(Errno::OPNOTSUPP);
        }
        let names_range = base != 0 || size != 0;
        if !limited && (by_offset || names_range) || base.checked_add(size.saturating_sub(1)).is_none() {
            return Err(Errno::INVAL);
        }
        Ok(Limits { base, size, flags })
    }

    /// True if bytes of the owner's address space may be accessed.
    pub(super) fn permit(&self, address: u64, len: u64, write: bool) -> bool {
        let permission = if write { WindowFlags::WRITE } else { WindowFlags::READ };
        let inside = !self.flags.contains(WindowFlags::ENABLE)
            || address >= self.base && len <= self.size && address - self.base <= self.size - len;
        self.flags.contains(permission) && inside && address.checked_add(len).is_some()
    }
}

/// The part of a window that changes.
#[derive(Debug)]
struct State {
    /// False once it is closed; then nothing else matters.
    open: bool,
    limits: Limits,
    /// PASIDs of the submitters, by the file that has attached the window.
    submitters: BTreeMap<u64, u32>,
}

/// One window: an entry of its device's table.
#[derive(Debug)]
pub(super) struct Window {
    /// Number of the window in the run.
    pub(super) number: u64,
    /// Index of the entry.
    pub(super) handle: u16,
    owner: Client,
    several: bool,
    secret: [u8; WINDOW_SECRET],
    /// The memory of the owner's address space.
    memory: ProcessMemory,
    state: Mutex<State>,
    /// Held for reading by each access in progress. No thread waits for it with the lock of `state`.
    passage: RwLock<()>,
    /// Requests by the window's secret that are being answered.
    pub(super) requests: Arc<AtomicU32>,
}

/// A window that is not closed.
#[derive(Debug)]
struct Open {
    window: Arc<Window>,
    /// The host's end of the socket; a hang-up means that the last descriptor of the window was closed. Dropping it
    /// removes it from the epoll instance.
    _end: OwnedFd,
}

/// An access that the window permitted when it began; the window's owner waits for it.
pub(super) struct Permitted<'a> {
    pub(super) memory: &'a ProcessMemory,
    _passage: RwLockReadGuard<'a, ()>,
}

impl Window {
    /// Begins an access by a submitter.
    ///
    /// # Errors
    /// EACCES if the window does not permit it.
    pub(super) fn enter(&self, client: Client, address: u64, len: u64, write: bool) -> Result<Permitted<'_>, Errno> {
        self.enter_if(|state| {
            state.submitters.values().any(|pasid| *pasid == client.pasid) && state.limits.permit(address, len, write)
        })
    }

    /// Begins an access to a range that is given by its offset in the window, for a process with the window's
    /// descriptor; also returns its address.
    ///
    /// # Errors
    /// EACCES if the window does not permit it.
    pub(super) fn enter_at(&self, offset: u64, len: u64, write: bool) -> Result<(Permitted<'_>, u64), Errno> {
        let mut address = None;
        let permitted = self.enter_if(|state| {
            address = state.limits.base.checked_add(offset);
            address.is_some_and(|address| state.limits.permit(address, len, write))
        });
        Ok((permitted?, address.ok_or(Errno::ACCESS)?))
    }

    /// The passage comes first: an update that the check does not see yet waits for this access.
    fn enter_if(&self, permits: impl FnOnce(&State) -> bool) -> Result<Permitted<'_>, Errno> {
        let passage = self.passage.read().unwrap_or_else(PoisonError::into_inner);
        let state = lock(&self.state);
        if state.open && permits(&state) {
            Ok(Permitted { memory: &self.memory, _passage: passage })
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Waits until no access is in progress that began before this call.
    pub(super) fn settle(&self) {
        drop(self.passage.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn is_of(&self, device: u32) -> bool {
        self.owner.device == device
    }
}

/// All windows of the run.
#[derive(Debug, Default)]
pub(super) struct Windows {
    last: u64,
    open: BTreeMap<u64, Open>,
    /// Closed windows with accesses that may be in progress.
    closed: Vec<Arc<Window>>,
}

impl Windows {
    /// The number of the next window.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Makes a window in the lowest free entry of its device's table.
    ///
    /// # Errors
    /// ENOSPC if the table is full.
    pub(super) fn add(
        &mut self,
        (number, secret, end): (u64, [u8; WINDOW_SECRET], OwnedFd),
        owner: Client,
        (several, limits): (bool, Limits),
        memory: ProcessMemory,
        entries: u16,
    ) -> Result<u16, Errno> {
        let is_free = |handle: &u16| self.of_handle(owner.device, (*handle).into()).is_none();
        let handle = (0..entries).find(is_free).ok_or(Errno::NOSPC)?;
        let state = Mutex::new(State { open: true, limits, submitters: BTreeMap::new() });
        let (passage, requests) = (RwLock::default(), Arc::default());
        let window = Window { number, handle, owner, several, secret, memory, state, passage, requests };
        self.open.insert(number, Open { window: Arc::new(window), _end: end });
        Ok(handle)
    }

    fn of_device(&self, device: u32) -> impl Iterator<Item = &Arc<Window>> {
        self.open.values().map(|open| &open.window).filter(move |window| window.is_of(device))
    }

    /// True for the type of a window that several submitters may attach.
    pub(super) fn is_for_several(create: &WindowCreate) -> bool {
        create.kind == SEVERAL
    }

    /// The window with an index of a device's table.
    pub(super) fn of_handle(&self, device: u32, handle: u32) -> Option<&Arc<Window>> {
        self.of_device(device).find(|window| u32::from(window.handle) == handle)
    }

    /// The window that a process with its secret names.
    pub(super) fn of_secret(&self, secret: &[u8]) -> Option<&Arc<Window>> {
        self.open.values().map(|open| &open.window).find(|window| window.secret == secret)
    }

    /// Lets a file's process use a window.
    ///
    /// # Errors
    /// EINVAL if there is no such window, or it is of another device; EBUSY if it has its single submitter.
    pub(super) fn attach(&self, client: Client, secret: &[u8]) -> Result<u16, Errno> {
        let window = self.of_secret(secret).filter(|window| window.is_of(client.device)).ok_or(Errno::INVAL)?;
        let mut state = lock(&window.state);
        if !window.several && state.submitters.values().any(|pasid| *pasid != client.pasid) {
            return Err(Errno::BUSY);
        }
        state.submitters.insert(client.file, client.pasid);
        Ok(window.handle)
    }

    /// The entries of the table that concern a file's process.
    pub(super) fn listed(&self, client: Client) -> Vec<WindowEntry> {
        self.of_device(client.device)
            .filter_map(|window| {
                let state = lock(&window.state);
                let usable = state.submitters.values().any(|pasid| *pasid == client.pasid);
                let own = window.owner.pasid == client.pasid;
                let relation = if usable { WINDOW_USABLE } else { 0 } | if own { WINDOW_OWN } else { 0 };
                let Limits { base, size, flags } = state.limits;
                let (handle, flags) = (window.handle, flags.bits());
                (relation != 0).then_some(WindowEntry { base, size, handle, flags, relation, reserved: 0 })
            })
            .collect()
    }

    /// Replaces the limits of a window for its owner; the caller [settles](Window::settle) it.
    ///
    /// # Errors
    /// EACCES if the process owns no such window, EINVAL for limits that make none.
    pub(super) fn update(&self, client: Client, update: &WindowUpdate, id_cap: IdCap) -> Result<Arc<Window>, Errno> {
        let WindowUpdate { base, size, handle, flags } = *update;
        let window = self.of_handle(client.device, handle).filter(|window| window.owner.pasid == client.pasid);
        let window = window.ok_or(Errno::ACCESS)?;
        lock(&window.state).limits = Limits::checked(base, size, flags, id_cap)?;
        Ok(Arc::clone(window))
    }

    /// A file was closed: its windows end, and it submits to no window any more.
    pub(super) fn release_file(&mut self, file: u64) {
        let own = self.open.values().filter(|open| open.window.owner.file == file).map(|open| open.window.number);
        for number in own.collect::<Vec<_>>() {
            self.close(number);
        }
        for open in self.open.values() {
            lock(&open.window.state).submitters.remove(&file);
        }
    }

    /// Ends a window: no access begins any more, and its entry is free.
    pub(super) fn close(&mut self, number: u64) {
        let Some(Open { window, .. }) = self.open.remove(&number) else { return };
        lock(&window.state).open = false;
        self.closed.push(window);
        self.closed.retain(|window| Arc::strong_count(window) > 1);
    }

    /// The closed windows of an address space that may still be accessed.
    pub(super) fn closed_by(&self, space: u64) -> Vec<Arc<Window>> {
        self.closed.iter().filter(|window| window.owner.space == space).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_cap() -> IdCap {
        IdCap::default().with_single_submitter(true).with_submitter_bitmap(true).with_offset_mode(true)
    }

    #[test]
    fn create_is_refused_as_by_the_driver() {
        let of = |kind, flags, base, size| {
            Limits::of_create(&WindowCreate { base, size, kind, flags }, id_cap()).map(|limits| limits.flags.bits())
        };
        let (unsupported, invalid) = (Err(Errno::OPNOTSUPP), Err(Errno::INVAL));
        assert_eq!(of(0, 0x7, 0x1000, 0x1000), Ok(0x7));
        assert_eq!(of(1, 0xf, 0, u64::MAX), Ok(0xf));
        assert_eq!(of(0, 0x3, 0, 0), Ok(0x3));
        assert_eq!(of(2, 0x7, 0, 1), unsupported);
        assert_eq!(of(0, 0x17, 0, 1), invalid);
        assert_eq!(of(0, 0x1_0007, 0, 1), invalid);
        assert_eq!(of(0, 0xb, 0, 0), invalid, "offsets without a window");
        assert_eq!(of(0, 0x3, 0, 1), invalid);
        assert_eq!(of(0, 0x3, 1, 0), invalid);
        assert_eq!(of(0, 0x7, u64::MAX, 1), invalid);
        assert_eq!(of(0, 0x7, 1, u64::MAX), invalid);
        let create = |kind, flags| WindowCreate { base: 0, size: 1, kind, flags };
        let single = IdCap::default().with_single_submitter(true);
        assert_eq!(Limits::of_create(&create(1, 7), single), Err(Errno::OPNOTSUPP));
        assert_eq!(Limits::of_create(&create(0, 0xf), single), Err(Errno::OPNOTSUPP));
        assert_eq!(Limits::of_create(&create(0, 7), IdCap::default()), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn a_range_is_permitted_exactly_if_each_byte_is() {
        // All ranges near the ends of the address space and of small windows, against a check of each byte.
        let places = [0, 1, 2, 7, 8, 9, u64::MAX - 9, u64::MAX - 8, u64::MAX - 1, u64::MAX];
        for base in places {
            for size in [0, 1, 2, 8, u64::MAX] {
                let Ok(limits) = Limits::checked(base, size, 0x5, id_cap()) else { continue };
                for address in places {
                    for len in [1_u64, 2, 7, 8, 9] {
                        let byte = |at: u64| at >= base && at - base < size;
                        let each = (0..len).all(|at| address.checked_add(at).is_some_and(byte));
                        // A range that ends with the last byte of the address space has no end that can be named.
                        let nameable = address.checked_add(len).is_some();
                        let permitted = limits.permit(address, len, false);
                        assert_eq!(permitted, each && nameable, "{base:#x} {size:#x} {address:#x} {len}");
                        assert!(!limits.permit(address, len, true));
                    }
                }
            }
        }
    }
}
