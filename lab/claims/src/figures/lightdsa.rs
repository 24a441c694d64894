//! LightDSA, EuroSys 2026: its raw result files, compared with the same experiments in simulated time.

use super::sweep::{axis, over_sizes, published, rates};
use super::{Panel, Result, Scale, Sheet};
use crate::experiments::series::scenario;
use crate::lab::Lab;
use crate::published::series;

const SOURCE: &str = "LightDSA, EuroSys 2026, raw result files of the artifact repository";

pub(super) const SHEETS: &[Sheet] = &[
    Sheet {
        id: "lightdsa-single",
        source: SOURCE,
        title: "One descriptor at a time",
        how: "One thread, one shared queue, one engine, polling; throughput is size over latency. These series \
              calibrate the profile: they show how well it fits, and prove nothing.",
        claims: &[],
        draw: |lab| panels(lab, "lightdsa.1e.single."),
    },
    Sheet {
        id: "lightdsa-flight",
        source: SOURCE,
        title: "128 operations in flight, without batches",
        how: "One thread, one shared queue, one engine. Held out.",
        claims: &[],
        draw: |lab| panels(lab, "lightdsa.1e.sg64."),
    },
    Sheet {
        id: "lightdsa-batch",
        source: SOURCE,
        title: "Batches of 32, twenty in flight",
        how: "One thread, one shared queue, one engine. Held out.",
        claims: &[],
        draw: |lab| panels(lab, "lightdsa.1e.batch."),
    },
    Sheet {
        id: "lightdsa-engines",
        source: SOURCE,
        title: "Batches of 32 on four engines, eighty in flight",
        how: "One thread, one shared queue, four engines, a sequential walk over 4 GiB. Held out.",
        claims: &[],
        draw: |lab| panels(lab, "lightdsa.4e.sequential.dsa."),
    },
    Sheet {
        id: "lightdsa-core",
        source: SOURCE,
        title: "The same operations by one core, walking over 4 GiB",
        how: "One core, consecutive operations on uncached memory. Held out except for the end points of each series.",
        claims: &[],
        draw: |lab| {
            let sequential = panel(lab, "sequential", "lightdsa.4e.sequential.cpu.")?;
            Ok(vec![sequential, panel(lab, "random", "lightdsa.4e.random.cpu.")?])
        },
    },
    Sheet {
        id: "lightdsa-unaligned",
        source: SOURCE,
        title: "Copies between unaligned addresses, results read back",
        how: "One thread, one shared queue, four engines, batches of 32; buffers that are not aligned to a line, the \
              Destination Readback flag. Held out.",
        claims: &[],
        draw: |lab| panels(lab, "lightdsa.naive."),
    },
];

fn panels(lab: &Lab, prefix: &str) -> Result<Vec<Panel>> {
    Ok(vec![panel(lab, "", prefix)?])
}

/// All series whose names begin with this prefix, in one chart. They differ at small sizes: both axes are logarithmic.
fn panel(lab: &Lab, title: &str, prefix: &str) -> Result<Panel> {
    let mut drawn = Vec::new();
    for raw in series().iter().filter(|raw| raw.id.starts_with(prefix)) {
        drawn.push(rates(lab, raw.op.clone(), raw.size.iter().copied(), |size| scenario(raw, size))?);
        let measured = raw.mib_per_s.iter().map(|mib| mib * 1_048_576.0 / 1e9);
        drawn.push(published(raw.op.clone(), raw.size.iter().map(|size| f64::from(*size)).zip(measured)));
    }
    Ok(over_sizes(title, axis("throughput", "GB/s", Scale::Log), drawn, Vec::new()))
}
