//! The parts of the bench: what is measured, which peers stand beside each other, and the goals.

use super::peer::Peer;
use crate::goal::Goal;
use crate::options::FabricPart;
use serde::{Serialize, Serializer};
use std::ops::RangeInclusive;
use telpher_os::Distance;

/// What both ranks do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// One message there, one back.
    PingPong,
    /// Windows of messages in one direction.
    Stream,
    /// Windows of writes to the other rank's memory.
    Write,
    /// Windows of reads from the other rank's memory.
    Read,
    /// Sums of floats.
    AllReduce,
    /// A message in each direction while both ranks compute.
    Overlap,
}

impl Serialize for Task {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Task {
    /// Returns its name, as the programs know it.
    pub fn name(self) -> &'static str {
        match self {
            Task::PingPong => "pingpong",
            Task::Stream => "stream",
            Task::Write => "write",
            Task::Read => "read",
            Task::AllReduce => "allreduce",
            Task::Overlap => "overlap",
        }
    }
}

/// The unit of a part's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Unit {
    /// Nanoseconds; less is better.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Bytes per second.
    #[serde(rename = "B/s")]
    Bandwidth,
    /// Messages per second.
    #[serde(rename = "messages/s")]
    Rate,
    /// Per cent of the exchange's time that is hidden.
    #[serde(rename = "%")]
    Hidden,
}

impl Unit {
    /// Converts what rank 0 answers.
    pub(super) fn of(self, answer: f64, size: u64) -> f64 {
        match self {
            Unit::Nanoseconds | Unit::Hidden => answer,
            Unit::Bandwidth => 1e9 * size as f64 / answer,
            Unit::Rate => 1e9 / answer,
        }
    }

    /// Returns the best of some values.
    pub(super) fn best(self, values: impl Iterator<Item = f64>) -> Option<f64> {
        match self {
            Unit::Nanoseconds => values.reduce(f64::min),
            _ => values.reduce(f64::max),
        }
    }
}

/// What is measured in one cell of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Conditions {
    /// The part's name.
    pub part: &'static str,
    /// What both ranks do.
    pub task: Task,
    /// Bytes of a message.
    pub size: u64,
    /// True if the sender changes each cache line of its buffer before each send.
    pub rewritten: bool,
    /// Messages under way at once.
    pub window: u64,
}

/// A goal, over the cells of a part.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// The quantity.
    pub(super) what: &'static str,
    /// The lengths.
    pub(super) sizes: RangeInclusive<u64>,
    /// The buffers: still, rewritten, or both.
    pub(super) rewritten: Option<bool>,
    /// The distance, or both.
    pub(super) distance: Option<Distance>,
    /// The measured peer.
    pub(super) of: Peer,
    /// The peers it is compared with: the best of them counts. Without any, the value itself counts.
    pub(super) by: &'static [Peer],
    /// The limit of the ratio, or of the value.
    pub(super) goal: Goal,
    /// Peers whose values are shown beside, because they say what limits the measured one.
    pub(super) beside: &'static [Peer],
}

