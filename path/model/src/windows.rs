//! The inter-domain permissions table (IDPT): which submitters may access the memory of which other PASIDs, and where.
//! Source: SPEC §3.14, §9.2.18, §9.2.19, §9.2.29.
//!
//! ```text
//! descriptor ─► handle ─► entry: usable? of this submitter? ─► Window ─► locate(address, len) ─► address in its PASID
//!                                     └─► bitmap in memory: Step::ReadBitmap
//! ```

use crate::capabilities::{MAX_ENGINES, MAX_WINDOWS};
use crate::device::{Device, MAX_LANES};
use crate::legality::{Check, Refusal, fails, refuse};
use crate::sync::{TryLock, Word, load, store};
use crate::window_uses::{Tickets, WindowUse};
use crate::wq::Submitter;
use telpher_abi::registers::{CommandError, IdBr, IdptEntry, IdptType, SUBMITTER_BITMAP_BYTES};
use telpher_abi::{Descriptor, Status, WindowFlags};

/// Command 15: handles are issued. Without it, a handle is the index of its entry.
const HANDLE_COMMAND: u64 = 1 << 15;
/// Command 17: the device caches bytes of submitter bitmaps, and software invalidates them.
const INVALIDATE_COMMAND: u64 = 1 << 17;
/// Bytes of bitmaps that a device with command 17 caches. Source: chosen; small, so that entries also leave it.
const CACHED_BYTES: usize = 64;

/// The state of the table.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Windows {
    /// Held while an entry, or the cache, is read or written as a whole.
    lock: TryLock,
    entries: [[Word; 4]; MAX_WINDOWS],
    /// What [`Window::generation`] of each entry is.
    generations: [Word; MAX_WINDOWS],
    /// Handles in use, a bit each; only with command 15.
    issued: [Word; MAX_WINDOWS / 64],
    identity: Word,
    /// Cached bytes of bitmaps: bit 63 valid, bits 32:25 handle, bits 24:8 offset in the bitmap, bits 7:0 value.
    cache: [Word; CACHED_BYTES],
    /// Counts invalidations, so that a byte read before one is not stored after it.
    invalidations: Word,
    tickets: Tickets,
    uses: [[WindowUse; MAX_LANES]; MAX_ENGINES],
}

impl Default for Windows {
    fn default() -> Self {
        Windows {
            lock: TryLock::default(),
            entries: std::array::from_fn(|_| Default::default()),
            generations: std::array::from_fn(|_| Word::default()),
            issued: std::array::from_fn(|_| Word::default()),
            identity: Word::default(),
            cache: std::array::from_fn(|_| Word::default()),
            invalidations: Word::default(),
            tickets: Tickets::default(),
            uses: std::array::from_fn(|_| std::array::from_fn(|_| WindowUse::default())),
        }
    }
}

/// The address space of one operand other than the submitter's own, with its limits: an entry of the table that was
/// usable for the submitter when the descriptor began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The handle that the descriptor names.
    pub handle: u16,
    /// The PASID whose memory is accessed.
    pub pasid: u32,
    /// Permissions, enable and mode.
    pub flags: WindowFlags,
    /// First byte of the window.
    pub base: u64,
    /// Bytes of the window.
    pub size: u64,
    /// The number that the driver gave with the entry, if it [replaces](Device::replace_window) entries; otherwise 0.
    pub generation: u64,
}

impl Window {
    /// Returns the address of `len` bytes in the window's PASID.
    ///
    /// # Errors
    /// 0x2a without the permission, 0x2b outside the window.
    pub fn locate(&self, address: u64, len: u64, write: bool) -> Result<u64, Status> {
        let permitted = |flag| self.flags.contains(flag);
        if write && fails(Check::WritePermission, !permitted(WindowFlags::WRITE))
            || !write && fails(Check::ReadPermission, !permitted(WindowFlags::READ))
        {
            return Err(Status::InterDomainPermission);
        }
        if !permitted(WindowFlags::ENABLE) {
            return Ok(address);
        }
        let offset_mode = permitted(WindowFlags::OFFSET_MODE);
        let offset = if offset_mode { address } else { address.wrapping_sub(self.base) };
        let begins = if offset_mode { offset < self.size } else { address >= self.base && offset <= self.size };
        let ends = len <= self.size.wrapping_sub(offset);
        if fails(Check::WindowBegin, !begins) || fails(Check::WindowEnd, begins && !ends) {
            return Err(Status::InterDomainWindow);
        }
        Ok(self.base.wrapping_add(offset))
    }

    /// True if the submitter must not learn addresses of the window's owner.
    #[must_use]
    pub fn hides_addresses(&self) -> bool {
        self.flags.contains(WindowFlags::ENABLE.union(WindowFlags::OFFSET_MODE))
    }
}

