//! What a process has counted, as the data from which telpher-report makes tables.

use telpher_offload::Process;
use telpher_offload_wire::sites::SiteSnapshot;
use telpher_record::SiteNames;
use telpher_recording::Module;
use telpher_report::offload::{OffloadedProcess, OffloadedSite};

/// Returns a process as the tables show it. The functions of its call sites are looked up in `names`.
pub(super) fn row(process: &Process, names: &mut SiteNames) -> OffloadedProcess {
    let counters = &process.counters;
    OffloadedProcess {
        pid: process.pid,
        device_calls: counters.by_device,
        device_bytes: counters.device_bytes,
        cached_calls: counters.hot,
        timed_calls: counters.timed,
        other_calls: counters.nested
            + counters.switched_off
            + counters.overlapping
            + counters.forked
            + counters.denied
            + counters.absent,
        cpu_bytes: counters.cpu_bytes,
        faults: counters.faults,
        retries: counters.retries,
        simulated_ns: counters.simulated_ns,
        late_descriptors: counters.late,
        sites: process.sites.iter().map(|site| site_row(site, names)).collect(),
    }
}

/// Returns a call site as the tables show it.
fn site_row(site: &SiteSnapshot, names: &mut SiteNames) -> OffloadedSite {
    let (name, file) = match &site.file {
        Some(file) => {
            let module = Module { path: file.path.clone(), build_id: file.build_id.clone() };
            (names.name(&module, site.offset), module.path)
        }
        None => (format!("{:#x}", site.offset), String::new()),
    };
    OffloadedSite {
        site: name,
        file,
        offset: site.offset,
        verdict: site.verdict.words(),
        calls: site.calls,
        device_calls: site.device_calls,
        device_bytes: site.device_bytes,
        cpu_bytes: site.cpu_bytes,
    }
}
