//! Kuper et al., ASPLOS 2024: Figures 2 to 15, and 19.

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
        how: "One thread, one dedicated queue, one engine, no batches, memory of the device's own socket; compared \
              with one core that does the same in software with cold caches: single operations, or, asynchronously, \
              consecutive operations, each at another address. Synchronous times cover submission and waiting: \
              descriptors are prepared before.",
        claims: &["K-021", "K-022", "K-062"],
        draw: speedup::figure_2,
    },
    Sheet {
        id: "asplos-3",
        source: "Kuper et al., ASPLOS 2024, Figure 3",
        title: "Throughput of copies, one at a time and asynchronous, by batch size (BS)",
        how: "Copies by one thread through one dedicated queue and one engine, unless stated otherwise. BS is the \
              number of descriptors in a batch; with BS 1 each descriptor is submitted alone.",
        claims: &["K-023", "K-024", "K-025", "K-026", "K-027", "K-028", "K-029"],
        draw: batches::figure_3,
    },
    Sheet {
        id: "asplos-4",
        source: "Kuper et al., ASPLOS 2024, Figure 4",
        title: "Throughput of asynchronous copies by size of the queue (WQS)",
        how: "Asynchronous copies by one thread that keeps a dedicated queue with this number of entries full; one \
              engine.",
        claims: &["K-029", "K-030", "K-031", "K-032", "K-069"],
        draw: batches::figure_4,
    },
    Sheet {
        id: "asplos-5",
        source: "Kuper et al., ASPLOS 2024, Figure 5",
        title: "Parts of the latency of 4 KiB copies, by batch size (BS)",
        how: "One batch at a time through one dedicated queue and one engine; the time of a batch is divided by its \
              copies, so all bars compare with a core's copy of 4 KiB. Descriptors exist already: their allocation is \
              not simulated.",
        claims: &["K-033"],
        draw: batches::figure_5,
    },
    Sheet {
        id: "asplos-6",
        source: "Kuper et al., ASPLOS 2024, Figure 6",
        title: "Throughput and latency of copies between memories, one at a time",
        how: "One thread, one dedicated queue, one engine; source and destination in memory of the device's socket (L, \
              or D), of the other socket (R), or of a CXL board (C), in this order. The core's copies begin with cold \
              caches.",
        claims: &["K-034", "K-035", "K-036", "K-037", "K-038", "K-066"],
        draw: memory::figure_6,
    },
    Sheet {
        id: "asplos-7",
        source: "Kuper et al., ASPLOS 2024, Figure 7",
        title: "Throughput of copies by engines of a group",
        how: "Asynchronous copies, 32 in flight, by one thread through one dedicated queue of a group with this number \
              of engines. TS is the transfer size, BS the batch size.",
        claims: &["K-040", "K-041", "K-042"],
        draw: engines::figure_7,
    },
    Sheet {
        id: "asplos-8",
        source: "Kuper et al., ASPLOS 2024, Figure 8",
        title: "Throughput of copies by page size",
        how: "Asynchronous copies, 32 in flight, by one thread through one dedicated queue and one engine; sources and \
              destinations in pages of this size.",
        claims: &["K-039"],
        draw: engines::figure_8,
    },
    Sheet {
        id: "asplos-9",
        source: "Kuper et al., ASPLOS 2024, Figure 9",
        title: "Throughput of copies through one queue with batches, several dedicated queues, one shared queue",
        how: "BS: one thread, one dedicated queue, one engine, batches of this size. DWQ: this number of threads, each \
              with a dedicated queue and an engine of its own. SWQ: this number of threads, one shared queue, one \
              engine. Asynchronous, 32 in flight each.",
        claims: &["K-043", "K-044", "K-045", "K-067", "K-068"],
        draw: engines::figure_9,
    },
    Sheet {
        id: "asplos-10",
        source: "Kuper et al., ASPLOS 2024, Figure 10",
        title: "Throughput of copies by number of devices",
        how: "One thread for each device, each with a dedicated queue and one engine, 32 asynchronous copies in flight \
              each; destinations in the cache (the cache-control hint), or in memory. §4.3 names the overflow of the \
              devices' ways of the cache as the cause of the drop, although §4.1 says that the hint is off.",
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
        title: "Last-level cache in use by readers and copiers",
        how: "Eight instances that read in working sets of 4 MiB; in addition nothing, four cores that copy 4 KiB \
              repeatedly, or four groups of one device that do so in batches of 128. The paper shows a minute; here it \
              is the mean while the instances read.",
        claims: &["K-055", "K-056", "K-057"],
        draw: pollution::figure_12,
    },
    Sheet {
        id: "asplos-13",
        source: "Kuper et al., ASPLOS 2024, Figure 13",
        title: "Memory latency of eight instances while others copy",
        how: "Eight instances that read at random in working sets of this size; in addition nothing, four cores that \
              copy 4 KiB repeatedly, or four groups of one device that do so in batches of 128.",
        claims: &["K-053", "K-054"],
        draw: pollution::figure_13,
    },
    Sheet {
        id: "asplos-14",
        source: "Kuper et al., ASPLOS 2024, Figure 14",
        title: "Throughput for the same bytes in few long or many short descriptors",
        how: "The same total bytes, as one descriptor or as a batch of equal parts; one thread, one dedicated queue, \
              one engine.",
        claims: &["K-060", "K-061"],
        draw: batches::figure_14,
    },
    Sheet {
        id: "asplos-15",
        source: "Kuper et al., ASPLOS 2024, Figure 15",
        title: "Throughput and latency of copies from and to the last-level cache (L) or memory (D)",
        how: "One thread, one dedicated queue, one engine; source and destination in this order. Destinations in the \
              cache are written with the cache-control hint. Asynchronous: 32 in flight; the core's copies are \
              consecutive there, too.",
        claims: &["K-063", "K-064", "K-065"],
        draw: memory::figure_15,
    },
    Sheet {
        id: "offload-19",
        source: "Kuper et al., ASPLOS 2024, Figure 19",
        title: "Rate and tail latency of a cache's gets and sets, with its long copies on devices",
        how: "Threads (s) take turns on cores (h); each operation is 100 ns of work and a copy. 4.8 % of the \
              copies are of 8 KiB or more and have 96.4 % of the bytes; their source is in the last-level cache, \
              their destination in memory. \
              Four shared queues, one on each of four devices; the thread polls until its copy is done. Series: \
              cores only; DTO of 2023, as the paper used it (from 8 KiB on, three retries of a full queue); DTO of \
              2025 (from 64 KiB on, no retry, tunes itself); telpher offload with its defaults (from 16 KiB on, \
              one retry, and only if its rule takes the copied data for uncached). The paper prints no bars of \
              this figure, so only order and shape can be compared. The share of sets and the work of an operation \
              are not printed either: they are assumed.",
        claims: &["K-090", "K-091", "K-092", "K-093", "K-094", "K-095"],
        draw: super::offload::figure_19,
    },
];
