//! Where a modelled device counts.

use crate::in_process::SlotLease;
use std::fmt;
use std::sync::Arc;
use telpher_model::DeviceCounts;

/// Where a modelled device counts what it does.
#[derive(Clone, Default)]
pub enum CountsIn {
    /// In memory of its own.
    #[default]
    Own,
    /// In these words, which may lie in memory shared with other processes. No other device counts its ends there.
    Shared(Arc<dyn AsRef<DeviceCounts> + Send + Sync>),
    /// In memory that `telpher top` and `telpher exporter` find, as a device of this process, if
    /// [`ModelDevice::start`](crate::ModelDevice::start) starts it. In memory of its own where the system refuses that.
    Published,
    /// Nowhere; to measure what counting costs.
    Nowhere,
}

impl fmt::Debug for CountsIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CountsIn::Own => "Own",
            CountsIn::Shared(_) => "Shared",
            CountsIn::Published => "Published",
            CountsIn::Nowhere => "Nowhere",
        })
    }
}

/// The words of a running device.
pub(crate) enum Counts {
    Own(Box<DeviceCounts>),
    Shared(Arc<dyn AsRef<DeviceCounts> + Send + Sync>),
    Published(&'static DeviceCounts),
    Nowhere,
}

impl Counts {
    /// Returns the words of this place; of published ones, those of the caller's slot.
    pub(crate) fn new(place: CountsIn, slot: Option<&SlotLease>) -> Counts {
        if let Some(slot) = slot {
            return Counts::Published(slot.counts());
        }
        match place {
            CountsIn::Own | CountsIn::Published => Counts::Own(Box::default()),
            CountsIn::Shared(words) => Counts::Shared(words),
            CountsIn::Nowhere => Counts::Nowhere,
        }
    }

    #[inline]
    pub(crate) fn words(&self) -> Option<&DeviceCounts> {
        match self {
            Counts::Own(words) => Some(words),
            Counts::Shared(words) => Some((**words).as_ref()),
            Counts::Published(words) => Some(words),
            Counts::Nowhere => None,
        }
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.words().fmt(f)
    }
}