/// The result of looking up a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// The submitter may use the entry.
    Found(Window),
    /// The submitter may use the entry if this bit of this byte, in the memory of this PASID, is set.
    InBitmap { window: Window, pasid: Option<u32>, address: u64, bit: u8 },
    /// Another thread has the table; ask again.
    Busy,
}

/// The place of a submitter in the bitmap of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BitmapByte {
    handle: u16,
    offset: u64,
}

impl BitmapByte {
    pub(crate) fn of(handle: u16, pasid: u32) -> Self {
        BitmapByte { handle, offset: u64::from(pasid >> 3) }
    }

    fn slot(self) -> usize {
        usize::try_from((self.offset ^ u64::from(self.handle) << 3) % CACHED_BYTES as u64).expect("below CACHED_BYTES")
    }

    /// The cached word without its value.
    fn tag(self) -> u64 {
        1 << 63 | u64::from(self.handle) << 25 | self.offset << 8
    }
}

/// A handle whose submitter bitmap is being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PendingBit {
    pub(crate) window: Window,
    /// Which of the two handles.
    pub(crate) index: usize,
    pub(crate) byte: BitmapByte,
    pub(crate) bit: u8,
    /// Invalidations of the cache before the byte was read.
    pub(crate) invalidations: u64,
}

impl PendingBit {
    /// Refuses a submitter whose bit in the byte is not set.
    pub(crate) fn check(&self, value: u8) -> Result<(), Refusal> {
        let refusal = refuse(Check::BitmapSubmitter, value >> self.bit & 1 == 0, Status::InterDomainHandle);
        refusal.map_err(|refusal| Refusal { handle: Some(self.window.handle), ..refusal })
    }
}

impl Windows {
    /// Runs `act` with the lock. Other holders only read or write a few words.
    fn locked<R>(&self, mut act: impl FnMut() -> R) -> R {
        loop {
            if let Some(result) = self.lock.try_with(&mut act) {
                return result;
            }
            std::hint::spin_loop();
        }
    }

    fn entry(&self, index: usize) -> IdptEntry {
        self.entries.get(index).map_or_else(IdptEntry::default, |words| IdptEntry(load(words)))
    }

    fn generation(&self, index: usize) -> u64 {
        self.generations.get(index).map_or(0, Word::get)
    }

    fn forget(&self, drops: impl Fn(usize, u64) -> bool) {
        self.invalidations.add(1);
        for slot in &self.cache {
            let word = slot.get();
            // Cannot lose bits: eight and 17 bits.
            if word >> 63 == 1 && drops((word >> 25 & 0xff) as usize, word >> 8 & 0x1_ffff) {
                slot.set(0);
            }
        }
    }

    fn lanes(&self) -> &[WindowUse] {
        self.uses.as_flattened()
    }
}

impl Device {
    /// Returns the number of entries of the table; 0 without inter-domain operations.
    pub(crate) fn idpt_entries(&self) -> usize {
        let caps = &self.capabilities;
        if caps.gen_cap.inter_domain() { usize::from(caps.id_cap.entries()).min(MAX_WINDOWS) } else { 0 }
    }

    /// Returns a word of an entry as software reads it.
    pub(crate) fn read_idpt(&self, index: usize, word: usize) -> u64 {
        self.windows.entry(index).0[word]
    }

    /// Writes the bits of a word of an entry that are currently writable. Source: SPEC Table 9-10.
    pub(crate) fn write_idpt(&self, index: usize, word: usize, value: u64, mask: u64) {
        let windows = &self.windows;
        windows.locked(|| {
            let entry = windows.entry(index);
            let when = |open: bool, bits: u64| if open { bits } else { 0 };
            let unused = !entry.usable();
            let closed = unused && !entry.allow_update();
            let writable = match word {
                // Usable and Allow Update always; the submitter while it cannot be used; type, access PASID, privilege,
                // permissions and mode while Update Window cannot change them either.
                0 => 0b11 | when(unused, 0xffff_f000) | when(closed, 0xffff_ffff_0000_0ffc),
                1 | 2 => when(closed, u64::MAX),
                _ => when(unused, u64::MAX),
            } & mask;
            let word = &windows.entries[index][word];
            word.set(word.get() & !writable | value & writable);
            windows.forget(|handle, _| handle == index);
        });
    }

    /// Replaces an entry as a whole, locked fields too, for a driver whose device has a copy of another device's table.
    /// Descriptors in progress keep what they have looked up, with the generation that it had then. An index beyond the
    /// table is ignored.
    pub fn replace_window(&self, index: usize, entry: &IdptEntry, generation: u64) {
        let windows = &self.windows;
        let Some(words) = windows.entries[..self.idpt_entries()].get(index) else { return };
        windows.locked(|| {
            windows.generations[index].set(generation);
            if load(words) != entry.0 {
                store(words, &entry.0);
                windows.forget(|handle, _| handle == index);
            }
        });
    }

