//! The windows between the run's processes: the inter-domain permissions table of each device, as the driver that Intel
//! keeps outside of Linux fills it.
//!
//! A process never gets another one's memory. It asks the host for each access, and the host checks the window as it is
//! at that moment. An access names the generation of the window that its descriptor has looked up, so a window that was
//! closed or moved gives nothing any more, and another one with its handle gives nothing instead.
//!
//! ```text
//! owner ──create──► Window{limits, submitters, the owner's memory} ◄──attach── submitter
//! submitter ──access──► generation, submitters, limits ─► counted as in progress ─► memory
//! owner ──update──► limits and generation, then waits for the accesses of former generations
//! ```

use super::files::lock;
use crate::tree::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use telpher_abi::WindowFlags;
use telpher_abi::registers::IdCap;
use telpher_mem::ProcessMemory;
use telpher_vdev_wire::message::{
    ALIGNMENT, WINDOW_OWN, WINDOW_SECRET, WINDOW_USABLE, WindowAccess, WindowCreate, WindowEntry, WindowUpdate,
};

/// Marks a window's number in the epoll instance of the files.
pub(super) const WINDOW: u64 = 1 << 62;

/// The number of the window whose end has hung up, if it was a window's.
pub(super) fn number_of(data: u64) -> Option<u64> {
    (data >> 62 == 1).then_some(data & !WINDOW)
}

/// Marks the number of a process that is watched.
pub(super) const PROCESS: u64 = 1 << 61;

/// The number of the process that has ended, if it was a process.
pub(super) fn process_of(data: u64) -> Option<u32> {
    (data >> 61 == 1).then(|| u32::try_from(data & !PROCESS).ok()).flatten()
}

/// IDXD_WIN_CREATE's type of a window for several submitters (SAMS); 0 is for a single one (SASS).
const SEVERAL: u32 = 1;
/// DPDK's patches also say so with this flag.
const SEVERAL_FLAG: u32 = 0x10;

/// An open file as the windows see it. Two address spaces may share a PASID, after an exec or with a process number
/// that is used again, so a PASID identifies no process. A process may send any number of an address space, so this
/// number alone does not either: it counts together with the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Client {
    /// Number of the open file.
    pub(super) file: u64,
    pub(super) device: u32,
    /// The process that opened the file; 0 if it is not known.
    pub(super) process: u32,
    /// The number of its address space.
    pub(super) space: u64,
}

/// Process and number of an address space.
type AddressSpace = (u32, u64);

impl Client {
    fn address_space(self) -> AddressSpace {
        (self.process, self.space)
    }
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
        let flags = if kind == SEVERAL { flags & !SEVERAL_FLAG } else { flags };
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

    /// The address of the bytes that an access names; `None` if the window does not permit it.
    pub(super) fn locate(&self, place: u64, len: u64, write: bool) -> Option<u64> {
        if !self.flags.contains(WindowFlags::ENABLE) {
            return self.permits(write).then_some(place).filter(|address| address.checked_add(len).is_some());
        }
        let by_offset = self.flags.contains(WindowFlags::OFFSET_MODE);
        self.at(if by_offset { place } else { place.checked_sub(self.base)? }, len, write)
    }

    /// The address of bytes at an offset in the window; `None` if the window does not permit the access.
    fn at(&self, offset: u64, len: u64, write: bool) -> Option<u64> {
        let inside = !self.flags.contains(WindowFlags::ENABLE) || len <= self.size && offset <= self.size - len;
        let address = self.base.checked_add(offset)?;
        address.checked_add(len)?;
        (self.permits(write) && inside).then_some(address)
    }

    fn permits(&self, write: bool) -> bool {
        self.flags.contains(if write { WindowFlags::WRITE } else { WindowFlags::READ })
    }

    /// The base that a submitter sees.
    fn shown_base(&self) -> u64 {
        if self.flags.contains(WindowFlags::OFFSET_MODE) { self.base % ALIGNMENT } else { self.base }
    }
}

/// The part of a window that changes.
#[derive(Debug)]
struct State {
    /// False once it is closed; then nothing else matters.
    open: bool,
    limits: Limits,
    /// How often the limits were replaced.
    updates: u32,
    /// The submitters' address spaces, each with the file that its right ends with, if its process is not watched.
    submitters: BTreeSet<(AddressSpace, Option<u64>)>,
    /// Accesses in progress, by the number of updates when they began.
    in_progress: BTreeMap<u32, u32>,
}

