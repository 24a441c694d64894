#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! RUN/devices.json, /proc/HOST/fd/N ──► run    ─┐
//! /sys/bus/dsa/devices ─► sysfs ──────► pmu    ─┼─► snapshot: devices, queues, engines, processes ──► tables
//! /proc/PID/fd/N ─► published ──► in_process   ─┘             └─────► exporter ──► text for Prometheus
//!                       └─────► what processes count ─────────────────┘─► programs: rows of the snapshot
//! ```
#![forbid(unsafe_code)]

mod device_rows;
mod event_log;
pub mod exporter;
pub mod in_process;
pub mod live;
mod opening;
pub mod pmu;
pub mod programs;
pub mod published;
pub mod run;
pub mod sections;
pub mod snapshot;
pub mod sysfs;
pub mod tables;
pub mod view;

pub use run::{ReadError, subscribe};
pub use snapshot::{DeviceRow, EngineRow, ProcessRow, ProgramRow, QueueRow, Snapshot, Value};
