//! Buffers that other processes access until they are revoked.
//!
//! The proof that no code of this process uses such a buffer meanwhile: a [`GrantedBuffer`] owns it, accesses it by
//! system calls only, and gives it back only after [`end`](GrantedBuffer::end) has succeeded. Otherwise the buffer is
//! leaked.

use super::borrowed::{WindowOperation, run_in_window};
use super::owned_request::{Held, lend};
use super::shared::Shared;
use crate::api::window::WindowError;
use crate::report::say;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use telpher_abi::Opcode;
use telpher_mem::{Access, MemoryGrant, StableBuf, StableBufMut};
use telpher_portal::{CreatedWindow, WindowError as PortalError};

/// A buffer that is granted to other processes.
pub(crate) struct GrantedBuffer<B: Send + 'static> {
    /// Present until it is given back.
    held: Option<Held<B>>,
    memory: MemoryGrant,
    device: Option<DeviceWindow>,
    shared: Arc<Shared>,
}

/// A window in the table of a queue's device.
#[derive(Debug)]
struct DeviceWindow {
    queue: usize,
    created: CreatedWindow,
    address: u64,
    len: u64,
}

impl<B: Send + 'static> std::fmt::Debug for GrantedBuffer<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrantedBuffer")
            .field("memory", &self.memory)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl<B: StableBuf> GrantedBuffer<B> {
    /// Grants reading.
    ///
    /// # Errors
    ///
    /// The buffer, and why it is not granted.
    pub(crate) fn readable(shared: &Arc<Shared>, buffer: B) -> Result<Self, (B, WindowError)> {
        let lent = lend(buffer, |buffer| (buffer.address(), buffer.len() as u64));
        Self::grant(shared, lent, Access::Read)
    }
}

impl<B: StableBufMut> GrantedBuffer<B> {
    /// Grants reading and writing.
    ///
    /// # Errors
    ///
    /// The buffer, and why it is not granted.
    pub(crate) fn writable(shared: &Arc<Shared>, buffer: B) -> Result<Self, (B, WindowError)> {
        let lent = lend(buffer, |buffer| (buffer.address_mut(), buffer.len() as u64));
        Self::grant(shared, lent, Access::ReadWrite)
    }
}

impl<B: Send + 'static> GrantedBuffer<B> {
    /// Private: the callers take address and length from the buffer itself, for this access.
    fn grant(
        shared: &Arc<Shared>,
        (held, address, len): (Held<B>, u64, u64),
        access: Access,
    ) -> Result<Self, (B, WindowError)> {
        // SAFETY: the range is the held buffer's. It stays mapped and unused until `end` has revoked the grant, or for
        // ever. It may be written if `access` says so, since then it is a `StableBufMut`'s.
        let memory = match unsafe { MemoryGrant::new(address, len, access) } {
            Ok(memory) => memory,
            Err(error) => return Err((held.into_inner(), error.into())),
        };
        let mut granted = GrantedBuffer { held: Some(held), memory, device: None, shared: Arc::clone(shared) };
        // SAFETY: as above; `end` also closes this window.
        match unsafe { create_on_a_device(shared, address, len, access) } {
            Ok(device) => {
                granted.device = device;
                Ok(granted)
            }
            Err(error) => {
                let held = granted.held.take().expect("a buffer is held until it is given back");
                // No other process has the file of the grant: nothing is accessed.
                Err((held.into_inner(), error))
            }
        }
    }

    /// The files that stand for the grant.
    pub(crate) fn files(&self) -> Vec<BorrowedFd<'_>> {
        let device = self.device.as_ref().map(|device| device.created.file.as_fd());
        std::iter::once(self.memory.file()).chain(device).collect()
    }

    /// The owner's side of the grant.
    pub(crate) fn memory(&self) -> &MemoryGrant {
        &self.memory
    }

    /// Ends the grant and gives the buffer back.
    ///
    /// # Errors
    ///
    /// The grant, and why an access may still be in progress. It can be ended again.
    pub(crate) fn take_back(mut self, within: Duration) -> Result<B, (Box<Self>, WindowError)> {
        match self.end(within) {
            Ok(()) => Ok(self.held.take().expect("a buffer is held until it is given back").into_inner()),
            Err(error) => Err((Box::new(self), error)),
        }
    }

    fn end(&mut self, within: Duration) -> Result<(), WindowError> {
        // Marked as revoked even if an access is still in progress. The device's window is closed in any case: its
        // descriptors do not wait for the lock that another process may hold.
        let memory = self.memory.revoke(within);
        if let Some(DeviceWindow { queue, created, address, len }) = &self.device
            && self.shared.queues.all()[*queue].is_own_process()
        {
            // Ends when no descriptor uses the window's permissions any more.
            run_in_window(&self.shared, *queue, created.handle, *address, &mut WindowOperation::Close(*len))?;
        }
        self.device = None;
        Ok(memory?)
    }
}

impl<B: Send + 'static> Drop for GrantedBuffer<B> {
    fn drop(&mut self) {
        if self.held.is_some()
            && let Err(error) = self.end(self.shared.policy.linger)
        {
            let bytes = self.memory.len();
            say(format_args!(
                "{bytes} bytes that were granted to other processes stay allocated: {}",
                telpher_os::chain(&error)
            ));
            std::mem::forget(self.held.take());
        }
    }
}

/// Has the driver of the first device that can do it make a window.
///
/// # Safety
///
/// As for [`Portal::create_window`](telpher_portal::Portal::create_window).
unsafe fn create_on_a_device(
    shared: &Shared,
    address: u64,
    len: u64,
    access: Access,
) -> Result<Option<DeviceWindow>, WindowError> {
    for (queue, each) in shared.queues.all().iter().enumerate() {
        if !each.limits.operations.contains(Opcode::UpdateWindow) {
            continue;
        }
        // SAFETY: our caller's promise.
        match unsafe { each.portal.create_window(address, len, access.writes()) } {
            Ok(created) => return Ok(Some(DeviceWindow { queue, created, address, len })),
            // A modelled device is its process' own: the other side attaches the memory grant to its device.
            Err(PortalError::Unsupported) => {}
            Err(error) => return Err(WindowError::Device { queue: each.portal.info().name.clone(), source: error }),
        }
    }
    Ok(None)
}
