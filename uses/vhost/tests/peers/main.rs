//! Unmodified programs at the other end of the socket: DPDK's testpmd as a guest's driver, and Linux in QEMU.
//!
//! The tests hold whoever copies, and whoever is the backend: DPDK's `net_vhost`, in `./soak`, shows that they test what the document says rather
//! than what this crate does.
//! What a machine lacks (a package, huge pages) makes a test skip visibly, see `ci/skip.rs`. A program that does not answer in time is
//! killed with all it has started, and the test fails. Tests take the machine's two cores in turn. `ci/peers.sh` runs them.

mod backend;
#[path = "../../../../ci/guest.rs"]
mod debian;
mod frames;
mod guest;
mod killed;
mod linux;
mod pair;
mod qemu;
mod replaced;
mod room;
#[path = "../../../../ci/skip.rs"]
mod skip;
mod switch;
mod telpher;
mod traffic;