/// A part of the bench.
pub(super) struct Part {
    pub(super) kind: FabricPart,
    pub(super) name: &'static str,
    pub(super) question: &'static str,
    /// Its share of the measuring time.
    pub(super) weight: f64,
    pub(super) unit: Unit,
    pub(super) peers: &'static [Peer],
    /// The tasks, the lengths, and the lengths with `--quick`.
    pub(super) tasks: &'static [Task],
    pub(super) sizes: &'static [u64],
    pub(super) quick: &'static [u64],
    /// False if only still buffers are measured.
    pub(super) rewrites: bool,
    /// Most messages under way at once.
    pub(super) window: u64,
    pub(super) demands: fn() -> Vec<Demand>,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Most bytes of a window. Source: chosen; each rank has as much for messages that are rewritten.
const WINDOW_BYTES: u64 = 64 * MIB;

impl Part {
    /// Returns the cells of its table.
    pub(super) fn cells(&self, quick: bool) -> Vec<Conditions> {
        let sizes = if quick { self.quick } else { self.sizes };
        let buffers = if self.rewrites { &[false, true][..] } else { &[false] };
        let of_task = |&task: &Task| {
            sizes.iter().flat_map(move |&size| {
                let window = self.window.min(WINDOW_BYTES / size).max(1);
                buffers.iter().map(move |&rewritten| Conditions { part: self.name, task, size, rewritten, window })
            })
        };
        self.tasks.iter().flat_map(of_task).collect()
    }
}

/// Creates a goal for both kinds of buffers and both distances.
fn demand(what: &'static str, sizes: RangeInclusive<u64>, of: Peer, by: &'static [Peer], goal: Goal) -> Demand {
    Demand { what, sizes, rewritten: None, distance: None, of, by, goal, beside: &[] }
}

/// Source of all goals: what telpher's message passing must reach; docs/fabric.md has the table.
fn latency() -> Vec<Demand> {
    let what = "half round trip, 8 B to 4 KiB";
    vec![
        demand(what, 8..=4 * KIB, Peer::Telpher, &[Peer::ShmCma], Goal::AtMost(1.0)),
        demand(what, 8..=4 * KIB, Peer::Telpher, &[Peer::Vader], Goal::AtMost(1.1)),
    ]
}

fn long() -> Vec<Demand> {
    let rewritten = |distance, what, sizes, by, most| Demand {
        rewritten: Some(true),
        distance: Some(distance),
        ..demand(what, sizes, Peer::Telpher, by, Goal::AtMost(most))
    };
    let (far, near) = (Distance::Far, Distance::Near);
    let (middle, mib) = ("half round trip, 16 to 512 KiB, rewritten", "half round trip, 1 MiB, rewritten");
    let both: &'static [Peer] = &[Peer::ShmSar, Peer::ShmCma];
    vec![
        rewritten(far, middle, 16 * KIB..=512 * KIB, &[Peer::ShmSar], 0.35),
        rewritten(far, middle, 16 * KIB..=512 * KIB, &[Peer::ShmCma], 0.5),
        rewritten(far, mib, MIB..=MIB, &[Peer::ShmSar], 0.45),
        rewritten(far, mib, MIB..=MIB, &[Peer::ShmCma], 0.5),
        rewritten(near, "half round trip, 16 to 128 KiB, rewritten", 16 * KIB..=128 * KIB, both, 0.8),
        rewritten(near, "half round trip, 256 KiB and more, rewritten", 256 * KIB..=u64::MAX, both, 1.3),
        Demand {
            rewritten: Some(false),
            ..demand(
                "half round trip, 1 MiB and more, still",
                MIB..=u64::MAX,
                Peer::Telpher,
                &[Peer::ShmCma],
                Goal::AtMost(1.1),
            )
        },
        demand(
            "half round trip, 64 KiB and more, without CMA",
            64 * KIB..=u64::MAX,
            Peer::Telpher,
            &[Peer::ShmSar],
            Goal::AtMost(0.5),
        ),
        demand(
            "half round trip, 64 KiB and more, without CMA",
            64 * KIB..=u64::MAX,
            Peer::Telpher,
            &[Peer::VaderNoCma],
            Goal::AtMost(0.5),
        ),
        // Source: chosen; the receiver measures both ways, and its trials of the slower one take time.
        demand(
            "half round trip, 256 KiB and more",
            256 * KIB..=u64::MAX,
            Peer::TelpherMapped,
            &[Peer::Telpher],
            Goal::AtMost(1.1),
        ),
    ]
}

fn rate() -> Vec<Demand> {
    let what = "messages of 8 B a second";
    let better: &'static [Peer] = &[Peer::Vader, Peer::Ucx];
    vec![
        demand(what, 8..=8, Peer::Telpher, &[Peer::ShmCma], Goal::AtLeast(1.0)),
        // What the MPI's own layer over libfabric costs is part of these; it is seen with libfabric's provider, too.
        Demand { beside: &[Peer::OpenMpiShm], ..demand(what, 8..=8, Peer::OpenMpi, better, Goal::AtLeast(0.8)) },
        Demand { beside: &[Peer::MpichShm], ..demand(what, 8..=8, Peer::Mpich, better, Goal::AtLeast(0.8)) },
    ]
}

fn all_reduce() -> Vec<Demand> {
    let what = "sum of floats, 64 KiB and 1 MiB";
    let of = |of, by, most| demand(what, 0..=u64::MAX, of, by, Goal::AtMost(most));
    vec![
        of(Peer::OpenMpiCollectives, &[Peer::Vader], 0.5),
        of(Peer::OpenMpiCollectives, &[Peer::Ucx], 1.0),
        of(Peer::MpichCollectives, &[Peer::Vader], 0.5),
        of(Peer::MpichCollectives, &[Peer::Ucx], 1.0),
    ]
}

fn overlap() -> Vec<Demand> {
    let what = "part of an exchange of 1 MiB that computing hides";
    vec![demand(what, 0..=u64::MAX, Peer::TelpherHelper, &[], Goal::AtLeast(80.0))]
}

fn none() -> Vec<Demand> {
    Vec::new()
}

/// All parts, in the order in which they are measured.
pub(super) const PARTS: &[Part] = &[
    Part {
        kind: FabricPart::Latency,
        name: "latency",
        question: "How long does a short message take, by half a round trip?",
        weight: 2.0,
        unit: Unit::Nanoseconds,
        peers: &[Peer::Telpher, Peer::ShmCma, Peer::Vader, Peer::Ucx, Peer::Library],
        tasks: &[Task::PingPong],
        sizes: &[8, 64, KIB, 4 * KIB],
        quick: &[8, 4 * KIB],
        rewrites: true,
        window: 1,
        demands: latency,
    },
    Part {
        kind: FabricPart::Long,
        name: "long",
        question: "How long does a longer message take, by half a round trip?",
        weight: 4.0,
        unit: Unit::Nanoseconds,
        peers: &[
            Peer::Telpher,
            Peer::TelpherMapped,
            Peer::ShmCma,
            Peer::ShmSar,
            Peer::Vader,
            Peer::VaderNoCma,
            Peer::Ucx,
            Peer::Library,
        ],
        tasks: &[Task::PingPong],
        sizes: &[16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB],
        quick: &[16 * KIB, 128 * KIB, MIB],
        rewrites: true,
        window: 1,
        demands: long,
    },
    Part {
        kind: FabricPart::Bandwidth,
        name: "bandwidth",
        question: "How many bytes a second go one way, with up to 64 messages under way?",
        weight: 1.5,
        unit: Unit::Bandwidth,
        peers: &[Peer::Telpher, Peer::ShmSar, Peer::VaderNoCma],
        tasks: &[Task::Stream],
        sizes: &[4 * KIB, 64 * KIB, MIB, 16 * MIB],
        quick: &[64 * KIB],
        rewrites: true,
        window: 64,
        demands: none,
    },
    Part {
        kind: FabricPart::Rma,
        name: "rma",
        question: "How many bytes a second are written to and read from the other process's memory?",
        weight: 1.5,
        unit: Unit::Bandwidth,
        peers: &[Peer::Telpher, Peer::ShmSar],
        tasks: &[Task::Write, Task::Read],
        sizes: &[4 * KIB, 64 * KIB, MIB, 16 * MIB],
        quick: &[64 * KIB],
        rewrites: true,
        window: 64,
        demands: none,
    },
    Part {
        kind: FabricPart::Rate,
        name: "rate",
        question: "How many messages of 8 bytes a second go one way, with 16 under way?",
        weight: 0.5,
        unit: Unit::Rate,
        peers: &[
            Peer::Telpher,
            Peer::ShmCma,
            Peer::Vader,
            Peer::Ucx,
            Peer::OpenMpi,
            Peer::OpenMpiShm,
            Peer::Mpich,
            Peer::MpichShm,
            Peer::Library,
        ],
        tasks: &[Task::Stream],
        sizes: &[8],
        quick: &[8],
        rewrites: false,
        window: 16,
        demands: rate,
    },
    Part {
        kind: FabricPart::Allreduce,
        name: "allreduce",
        question: "How long does a sum over two ranks take?",
        weight: 1.0,
        unit: Unit::Nanoseconds,
        peers: &[Peer::OpenMpiCollectives, Peer::MpichCollectives, Peer::OpenMpi, Peer::Mpich, Peer::Vader, Peer::Ucx],
        tasks: &[Task::AllReduce],
        sizes: &[64 * KIB, MIB],
        quick: &[64 * KIB],
        rewrites: true,
        window: 1,
        demands: all_reduce,
    },
    Part {
        kind: FabricPart::Overlap,
        name: "overlap",
        question: "Which part of an exchange of 1 MiB in both directions does computing hide?",
        weight: 1.0,
        unit: Unit::Hidden,
        peers: &[Peer::TelpherHelper, Peer::Telpher, Peer::ShmSar, Peer::Vader, Peer::Ucx],
        tasks: &[Task::Overlap],
        sizes: &[MIB],
        quick: &[MIB],
        rewrites: false,
        window: 1,
        demands: overlap,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_at_most_64_mib_and_every_part_has_cells() {
        for part in PARTS {
            for cell in part.cells(false).into_iter().chain(part.cells(true)) {
                assert!(
                    cell.size % 8 == 0 && (1..=64).contains(&cell.window) && cell.window * cell.size <= WINDOW_BYTES
                );
            }
            assert!(part.cells(true).len() <= part.cells(false).len() && part.question.ends_with('?'));
        }
        let bandwidth = PARTS.iter().find(|part| part.kind == FabricPart::Bandwidth).unwrap().cells(false);
        let windows: Vec<u64> = bandwidth.iter().filter(|cell| !cell.rewritten).map(|cell| cell.window).collect();
        assert_eq!(windows, [64, 64, 64, 4]);
    }

    #[test]
    fn every_goal_is_about_peers_and_lengths_of_its_part() {
        for part in PARTS {
            for demand in (part.demands)() {
                assert!(
                    demand.by.iter().chain(demand.beside).chain([&demand.of]).all(|peer| part.peers.contains(peer)),
                    "{demand:?}"
                );
                for quick in [false, true] {
                    let is_meant = |cell: &Conditions| {
                        demand.sizes.contains(&cell.size)
                            && demand.rewritten.is_none_or(|which| which == cell.rewritten)
                    };
                    let all = part.cells(quick);
                    assert!(all.iter().any(is_meant) || quick, "{demand:?}");
                }
            }
        }
    }

    #[test]
    fn answers_become_rates_and_the_best_is_the_lowest_time_or_the_highest_rate() {
        assert_eq!(Unit::Bandwidth.of(2.0, 8), 4e9);
        assert_eq!(Unit::Rate.of(100.0, 8), 1e7);
        assert_eq!(Unit::Nanoseconds.best([3.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(Unit::Rate.best([3.0, 2.0].into_iter()), Some(3.0));
        assert_eq!(Unit::Hidden.best(std::iter::empty()), None);
    }
}
