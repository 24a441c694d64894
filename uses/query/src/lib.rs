#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Plan ─► columns of SCAN, columns of AGGREGATE ─► Shape: groups × chunks × threads ─► Worker: the steps of one thread
//!                                                                                        │
//!             run: threads of this machine ─► Report; or simulated threads ◄── Ground ───┘
//! ```
#![forbid(unsafe_code)]

mod barrier;
mod column;
#[cfg(feature = "files")]
pub mod files;
mod fold;
pub mod generate;
mod kernel;
mod morsels;
mod partial;
mod pipeline;
mod plan;
mod prepare;
mod report;
mod run;
mod selection;
mod sql;

pub use column::{Column, ColumnError, Integer, Kind, Table, TableError};
pub use kernel::InputError;
pub use partial::{Answer, Partial, Row};
pub use pipeline::{Chunk, Environment, Part, Role, Shape, Worker};
pub use plan::{Aggregate, Expr, Filter, Plan, column, literal};
pub use prepare::{PlanError, Query};
pub use report::{Blocks, Report, Stage};
pub use run::{OnLate, Options, PrefetchWhen, RunError, run};
pub use selection::Selection;
pub use sql::SqlError;
