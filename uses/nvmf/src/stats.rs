//! Counters of connections and of the loops that serve them.

use crate::command::io;
use crate::engine::{DoneBy, FallbackReason};
use crate::pdu::FatalError;
use telpher_metrics::metrics;

/// Ranges of a latency histogram.
pub const LATENCIES: usize = 24;

/// The ranges: below 1 µs, below 2 µs, and so on; the last one has no upper limit.
const BELOW: [&str; LATENCIES] = [
    "1us",
    "2us",
    "4us",
    "8us",
    "16us",
    "32us",
    "64us",
    "128us",
    "256us",
    "512us",
    "1024us",
    "2048us",
    "4096us",
    "8192us",
    "16384us",
    "32768us",
    "65536us",
    "131072us",
    "262144us",
    "524288us",
    "1048576us",
    "2097152us",
    "4194304us",
    "unlimited",
];

/// The help of one name whose values are several fields.
const DIGESTS: &str = "Digests of data, by what computed them. A fallback is the CPU in place of a device that refused \
                       or failed.";

/// The help of one name whose values are several fields.
const PROTECTIONS: &str = "Insertions and checks of protection information, by what did them. A fallback is the CPU in \
                           place of a device that refused or failed, and for blocks that were never written.";

metrics! {
    /// Counters of a connection since it was accepted: of one queue of a controller.
    pub struct Stats {
        /// Commands that came in capsules.
        pub commands: u64 = counter "telpher_nvmf_commands_total",
        /// Read commands that came in capsules.
        pub reads: u64 = counter "telpher_nvmf_reads_total",
        /// Write commands that came in capsules.
        pub writes: u64 = counter "telpher_nvmf_writes_total",
        /// Accepted commands of I/O queues that have completed.
        pub completed_io: u64 = counter "telpher_nvmf_completed_io_commands_total",
        /// Commands that ended with an error.
        pub failed_commands: u64 = counter "telpher_nvmf_failed_commands_total",
        /// Commands whose data came in the capsule.
        pub in_capsule: u64 = counter "telpher_nvmf_in_capsule_commands_total",
        /// Write commands whose data came in the capsule.
        pub writes_in_capsule: u64 = counter "telpher_nvmf_in_capsule_writes_total",
        /// R2Ts that were sent.
        pub r2ts: u64 = counter "telpher_nvmf_r2ts_total",
        /// Bytes of data from the host.
        pub bytes_from_host: u64 = counter(Bytes) "telpher_nvmf_received_bytes_total",
        /// Bytes of data to the host.
        pub bytes_to_host: u64 = counter(Bytes) "telpher_nvmf_sent_bytes_total",
        /// Errors that ended the connection.
        pub fatal_errors: u64 = counter "telpher_nvmf_fatal_errors_total",
        /// Wrong digests of headers.
        pub header_digest_errors: u64 = counter "telpher_nvmf_header_digest_errors_total",
        /// Wrong digests of data.
        pub data_digest_errors: u64 = counter "telpher_nvmf_data_digest_errors_total",
        /// Digests of data that the CPU computed.
        pub digests_by_cpu: u64 = counter "telpher_nvmf_digests_total" by executor ["CPU"] => DIGESTS,
        /// Digests of data that a device computed.
        pub digests_by_device: u64 = counter "telpher_nvmf_digests_total" by executor ["device"] => DIGESTS,
        /// Digests of data that the CPU computed because a device refused or failed.
        pub digests_by_fallback: u64 = counter "telpher_nvmf_digests_total" by executor ["fallback"] => DIGESTS,
        /// Digests of a device that did not match while the CPU's did.
        pub wrong_device_digests: u64 = counter "telpher_nvmf_wrong_device_digests_total",
        /// Insertions and checks of protection information that the CPU did.
        pub protections_by_cpu: u64 = counter "telpher_nvmf_protections_total" by executor ["CPU"] => PROTECTIONS,
        /// Insertions and checks of protection information that a device did.
        pub protections_by_device: u64 = counter "telpher_nvmf_protections_total" by executor ["device"] => PROTECTIONS,
        /// Insertions and checks of protection information that the CPU did because a device refused or failed, or
        /// because blocks were never written.
        pub protections_by_fallback: u64 =
            counter "telpher_nvmf_protections_total" by executor ["fallback"] => PROTECTIONS,
        /// Digests, insertions and checks that the CPU did, all or a part of each, in place of a device, by reason.
        pub fallbacks: [u64; FallbackReason::NAMES.len()] =
            counter "telpher_nvmf_fallbacks_total" by reason FallbackReason::NAMES,
        /// Mismatches of a device that the CPU did not find.
        pub wrong_device_checks: u64 = counter "telpher_nvmf_wrong_device_checks_total",
        /// Commands that ended because protection information did not match.
        pub protection_errors: u64 = counter "telpher_nvmf_protection_errors_total",
        /// Bytes of data whose digests were computed.
        pub digested_bytes: u64 = counter(Bytes) "telpher_nvmf_digested_bytes_total",
        /// Successful reads, by the time from the complete capsule to the reply.
        pub read_latencies: [u64; LATENCIES] = counter "telpher_nvmf_reads_by_latency_total" by below BELOW,
        /// Successful writes, by the time from the complete capsule to the reply, with the transfer of the data.
        pub write_latencies: [u64; LATENCIES] = counter "telpher_nvmf_writes_by_latency_total" by below BELOW,
    }
}

