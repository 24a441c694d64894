//! The simulator's tests, one file a subject, in one binary: linking one takes longer than most tests.

mod advise;
mod bottleneck;
mod cachebench;
mod calibration;
mod cores;
mod device;
mod fabric;
mod gups;
mod keys;
mod memory;
mod messages;
mod migration;
mod page_exchange;
mod properties;
mod qdp;
mod replay;
mod storage;
mod synthetic;
mod vhost;
mod workloads;
mod world;
