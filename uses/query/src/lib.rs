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
mod calendar;
mod codes;
mod column;
mod config;
mod error;
#[cfg(feature = "files")]
pub mod files;
mod float_sum;
mod fold;
pub mod generate;
mod kernel;
mod morsels;
mod partial;
mod pipeline;
mod plan;
mod prepare;
mod program;
mod run;
mod scratch;
mod selection;
mod sql;
mod stats;
mod value;

pub use column::{Column, Integer, Kind, Table};
pub use config::{OnLate, Options, PrefetchWhen};
pub use error::{ColumnError, InputError, PlanError, RunError, SqlError, TableError};
pub use partial::{Answer, Partial, Row};
pub use pipeline::{Chunk, Environment, Part, Role, Shape, Worker};
pub use plan::{Aggregate, Comparison, Condition, Expr, Filter, Literal, Plan, column, literal};
pub use prepare::Query;
pub use run::run;
pub use selection::Selection;
pub use stats::{Blocks, Report, Stage, Traffic};
pub use value::{Dictionary, Double, LogicalType, Value};
