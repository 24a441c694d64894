//! Buffers and the request that uses them. They are made together, so that neither exists without the other.

use super::memory;
use crate::api::error::JobError;
use crate::api::operation::{self, operations};
use crate::api::outcome::{Outcome, Via};
use crate::api::policy::Hint;
use crate::plan::request::Request;
use std::any::Any;
use std::mem::{ManuallyDrop, MaybeUninit};
use telpher_abi::{Descriptor, Flags, Opcode};
use telpher_mem::{StableBuf, StableBufMut};

/// A payload whose addresses have been taken. Moving the holder makes no promise to the compiler about the payload's
/// pointers (`telpher_mem::StableBuf`, *Aliasing*).
pub(crate) struct Held<P>(MaybeUninit<P>);

impl<P> Held<P> {
    /// Moves the payload to its final place.
    fn new(payload: P) -> Self {
        Held(MaybeUninit::new(payload))
    }

    /// Returns the payload; its addresses must no longer be used.
    pub(crate) fn into_inner(self) -> P {
        let this = ManuallyDrop::new(self);
        // SAFETY: `new` initialised it. Only this function and `drop` take it out, and `this` is never dropped.
        unsafe { this.0.assume_init_read() }
    }
}

impl<P> Drop for Held<P> {
    fn drop(&mut self) {
        // SAFETY: `new` initialised it, and `into_inner` skips this drop.
        unsafe { self.0.assume_init_drop() };
    }
}

/// A payload and a request. All ranges of the request lie in the payload's buffers.
pub(crate) struct OwnedRequest<P> {
    payload: Held<P>,
    request: Request,
}

/// Why a request could not be made, and the buffers back.
pub(crate) struct InvalidRequest<P> {
    pub(crate) error: JobError,
    pub(crate) payload: P,
}

pub(crate) type Prepared<P> = Result<OwnedRequest<P>, InvalidRequest<P>>;

/// Holds a payload and makes the request for it. Private: the callers make `request` from the payload's own buffers
/// only.
#[inline]
fn own<P>(payload: P, request: impl FnOnce(&mut P) -> Result<Request, JobError>) -> Prepared<P> {
    let mut payload = Held::new(payload);
    // SAFETY: `new` initialised it.
    match request(unsafe { payload.0.assume_init_mut() }) {
        Ok(request) => Ok(OwnedRequest { payload, request }),
        Err(error) => Err(InvalidRequest { error, payload: payload.into_inner() }),
    }
}

/// Holds a buffer for accesses from outside of this process, and returns what `place` says about it: its address and
/// its length.
pub(super) fn lend<P>(payload: P, place: impl FnOnce(&mut P) -> (u64, u64)) -> (Held<P>, u64, u64) {
    let mut payload = Held::new(payload);
    // SAFETY: `new` initialised it.
    let (address, len) = place(unsafe { payload.0.assume_init_mut() });
    (payload, address, len)
}

/// The place of the buffers of one operation in a ring. Buffers are written and read here and not moved as a whole,
/// because a move of so many bytes costs more than all else that a channel does for an operation.
pub(crate) struct BufferSlot<S, D> {
    /// Initialised while `is_full`; the addresses of the buffers are in use then.
    buffers: MaybeUninit<Buffers<S, D>>,
    is_full: bool,
}

impl<S, D> BufferSlot<S, D> {
    /// An empty place.
    pub(super) const fn new() -> Self {
        BufferSlot { buffers: MaybeUninit::uninit(), is_full: false }
    }

    /// Writes buffers that stay here, and makes their request. Private: as for [`own`].
    #[inline(always)]
    fn fill(
        &mut self,
        [src, src2]: [Option<S>; 2],
        [dst, dst2]: [Option<D>; 2],
        request: impl FnOnce(&mut Buffers<S, D>) -> Result<Request, JobError>,
    ) -> Result<Placed, InvalidRequest<Buffers<S, D>>> {
        drop(self.take());
        let place = self.buffers.as_mut_ptr();
        // SAFETY: writes each field of a place without a value.
        unsafe {
            (&raw mut (*place).src).write(src);
            (&raw mut (*place).src2).write(src2);
            (&raw mut (*place).dst).write(dst);
            (&raw mut (*place).dst2).write(dst2);
        }
        self.is_full = true;
        // SAFETY: all fields were written above.
        match request(unsafe { self.buffers.assume_init_mut() }) {
            Ok(request) => Ok(Placed(request)),
            Err(error) => Err(InvalidRequest { error, payload: self.take().unwrap_or_default() }),
        }
    }

    /// Returns the buffers; their addresses must no longer be used.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Buffers<S, D>> {
        // SAFETY: `is_full` says that the buffers are initialised; they are not used here again.
        std::mem::take(&mut self.is_full).then(|| unsafe { self.buffers.assume_init_read() })
    }
}

impl<S, D> Drop for BufferSlot<S, D> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// The request for the buffers in a place.
pub(crate) struct Placed(Request);

impl Placed {
    #[inline(always)]
    pub(super) fn into_request(self) -> Request {
        self.0
    }
}

impl<P> OwnedRequest<P> {
    pub(super) fn into_parts(self) -> (Held<P>, Request) {
        (self.payload, self.request)
    }

    /// Returns operation and bytes, to compare with a threshold.
    #[inline]
    pub(crate) fn weight(&self) -> (Opcode, u64) {
        (self.request.opcode(), self.request.transfer())
    }

