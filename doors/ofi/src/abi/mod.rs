//! libfabric's structures and constants, as its headers have them. Layout only.
//!
//! The names are libfabric's without `fi_` (`fi_info` is [`info::Info`], `FI_MSG` is [`flags::MSG`]). Fields that newer
//! versions append are left out, except slots of operation tables: these begin with their size.

pub(crate) mod accesses;
pub(crate) mod errors;
pub(crate) mod flags;
pub(crate) mod info;
pub(crate) mod objects;
pub(crate) mod queues;

#[cfg(test)]
mod tests;
