//! Collective operations of several processes of one machine, through memory that all of them map.
//!
//! ```text
//! form          agrees with all members on whether there is a Group, and passes its memory to them
//! Group         all_reduce, reduce, broadcast, all_gather
//!   copies      those that a device makes, and when their chunks have ended
//!   choice      whether it makes them in the next operation
//!   counts      how far each member has come; publishes the chunks it has written
//!   arithmetic  sums and other reductions of plain bytes
//!   layout      where the parts of the memory are
//!   lock        which members live
//! ```
//!
//! # One AllReduce
//!
//! A message is processed in chunks. Each member has a few slots of a chunk's length, and there are as many for
//! results. The members share the work of a chunk: each reduces one part of it.
//!
//! ```text
//! fill     a member copies the parts that others reduce to its own slot                   counts it as filled
//! reduce   it reduces its part: rank 0's bytes, then rank 1's, … ; its own come from its
//!          buffer, the others' from their slots. The result goes to its buffer and to
//!          the slot for results                                                           counts it as reduced
//! take     it copies the other parts of the result to its buffer                          counts it as taken
//! ```
//!
//! A member fills chunk *k* before it reduces *k − 1* and takes *k − 2*, so it waits only for what the others do in
//! earlier steps. A slot is filled again when all have reduced, and a result is written again when all have taken, what
//! was in it.
//!
//! With a device ([`Group::copy_with`]), fill and take are copies by the device where that is measured to take less
//! time. A member starts them and goes on with the next step; it counts a chunk when its copies have ended. The CPU
//! reduces.
//!
//! **Order of the operations.** Each element is reduced by one member: `((x₀ ∘ x₁) ∘ x₂) ∘ …` by rank. So all members
//! get the same bits, and get them again in every run, whatever the timing.
//!
//! # Trust
//!
//! The members have one user. A hostile member can make the others' results wrong, as it can with any message. It
//! cannot make them access memory outside of the group's, which has a sealed size: counts are compared and bounded, and
//! no position is read from the memory. A member that ends makes the others fail, see [`Group`].

pub mod arithmetic;
mod choice;
mod copies;
mod counts;
mod form;
mod group;
mod layout;
mod lock;
#[cfg(test)]
mod tests;

pub use arithmetic::Reduction;
pub use copies::MOST_COPIES;
pub use form::{EXCHANGE_BYTES, Exchange, ExchangeBytes, Formed, MOST_MEMBERS, form};
pub use group::{Group, GroupError};