    /// Executes the request on the CPU, now.
    pub(crate) fn run(self, hint: Hint) -> (Result<Outcome, JobError>, Via, P) {
        let OwnedRequest { payload, request } = self;
        if request.opcode() == Opcode::Drain && request.len() > 0 {
            return (Err(JobError::Unsupported { op: Opcode::Drain }), Via::Cpu, payload.into_inner());
        }
        // SAFETY: the ranges lie in `payload`, which we hold throughout. Different buffers of one payload are disjoint
        // if one of them is written (`StableBufMut`). Only a memory move has two ranges of one buffer.
        let outcome = unsafe { memory::finish(&request, hint) };
        (outcome, Via::Cpu, payload.into_inner())
    }

    /// Returns the request with Check Result set: the device reports an outcome other than the expected one as a
    /// failure (compare only).
    pub(crate) fn expecting(mut self, difference: bool) -> Self {
        let d = self.request.template().and_flags(Flags::CHECK_RESULT).with_expected_result(difference.into());
        self.request = Request::new(d, self.request.len());
        self
    }
}

impl<P: Send + 'static> OwnedRequest<Box<P>> {
    /// Returns the request with the payload's type erased. Only the box moves; its content stays.
    pub(crate) fn erased(self) -> OwnedRequest<Box<dyn Any + Send>> {
        let payload: Box<dyn Any + Send> = self.payload.into_inner();
        OwnedRequest { payload: Held::new(payload), request: self.request }
    }
}

/// Copies on the CPU, now, with the least overhead. The buffers are equally long.
#[inline(always)]
pub(crate) fn copy_now<S: StableBuf, D: StableBufMut>(src: &S, dst: &mut D, hint: Hint) {
    // SAFETY: both are borrowed for the call, readable and writable as their traits promise; the destination's bytes
    // are its own, so the slices are disjoint.
    let (src, dst) = unsafe {
        (memory::bytes(src.address(), src.len() as u64), memory::bytes_mut(dst.address_mut(), dst.len() as u64))
    };
    telpher_ops::copy(src, dst, hint);
}

/// A request for a no-op.
pub(crate) fn nop<P>(payload: P) -> OwnedRequest<P> {
    OwnedRequest { payload: Held::new(payload), request: Request::new(Descriptor::nop(), 0) }
}

/// A request for a drain of `queues` queues.
pub(crate) fn drain<P>(payload: P, queues: usize) -> OwnedRequest<P> {
    OwnedRequest { payload: Held::new(payload), request: Request::new(Descriptor::drain(), queues as u64) }
}

macro_rules! tuples {
    ($($(#[$doc:meta])* $name:ident($($buf:ident: $T:ident [$bound:ident]),*)($($arg:ident: $A:ty),*);)*) => {
        /// Requests whose payload is the tuple of their buffers.
        pub(crate) mod tuple {
            use super::*;
            $(pub(crate) fn $name<$($T: $bound),*>($($buf: $T,)* $($arg: $A),*) -> Prepared<($($T,)*)> {
                own(($($buf,)*), |($($buf,)*)| operation::$name($($buf,)* $($arg),*))
            })*
        }
        /// Requests whose payload is the tuple of their buffers in a box.
        pub(crate) mod boxed {
            use super::*;
            $(pub(crate) fn $name<$($T: $bound),*>($($buf: $T,)* $($arg: $A),*) -> Prepared<Box<($($T,)*)>> {
                own(Box::new(($($buf,)*)), |payload| {
                    let ($($buf,)*) = &mut **payload;
                    operation::$name($($buf,)* $($arg),*)
                })
            })*
        }
        /// Requests of all operations whose buffers are in a place of a ring.
        pub(crate) mod placed {
            use super::*;
            $(#[inline(always)]
            pub(crate) fn $name<S: StableBuf, D: StableBufMut>(
                place: &mut BufferSlot<S, D>, $($buf: side!($bound, S, D),)* $($arg: $A),*
            ) -> Result<Placed, InvalidRequest<Buffers<S, D>>> {
                #[allow(clippy::needless_update, reason = "one operation has all four")]
                let Buffers { src, src2, dst, dst2 } = Buffers { $($buf: Some($buf),)* ..Buffers::default() };
                place.fill([src, src2], [dst, dst2], |payload| {
                    $(let $buf = payload.$buf.as_mut().expect("set a line above");)*
                    operation::$name($($buf,)* $($arg),*)
                })
            })*

            /// A no-op without buffers.
            pub(crate) fn nop<S, D>(place: &mut BufferSlot<S, D>) -> Result<Placed, InvalidRequest<Buffers<S, D>>> {
                place.fill([None, None], [None, None], |_| Ok(Request::new(Descriptor::nop(), 0)))
            }

            /// A drain of one queue.
            pub(crate) fn drain<S, D>(place: &mut BufferSlot<S, D>) -> Result<Placed, InvalidRequest<Buffers<S, D>>> {
                place.fill([None, None], [None, None], |_| Ok(Request::new(Descriptor::drain(), 1)))
            }
        }
    };
}

/// The first type for a buffer that is read, the second for a buffer that is written.
macro_rules! side {
    (StableBuf, $read:ty, $write:ty) => {
        $read
    };
    (StableBufMut, $read:ty, $write:ty) => {
        $write
    };
}
pub(crate) use side;

operations!(tuples);

/// The buffers of one operation of a [`Channel`](crate::Channel); buffers that the operation does not have are `None`.
#[derive(Debug)]
pub struct Buffers<S, D> {
    /// The source, or the first of two; the delta record of apply delta; the range to flush.
    pub src: Option<S>,
    /// The second source.
    pub src2: Option<S>,
    /// The destination, or the first of two; the delta record of create delta.
    pub dst: Option<D>,
    /// The second destination.
    pub dst2: Option<D>,
}

impl<S, D> Default for Buffers<S, D> {
    fn default() -> Self {
        Buffers { src: None, src2: None, dst: None, dst2: None }
    }
}
