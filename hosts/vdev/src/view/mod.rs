//! Two ways to show the tree.

pub mod namespace;
pub mod shadow;
