//! `telpher bench fabric`: messages between two processes, through telpher, libfabric's shm provider and MPIs.
//!
//! ```text
//! Part: tasks, lengths, peers, goals
//!   └─► Peer ── starts two ranks of a measured program ──► Pair ── "pingpong 8 0 1 20000" ──► both ranks
//!   └─► Cell: rounds of turns, a probe of the cores' distance around each ──► medians, verdicts
//! crossovers: for `telpher tune`, over two ranks of the library in threads
//! programs: C over libfabric or MPI, compiled here · library: a rank in Rust, over telpher-fabric
//! ```

mod cells;
pub(crate) mod crossovers;
pub mod library;
mod pair;
mod parts;
mod peer;
mod programs;

use super::BenchError;
use super::folder::Folder;
use super::goal::{Row, Verdict};
use super::point::{Dropped, Drops, Watch, distance};
use super::progress::Budget;
use super::questions::{Answer, Answers};
use crate::options::FabricOptions;
use cells::{Cell, Turn, verdicts};
pub use cells::{Median, bytes, shown};
use pair::{Pair, Times};
pub use parts::{Conditions, Task, Unit};
use parts::{PARTS, Part};
pub use peer::{ALL, Peer};
use programs::Programs;
use serde::Serialize;
use std::time::{Duration, Instant};
use telpher_fabric::copier::DEVICE_VARIABLE;
use telpher_os::Distance;
use telpher_report::machine::Machine;

/// A peer that was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measured {
    /// The peer.
    pub peer: Peer,
    /// The name that its program gave itself.
    pub program: String,
    /// How its long messages travel.
    pub engine: &'static str,
    /// Copies of each byte of a long message.
    pub copies: u32,
}

/// Everything that `telpher bench fabric` measured.
#[derive(Clone, Debug, Serialize)]
pub struct FabricResult {
    /// Verdicts, part by part.
    #[serde(flatten)]
    pub answers: Answers,
    /// Numbers of points that count, and of those that do not.
    pub points: Drops,
    /// The peers.
    pub peers: Vec<Measured>,
    /// Medians of every cell and peer.
    pub medians: Vec<Median>,
}

/// Length of a point. Source: chosen, as long as a time slice; hundreds fit into a run.
const POINT: Duration = Duration::from_millis(5);
/// Length of a probe of the distance. Source: chosen, half of what idle cores need for many samples.
const PROBE: Duration = Duration::from_millis(10);
/// Operations of the first, short turn of a peer in a cell, which only finds how many fit into a point.
const TRIAL: u64 = 3;
/// Most operations of a point. Source: chosen.
const MOST: f64 = 100_000.0;
/// Minimum part of its core that each rank must have had. Source: as for `telpher bench vhost`.
const ATTENDANCE: f64 = 0.96;
/// Rounds with `--quick`.
const QUICK_ROUNDS: usize = 1;

/// Runs the benchmark.
///
/// # Errors
/// A folder cannot be made, or threads cannot be pinned. A peer that fails becomes a remark.
pub fn run(args: &FabricOptions, machine: Machine) -> Result<FabricResult, BenchError> {
    let asked: Vec<&Part> =
        PARTS.iter().filter(|part| args.only.is_empty() || args.only.contains(&part.kind)).collect();
    let cpus = [machine.core(0), machine.core(1)];
    let mut found = Found::new(cpus, args.quick);
    if cpus[0] == cpus[1] {
        let names = asked.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
        found
            .remarks
            .push(format!("Not measured: {names}, because this process has one core, and the ranks need two."));
        return Ok(found.result(machine));
    }
    if cfg!(debug_assertions) {
        found.remarks.push(format!(
            "This is a debug build: the numbers of {} are not those of a release.",
            Peer::Library.name()
        ));
    }
    // It reaches the ranks.
    if let Ok(device) = std::env::var(DEVICE_VARIABLE) {
        found
            .remarks
            .push(format!("{DEVICE_VARIABLE}={device} is set: telpher's provider lets it copy long messages."));
    }
    let begin = Instant::now();
    let folder = Folder::new()?;
    let programs = Programs::compile(folder.path(), args.mpich.as_deref())?;
    // What compiling took is part of the run.
    let seconds = Duration::from_secs_f64(args.seconds).saturating_sub(begin.elapsed());
    let mut budget = Budget::new(seconds, asked.iter().map(|part| part.weight).sum());
    for part in asked {
        let time = budget.step(part.name, part.weight);
        found.measure(part, &programs, &folder, time, machine.cores.len())?;
    }
    budget.finish();
    Ok(found.result(machine))
}

