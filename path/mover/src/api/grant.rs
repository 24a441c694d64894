//! Memory that other processes may access: a grant of a buffer, until it is revoked.

use crate::api::mover::Mover;
use crate::api::window::WindowError;
use crate::inflight::GrantedBuffer;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use telpher_mem::{StableBuf, StableBufMut};

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
pub struct Grant<B: Send + 'static>(GrantedBuffer<B>);

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
        granted(GrantedBuffer::writable(self.shared(), buffer))
    }

    /// Lets other processes read a buffer.
    ///
    /// # Errors
    ///
    /// As for [`grant`](Mover::grant).
    pub fn grant_readable<B: StableBuf>(&self, buffer: B) -> Result<Grant<B>, NotGranted<B>> {
        granted(GrantedBuffer::readable(self.shared(), buffer))
    }
}

fn granted<B: Send + 'static>(made: Result<GrantedBuffer<B>, (B, WindowError)>) -> Result<Grant<B>, NotGranted<B>> {
    made.map(Grant).map_err(|(buffer, source)| NotGranted { buffer, source })
}

impl<B: Send + 'static> Grant<B> {
    /// The files that stand for the grant, in the order in which [`Mover::open_window`] takes them: one, or two if a
    /// device's driver has made a window.
    #[must_use]
    pub fn files(&self) -> Vec<BorrowedFd<'_>> {
        self.0.files()
    }

    /// Number of granted bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.0.memory().len()
    }

    /// Reads bytes of the buffer, which other processes may be writing.
    ///
    /// # Errors
    ///
    /// [`WindowError::Grant`], if the range is outside.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), WindowError> {
        Ok(self.0.memory().read(at, into)?)
    }

    /// Writes bytes of the buffer, which other processes may be reading.
    ///
    /// # Errors
    ///
    /// [`WindowError::Grant`], if the range is outside, or the buffer was granted for reading only.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), WindowError> {
        Ok(self.0.memory().write(at, from)?)
    }

    /// Ends the grant, waits for accesses in progress, and gives the buffer back. In a forked child it gives back the
    /// child's copy, and the parent's grant goes on.
    ///
    /// # Errors
    ///
    /// [`StillInUse`], with the grant: an access did not end in time.
    pub fn revoke(self, within: Duration) -> Result<B, StillInUse<B>> {
        self.0.take_back(within).map_err(|(granted, source)| StillInUse { grant: Box::new(Grant(*granted)), source })
    }
}
