//! A descriptor that may be executed: 64 bytes and a promise.
#![allow(unsafe_code, reason = "the promise about addresses that no type can make is an unsafe constructor")]

use telpher_abi::Descriptor;

/// A descriptor whose addresses somebody has vouched for.
#[derive(Debug)]
#[repr(transparent)]
pub struct Submission(Descriptor);

impl Submission {
    /// Vouches for a descriptor.
    ///
    /// # Safety
    ///
    /// In every address space it is offered to: from the moment the submission is offered and taken until its completion record (or, without one, a later Drain or
    /// Batch record) is seen written, whoever executes it may at any time
    /// - read every byte of its source ranges, its descriptor list and the members' ranges, and
    /// - write every byte of its destination ranges and its completion record,
    ///
    /// and nobody else in this process may write the former or touch the latter, other than through atomics or raw
    /// volatile access that tolerates it. Ranges that are not mapped, or not mapped with that permission, need no
    /// promise: executors report them as page faults. Memory owned by others must not be named.
    #[must_use]
    pub const unsafe fn vouch(descriptor: Descriptor) -> Self {
        Submission(descriptor)
    }

    /// The 64 bytes.
    #[must_use]
    pub const fn descriptor(&self) -> &Descriptor {
        &self.0
    }
}
