//! Counters of a connection.

use crate::engine::DoneBy;
use crate::pdu::FatalError;

/// Counters of a connection since it was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Commands that came in capsules.
    pub commands: u64,
    /// Commands that ended with an error.
    pub failed_commands: u64,
    /// Commands whose data came in the capsule.
    pub in_capsule: u64,
    /// R2Ts that were sent.
    pub r2ts: u64,
    /// Bytes of data from the host.
    pub bytes_from_host: u64,
    /// Bytes of data to the host.
    pub bytes_to_host: u64,
    /// Errors that ended the connection.
    pub fatal_errors: u64,
    /// Wrong digests of headers.
    pub header_digest_errors: u64,
    /// Wrong digests of data.
    pub data_digest_errors: u64,
    /// Digests of data that the CPU computed.
    pub digests_by_cpu: u64,
    /// Digests of data that a device computed.
    pub digests_by_device: u64,
    /// Digests of data that the CPU computed because a device refused or failed.
    pub digests_by_fallback: u64,
    /// Digests of a device that did not match while the CPU's did.
    pub wrong_device_digests: u64,
    /// Insertions and checks of protection information that the CPU did.
    pub protections_by_cpu: u64,
    /// Insertions and checks of protection information that a device did.
    pub protections_by_device: u64,
    /// Insertions and checks of protection information that the CPU did because a device refused or failed, or because
    /// blocks were never written.
    pub protections_by_fallback: u64,
    /// Mismatches of a device that the CPU did not find.
    pub wrong_device_checks: u64,
    /// Commands that ended because protection information did not match.
    pub protection_errors: u64,
    /// Bytes of data whose digests were computed.
    pub digested_bytes: u64,
}

impl Stats {
    pub(crate) fn count_digest(&mut self, bytes: usize, by: DoneBy) {
        self.digested_bytes += bytes as u64;
        match by {
            DoneBy::Cpu => self.digests_by_cpu += 1,
            DoneBy::Device => self.digests_by_device += 1,
            DoneBy::Fallback => self.digests_by_fallback += 1,
        }
    }

    pub(crate) fn count_protection(&mut self, is_device_wrong: bool, by: DoneBy) {
        self.wrong_device_checks += u64::from(is_device_wrong);
        match by {
            DoneBy::Cpu => self.protections_by_cpu += 1,
            DoneBy::Device => self.protections_by_device += 1,
            DoneBy::Fallback => self.protections_by_fallback += 1,
        }
    }

    pub(crate) fn count_fatal(&mut self, error: FatalError) {
        self.fatal_errors += 1;
        if matches!(error, FatalError::HeaderDigest { .. }) {
            self.header_digest_errors += 1;
        }
    }
}
