//! A descriptor that may be executed: 64 bytes and a promise about its addresses.
#![allow(unsafe_code, reason = "the promise about addresses that no type can make is an unsafe constructor")]

use telpher_abi::Descriptor;

/// A descriptor for whose addresses the caller has vouched.
#[derive(Debug)]
#[repr(transparent)]
pub struct Submission(Descriptor);

impl Submission {
    /// Vouches for a descriptor.
    ///
    /// # Safety
    ///
    /// The promise holds in every address space in which the submission is offered, from the moment it is taken until
    /// its completion record (or, without one, a later Drain or Batch record) is seen. During this time the executor
    /// may at any time
    /// - read every byte of its source ranges, its descriptor list and the members' ranges, and
    /// - write every byte of its destination ranges and its completion record.
    ///
    /// No other code in this process may write the former or access the latter, except through atomics or raw volatile
    /// accesses that tolerate it. Ranges that are not mapped, or not mapped with that permission, need no promise:
    /// executors report them as page faults. The descriptor must not contain addresses of memory that others own.
    #[must_use]
    #[inline]
    pub const unsafe fn vouch(descriptor: Descriptor) -> Self {
        Submission(descriptor)
    }

    /// Returns the 64 bytes.
    #[must_use]
    #[inline]
    pub const fn descriptor(&self) -> &Descriptor {
        &self.0
    }
}
