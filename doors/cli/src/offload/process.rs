//! What a process has counted, as the data from which telpher-report makes tables.

use telpher_offload::Process;
use telpher_report::offload::OffloadedProcess;

/// Returns a process as the tables show it.
pub(super) fn row(process: &Process) -> OffloadedProcess {
    let counters = &process.counters;
    OffloadedProcess {
        pid: process.pid,
        device_calls: counters.by_device,
        device_bytes: counters.device_bytes,
        cached_calls: counters.hot,
        timed_calls: counters.timed,
        other_calls: counters.nested + counters.switched_off + counters.overlapping + counters.forked + counters.denied,
        cpu_bytes: counters.cpu_bytes,
        faults: counters.faults,
        retries: counters.retries,
        simulated_ns: counters.simulated_ns,
        late_descriptors: counters.late,
    }
}
