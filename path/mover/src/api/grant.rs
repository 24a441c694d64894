//! Memory that other processes may access: a grant of a buffer, until it is revoked.

use crate::api::mover::Mover;
use crate::api::window::WindowError;
use crate::inflight::{Held, Shared, WindowOperation, lend, run_in_window};
use crate::report::say;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use telpher_abi::Opcode;
use telpher_mem::{Access, MemoryGrant, StableBuf, StableBufMut};
use telpher_portal::{CreatedWindow, WindowError as PortalError};

/// A buffer that was not granted.
#[derive(Debug, thiserror::Error)]
#[error("cannot grant the buffer to other processes")]
pub struct NotGranted<B> {
    /// The buffer.
    pub buffer: B,
    /// The reason.
    #[source]
    pub source: WindowError,
}

/// A grant whose buffer other processes still access.
#[derive(Debug, thiserror::Error)]
#[error("cannot revoke the grant of {} bytes yet", .grant.len())]
pub struct StillInUse<B: Send + 'static> {
    /// The grant: no access begins any more. It can be revoked again.
    pub grant: Box<Grant<B>>,
    /// The reason.
    #[source]
    pub source: WindowError,
}

/// A buffer of this process that other processes access by [`Mover::open_window`], until it is revoked.
///
/// Hand [`files`](Grant::files) to those processes: by fork, in a message on a Unix socket (SCM_RIGHTS), or by
/// pidfd_getfd(2). A process that has the files can open the window.
///
/// **What limits the others.** If a device of this mover has windows, its table limits their descriptors to the buffer.
/// Otherwise, and for what their CPUs copy, the window's own code in the other process does it; the system permits the
/// access only to processes that may trace this one, and those could access all its memory without a window.
///
/// A grant that is dropped is revoked. If the buffer is still in use after [`Policy::linger`](crate::Policy::linger),
/// it is leaked.
#[derive(Debug)]
pub struct Grant<B: Send + 'static> {
    /// Present until it is given back.
    held: Option<HeldBuffer<B>>,
    memory: MemoryGrant,
    device: Option<DeviceWindow>,
    shared: Arc<Shared>,
}

struct HeldBuffer<B>(Held<B>);

impl<B> Debug for HeldBuffer<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeldBuffer")
    }
}

/// A window in the table of a queue's device.
#[derive(Debug)]
struct DeviceWindow {
    queue: usize,
    created: CreatedWindow,
    address: u64,
    len: u64,
}

impl Mover {
    /// Lets other processes read and write a buffer.
    ///
    /// ```
    /// use telpher_mover::Mover;
    ///
    /// let mover = Mover::cpu();
    /// let grant = mover.grant(vec![7; 100])?;
    /// // In another process, with the files of the grant:
    /// let window = mover.open_window(&grant.files())?;
    /// window.write(10, b"hello")?;
    /// // Here again:
    /// let buffer = grant.revoke(std::time::Duration::from_secs(1))?;
    /// assert_eq!(&buffer[9..16], b"\x07hello\x07");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotGranted`], with the buffer: it is empty, or the system refuses a file.
    pub fn grant<B: StableBufMut>(&self, buffer: B) -> Result<Grant<B>, NotGranted<B>> {
        let held = lend(buffer, |buffer| (buffer.address_mut(), buffer.len() as u64));
        self.grant_held(held, Access::ReadWrite)
    }

    /// Lets other processes read a buffer.
    ///
    /// # Errors
    ///
    /// As for [`grant`](Mover::grant).
    pub fn grant_readable<B: StableBuf>(&self, buffer: B) -> Result<Grant<B>, NotGranted<B>> {
        let held = lend(buffer, |buffer| (buffer.address(), buffer.len() as u64));
        self.grant_held(held, Access::Read)
    }

    fn grant_held<B: Send + 'static>(
        &self,
        (held, address, len): (Held<B>, u64, u64),
        access: Access,
    ) -> Result<Grant<B>, NotGranted<B>> {
        let shared = Arc::clone(self.shared());
        let made = MemoryGrant::new(address, len, access)
            .map_err(WindowError::from)
            .and_then(|memory| Ok((memory, create_on_a_device(&shared, address, len, access)?)));
        match made {
            Ok((memory, device)) => Ok(Grant { held: Some(HeldBuffer(held)), memory, device, shared }),
            Err(source) => Err(NotGranted { buffer: held.into_inner(), source }),
        }
    }
}

/// Has the driver of the first device that can do it make a window.
fn create_on_a_device(
    shared: &Shared,
    address: u64,
    len: u64,
    access: Access,
) -> Result<Option<DeviceWindow>, WindowError> {
    for (queue, each) in shared.queues.all().iter().enumerate() {
        if !each.limits.operations.contains(Opcode::UpdateWindow) {
            continue;
        }
        match each.portal.create_window(address, len, access.writes()) {
            Ok(created) => return Ok(Some(DeviceWindow { queue, created, address, len })),
            // A modelled device is its process' own: the other side attaches the memory grant to its device.
            Err(PortalError::Unsupported) => {}
            Err(error) => return Err(WindowError::Device { queue: each.portal.info().name.clone(), source: error }),
        }
    }
    Ok(None)
}

impl<B: Send + 'static> Grant<B> {
    /// The files that stand for the grant, in the order in which [`Mover::open_window`] takes them: one, or two if a
    /// device's driver has made a window.
    #[must_use]
    pub fn files(&self) -> Vec<BorrowedFd<'_>> {
        let device = self.device.as_ref().map(|device| device.created.file.as_fd());
        std::iter::once(self.memory.file()).chain(device).collect()
    }

    /// Number of granted bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.memory.len()
    }

    /// Reads bytes of the buffer, which other processes may be writing.
    ///
    /// # Errors
    ///
    /// [`WindowError::Grant`], if the range is outside.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), WindowError> {
        Ok(self.memory.read(at, into)?)
    }

    /// Writes bytes of the buffer, which other processes may be reading.
    ///
    /// # Errors
    ///
    /// [`WindowError::Grant`], if the range is outside, or the buffer was granted for reading only.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), WindowError> {
        Ok(self.memory.write(at, from)?)
    }

    /// Ends the grant, waits for accesses in progress, and gives the buffer back. In a forked child it gives back the
    /// child's copy, and the parent's grant goes on.
    ///
    /// # Errors
    ///
    /// [`StillInUse`], with the grant: an access did not end in time.
    pub fn revoke(mut self, within: Duration) -> Result<B, StillInUse<B>> {
        match self.end(within) {
            Ok(()) => Ok(self.held.take().expect("a buffer is held until it is given back").0.into_inner()),
            Err(source) => Err(StillInUse { grant: Box::new(self), source }),
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

impl<B: Send + 'static> Drop for Grant<B> {
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
