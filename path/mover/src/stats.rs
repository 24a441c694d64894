//! What a mover keeps for requests that ended without it.

use telpher_metrics::metrics;

metrics! {
    /// Jobs whose buffers a mover keeps until the device has written their record. A split job counts once for each of
    /// its descriptors in flight.
    #[non_exhaustive]
    pub struct Stats {
        /// Jobs that were dropped before the device wrote their record.
        pub orphaned: u64 = gauge "telpher_mover_orphaned_jobs",
        /// Jobs whose deadline passed before the device wrote their record.
        pub quarantined: u64 = gauge "telpher_mover_quarantined_jobs",
    }
}
