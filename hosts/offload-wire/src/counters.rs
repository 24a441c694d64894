//! The file `PID.counters`: what a process counts, and behind it one word by which other processes switch it.

use telpher_metrics::{Region, metrics};

/// Words of the file.
#[must_use]
pub fn words() -> usize {
    switch_word() + 1
}

/// The word that decides whether calls may go to the device: 0 if they may. It has a cache line of its own, because
/// counters change all the time.
#[must_use]
pub fn switch_word() -> usize {
    // Source: 128 bytes; x86 prefetches lines in pairs.
    Region::<Counters>::words(1).next_multiple_of(16)
}

/// The help of calls by what became of them.
const CALLS: &str = "Calls of at least the threshold, by what became of them.";
/// The help of bytes by what copied them.
const BYTES: &str = "Bytes of calls of at least the threshold, by what copied, filled or compared them.";

metrics! {
    /// Long calls of one process.
    pub struct Counters {
        /// Calls that the device executed, at least in part.
        pub by_device: u64 = counter "telpher_offload_calls_total" by outcome ["device"] => CALLS,
        /// Calls that stayed with the CPU because their call site's data was in the cache.
        pub hot: u64 = counter "telpher_offload_calls_total" by outcome ["cpu: data in the cache"] => CALLS,
        /// Calls that the CPU executed and timed, to learn whether their data was in the cache.
        pub timed: u64 = counter "telpher_offload_calls_total" by outcome ["cpu: timed"] => CALLS,
        /// Calls that stayed with the CPU because the device would have stopped at absent pages.
        pub absent: u64 = counter "telpher_offload_calls_total" by outcome ["cpu: pages absent"] => CALLS,
        /// Calls that the CPU executed because a long call was under way in the same thread.
        pub nested: u64 = counter "telpher_offload_calls_total" by outcome ["cpu: inside another call"] => CALLS,
        /// Calls that the CPU executed because the user has switched the process to the CPU.
        pub switched_off: u64 = counter "telpher_offload_calls_total" by outcome ["cpu: switched off"] => CALLS,
        /// Copies between overlapping ranges that stayed with the CPU because the user wants it so.
        pub overlapping: u64 = counter "telpher_offload_calls_total" by outcome ["cpu: overlapping ranges"] => CALLS,
        /// Calls in a process that was forked from the one that opened the device.
        pub forked: u64 = counter "telpher_offload_calls_total" by outcome ["cpu: forked child"] => CALLS,
        /// Calls of libraries that are on the deny-list, and of code that belongs to no file.
        pub denied: u64 = counter "telpher_offload_calls_total" by outcome ["cpu: caller is denied"] => CALLS,
        /// Bytes that the device copied, filled or compared.
        pub device_bytes: u64 = counter(Bytes) "telpher_offload_bytes_total" by executor ["device"] => BYTES,
        /// Bytes that the CPU copied, filled or compared.
        pub cpu_bytes: u64 = counter(Bytes) "telpher_offload_bytes_total" by executor ["cpu"] => BYTES,
        /// Descriptors that ended at a page that was not present.
        pub faults: u64 = counter "telpher_offload_page_faults_total",
        /// Descriptors that a full queue refused.
        pub retries: u64 = counter "telpher_offload_retries_total",
        /// Time in which threads had a descriptor at a simulated device, summed over the threads.
        pub simulated_ns: u64 = counter(Seconds) "telpher_offload_simulated_seconds_total",
        /// Descriptors for which the CPU took longer than the simulated device.
        pub late: u64 = counter "telpher_offload_late_descriptors_total",
    }
}
