//! Two ways to present the tree to programs.

pub mod namespace;
pub mod shadow;
