//! Whole programs, unmodified, under `telpher run`: Debian's accel-config, its test runner, DPDK's autotest, shells and
//! PCI tools, and our own clients in C, Python and Go (`sources/`), each in its own test; and programs under `telpher
//! tier run`.
//!
//! A test that lacks a package, a compiler or mount namespaces skips visibly, see `ci/skip.rs`. A program that
//! does not end is killed with all its children, and the test fails.

mod accel_config;
mod advise;
mod attributes;
mod bench;
mod cachelike;
mod check;
mod clients;
mod containers;
mod devices;
mod disturbed;
mod doctor;
mod dpdk;
mod dpdk_vhost;
mod dto_defects;
mod endings;
mod exporter;
mod following;
#[path = "../../../../uses/vhost/tests/frontend/mod.rs"]
mod frontend;
#[path = "../../../../path/mover/tests/common/handler.rs"]
mod handler;
mod hardware;
mod harness;
mod hostile;
mod hygiene;
mod in_process;
mod inject;
mod libdml;
mod libtelpher;
mod mounted;
mod offload;
mod offload_company;
mod offload_linked;
mod offload_programs;
mod offload_run;
mod offload_sites;
mod perf;
#[path = "../plans/mod.rs"]
mod plans;
mod record;
mod refusals;
mod runner;
#[path = "../schemas/mod.rs"]
mod schemas;
mod segments;
#[path = "../../../../ci/skip.rs"]
mod skip;
mod survivors;
mod tables;
mod terminal;
mod tier;
mod top;
mod trace;
mod tree;
