//! The tests of this crate, as they run in the guest. A test that lacks something there skips.

#[path = "../adopted.rs"]
mod adopted;
#[path = "../damon.rs"]
mod damon;
#[path = "../gate.rs"]
mod fork_gate;
#[path = "../heat.rs"]
mod heat;
#[path = "../moves.rs"]
mod moves;
#[path = "../nodes.rs"]
mod nodes;
#[path = "../own_device.rs"]
mod own_device;
#[path = "../pinned.rs"]
mod pinned;
#[path = "../shared.rs"]
mod shared;
#[path = "../soak_events.rs"]
mod soak_events;
#[path = "../traced.rs"]
mod traced;
