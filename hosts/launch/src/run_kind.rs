//! The names of run directories, their longest paths, and how such a directory is opened.

use rustix::fs::OFlags;

/// Longest path in bytes. A socket address has 108 bytes including the final zero, and the preloaded library reserves
/// this much.
pub(super) const LONGEST: usize = 96;

/// Longest path of the parent directory. A run directory's name takes `/tier-`, a process number of at most ten digits,
/// and `-` with eight hexadecimal digits.
pub(super) const LONGEST_PARENT: usize = LONGEST - 25;

/// Flags that open a directory itself and refuse a symbolic link to it.
pub(super) const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The command that a run directory belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunKind {
    /// `telpher run`.
    Device,
    /// `telpher tier run`.
    Tier,
    /// `telpher offload`.
    Offload,
}

impl RunKind {
    /// All kinds.
    pub(super) const ALL: [RunKind; 3] = [RunKind::Device, RunKind::Tier, RunKind::Offload];

    /// The prefix of the names of such directories.
    pub(super) const fn prefix(self) -> &'static str {
        match self {
            RunKind::Device => "run-",
            RunKind::Tier => "tier-",
            RunKind::Offload => "off-",
        }
    }
}
