//! Handles of other address spaces: looked up before a descriptor is executed, and Update Window. Source: SPEC §3.14,
//! §8.3.27.

use super::{Engine, Phase, Step};
use crate::device::Device;
use crate::legality::Refusal;
use crate::observe::Observer;
use crate::windows::{BitmapByte, Lookup, PendingBit};
use telpher_abi::{OpFlags, Status};
use telpher_mem::Fault;

impl Engine {
    /// Marks the handles of the current descriptor as used.
    pub(super) fn begin_resolving(&mut self, device: &Device, handles: [Option<u16>; 2]) {
        self.windows = [None; 2];
        self.uses_windows = true;
        device.begin_window_use(self.lane_index(), handles);
        self.phase = Phase::Resolving;
    }

    /// Looks up the handles that have no window yet. Returns `None` if the phase has changed.
    pub(super) fn resolve(&mut self, device: &Device) -> Option<Step> {
        let submitter = self.work.origin.submitter;
        for (index, handle) in crate::action::handles(&self.work.descriptor).into_iter().enumerate() {
            let Some(handle) = handle.filter(|_| self.windows[index].is_none()) else { continue };
            match device.look_up(handle, submitter) {
                Ok(Lookup::Found(window)) => self.windows[index] = Some(window),
                Ok(Lookup::Busy) => return Some(Step::Wait),
                Ok(Lookup::InBitmap { window, pasid, address, bit }) => {
                    let byte = BitmapByte::of(handle, submitter.pasid_or_zero());
                    let invalidations = device.bitmap_invalidations();
                    let pending = PendingBit { window, index, byte, bit, invalidations };
                    let Some(value) = device.cached_bitmap_byte(byte) else {
                        self.phase = Phase::ReadingBitmap(pending);
                        return Some(Step::ReadBitmap { pasid, address });
                    };
                    if let Err(refusal) = pending.check(value) {
                        self.refuse(device, refusal);
                        return None;
                    }
                    self.windows[index] = Some(window);
                }
                Err(refusal) => {
                    self.refuse(device, refusal);
                    return None;
                }
            }
        }
        if let Err((status, handle)) = self.action.locate(&self.windows) {
            self.refuse(device, Refusal { handle: Some(handle), ..Refusal::from(status) });
            return None;
        }
        self.phase = Phase::Executing;
        Some(Step::Execute)
    }

    /// Takes the runner's answer to [`Step::ReadBitmap`]. A page without memory counts as zeros.
    pub fn bitmap_read(&mut self, device: &Device, byte: Result<u8, Fault>) {
        let Phase::ReadingBitmap(pending) = self.phase else { return };
        let value = byte.unwrap_or(0);
        if byte.is_ok() {
            device.cache_bitmap_byte(pending.byte, value, pending.invalidations);
        }
        self.count_bitmap_read(device, value >> pending.bit & 1 == 1);
        match pending.check(value) {
            Ok(()) => {
                self.windows[pending.index] = Some(pending.window);
                self.phase = Phase::Resolving;
            }
            Err(refusal) => self.refuse(device, refusal),
        }
    }

    /// Writes the entry of an Update Window. Returns false if another thread has the table.
    pub(super) fn update_window<O: Observer + ?Sized>(&mut self, device: &Device, observer: &O) -> bool {
        let descriptor = &self.work.descriptor;
        match device.update_window(descriptor, self.work.origin.submitter) {
            None => return false,
            Some(Err(refusal)) => self.refuse(device, refusal),
            Some(Ok(generation)) if descriptor.flags().contains(OpFlags::SUPPRESS_WINDOW_DRAIN) => {
                self.end_update(device, observer, generation);
            }
            Some(Ok(generation)) => {
                self.phase = Phase::WindowDraining { ticket: device.window_ticket(), generation };
            }
        }
        true
    }

    /// Ends an Update Window whose entry is written: with success, unless the observer refuses it.
    pub(super) fn end_update<O: Observer + ?Sized>(&mut self, device: &Device, observer: &O, generation: u64) {
        match observer.window_updated(&self.job(), generation) {
            Ok(()) => self.end_with(super::Outcome::of(Status::Success)),
            Err(status) => {
                let handle = Some(self.work.descriptor.handle_2());
                self.refuse(device, Refusal { handle, ..Refusal::from(status) });
            }
        }
    }
}
