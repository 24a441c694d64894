//! The results of each bench as text, CSV and HTML.

pub mod all;
pub mod cachelike;
pub mod fabric;
pub mod nvmf_load;
pub mod ops;
pub mod pollution;
pub mod query;
pub mod questions;
mod rows;
pub mod run;
pub mod summary;
pub mod sweep;
pub mod tune;
pub mod vhost;
