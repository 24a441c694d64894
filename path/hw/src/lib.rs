//! The real device behind the seam: `/dev/dsa`, its discovery, and the instructions that submit and wait.
#![deny(unsafe_code)]

mod files;

pub use files::{Files, Live};