metrics! {
    /// Counters of one loop of a server.
    pub struct LoopStats {
        /// How often the loop woke up.
        pub wakeups: u64 = counter "telpher_nvmf_loop_wakeups_total",
        /// System calls by which the loop waited, received and sent.
        pub system_calls: u64 = counter "telpher_nvmf_loop_system_calls_total",
        /// Receives from sockets, each by a system call or as an operation of an io_uring.
        pub receives: u64 = counter "telpher_nvmf_loop_receives_total",
        /// Sends to sockets, each by a system call or as an operation of an io_uring.
        pub sends: u64 = counter "telpher_nvmf_loop_sends_total",
        /// Connections that the loop serves.
        pub connections: u64 = gauge "telpher_nvmf_connections",
        /// Connections that the loop got.
        pub accepted: u64 = counter "telpher_nvmf_accepted_connections_total",
        /// Connections that were closed because there were as many as allowed.
        pub refused: u64 = counter "telpher_nvmf_refused_connections_total",
        /// Connects of hosts that may not use the subsystem.
        pub refused_hosts: u64 = counter "telpher_nvmf_refused_hosts_total",
        /// Queues that hosts connected.
        pub queues: [u64; 2] = counter "telpher_nvmf_connected_queues_total" by queue ["admin", "io"],
        /// Batches that were submitted to the device.
        pub device_batches: u64 = counter "telpher_nvmf_device_batches_total",
        /// Operations in these batches: a job for several blocks or segments is one operation for each.
        pub device_operations: u64 = counter "telpher_nvmf_device_operations_total",
    }
}

impl Stats {
    pub(crate) fn count_command(&mut self, opcode: u8, is_io: bool, has_data: bool) {
        self.commands += 1;
        match opcode {
            io::READ if is_io => self.reads += 1,
            io::WRITE if is_io => {
                self.writes += 1;
                self.writes_in_capsule += u64::from(has_data);
            }
            _ => {}
        }
    }

    /// An I/O command has succeeded after this time.
    pub(crate) fn count_latency(&mut self, opcode: u8, nanoseconds: u64) {
        self.count_latencies(opcode, nanoseconds, 1);
    }

    /// So many I/O commands have succeeded after this time each.
    pub(crate) fn count_latencies(&mut self, opcode: u8, nanoseconds: u64, count: u64) {
        let range = latency_range(nanoseconds);
        match opcode {
            io::READ => self.read_latencies[range] += count,
            io::WRITE => self.write_latencies[range] += count,
            _ => {}
        }
    }

    pub(crate) fn count_digest(&mut self, bytes: usize, by: DoneBy) {
        self.digested_bytes += bytes as u64;
        match by {
            DoneBy::Cpu => self.digests_by_cpu += 1,
            DoneBy::Device => self.digests_by_device += 1,
            DoneBy::Fallback(reason) => {
                self.digests_by_fallback += 1;
                self.fallbacks[reason as usize] += 1;
            }
        }
    }

    pub(crate) fn count_protection(&mut self, is_device_wrong: bool, by: DoneBy) {
        self.wrong_device_checks += u64::from(is_device_wrong);
        match by {
            DoneBy::Cpu => self.protections_by_cpu += 1,
            DoneBy::Device => self.protections_by_device += 1,
            DoneBy::Fallback(reason) => {
                self.protections_by_fallback += 1;
                self.fallbacks[reason as usize] += 1;
            }
        }
    }

    pub(crate) fn count_fatal(&mut self, error: FatalError) {
        self.fatal_errors += 1;
        if matches!(error, FatalError::HeaderDigest { .. }) {
            self.header_digest_errors += 1;
        }
    }
}

/// The range of a latency in a histogram.
fn latency_range(nanoseconds: u64) -> usize {
    let microseconds = nanoseconds / 1000;
    ((u64::BITS - microseconds.leading_zeros()) as usize).min(LATENCIES - 1)
}

/// The upper limit in microseconds of the range in which a share of the commands lies; `None` if there are none, or if
/// that range has no limit. A share of 0.5 is the median.
#[must_use]
pub fn latency_percentile(histogram: &[u64; LATENCIES], share: f64) -> Option<u64> {
    let total: u64 = histogram.iter().sum();
    #[allow(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
    let reaches = |count: u64| count as f64 >= share * total as f64;
    let mut count = 0;
    for (range, commands) in histogram.iter().enumerate().take(LATENCIES - 1) {
        count += commands;
        if count > 0 && reaches(count) {
            return Some(1 << range);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_counted_in_the_range_that_is_named() {
        for (nanoseconds, below) in
            [(0, "1us"), (999, "1us"), (1000, "2us"), (1999, "2us"), (2000, "4us"), (1_000_000, "1024us")]
        {
            assert_eq!(BELOW[latency_range(nanoseconds)], below, "{nanoseconds} ns");
        }
        assert_eq!(BELOW[latency_range(4_194_303_999)], "4194304us");
        assert_eq!(BELOW[latency_range(4_194_304_000)], "unlimited");
        assert_eq!(BELOW[latency_range(u64::MAX)], "unlimited");
    }

    #[test]
    fn a_percentile_is_the_limit_of_its_range() {
        let mut histogram = [0; LATENCIES];
        assert_eq!(latency_percentile(&histogram, 0.5), None);
        (histogram[3], histogram[5]) = (98, 2);
        assert_eq!(latency_percentile(&histogram, 0.5), Some(8));
        assert_eq!(latency_percentile(&histogram, 0.99), Some(32));
        histogram[LATENCIES - 1] = 900;
        assert_eq!(latency_percentile(&histogram, 0.5), None);
    }
}
