//! How files of other processes are opened.

use rustix::fs::OFlags;

/// Flags to open a file of another process, which may be a pipe or a terminal by then: nothing waits for its other end.
pub(crate) const OPEN_FLAGS: i32 = OFlags::NONBLOCK.union(OFlags::NOCTTY).bits().cast_signed();
