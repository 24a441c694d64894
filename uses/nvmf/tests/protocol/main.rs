//! The target's and the initiator's state machines connected to each other in memory, without sockets.
#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod admin;
mod cases;
mod connect;
mod device;
mod fatal;
mod fused;
mod hostile;
mod io;
mod protection;
mod session;
mod storage;
