//! What the programs of this user publish: movers, caches and the like in memory files; `telpher offload` and
//! `telpher tier run` in files of their runs.

use crate::tier;
use std::path::Path;
use telpher_telemetry::published::{self, ProcessMetrics, Publications};
use telpher_tier_wire::State;

/// In place of inodes.
const OF_OFFLOAD: u64 = 0;
const OF_TIER: u64 = 1;
const _: () = assert!(OF_OFFLOAD < OF_TIER && OF_TIER == published::LAST_OWN_SET);

/// Returns the counters of a process of `telpher offload`, which its run keeps in files.
fn of_offload(process: &telpher_offload::Process) -> ProcessMetrics {
    ProcessMetrics::of(process.pid, OF_OFFLOAD, &process.counters)
}

/// Returns what a managed process of `telpher tier run` reports.
fn of_tier(state: &State) -> ProcessMetrics {
    let counts = &state.counts;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a conversion saturates")]
    let nanos = |seconds: f64| (seconds * 1e9) as u64;
    let known = [
        ("telpher_tier_moved_pages_total", counts.moved),
        ("telpher_tier_moved_huge_parts_total", counts.huge),
        ("telpher_tier_exchanges_total", counts.exchanges),
        ("telpher_tier_dropped_pages_total", counts.dropped),
        ("telpher_tier_forks_total", counts.forks),
        ("telpher_tier_lost_pages_total", counts.lost),
        ("telpher_tier_moving_seconds_total", nanos(counts.moving_seconds)),
        ("telpher_tier_copying_seconds_total", nanos(counts.copying_seconds)),
    ];
    ProcessMetrics::part::<telpher_tier::Stats>(state.pid, OF_TIER, &known)
}

/// Reads what the processes of this user count themselves.
pub(crate) fn read() -> Publications {
    let mut found = published::read(Path::new("/proc"));
    found.processes.extend(telpher_offload::running().into_iter().map(|(_, process)| of_offload(&process)));
    found.processes.extend(tier::states(None).iter().map(of_tier));
    found
}
