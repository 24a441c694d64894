//! Access to real devices: `/dev/dsa`, its discovery, and the instructions that submit and wait.
//!
//! ```text
//! Files ──► discover ──► Machine: Device, Group, Engine, Queue          what the driver shows
//! open("wq0.1") ──► node ──► portal page ──► HwPortal: Portal           what the mover uses
//!                               MOVDIR64B · ENQCMD · write()
//! ```
//!
//! Citations: **SPEC** is Intel's *Data Streaming Accelerator Architecture Specification*, order 341204-006US; **SDM**
//! is Intel's *Software Developer's Manual*; **K612** is Linux 6.12 `drivers/dma/idxd`; **ABI** is the kernel's
//! `Documentation/ABI/stable/sysfs-driver-dma-idxd`.
#![deny(unsafe_code)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("telpher-hw is for x86-64 Linux: the device's driver and its instructions exist nowhere else");

mod attribute;
mod cpuid;
mod discover;
mod error;
mod error_events;
mod files;
mod health;
mod instructions;
mod machine;
mod node;
mod open;
mod openable;
mod page;
mod portal;
mod queue_test;
#[cfg(test)]
#[path = "../../../ci/skip.rs"]
mod skip;
mod submit;
mod wait;
mod window;

pub use discover::discover;
pub use error::OpenError;
pub use files::{Files, Live};
pub use instructions::{ANNOUNCEMENT, Instructions};
pub use machine::{Device, DeviceKind, Engine, Group, Machine, Queue, QueueType, State, UnreadableAttribute};
pub use open::{DescribedQueue, describe, open};
pub use openable::look;
pub use portal::rehearsal;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
