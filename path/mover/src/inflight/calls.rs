//! Synchronous memory calls between raw addresses: copy, fill and compare, with the meaning of memmove, memset and
//! memcmp.
//!
//! A library that stands in for these functions in an unmodified program calls them. So they work wherever memmove
//! does: in signal handlers, in allocators, and in a forked child. Each completion record exists from the start, and a
//! lock-free list hands them out. `devices` submits and waits, `call` cuts a call into pieces, and `policy` has the
//! settings.

mod call;
mod devices;
mod policy;

pub use call::{CallResult, CallStep, MemoryCall};
pub use policy::{CpuCalls, MemoryCallsPolicy};

use crate::api::channel::MAX_SLOTS;
use crate::api::error::ChannelError;
use crate::plan::topology::{SystemTopology, Topology};
use crate::reentrancy;
use crate::wait::time::{Clock, SystemClock};
use call::pointer;
use devices::Devices;
use std::sync::Arc;
use telpher_abi::{Descriptor, Opcode};
use telpher_portal::Portal;

/// Copies, fills and compares memory by devices, and returns when it is done: for code that stands in for memmove,
/// memset and memcmp.
///
/// Any number of threads may call at once, and a signal handler may call whatever it has interrupted. A call allocates
/// nothing and takes no lock outside the portals. If a handler interrupts a portal, or this is a forked child, or
/// queues and slots are full, the CPU does the work. A queue that is late is asked whether it works; a hardware queue's
/// portal reads files and allocates for that. Such a portal, and one that submits by write(2), may change errno.
///
/// **Queues.** The queues nearest to the calling thread's CPU are asked first, then the others; see
/// [`MemoryCallsPolicy::nearest`].
///
/// **Pieces.** A long call is cut into pieces of the queues' largest transfer. A copy between overlapping ranges goes
/// piece by piece in the direction of memmove, one at a time. It takes a queue whose device handles overlap. Otherwise
/// its pieces are as long as the distance of the ranges, or the CPU does it.
///
/// **Page faults.** The rest of a piece is submitted again after [`MemoryCallsPolicy::populate`] has made it present.
/// The CPU does it if it is short or faults again and again. So a bad address ends with a fault in the function of
/// [`CpuCalls`]. No descriptor of the call is in flight then, and the program's handler may leave by `siglongjmp`.
///
/// **Failures.** A call never returns while a device can touch its memory. If a queue stops, the CPU repeats the
/// piece. A piece between overlapping ranges cannot be repeated; then [`MemoryCallsPolicy::give_up`] ends the process.
///
/// A handler that interrupts a waiting call and does not return leaves a descriptor in flight. Its slot stays taken for
/// ever. Callers that allow this must defer signals.
///
/// ```
/// use telpher_mover::{CpuCalls, MemoryCalls, MemoryCallsPolicy};
/// # use telpher_device::{ModelDevice, ModelOptions};
/// # let portal = ModelDevice::start(ModelOptions::default())?.portal("wq0.0")?;
///
/// let cpu = CpuCalls {
///     // SAFETY (of all three): the contract of `CpuCalls` is the contract of these functions.
///     copy: |dst, src, len| unsafe { std::ptr::copy(src, dst, len) },
///     fill: |dst, byte, len| unsafe { std::ptr::write_bytes(dst, byte, len) },
///     compare: |a, b, len| (0..len).find(|&i| unsafe { a.add(i).read() != b.add(i).read() }),
/// };
/// let calls = MemoryCalls::new([portal], cpu, MemoryCallsPolicy::default(), 64)?;
/// let mut bytes = *b"overlapping";
/// let start = bytes.as_mut_ptr();
/// // SAFETY: both ranges lie in `bytes`, which nothing else uses.
/// let result = unsafe { calls.copy(start.add(4), start, 7) };
/// assert_eq!((&bytes, result.device_bytes), (b"overoverlap", 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MemoryCalls {
    devices: Devices,
    cpu: CpuCalls,
}

impl MemoryCalls {
    /// Memory calls over these queues, with at most `slots` descriptors in flight. A portal that is passed twice counts
    /// once.
    ///
    /// # Errors
    /// [`ChannelError::Capacity`]: for 0 or more than 2²³ slots.
    pub fn new(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        cpu: CpuCalls,
        policy: MemoryCallsPolicy,
        slots: u32,
    ) -> Result<MemoryCalls, ChannelError> {
        MemoryCalls::with_clock(portals, cpu, policy, slots, Arc::new(SystemClock::default()))
    }

    /// Like [`new`](MemoryCalls::new), with the caller's clock.
    ///
    /// # Errors
    /// As for [`MemoryCalls::new`].
    pub fn with_clock(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        cpu: CpuCalls,
        policy: MemoryCallsPolicy,
        slots: u32,
        clock: Arc<dyn Clock>,
    ) -> Result<MemoryCalls, ChannelError> {
        MemoryCalls::build(portals, cpu, policy, slots, clock, SystemTopology::shared)
    }