/// The results so far.
struct Found {
    cpus: [usize; 2],
    quick: bool,
    remarks: Vec<String>,
    contests: Vec<Answer>,
    points: Drops,
    peers: Vec<Measured>,
    medians: Vec<Median>,
}

/// A peer that takes part: its ranks, until they fail.
struct MeasuredPeer {
    peer: Peer,
    pair: Option<Pair>,
    /// Operations of a point, by cell; 0 before the first.
    counts: Vec<u64>,
}

impl Found {
    fn new(cpus: [usize; 2], quick: bool) -> Found {
        let remarks = vec![
            format!(
                "The ranks are on cores {} and {}. They take turns of {} ms with those of the other peers, which sleep \
                 meanwhile; numbers are medians over rounds.",
                cpus[0],
                cpus[1],
                POINT.as_millis()
            ),
            "Peers with MPI in their name, and vader, have the MPI's own costs in their numbers; telpher and shm have \
             those of libfabric."
                .to_owned(),
        ];
        let (contests, points, peers, medians) = Default::default();
        Found { cpus, quick, remarks, contests, points, peers, medians }
    }

    /// Measures a part for about `time`.
    fn measure(
        &mut self,
        part: &Part,
        programs: &Programs,
        folder: &Folder,
        time: Duration,
        cores: usize,
    ) -> Result<(), BenchError> {
        let deadline = Instant::now() + time;
        let conditions = part.cells(self.quick);
        let (mut contestants, mut missing) = (Vec::new(), Vec::new());
        for &peer in part.peers {
            match self.start(peer, part, programs, folder) {
                Ok(pair) => {
                    contestants.push(MeasuredPeer { peer, pair: Some(pair), counts: vec![0; conditions.len()] });
                }
                Err(why) => missing.push((peer, why)),
            }
        }
        let mut cells: Vec<Cell> =
            conditions.into_iter().map(|of| Cell { of, unit: part.unit, rounds: Vec::new() }).collect();
        let mut rounds = 0;
        while contestants.iter().any(|contestant| contestant.pair.is_some()) {
            for (at, cell) in cells.iter_mut().enumerate() {
                let turns = self.round(part, &mut contestants, (at, &cell.of), rounds, &mut missing)?;
                cell.rounds.push(turns);
            }
            rounds += 1;
            if Instant::now() >= deadline || (self.quick && rounds >= QUICK_ROUNDS) {
                break;
            }
        }
        let mut rows: Vec<Row> =
            (part.demands)().iter().flat_map(|demand| verdicts(&cells, demand, &missing)).collect();
        if part.unit == Unit::Hidden {
            rows = rows.into_iter().map(|row| without_a_spare_core(row, cores)).collect();
        }
        self.medians.extend(cells.iter().flat_map(|cell| cell.medians(part.peers)));
        for (peer, why) in missing {
            self.remarks.push(format!("Not measured: {}, {}: {why}.", part.name, peer.name()));
        }
        self.contests.push(Answer { name: part.name, question: part.question, rows });
        Ok(())
    }

