//! Kuper et al., ASPLOS 2024: Figures 2 to 15.

mod batches;
mod cycles;
mod engines;
mod memory;
mod pollution;
mod speedup;

use super::Sheet;

/// In the order of the paper.
pub(super) const SHEETS: &[Sheet] = &[
    Sheet {
        id: "asplos-2",
        source: "Kuper et al., ASPLOS 2024, Figure 2",
        title: "Throughput of operations by the device over that of a core",
        how: "One thread, one dedicated queue, one engine, no batches, memory of the device's own socket; against one core that does \
              the same in software, with nothing in its caches: each operation by itself, or, asynchronously, one after the other, each \
              at another place. One at a time, what counts is submitting and waiting: descriptors are prepared before.",
        claims: &["K-021", "K-022", "K-062"],
        draw: speedup::figure_2,
    },
    Sheet {
        id: "asplos-3",
        source: "Kuper et al., ASPLOS 2024, Figure 3",
        title: "Throughput of copies, one at a time and asynchronous, by batch size (BS)",
        how: "Copies by one thread through one dedicated queue and one engine, where nothing else is said. BS is the number \
              of descriptors in a batch; BS 1 submits each by itself.",
        claims: &["K-023", "K-024", "K-025", "K-026", "K-027", "K-028", "K-029"],
        draw: batches::figure_3,
    },
    Sheet {
        id: "asplos-4",
        source: "Kuper et al., ASPLOS 2024, Figure 4",
        title: "Throughput of asynchronous copies by size of the queue (WQS)",
        how: "Asynchronous copies by one thread that keeps a dedicated queue of so many entries full; one engine.",
        claims: &["K-029", "K-030", "K-031", "K-032", "K-069"],
        draw: batches::figure_4,
    },
    Sheet {
        id: "asplos-5",
        source: "Kuper et al., ASPLOS 2024, Figure 5",
        title: "Where the latency of 4 KiB copies goes, by batch size (BS)",
        how: "One batch at a time through one dedicated queue and one engine; the time of a batch is divided by its copies, so that \
              all bars compare with a core's copy of 4 KiB. Descriptors are there already: their allocation is not simulated.",
        claims: &["K-033"],
        draw: batches::figure_5,
    },
    Sheet {
        id: "asplos-6",
        source: "Kuper et al., ASPLOS 2024, Figure 6",
        title: "Throughput and latency of copies between memories, one at a time",
        how: "One thread, one dedicated queue, one engine; source and destination in memory of the device's socket (L, or D), of the other \
              socket (R), or of a CXL board (C), in this order. The core's copies begin with nothing in its caches.",
        claims: &["K-034", "K-035", "K-036", "K-037", "K-038", "K-066"],
        draw: memory::figure_6,
    },
    Sheet {
        id: "asplos-7",
        source: "Kuper et al., ASPLOS 2024, Figure 7",
        title: "Throughput of copies by engines of a group",
        how: "Asynchronous copies, 32 in flight, by one thread through one dedicated queue of a group with so many engines. TS is the \
              transfer size, BS the batch size.",
        claims: &["K-040", "K-041", "K-042"],
        draw: engines::figure_7,
    },
    Sheet {
        id: "asplos-8",
        source: "Kuper et al., ASPLOS 2024, Figure 8",
        title: "Throughput of copies by size of the pages they lie in",
        how: "Asynchronous copies, 32 in flight, by one thread through one dedicated queue and one engine; sources and destinations in \
              pages of this size.",
        claims: &["K-039"],
        draw: engines::figure_8,
    },
    Sheet {
        id: "asplos-9",
        source: "Kuper et al., ASPLOS 2024, Figure 9",
        title: "Throughput of copies through one queue with batches, several dedicated queues, one shared queue",
        how: "BS: one thread, one dedicated queue, one engine, batches of so many. DWQ: so many threads, each with a dedicated queue and \
              an engine of its own. SWQ: so many threads, one shared queue, one engine. Asynchronous, 32 in flight each.",
        claims: &["K-043", "K-044", "K-045", "K-067", "K-068"],
        draw: engines::figure_9,
    },
    Sheet {
        id: "asplos-10",
        source: "Kuper et al., ASPLOS 2024, Figure 10",
        title: "Throughput of copies by number of devices",
        how: "One thread for each device, each with a dedicated queue and one engine, 32 asynchronous copies in flight each; destinations in \
              the cache (the cache-control hint), or in memory. §4.3 names the overflow of the devices' ways of the cache as the cause of \
              the drop, though §4.1 says that the hint is off.",
        claims: &["K-046", "K-047", "K-048", "K-049", "K-050"],
        draw: engines::figure_10,
    },
    Sheet {
        id: "asplos-11",
        source: "Kuper et al., ASPLOS 2024, Figure 11",
        title: "Cycles of a core in UMWAIT while the device copies, by batch size (BS)",
        how: "One batch of copies at a time through one dedicated queue and one engine; the core waits in UMWAIT.",
        claims: &["K-051", "K-052"],
        draw: cycles::figure_11,
    },
    Sheet {
        id: "asplos-12",
        source: "Kuper et al., ASPLOS 2024, Figure 12",
        title: "Last-level cache held by those who read and those who copy",
        how: "Eight instances that read in working sets of 4 MiB; beside them nobody, four cores that copy 4 KiB again and again, or four \
              groups of one device that do, in batches of 128. The paper shows a minute; here it is the mean while the instances read.",
        claims: &["K-055", "K-056", "K-057"],
        draw: pollution::figure_12,
    },
    Sheet {
        id: "asplos-13",
        source: "Kuper et al., ASPLOS 2024, Figure 13",
        title: "Latency of memory that eight instances see while others copy",
        how: "Eight instances that read at random in working sets of this size; beside them nobody, four cores that copy 4 KiB again and \
              again, or four groups of one device that do, in batches of 128.",
        claims: &["K-053", "K-054"],
        draw: pollution::figure_13,
    },
    Sheet {
        id: "asplos-14",
        source: "Kuper et al., ASPLOS 2024, Figure 14",
        title: "Throughput for the same bytes in few long or many short descriptors",
        how: "The same bytes altogether, as one descriptor or as a batch of so many, each of an equal part; one thread, one dedicated \
              queue, one engine.",
        claims: &["K-060", "K-061"],
        draw: batches::figure_14,
    },
    Sheet {
        id: "asplos-15",
        source: "Kuper et al., ASPLOS 2024, Figure 15",
        title: "Throughput and latency of copies from and to the last-level cache (L) or memory (D)",
        how: "One thread, one dedicated queue, one engine; source and destination in this order. What is to land in the cache is written \
              with the cache-control hint. Asynchronous: 32 in flight; the core's copies follow each other there, too.",
        claims: &["K-063", "K-064", "K-065"],
        draw: memory::figure_15,
    },
];