    /// Like [`with_clock`](MemoryCalls::with_clock), with the caller's NUMA nodes.
    ///
    /// # Errors
    /// As for [`MemoryCalls::new`].
    pub fn with_topology(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        cpu: CpuCalls,
        policy: MemoryCallsPolicy,
        slots: u32,
        clock: Arc<dyn Clock>,
        topology: Arc<dyn Topology>,
    ) -> Result<MemoryCalls, ChannelError> {
        MemoryCalls::build(portals, cpu, policy, slots, clock, || topology)
    }

    fn build(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        cpu: CpuCalls,
        policy: MemoryCallsPolicy,
        slots: u32,
        clock: Arc<dyn Clock>,
        topology: impl FnOnce() -> Arc<dyn Topology>,
    ) -> Result<MemoryCalls, ChannelError> {
        if !(1..=MAX_SLOTS).contains(&slots) {
            return Err(ChannelError::Capacity { asked: slots, max: MAX_SLOTS });
        }
        Ok(MemoryCalls { devices: Devices::new(portals, policy, slots, clock, topology), cpu })
    }

    /// Copies `len` bytes from `src` to `dst`. The ranges may overlap.
    ///
    /// # Safety
    ///
    /// - [`CpuCalls::copy`] may be called with these arguments.
    /// - Until this returns, no other code accesses the destination or writes the source, except as memmove allows.
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize) -> CallResult {
        // SAFETY: our caller's promise.
        unsafe { self.run(self.begin_copy(dst, src, len)) }.1
    }

    /// Sets `len` bytes at `dst` to `byte`.
    ///
    /// # Safety
    ///
    /// As for [`copy`](MemoryCalls::copy), with [`CpuCalls::fill`].
    pub unsafe fn fill(&self, dst: *mut u8, byte: u8, len: usize) -> CallResult {
        // SAFETY: our caller's promise.
        unsafe { self.run(self.begin_fill(dst, byte, len)) }.1
    }

    /// Compares two ranges of `len` bytes. Returns the offset of the first byte in which they differ.
    ///
    /// # Safety
    ///
    /// - [`CpuCalls::compare`] may be called with these arguments.
    /// - Until this returns, no other code writes either range.
    pub unsafe fn compare(&self, a: *const u8, b: *const u8, len: usize) -> (Option<usize>, CallResult) {
        // SAFETY: our caller's promise.
        unsafe { self.run(self.begin_compare(a, b, len)) }
    }

    /// Begins a copy whose steps the caller makes: for a caller that must not have this crate's frames on the stack
    /// while the CPU works. The arguments are those of [`copy`](MemoryCalls::copy).
    #[must_use]
    pub fn begin_copy(&self, dst: *mut u8, src: *const u8, len: usize) -> MemoryCall<'_> {
        let descriptor = Descriptor::memory_move(src.expose_provenance() as u64, dst.expose_provenance() as u64, 0);
        // A copy onto itself costs the CPU less than a descriptor.
        self.begin(descriptor, len, dst.cast_const() == src)
    }

    /// Begins a fill whose steps the caller makes; see [`begin_copy`](MemoryCalls::begin_copy).
    #[must_use]
    pub fn begin_fill(&self, dst: *mut u8, byte: u8, len: usize) -> MemoryCall<'_> {
        let descriptor = Descriptor::fill(u64::from_le_bytes([byte; 8]), dst.expose_provenance() as u64, 0);
        self.begin(descriptor, len, false)
    }

    /// Begins a comparison whose steps the caller makes; see [`begin_copy`](MemoryCalls::begin_copy).
    #[must_use]
    pub fn begin_compare(&self, a: *const u8, b: *const u8, len: usize) -> MemoryCall<'_> {
        let descriptor = Descriptor::compare(a.expose_provenance() as u64, b.expose_provenance() as u64, 0);
        self.begin(descriptor, len, false)
    }

    fn begin(&self, descriptor: Descriptor, len: usize, prefer_cpu: bool) -> MemoryCall<'_> {
        let mut call = MemoryCall::new(&self.devices, descriptor, len as u64);
        // A length that no object has is a mistake of the program; it faults on the CPU as it would without us.
        if prefer_cpu || isize::try_from(len).is_err() || reentrancy::is_in_portal() {
            call.leave_to_cpu();
        }
        call
    }

    /// Makes all steps of a call, those of the CPU by [`CpuCalls`].
    ///
    /// # Safety
    ///
    /// As for the public function that called.
    unsafe fn run(&self, mut call: MemoryCall<'_>) -> (Option<usize>, CallResult) {
        loop {
            // SAFETY: our caller's promise.
            let (start, len) = match unsafe { call.step() } {
                CallStep::Done(difference) => return (difference, call.result()),
                CallStep::Cpu { start, len } => (start, len),
            };
            let d = call.descriptor();
            let (src, dst) = (d.src().wrapping_add(start as u64), d.dst().wrapping_add(start as u64));
            // SAFETY: a part of the call's ranges, for which our caller vouches. No descriptor of the call is in
            // flight.
            unsafe {
                match d.opcode() {
                    Opcode::Fill => (self.cpu.fill)(pointer(dst), d.src().to_le_bytes()[0], len),
                    Opcode::Compare => {
                        if let Some(at) = (self.cpu.compare)(pointer(src), pointer(dst), len) {
                            return (Some(start + at), call.result());
                        }
                    }
                    _ => (self.cpu.copy)(pointer(dst), pointer(src), len),
                }
            }
        }
    }
}