    /// Starts a peer for a part, or returns why it does not take part.
    fn start(&mut self, peer: Peer, part: &Part, programs: &Programs, folder: &Folder) -> Result<Pair, String> {
        if let Some(why) = peer.missing(programs) {
            return Err(why);
        }
        let pair = peer.start(programs, folder.path(), self.cpus).map_err(|error| error.to_string())?;
        let program = pair.label().to_owned();
        if part.tasks.contains(&Task::Write) && program.contains("no remote access") {
            return Err("its provider offers no remote memory access (FI_RMA)".into());
        }
        if self.peers.iter().all(|measured| measured.peer != peer) {
            let (engine, copies) = peer.engine();
            self.peers.push(Measured { peer, program, engine, copies });
        }
        Ok(pair)
    }

    /// Lets each peer have its turn in a cell; another peer begins in each round.
    fn round(
        &mut self,
        part: &Part,
        contestants: &mut [MeasuredPeer],
        (at, of): (usize, &Conditions),
        number: usize,
        missing: &mut Vec<(Peer, String)>,
    ) -> Result<Vec<Turn>, BenchError> {
        let mut turns = Vec::new();
        let mut before = distance(self.cpus[0], self.cpus[1], PROBE)?;
        for place in 0..contestants.len() {
            let next = (number + place) % contestants.len();
            let contestant = &mut contestants[next];
            let watch = Watch::begin(&[], self.cpus);
            let Some(asked) = contestant.turn(at, of) else { continue };
            let stolen = watch.end();
            let after = distance(self.cpus[0], self.cpus[1], PROBE)?;
            match asked {
                Ok(answer) => {
                    let counts = stolen.and_then(|()| present(&answer.ranks));
                    if let Some(distance) = self.points.judge(before, after, counts) {
                        turns.push(turn(contestant.peer, distance, part.unit.of(answer.value, of.size), &answer.ranks));
                    }
                }
                Err(error) => {
                    // Its earlier points stay.
                    missing.push((contestant.peer, format!("it failed: {error}")));
                    contestant.pair = None;
                }
            }
            before = after;
        }
        Ok(turns)
    }

    fn result(self, machine: Machine) -> FabricResult {
        let Found { mut remarks, contests, points, mut peers, medians, .. } = self;
        peers.sort_by_key(|measured| ALL.iter().position(|peer| *peer == measured.peer));
        let Drops { kept, moved, unknown, absent, stolen } = points;
        if kept + points.all() > 0 {
            remarks.push(format!(
                "Points: {kept} count; {} do not: {moved} because the cores' distance changed, {unknown} because it is \
                 unknown, {absent} because a rank did not have its core, {stolen} because the hypervisor took one.",
                points.all()
            ));
        }
        let answers = Answers { kind: "fabric", machine, remarks, contests };
        FabricResult { answers, points, peers, medians }
    }
}

