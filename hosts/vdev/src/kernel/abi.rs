//! Kernel versions: which attributes exist, how they are printed, and what user submission may do.

/// The kernel version whose driver is emulated. Later versions compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub enum Abi {
    /// 5.15: `token` attribute names; no ENQCMD, so no shared queue for users; no `write()`.
    V5_15,
    /// 6.1 with the stable fixes: `read_buffer` attribute names, `op_config`, `write()` submission, mmap only for
    /// privileged users.
    V6_1,
    /// 6.6: event log, `prs_disable`, `fileK` directories.
    #[default]
    V6_6,
    /// 6.12: `driver_name` must match the driver.
    V6_12,
    /// 7.0: `dsacaps`, and lists of buffers on devices of version 3.
    V7_0,
}

impl Abi {
    /// All versions, oldest first.
    pub const ALL: [Abi; 5] = [Abi::V5_15, Abi::V6_1, Abi::V6_6, Abi::V6_12, Abi::V7_0];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Abi::V5_15 => "5.15",
            Abi::V6_1 => "6.1",
            Abi::V6_6 => "6.6",
            Abi::V6_12 => "6.12",
            Abi::V7_0 => "7.0",
        }
    }

    /// True if users may have shared queues. 5.15 masks ENQCMD, so users could not submit to one.
    #[must_use]
    pub const fn has_shared_queues_for_users(self) -> bool {
        !matches!(self, Abi::V5_15)
    }

    /// The version with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|abi| abi.name() == name)
    }
}
