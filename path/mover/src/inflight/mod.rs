//! The one room with unsafe code: what is in flight, and the proof that its memory stays.
//!
//! A device reads and writes buffers behind the compiler's back, from the offer until the completion record is seen. The
//! proof that nobody else has them meanwhile rests on five private facts, all within this folder (for raw descriptors and [`Copies`] it is the
//! caller's, but for the fifth):
//!
//! 1. A [`Load`] is built only from buffers it owns ([`load`]), so every address in its ask lies in its payload, and a
//!    [`StableBuf`](telpher_mem::StableBuf)'s bytes stay put while the value moves.
//! 2. A [`Cargo`] takes a whole load and gives the payload back only while its [`Flight`] is grounded: nothing offered, or
//!    the record seen.
//! 3. A cargo that is dropped or expires while aloft moves its payload into the slot ([`table`]), or the slots of all its
//!    flights ([`fleet`]), where a sweeper frees it after the last record is seen, or nobody ever does. A cargo that is forgotten leaks its payload; it is never freed.
//! 4. What a scope lends outlives the scope, and a scope does not return while a flight of it is aloft.
//! 5. Records and batch lists live in the table, the cargo, the ring or the [`Copies`], and are leaked rather than freed while aloft.
#![allow(unsafe_code, reason = "vouches for addresses and makes slices of them; the proof is the ownership told above")]

mod cargo;
mod convoy;
mod copies;
mod fleet;
mod flight;
mod lent;
mod load;
mod memory;
mod meter;
mod ring;
mod shared;
mod sign;
mod table;

pub(crate) use cargo::Cargo;
pub(crate) use convoy::{ConvoyCargo, Member};
pub use copies::{Copies, CopiesPolicy, Ended};
pub(crate) use lent::{Lent, copy_whole, lengthen, lengthen_mut};
pub use load::Buffers;
pub(crate) use load::{Load, Unready, boxed, copy_now, drain, named, nop, side, tuple};
pub(crate) use meter::Meter;
pub(crate) use ring::Ring;
pub(crate) use shared::{Core, Shared};
pub(crate) use sign::Sign;