    /// Returns IDBR.
    pub(crate) fn idbr(&self) -> IdBr {
        IdBr([self.windows.identity.get()])
    }

    pub(crate) fn set_idbr(&self, value: u64) {
        self.windows.identity.set(value & 0x0fff_ff1f);
    }

    /// Clears the table and IDBR.
    pub(crate) fn reset_windows(&self) {
        let windows = &self.windows;
        windows.identity.set(0);
        windows.locked(|| {
            for (words, generation) in windows.entries.iter().zip(&windows.generations) {
                store(words, &[0; 4]);
                generation.set(0);
            }
            windows.forget(|_, _| true);
        });
        for word in &windows.issued {
            word.set(0);
        }
    }

    /// Returns the entry of a handle, if there is one.
    fn entry_of_handle(&self, handle: u16, range: Check) -> Option<usize> {
        let index = usize::from(handle);
        let exists = index < self.idpt_entries();
        let issues = self.has_command(HANDLE_COMMAND);
        let issued = exists && (!issues || self.windows.issued[index / 64].get() >> (index % 64) & 1 == 1);
        // A mutant that skips this check finds an entry all the same, if the table has it.
        (!fails(range, !issued) && index < MAX_WINDOWS).then_some(index)
    }

    fn has_command(&self, bit: u64) -> bool {
        self.capabilities.gen_cap.command_capability() && self.capabilities.cmd_cap & bit != 0
    }

    /// Requests or releases the handle of an entry (commands 15 and 16).
    pub(crate) fn idpt_handle_command(&self, operand: u32, request: bool) -> Result<u16, CommandError> {
        if operand >> 16 != 0 {
            return Err(CommandError::NonZeroReserved);
        }
        let index = (operand & 0xffff) as usize;
        if index >= self.idpt_entries() {
            return Err(CommandError::IdptIndex);
        }
        let (word, bit) = (&self.windows.issued[index / 64], 1 << (index % 64));
        if request {
            word.or(bit)
        } else {
            word.and(!bit)
        };
        Ok(if request { u16::try_from(index).unwrap_or_default() } else { 0 })
    }

    /// Drops cached bytes of the submitter bitmaps between two addresses (command 17). A size of 0 means a whole
    /// bitmap, whose size does not fit the operand.
    pub(crate) fn invalidate_bitmaps(&self, operand: u32, address: u64) -> Result<u16, CommandError> {
        if operand >> 17 != 0 {
            return Err(CommandError::NonZeroReserved);
        }
        let size = if operand == 0 { SUBMITTER_BITMAP_BYTES } else { operand.into() };
        let windows = &self.windows;
        windows.locked(|| {
            windows.forget(|handle, offset| {
                let byte = (windows.entry(handle).bitmap_page() << 12).wrapping_add(offset);
                byte.wrapping_sub(address) < size
            });
        });
        Ok(0)
    }

    /// Marks the handles of a descriptor as used by an engine's lane, before [`look_up`](Device::look_up).
    pub(crate) fn begin_window_use(&self, lane: usize, handles: [Option<u16>; 2]) {
        let in_table = handles.map(|handle| handle.and_then(|handle| u8::try_from(handle).ok()));
        self.windows.lanes()[lane].begin(&self.windows.tickets, in_table);
    }

    /// The lane's descriptor uses no entry any more.
    pub(crate) fn end_window_use(&self, lane: usize) {
        self.windows.lanes()[lane].end();
    }

    /// Returns a ticket for [`windows_in_use`](Device::windows_in_use).
    pub(crate) fn window_ticket(&self) -> u64 {
        self.windows.tickets.after_write()
    }

    /// True if a descriptor in progress that began before `ticket` uses the handle; without a handle, any.
    pub(crate) fn windows_in_use(&self, ticket: u64, handle: Option<u16>) -> bool {
        let handle = handle.map(|handle| u8::try_from(handle).unwrap_or_default());
        self.windows.lanes().iter().any(|lane| lane.holds(ticket, handle))
    }

