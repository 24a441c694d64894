//! The module with unsafe code: requests in flight, and the proof that their memory stays valid.
//!
//! A device reads and writes buffers behind the compiler's back, from the offer until the completion record is seen.
//! The proof that no other code has them meanwhile rests on five private facts, all within this folder. For raw
//! descriptors, [`Copies`] and [`MemoryCalls`], the caller guarantees all of them except the fifth.
//!
//! 1. An [`OwnedRequest`] is built only from buffers it owns, and a [`Placed`] from those in its place
//!    ([`owned_request`]). So every address in its request lies
//!    in its payload, and a [`StableBuf`](telpher_mem::StableBuf)'s bytes stay put while the value moves.
//! 2. An [`InFlight`] takes a whole owned request. It gives the payload back only while its [`Op`](op::Op) has no
//!    descriptor in flight: nothing offered, or the record seen.
//! 3. An `InFlight` that is dropped or expires while a device has its memory moves its payload into the slot
//!    ([`table`]), or into the slots of all parts of its op. A sweeper frees it there after the last record is seen; if
//!    the record never comes, it is never freed. An `InFlight` that is forgotten leaks its payload.
//! 4. Memory that is lent to a scope outlives the scope, and a scope does not return while one of its ops is in flight.
//! 5. Records and batch lists live in the table, the `InFlight`, the ring, the [`Copies`] or the [`MemoryCalls`], and
//!    are leaked rather than freed while they are in flight.
//!
//! Buffers that other processes access have a proof of their own, in [`granted`].
#![allow(unsafe_code, reason = "vouches for addresses and makes slices of them; the proof is the ownership above")]

mod batch;
mod borrowed;
mod calls;
mod copies;
mod cpu;
mod free_list;
mod free_lists;
mod granted;
mod memory;
mod meter;
mod op;
mod owned_request;
pub(crate) mod recover;
mod ring;
mod room;
mod shared;
mod single;
mod slot;
mod split_result;
mod stub_portal;
mod table;

pub(crate) use batch::{BatchInFlight, Member};
pub(crate) use borrowed::{
    BorrowedInFlight, WindowOperation, copy_whole, extend_lifetime, extend_lifetime_mut, run_in_window,
};
pub use calls::{CallResult, CallStep, CpuCalls, MemoryCall, MemoryCalls, MemoryCallsPolicy};
pub use copies::{Copies, CopiesPolicy, CopyResult};
pub(crate) use granted::GrantedBuffer;
pub(crate) use meter::Meter;
pub use owned_request::Buffers;
pub(crate) use owned_request::{
    BufferSlot, InvalidRequest, OwnedRequest, Placed, boxed, copy_now, drain, nop, placed, side, tuple,
};
pub(crate) use ring::{NotPut, Ring};
pub(crate) use shared::{Core, Shared};
pub(crate) use single::InFlight;
pub(crate) use stub_portal::StubPortal;
