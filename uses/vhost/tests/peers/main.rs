//! Unmodified programs at the other end of the socket: DPDK's testpmd as a guest's driver, and Linux in QEMU.
//!
//! The tests run on every copy path and with every backend. DPDK's `net_vhost`, in `./soak`, shows that they test the
//! specification and not this crate's behaviour. If the machine lacks something (a package, huge pages), a test skips
//! visibly, see `ci/skip.rs`. A program that does not answer in time is killed with its child processes, and the test
//! fails. Tests take turns on the machine's two cores. `ci/peers.sh` runs them.

mod backend;
#[path = "../../../../ci/guest.rs"]
mod debian;
mod frames;
mod guest;
mod killed;
mod linux;
mod pair;
mod peer_slot;
mod qemu;
mod replaced;
#[path = "../../../../ci/skip.rs"]
mod skip;
mod switch;
mod telpher;
mod traffic;