    /// Looks up a handle for a submitter. Source: SPEC §3.14.1; the order is this model's.
    pub(crate) fn look_up(&self, handle: u16, submitter: Submitter) -> Result<Lookup, Refusal> {
        let named = |refusal: Refusal| Refusal { handle: Some(handle), ..refusal };
        let invalid = Status::InterDomainHandle;
        let pasid = submitter.pasid_or_zero();
        refuse(Check::DomainPasid, submitter.pasid.is_none(), Status::InterDomainNoPasid)?;
        let Some(index) = self.entry_of_handle(handle, Check::HandleRange) else {
            return Err(named(Refusal { check: Some(Check::HandleRange), ..Refusal::from(invalid) }));
        };
        let found = self.windows.lock.try_with(|| (self.windows.entry(index), self.windows.generation(index)));
        let Some((entry, generation)) = found else { return Ok(Lookup::Busy) };
        let id_cap = self.capabilities.id_cap;
        let kind = IdptType::from_code(entry.type_code());
        let has_type = match kind {
            IdptType::SingleSubmitter => id_cap.single_submitter(),
            IdptType::SubmitterBitmap => id_cap.submitter_bitmap(),
            IdptType::Reserved2 | IdptType::Reserved3 => false,
        };
        let reserved = entry.0[0] & 0x0fe0_0000_0ff0 | entry.0[3] & 0xfff;
        let window = Window {
            handle,
            pasid: entry.access_pasid(),
            flags: entry.window_flags(),
            base: entry.window_base(),
            size: entry.window_size(),
            generation,
        };
        let enabled = entry.window_enable();
        let wraps = window.base.checked_add(window.size.saturating_sub(1)).is_none();
        let checks = [
            (Check::EntryReserved, reserved != 0),
            (Check::EntryType, !has_type),
            (Check::EntryMode, entry.offset_mode() && !id_cap.offset_mode()),
            (Check::EntryEmpty, enabled && window.size == 0),
            (Check::EntryWrap, enabled && wraps),
            (Check::EntryUsable, !entry.usable()),
        ];
        for (check, wrong) in checks {
            refuse(check, wrong, invalid).map_err(named)?;
        }
        if kind == IdptType::SubmitterBitmap {
            let identity = self.idbr();
            let address = (entry.bitmap_page() << 12).wrapping_add(u64::from(pasid >> 3));
            let reader = identity.pasid_enable().then_some(identity.pasid());
            // Cannot lose bits: below 8.
            return Ok(Lookup::InBitmap { window, pasid: reader, address, bit: (pasid & 7) as u8 });
        }
        refuse(Check::EntrySubmitter, entry.submitter_pasid() != pasid, invalid).map_err(named)?;
        Ok(Lookup::Found(window))
    }

    /// Returns the number of invalidations so far, for [`cache_bitmap_byte`](Device::cache_bitmap_byte).
    pub(crate) fn bitmap_invalidations(&self) -> u64 {
        self.windows.invalidations.get()
    }

    /// Returns a byte of an entry's bitmap, if it is cached.
    pub(crate) fn cached_bitmap_byte(&self, byte: BitmapByte) -> Option<u8> {
        if !self.has_command(INVALIDATE_COMMAND) {
            return None;
        }
        let word = self.windows.cache[byte.slot()].get();
        // Cannot lose bits: masked to eight.
        (word & !0xff == byte.tag()).then_some((word & 0xff) as u8)
    }

    /// Keeps a byte that was read after `invalidations`, unless there was another since.
    pub(crate) fn cache_bitmap_byte(&self, byte: BitmapByte, value: u8, invalidations: u64) {
        let windows = &self.windows;
        if self.has_command(INVALIDATE_COMMAND) {
            // Without the lock the byte is not kept, and is read again.
            windows.lock.try_with(|| {
                if windows.invalidations.get() == invalidations {
                    windows.cache[byte.slot()].set(byte.tag() | u64::from(value));
                }
            });
        }
    }

    /// Replaces the window of an entry by that of a legal Update Window; returns the generation of the entry. `None` if
    /// another thread has the table. Source: SPEC §8.3.27.
    pub(crate) fn update_window(&self, d: &Descriptor, submitter: Submitter) -> Option<Result<u64, Refusal>> {
        let handle = d.handle_2();
        let named = |refusal: Refusal| Refusal { handle: Some(handle), ..refusal };
        let Some(index) = self.entry_of_handle(handle, Check::UpdateHandle) else {
            let refusal = Refusal::from(Status::UpdateWindowEntry);
            return Some(Err(named(Refusal { check: Some(Check::UpdateHandle), ..refusal })));
        };
        let windows = &self.windows;
        windows.lock.try_with(|| {
            let entry = windows.entry(index);
            let denied = Status::UpdateWindowEntry;
            refuse(Check::UpdateAllowed, !entry.allow_update(), denied).map_err(named)?;
            let owner = submitter.pasid == Some(entry.access_pasid());
            refuse(Check::UpdateOwner, !owner, denied).map_err(named)?;
            let flags = WindowFlags::from_bits_truncate(d.window_flags() & 0xf);
            let updated = entry.with_window_flags(flags).with_window_base(d.src()).with_window_size(d.dst());
            store(&windows.entries[index], &updated.0);
            Ok(windows.generation(index))
        })
    }
}