impl State {
    fn may_submit(&self, client: Client) -> bool {
        self.submitters.iter().any(|(space, _)| *space == client.address_space())
    }
}

/// One window: an entry of its device's table.
#[derive(Debug)]
pub(super) struct Window {
    /// Number of the window in the run, of 32 bits.
    pub(super) number: u64,
    /// Index of the entry.
    pub(super) handle: u16,
    owner: Client,
    /// It ends with the owner's process; otherwise with the file that has made it.
    is_watched: bool,
    several: bool,
    secret: [u8; WINDOW_SECRET],
    /// The memory of the owner's address space.
    memory: ProcessMemory,
    state: Mutex<State>,
    /// Notified when an access ends.
    ended: Condvar,
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
#[derive(Debug)]
pub(super) struct Permitted<'a> {
    window: &'a Window,
    updates: u32,
    /// The first byte in the owner's address space.
    pub(super) address: u64,
}

impl Permitted<'_> {
    /// The memory of the owner's address space.
    pub(super) fn memory(&self) -> &ProcessMemory {
        &self.window.memory
    }
}

impl Drop for Permitted<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.window.state);
        if let Some(count) = state.in_progress.get_mut(&self.updates) {
            *count -= 1;
            if *count == 0 {
                state.in_progress.remove(&self.updates);
            }
        }
        drop(state);
        self.window.ended.notify_all();
    }
}