impl MeasuredPeer {
    /// Works on a cell for the time of a point, or for one operation that takes longer. Returns `None` if the ranks
    /// have failed before.
    fn turn(&mut self, at: usize, of: &Conditions) -> Option<std::io::Result<pair::Answer>> {
        let pair = self.pair.as_mut()?;
        let mut ask = |count: u64| {
            pair.ask(&format!("{} {} {} {} {count}", of.task.name(), of.size, u8::from(of.rewritten), of.window))
        };
        if self.counts[at] == 0 {
            match ask(TRIAL) {
                Ok(answer) => self.counts[at] = count_of(answer.ranks[0].wall / TRIAL as f64),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(ask(self.counts[at]))
    }
}

/// Returns how many operations of this many nanoseconds fit into a point.
fn count_of(ns: f64) -> u64 {
    // `as` saturates; the range is small.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 1 and MOST")]
    let count = (POINT.as_secs_f64() * 1e9 / ns.max(1.0)).clamp(1.0, MOST) as u64;
    count
}

/// Returns whether both ranks had their cores.
fn present(ranks: &[Times; 2]) -> Result<(), Dropped> {
    if ranks.iter().any(|rank| rank.thread < ATTENDANCE * rank.wall) { Err(Dropped::Absent) } else { Ok(()) }
}

fn turn(peer: Peer, distance: Distance, value: f64, ranks: &[Times; 2]) -> Turn {
    let cpus = ranks.iter().map(|rank| rank.process / rank.wall.max(1.0)).sum();
    Turn { peer, distance, value, cpus }
}

/// The ranks need a core each, and the thread that moves messages while they compute needs another one.
const CORES_TO_OVERLAP: usize = 3;

/// Leaves the goal open where no core is free for it.
fn without_a_spare_core(row: Row, cores: usize) -> Row {
    if cores >= CORES_TO_OVERLAP || row.verdict() != Verdict::Short {
        return row;
    }
    let how = format!("{}; this process has {cores} cores, and none is free while both ranks compute", row.how);
    Row { open: true, how, ..row }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::goal::Goal;
    use crate::options::FabricPart;
    use cells::tests::cell;

    /// A result with two peers at two lengths and distances, and verdicts, one of them short.
    pub(crate) fn sample() -> FabricResult {
        use Distance::{Far, Near};
        use Peer::{ShmCma, Telpher};
        let cells = [
            cell(8, false, &[&[(Telpher, Far, 300.0), (ShmCma, Far, 340.0)], &[(Telpher, Near, 120.0)]]),
            cell(1 << 20, true, &[&[(Telpher, Far, 8e4), (ShmCma, Far, 4e4)]]),
        ];
        let part = PARTS.iter().find(|part| part.kind == FabricPart::Long).unwrap();
        let demands = (part.demands)();
        let rows = demands.iter().flat_map(|demand| verdicts(&cells, demand, &[])).collect();
        let contests = vec![Answer { name: "long", question: "How long?", rows }];
        let answers =
            Answers { kind: "fabric", machine: Machine::read(), remarks: vec!["Mind this.".into()], contests };
        let peers = [Telpher, ShmCma].map(|peer| {
            let (engine, copies) = peer.engine();
            Measured { peer, program: "libfabric 1.17".into(), engine, copies }
        });
        let medians = cells.iter().flat_map(|cell| cell.medians(&[Telpher, ShmCma])).collect();
        FabricResult { answers, points: Drops { kept: 5, ..Drops::default() }, peers: peers.into(), medians }
    }

    #[test]
    fn a_point_has_as_many_operations_as_fit_and_at_least_one() {
        assert_eq!([1e3, 1e9, 0.0].map(count_of), [5_000, 1, 100_000]);
    }

    #[test]
    fn a_rank_without_its_core_drops_the_point() {
        let times = |thread| Times { wall: 100.0, thread, process: 2.0 * thread };
        assert_eq!(present(&[times(100.0), times(96.0)]), Ok(()));
        assert_eq!(present(&[times(100.0), times(95.0)]), Err(Dropped::Absent));
        assert_eq!(turn(Peer::Telpher, Distance::Near, 1.0, &[times(100.0), times(50.0)]).cpus, 3.0);
    }

    #[test]
    fn overlap_is_open_only_where_no_core_is_free_and_it_is_short() {
        let row = |measured| Row::new("a", measured, "%", Some(Goal::AtLeast(80.0)), "");
        let verdict = |measured, cores| without_a_spare_core(row(measured), cores).verdict();
        assert_eq!(
            [verdict(10.0, 2), verdict(10.0, 3), verdict(90.0, 2)],
            [Verdict::Open, Verdict::Short, Verdict::Reached]
        );
    }

    #[test]
    fn one_core_measures_nothing_and_says_so() {
        let options = FabricOptions { only: vec![FabricPart::Rate], seconds: 1.0, quick: true, mpich: None };
        let one = Machine { cores: vec![0], ..Machine::read() };
        let result = run(&options, one).unwrap();
        assert!(result.answers.remarks.iter().any(|remark| remark.starts_with("Not measured: rate, because")));
    }
}
