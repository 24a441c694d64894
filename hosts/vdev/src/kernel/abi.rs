//! Kernel flavours: which attributes there are, how they print, what user submission may do.

/// A kernel whose driver is imitated. Later ones compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub enum Abi {
    /// 5.15: token names, no ENQCMD, so no shared queue for users, no `write()`.
    V5_15,
    /// 6.1 with the stable fixes: read buffer names, `op_config`, `write()` submission, mmap for the privileged alone.
    V6_1,
    /// 6.6: event log, `prs_disable`, `fileK` directories.
    #[default]
    V6_6,
    /// 6.12: `driver_name` must match the driver.
    V6_12,
}

impl Abi {
    /// All flavours, oldest first.
    pub const ALL: [Abi; 4] = [Abi::V5_15, Abi::V6_1, Abi::V6_6, Abi::V6_12];

    /// What users type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Abi::V5_15 => "5.15",
            Abi::V6_1 => "6.1",
            Abi::V6_6 => "6.6",
            Abi::V6_12 => "6.12",
        }
    }

    /// True if users may have shared queues: without ENQCMD, which 5.15 masks off, they cannot submit to one.
    #[must_use]
    pub const fn has_shared_queues_for_users(self) -> bool {
        !matches!(self, Abi::V5_15)
    }

    /// The flavour of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|abi| abi.name() == name)
    }
}