impl Window {
    /// Begins an access by a submitter.
    ///
    /// # Errors
    /// EACCES if the window does not permit it, or has changed since the descriptor has looked it up.
    pub(super) fn enter(&self, client: Client, access: &WindowAccess, write: bool) -> Result<Permitted<'_>, Errno> {
        self.enter_at(|state| {
            let is_current = self.generation(state) == access.generation;
            let permitted = is_current && state.may_submit(client);
            permitted.then(|| state.limits.locate(access.address, access.len.into(), write)).flatten()
        })
    }

    /// Begins an access to a range that is given by its offset in the window, for a process with the window's
    /// descriptor.
    ///
    /// # Errors
    /// EACCES if the window does not permit it.
    pub(super) fn enter_offset(&self, offset: u64, len: u64, write: bool) -> Result<Permitted<'_>, Errno> {
        self.enter_at(|state| state.limits.at(offset, len, write))
    }

    /// Checks and counts in one step: an update that comes later waits for this access.
    fn enter_at(&self, locate: impl FnOnce(&State) -> Option<u64>) -> Result<Permitted<'_>, Errno> {
        let mut state = lock(&self.state);
        let address = if state.open { locate(&state) } else { None };
        let address = address.ok_or(Errno::ACCESS)?;
        let updates = state.updates;
        *state.in_progress.entry(updates).or_default() += 1;
        Ok(Permitted { window: self, updates, address })
    }

    /// Waits until no access is in progress that former limits permitted; once the window is closed, none at all.
    pub(super) fn settle(&self) {
        let mut state = lock(&self.state);
        let updates = state.updates;
        while state.in_progress.keys().any(|began| *began < updates || !state.open) {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_accessed(&self) -> bool {
        !lock(&self.state).in_progress.is_empty()
    }

    /// The number of its present limits.
    fn generation(&self, state: &State) -> u64 {
        self.number << 32 | u64::from(state.updates)
    }

    fn is_owned_by(&self, client: Client) -> bool {
        self.owner.address_space() == client.address_space()
    }

    fn is_of(&self, device: u32) -> bool {
        self.owner.device == device
    }

    /// The process that has made the window.
    pub(super) fn process(&self) -> u32 {
        self.owner.process
    }
}

/// All windows of the run.
#[derive(Debug, Default)]
pub(super) struct Windows {
    last: u32,
    open: BTreeMap<u64, Open>,
    /// Closed windows with accesses that may be in progress.
    closed: Vec<Arc<Window>>,
    /// The living processes that have made or attached a window, where the system reports their end. Dropping one
    /// removes it from the epoll instance.
    watched: BTreeMap<u32, OwnedFd>,
}

impl Windows {
    /// The number of the next window.
    ///
    /// # Errors
    /// ENOSPC once the run has used up all numbers.
    pub(super) fn next_number(&mut self) -> Result<u64, Errno> {
        self.last = self.last.checked_add(1).ok_or(Errno::NOSPC)?;
        Ok(self.last.into())
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
        let (submitters, in_progress) = (BTreeSet::new(), BTreeMap::new());
        let state = Mutex::new(State { open: true, limits, updates: 0, submitters, in_progress });
        let is_watched = self.is_watched(owner.process);
        let window =
            Window { number, handle, owner, is_watched, several, secret, memory, state, ended: Condvar::new() };
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
        if !window.several && state.submitters.iter().any(|(space, _)| *space != client.address_space()) {
            return Err(Errno::BUSY);
        }
        let file = if self.is_watched(client.process) { None } else { Some(client.file) };
        state.submitters.insert((client.address_space(), file));
        Ok(window.handle)
    }

    /// Takes back the right that [`attach`](Windows::attach) has given, also that of the owner in its own window.
    pub(super) fn detach(&self, client: Client, secret: &[u8]) {
        if let Some(window) = self.of_secret(secret) {
            lock(&window.state).submitters.retain(|(space, _)| *space != client.address_space());
        }
    }

    /// The entries of the table that concern a file's process.
    pub(super) fn listed(&self, client: Client) -> Vec<WindowEntry> {
        self.of_device(client.device)
            .filter_map(|window| {
                let state = lock(&window.state);
                let own = window.is_owned_by(client);
                let usable = if state.may_submit(client) { WINDOW_USABLE } else { 0 };
                let relation = usable | if own { WINDOW_OWN } else { 0 };
                let Limits { base, size, flags } = state.limits;
                let base = if own { base } else { state.limits.shown_base() };
                let (handle, flags, generation) = (window.handle, flags.bits(), window.generation(&state));
                let entry = WindowEntry { base, size, generation, handle, flags, relation, reserved: 0 };
                (relation != 0).then_some(entry)
            })
            .collect()
    }

    /// Replaces the limits of a window for its owner; the caller [settles](Window::settle) it.
    ///
    /// # Errors
    /// EACCES if the process owns no such window, EINVAL for limits that make none, ENOSPC after too many updates.
    pub(super) fn update(&self, client: Client, update: &WindowUpdate, id_cap: IdCap) -> Result<Arc<Window>, Errno> {
        let WindowUpdate { base, size, generation, handle, flags } = *update;
        let window = self.of_handle(client.device, handle);
        let is_named = |window: &&Arc<Window>| window.is_owned_by(client) && window.number == generation >> 32;
        let window = window.filter(is_named).ok_or(Errno::ACCESS)?;
        let limits = Limits::checked(base, size, flags, id_cap)?;
        let mut state = lock(&window.state);
        state.updates = state.updates.checked_add(1).ok_or(Errno::NOSPC)?;
        state.limits = limits;
        drop(state);
        Ok(Arc::clone(window))
    }

    /// Has windows and rights of a process end with it, whose end makes this descriptor readable.
    pub(super) fn watch(&mut self, process: u32, end: OwnedFd) {
        self.watched.insert(process, end);
    }

    /// True if the process lives, and the system reports its end.
    pub(super) fn is_watched(&self, process: u32) -> bool {
        self.watched.contains_key(&process)
    }

    /// A file was closed. Windows and rights of a watched process go on without it, as with Intel's driver.
    pub(super) fn release_file(&mut self, file: u64) {
        self.close_those(|window| !window.is_watched && window.owner.file == file);
        self.end_rights(|_, of_file| of_file == Some(file));
    }

    /// A watched process has ended.
    pub(super) fn release_process(&mut self, process: u32) {
        self.watched.remove(&process);
        self.close_those(|window| window.owner.process == process);
        self.end_rights(|(of, _), _| of == process);
    }

    /// A process has another address space than before: the windows to its former one end, which is gone, and so do its
    /// rights.
    pub(super) fn release_former(&mut self, process: u32, space: u64) {
        self.close_those(|window| process != 0 && window.owner.process == process && window.owner.space != space);
        self.end_rights(|(of, former), _| process != 0 && of == process && former != space);
    }

    /// An address space closes a descriptor of the window with this number.
    pub(super) fn close_held(&mut self, process: u32, space: u64, number: u64) {
        let Some(Open { window, .. }) = self.open.get(&number) else { return };
        if window.owner.address_space() == (process, space) {
            self.close(number);
        } else {
            lock(&window.state).submitters.retain(|(of, _)| *of != (process, space));
        }
    }

    fn end_rights(&self, are_to_end: impl Fn(AddressSpace, Option<u64>) -> bool) {
        for open in self.open.values() {
            lock(&open.window.state).submitters.retain(|(space, file)| !are_to_end(*space, *file));
        }
    }

    fn close_those(&mut self, are_to_end: impl Fn(&Window) -> bool) {
        let ending = self.open.values().filter(|open| are_to_end(&open.window)).map(|open| open.window.number);
        for number in ending.collect::<Vec<_>>() {
            self.close(number);
        }
    }

    /// Ends a window: no access begins any more, and its entry is free.
    pub(super) fn close(&mut self, number: u64) {
        let Some(Open { window, .. }) = self.open.remove(&number) else { return };
        lock(&window.state).open = false;
        self.closed.push(window);
        self.closed.retain(|window| window.is_accessed());
    }

    /// The closed windows of a process, or of an address space, that are still accessed.
    pub(super) fn closed_by(&self, process: u32, space: u64) -> Vec<Arc<Window>> {
        let is_of = |owner: Client| owner.space == space || process != 0 && owner.process == process;
        self.closed.iter().filter(|window| is_of(window.owner) && window.is_accessed()).cloned().collect()
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
        assert_eq!([of(1, 0x17, 0, 1), of(1, 0x37, 0, 1)], [Ok(7), invalid], "DPDK's flag for several submitters");
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
        for (base, size, flags) in places.iter().flat_map(|base| {
            [0, 1, 2, 8, u64::MAX].into_iter().flat_map(|size| [0x5, 0xd].map(|flags| (*base, size, flags)))
        }) {
            let Ok(limits) = Limits::checked(base, size, flags, id_cap()) else { continue };
            let first = if flags & 8 == 0 { 0 } else { base };
            for place in places {
                for len in [1_u64, 2, 7, 8, 9] {
                    let byte = |at: u64| at >= base && at - base < size;
                    let address = first.checked_add(place);
                    let at = |offset| address.and_then(|address| address.checked_add(offset));
                    let each = (0..len).all(|offset| at(offset).is_some_and(byte));
                    // A range that ends with the last byte of the address space has no end that can be named.
                    let nameable = at(len).is_some();
                    let located = limits.locate(place, len, false);
                    let expected = address.filter(|_| each && nameable);
                    assert_eq!(located, expected, "{base:#x} {size:#x} {flags} {place:#x} {len}");
                    assert_eq!(limits.locate(place, len, true), None);
                }
            }
        }
    }

    #[test]
    fn an_offset_names_bytes_of_the_window_in_every_mode() {
        for flags in [0x5, 0xd] {
            let limits = Limits::checked(0x1000, 0x10, flags, id_cap()).unwrap();
            assert_eq!(limits.at(0xf, 1, false), Some(0x100f));
            assert_eq!([limits.at(0x10, 1, false), limits.at(0xf, 2, false), limits.at(0, 1, true)], [None; 3]);
            assert_eq!([limits.at(u64::MAX, 1, false), limits.at(1, u64::MAX, false)], [None; 2]);
        }
    }

    #[test]
    fn a_submitter_sees_no_base_of_a_window_in_offset_mode() {
        let shown = |flags| Limits::checked(0x7f00_1234_5003, 0x1000, flags, id_cap()).unwrap().shown_base();
        assert_eq!((shown(0xf), shown(0x7)), (3, 0x7f00_1234_5003));
    }

    /// A window of this process's memory, and the client that may use it.
    fn attached() -> (Windows, Client) {
        let owner = Client { file: 1, device: 0, process: 10, space: 100 };
        let submitter = Client { file: 2, device: 0, process: 20, space: 200 };
        let mut windows = Windows::default();
        let memory = std::fs::File::options().read(true).write(true).open("/proc/self/mem").unwrap();
        let memory = ProcessMemory::received(memory.into()).unwrap();
        let (end, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let limits = Limits::checked(0x1000, 0x1000, 7, id_cap()).unwrap();
        let number = windows.next_number().unwrap();
        let made = (number, [9; WINDOW_SECRET], end.into());
        assert_eq!(windows.add(made, owner, (false, limits), memory, 4), Ok(0));
        assert_eq!(windows.attach(submitter, &[9; WINDOW_SECRET]), Ok(0));
        (windows, submitter)
    }

    /// Calls `wait` in a thread; returns true if it had returned when `end` was called.
    fn returned_before(wait: impl FnOnce() + Send, end: impl FnOnce()) -> bool {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (has_ended, was_early) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait();
                was_early.store(!has_ended.load(Ordering::SeqCst), Ordering::SeqCst);
            });
            // Only so that a wait that is missing is found; the result does not depend on it.
            std::thread::sleep(std::time::Duration::from_millis(20));
            has_ended.store(true, Ordering::SeqCst);
            end();
        });
        was_early.into_inner()
    }

    #[test]
    fn an_update_waits_for_accesses_of_former_limits_only() {
        let (windows, client) = attached();
        let window = Arc::clone(windows.of_handle(0, 0).unwrap());
        let access = |generation| WindowAccess { address: 0x1000, generation, len: 8, handle: 0 };
        let first = 1 << 32;
        let former = window.enter(client, &access(first), true).unwrap();
        let owner = Client { file: 1, device: 0, process: 10, space: 100 };
        let update = WindowUpdate { base: 0x1000, size: 8, generation: first, handle: 0, flags: 7 };
        windows.update(owner, &update, id_cap()).unwrap();
        assert_eq!(window.enter(client, &access(first), true).map(drop), Err(Errno::ACCESS));
        let present = window.enter(client, &access(first + 1), true).unwrap();
        assert!(!returned_before(|| window.settle(), || drop(former)));
        // This one does not end before the update does.
        window.settle();
        drop(present);
    }

    #[test]
    fn the_end_of_a_window_waits_for_every_access() {
        let (mut windows, client) = attached();
        let window = Arc::clone(windows.of_handle(0, 0).unwrap());
        let access = WindowAccess { address: 0x1000, generation: 1 << 32, len: 8, handle: 0 };
        let permitted = window.enter(client, &access, false).unwrap();
        windows.close(window.number);
        assert_eq!(window.enter(client, &access, false).map(drop), Err(Errno::ACCESS));
        assert_eq!((windows.closed_by(10, 0).len(), windows.closed_by(0, 100).len()), (1, 1));
        assert_eq!((windows.closed_by(20, 200).len(), windows.closed_by(0, 0).len()), (0, 0));
        assert!(!returned_before(|| window.settle(), || drop(permitted)));
        assert!(windows.closed_by(10, 100).is_empty());
    }

    #[test]
    fn a_process_that_executes_a_program_loses_its_windows() {
        let (mut windows, _) = attached();
        for (process, space) in [(10, 100), (20, 1), (0, 1)] {
            windows.release_former(process, space);
            assert!(windows.of_handle(0, 0).is_some(), "{process} {space}");
        }
        windows.release_former(10, 101);
        assert!(windows.of_handle(0, 0).is_none());
    }

    #[test]
    fn a_submitter_that_executes_a_program_loses_its_right() {
        let (mut windows, client) = attached();
        let may_submit = |windows: &Windows| lock(&windows.of_handle(0, 0).unwrap().state).may_submit(client);
        for (process, space) in [(20, 200), (10, 100), (0, 1)] {
            windows.release_former(process, space);
            assert!(may_submit(&windows), "{process} {space}");
        }
        windows.release_former(20, 201);
        assert!(!may_submit(&windows));
    }

    /// Where the system does not report the end of processes.
    #[test]
    fn without_a_watch_windows_and_rights_end_with_their_files() {
        let (mut windows, client) = attached();
        let may_submit = |windows: &Windows| lock(&windows.of_handle(0, 0).unwrap().state).may_submit(client);
        windows.release_file(3);
        assert!(may_submit(&windows));
        windows.release_file(2);
        assert!(!may_submit(&windows));
        windows.release_file(1);
        assert!(windows.of_handle(0, 0).is_none());
    }

    #[test]
    fn the_process_that_closes_a_window_decides_what_ends() {
        let (mut windows, client) = attached();
        let may_submit = |windows: &Windows| lock(&windows.of_handle(0, 0).unwrap().state).may_submit(client);
        let number = windows.of_handle(0, 0).unwrap().number;
        // A child with the owner's number, another process with the submitter's, and no such window.
        windows.close_held(30, 100, number);
        windows.close_held(30, 200, number);
        windows.close_held(10, 100, number + 1);
        assert!(may_submit(&windows));
        windows.close_held(20, 200, number);
        assert!(!may_submit(&windows));
        windows.close_held(10, 100, number);
        assert!(windows.of_handle(0, 0).is_none());
    }
}
