//! Kuper et al., ASPLOS 2024: Figures 2 to 15.

mod batches;
mod engines;
mod speedup;

use super::Sheet;

const fn sheet(
    id: &'static str,
    source: &'static str,
    title: &'static str,
    draw: fn(&mut super::pen::Pen) -> Result<super::Drawing, telpher_sim::ScenarioError>,
) -> Sheet {
    Sheet { id, title, source, draw }
}

/// In the order of the paper.
pub(super) const SHEETS: &[Sheet] = &[
    sheet(
        "asplos-2",
        "Kuper et al., ASPLOS 2024, Figure 2",
        "Throughput of operations by the device over that of a core, by transfer size",
        speedup::figure_2,
    ),
    sheet(
        "asplos-3",
        "Kuper et al., ASPLOS 2024, Figure 3",
        "Throughput of copies, one at a time and asynchronous, by transfer size and batch size",
        batches::figure_3,
    ),
    sheet(
        "asplos-4",
        "Kuper et al., ASPLOS 2024, Figure 4",
        "Throughput of asynchronous copies by size of the queue",
        batches::figure_4,
    ),
    sheet(
        "asplos-5",
        "Kuper et al., ASPLOS 2024, Figure 5",
        "Where the latency of 4 KiB copies goes, by batch size",
        batches::figure_5,
    ),
    sheet(
        "asplos-7",
        "Kuper et al., ASPLOS 2024, Figure 7",
        "Throughput of copies by engines of a group",
        engines::figure_7,
    ),
    sheet(
        "asplos-8",
        "Kuper et al., ASPLOS 2024, Figure 8",
        "Throughput of copies by size of the pages they lie in",
        engines::figure_8,
    ),
    sheet(
        "asplos-9",
        "Kuper et al., ASPLOS 2024, Figure 9",
        "Throughput of copies through one queue with batches, several dedicated queues, one shared queue",
        engines::figure_9,
    ),
    sheet(
        "asplos-10",
        "Kuper et al., ASPLOS 2024, Figure 10",
        "Throughput of copies by number of devices",
        engines::figure_10,
    ),
    sheet(
        "asplos-14",
        "Kuper et al., ASPLOS 2024, Figure 14",
        "Throughput for the same bytes in few long or many short descriptors",
        batches::figure_14,
    ),
];
