//! Windows to the memory of other processes. Source: SPEC §3.14.

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

/// A window that a driver has made to memory of this process.
#[derive(Debug)]
pub struct CreatedWindow {
    /// The file that stands for it.
    pub file: OwnedFd,
    /// The handle with which its owner can change it (Update Window).
    pub handle: u16,
}

/// The right to use a window in descriptors for one queue.
#[derive(Debug)]
pub struct AttachedWindow {
    handle: u16,
    /// Ends the right when it is dropped.
    _right: Box<dyn Right>,
}

/// A value that ends a right when it is dropped.
trait Right: Send + Sync + Debug {}

impl<T: Send + Sync + Debug> Right for T {}

impl AttachedWindow {
    /// Creates it from the handle for descriptors, and a value whose drop ends the right.
    pub fn new(handle: u16, right: impl Send + Sync + Debug + 'static) -> Self {
        AttachedWindow { handle, _right: Box::new(right) }
    }

    /// Returns the handle that descriptors name.
    #[must_use]
    pub fn handle(&self) -> u16 {
        self.handle
    }
}

/// Error: a queue does not give a window.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The device, or its driver, has no windows between processes. Linux's own driver has none in any version.
    #[error("the device or its driver has no windows between processes")]
    Unsupported,
    /// All entries of the device's table are in use.
    #[error("all windows of the device are in use; close one first")]
    NoRoom,
    /// The file is no window that this queue knows, or it is gone.
    #[error("the queue does not accept the window: {why}")]
    Refused {
        /// The reason.
        why: String,
    },
    /// The driver refused.
    #[error("the driver refuses to {attempt}")]
    Driver {
        /// What was attempted, as a verb phrase.
        attempt: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}
