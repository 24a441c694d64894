//! Cells: rounds in which each peer had its turn, their medians, and the verdicts on goals.

use super::parts::{Conditions, Demand, Unit};
use super::peer::Peer;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::point::serialize_distance;
use serde::Serialize;
use telpher_os::Distance;
use telpher_report::units;

/// The result of a peer in one turn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Turn {
    pub(super) peer: Peer,
    pub(super) distance: Distance,
    /// In the part's unit.
    pub(super) value: f64,
    /// CPU time of both ranks, as a multiple of the elapsed time.
    pub(super) cpus: f64,
}

/// The turns of all peers, round by round.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) of: Conditions,
    pub(super) unit: Unit,
    pub(super) rounds: Vec<Vec<Turn>>,
}

/// The median of a peer in a cell, at one distance.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Median {
    /// What was measured.
    #[serde(flatten)]
    pub of: Conditions,
    /// The distance between the cores.
    #[serde(serialize_with = "serialize_distance")]
    pub distance: Distance,
    /// The peer.
    pub peer: Peer,
    /// The median.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
    /// The lowest and the highest value.
    pub range: [f64; 2],
    /// CPU time of both ranks, as a multiple of the elapsed time; the median.
    pub cpus: f64,
    /// Number of points.
    pub points: usize,
}

const DISTANCES: [Distance; 2] = [Distance::Near, Distance::Far];

impl Cell {
    /// Returns the medians of the peers that have points.
    pub(super) fn medians(&self, peers: &[Peer]) -> Vec<Median> {
        let one = |distance: Distance, peer: Peer| {
            let turns =
                || self.rounds.iter().flatten().filter(move |turn| (turn.peer, turn.distance) == (peer, distance));
            let mut values: Vec<f64> = turns().map(|turn| turn.value).collect();
            let value = (!values.is_empty()).then(|| median(&mut values))?;
            let range =
                values.iter().fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(*v), high.max(*v)]);
            let cpus = median(&mut turns().map(|turn| turn.cpus).collect::<Vec<_>>());
            Some(Median { of: self.of, distance, peer, value, unit: self.unit, range, cpus, points: values.len() })
        };
        DISTANCES.iter().flat_map(|&distance| peers.iter().filter_map(move |&peer| one(distance, peer))).collect()
    }

    /// Returns the values of a peer at a distance.
    fn values(&self, peer: Peer, distance: Distance) -> Vec<f64> {
        let turns = self.rounds.iter().flatten().filter(|turn| (turn.peer, turn.distance) == (peer, distance));
        turns.map(|turn| turn.value).collect()
    }

    /// Returns the numbers that a goal is about, for each round at a distance: the peer's, and the best of the others'
    /// (1 if there are no others).
    fn compared(&self, demand: &Demand, distance: Distance) -> Vec<[f64; 2]> {
        let of_round = |round: &Vec<Turn>| {
            let value = |peer: Peer| {
                let turn = round.iter().find(|turn| (turn.peer, turn.distance) == (peer, distance));
                turn.map(|turn| turn.value)
            };
            let mine = value(demand.of)?;
            match demand.by {
                [] => Some([mine, 1.0]),
                by => Some([mine, self.unit.best(by.iter().filter_map(|&peer| value(peer)))?]),
            }
        };
        self.rounds.iter().filter_map(of_round).collect()
    }
}

/// Fewer rounds than this are called few: their median is one of them. Source: chosen.
const FEW: usize = 3;

/// Returns the verdict on a goal for each distance at which it was measured; one row that says why if there is none.
pub(super) fn verdicts(cells: &[Cell], demand: &Demand, missing: &[(Peer, String)]) -> Vec<Row> {
    let is_meant = |cell: &&Cell| {
        demand.sizes.contains(&cell.of.size) && demand.rewritten.is_none_or(|which| which == cell.of.rewritten)
    };
    let meant: Vec<&Cell> = cells.iter().filter(is_meant).collect();
    let why = |peer: &Peer| missing.iter().find(|(of, _)| of == peer).map(|(_, why)| why.as_str());
    let mut rows = Vec::new();
    for distance in DISTANCES.into_iter().filter(|&distance| demand.distance.is_none_or(|only| only == distance)) {
        rows.extend(verdict(&meant, demand, distance, &why));
    }
    if rows.is_empty() {
        let lacks_others = !demand.by.is_empty() && demand.by.iter().all(|peer| why(peer).is_some());
        let how = match why(&demand.of).or_else(|| lacks_others.then(|| why(&demand.by[0])).flatten()) {
            Some(reason) => reason.to_owned(),
            None if meant.is_empty() => "none of its lengths was measured".to_owned(),
            None => {
                let place =
                    demand.distance.map_or(String::new(), |distance| format!(" at the distance {}", distance.name()));
                format!("no round{place} in which all of them count")
            }
        };
        rows.push(Row::new(name(demand, demand.distance), f64::NAN, unit(demand), Some(demand.goal), how));
    }
    rows
}

fn name(demand: &Demand, distance: Option<Distance>) -> String {
    let others = demand.by.iter().map(|peer| peer.name()).collect::<Vec<_>>().join(" or ");
    let of = demand.of.name();
    let place = distance.map(|distance| format!(", {}", distance.name())).unwrap_or_default();
    match demand.by.len() {
        0 => format!("{}{place}: {of}", demand.what),
        1 => format!("{}{place}: {of} by {others}", demand.what),
        _ => format!("{}{place}: {of} by the better of {others}", demand.what),
    }
}

fn unit(demand: &Demand) -> &'static str {
    match (demand.by, demand.goal) {
        ([], _) => "%",
        (_, Goal::AtMost(_)) => "of the time",
        (_, Goal::AtLeast(_)) => "times the rate",
    }
}

/// Returns the row of the cell that is furthest from the goal.
fn verdict<'a>(
    cells: &[&Cell],
    demand: &Demand,
    distance: Distance,
    why: &impl Fn(&Peer) -> Option<&'a str>,
) -> Option<Row> {
    let seen = cells.iter().filter_map(|cell| {
        let numbers = cell.compared(demand, distance);
        let of = |value: fn(&[f64; 2]) -> f64| median(&mut numbers.iter().map(value).collect::<Vec<_>>());
        let ratio = (!numbers.is_empty()).then(|| of(|[mine, other]| mine / other))?;
        Some((*cell, ratio, of(|numbers| numbers[0]), of(|numbers| numbers[1]), numbers.len()))
    });
    let seen: Vec<_> = seen.collect();
    let worst = match demand.goal {
        Goal::AtMost(_) => seen.iter().max_by(|a, b| a.1.total_cmp(&b.1)),
        Goal::AtLeast(_) => seen.iter().min_by(|a, b| a.1.total_cmp(&b.1)),
    };
    let &(cell, ratio, mine, other, rounds) = worst?;
    let buffers = if cell.of.rewritten { "rewritten" } else { "still" };
    let few = if rounds < FEW { ", which is few" } else { "" };
    let mut how = format!("at {}, {buffers}: {}", bytes(cell.of.size), shown(cell.unit, mine));
    if !demand.by.is_empty() {
        how += &format!(" against {}", shown(cell.unit, other));
    }
    let plural = if rounds == 1 { "" } else { "s" };
    how += &format!(", {rounds} round{plural}{few}; the worst of {}", seen.len());
    let absent: Vec<String> =
        demand.by.iter().filter_map(|peer| Some(format!("; without {}: {}", peer.name(), why(peer)?))).collect();
    how += &absent.concat();
    for &peer in demand.beside {
        let mut values = cell.values(peer, distance);
        how += &match values.is_empty() {
            false => format!("; {}: {}", peer.name(), shown(cell.unit, median(&mut values))),
            true => format!("; {} has no points", peer.name()),
        };
    }
    let row = Row::new(name(demand, Some(distance)), ratio, unit(demand), Some(demand.goal), how);
    // The lengths and peers without a number could be worse.
    Some(row.open_if(seen.len() < cells.len() || !absent.is_empty()))
}

/// Formats a value with its unit.
pub fn shown(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Nanoseconds => units::time(value),
        Unit::Bandwidth => units::rate(value),
        Unit::Rate => format!("{} million/s", units::three(value / 1e6)),
        Unit::Hidden => format!("{value:.0} %"),
    }
}

/// Formats a length.
pub fn bytes(len: u64) -> String {
    match len {
        len if len >= 1 << 20 && len % (1 << 20) == 0 => format!("{} MiB", len >> 20),
        len if len >= 1 << 10 && len % (1 << 10) == 0 => format!("{} KiB", len >> 10),
        len => format!("{len} B"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::parts::Task;
    use super::*;
    use crate::goal::Verdict;
    use Distance::{Far, Near};
    use Peer::{ShmCma, ShmSar, Telpher, Vader};

    /// A cell with these rounds, each a list of peers, distances and times.
    pub(in super::super) fn cell(size: u64, rewritten: bool, rounds: &[&[(Peer, Distance, f64)]]) -> Cell {
        let of = Conditions { part: "long", task: Task::PingPong, size, rewritten, window: 1 };
        let turn = |&(peer, distance, value): &(Peer, Distance, f64)| Turn { peer, distance, value, cpus: 2.0 };
        let rounds = rounds.iter().map(|round| round.iter().map(turn).collect()).collect();
        Cell { of, unit: Unit::Nanoseconds, rounds }
    }

    fn demand(by: &'static [Peer], goal: Goal) -> Demand {
        Demand {
            what: "time",
            sizes: 0..=u64::MAX,
            rewritten: None,
            distance: None,
            of: Telpher,
            by,
            goal,
            beside: &[],
        }
    }

    #[test]
    fn the_worst_cell_decides_and_only_rounds_at_one_distance_count() {
        let cells = [
            cell(8, false, &[&[(Telpher, Far, 4.0), (ShmCma, Far, 8.0)], &[(Telpher, Far, 9.0), (ShmCma, Near, 1.0)]]),
            cell(64, true, &[&[(Telpher, Far, 6.0), (ShmCma, Far, 8.0)], &[(Telpher, Near, 2.0), (ShmCma, Near, 1.0)]]),
        ];
        let rows = verdicts(&cells, &demand(&[ShmCma], Goal::AtMost(0.75)), &[]);
        let seen: Vec<_> = rows.iter().map(|row| (row.measured, row.verdict())).collect();
        // Near has a number for one of the two cells.
        assert_eq!(seen, [(2.0, Verdict::Short), (0.75, Verdict::Reached)]);
        assert_eq!(rows[1].what, "time, far: telpher by shm");
        assert_eq!(rows[1].how, "at 64 B, rewritten: 6.00 ns against 8.00 ns, 1 round, which is few; the worst of 2");
    }

    #[test]
    fn the_better_of_the_others_counts_and_a_missing_one_leaves_the_goal_open() {
        let round: &[(Peer, Distance, f64)] = &[(Telpher, Near, 4.0), (ShmCma, Near, 8.0), (ShmSar, Near, 5.0)];
        let cells = [cell(8, false, &[round, round, round])];
        let of_both = demand(&[ShmSar, ShmCma], Goal::AtMost(1.0));
        assert_eq!(verdicts(&cells, &of_both, &[])[0].measured, 0.8);
        let missing = [(Vader, "no mpicc".to_owned())];
        let row = &verdicts(&cells, &demand(&[ShmCma, Vader], Goal::AtMost(1.0)), &missing)[0];
        assert_eq!((row.measured, row.verdict()), (0.5, Verdict::Open));
        assert!(row.how.ends_with("; without vader: no mpicc"), "{}", row.how);
        let row = &verdicts(&cells, &demand(&[Vader], Goal::AtMost(1.0)), &missing)[0];
        assert_eq!((row.measured.is_nan(), row.verdict(), row.how.as_str()), (true, Verdict::Open, "no mpicc"));
    }

    #[test]
    fn peers_beside_a_goal_are_shown_and_change_nothing() {
        let cells = [cell(8, false, &[&[(Telpher, Near, 4.0), (Vader, Near, 8.0), (ShmCma, Near, 6.0)]])];
        let of = Demand { beside: &[ShmCma, ShmSar], ..demand(&[Vader], Goal::AtMost(0.5)) };
        let row = &verdicts(&cells, &of, &[])[0];
        assert_eq!((row.measured, row.verdict()), (0.5, Verdict::Reached));
        assert!(row.how.ends_with("; shm: 6.00 ns; shm without CMA has no points"), "{}", row.how);
    }

    #[test]
    fn a_goal_without_others_is_about_the_value() {
        let cells = [cell(8, false, &[&[(Telpher, Near, 90.0)], &[(Telpher, Near, 70.0)], &[(Telpher, Near, 81.0)]])];
        let row = &verdicts(&cells, &demand(&[], Goal::AtLeast(80.0)), &[])[0];
        assert_eq!((row.measured, row.unit, row.verdict()), (81.0, "%", Verdict::Reached));
    }

    #[test]
    fn medians_are_by_peer_and_distance() {
        let cell = cell(8, false, &[&[(Telpher, Near, 1.0), (ShmCma, Far, 4.0)], &[(Telpher, Near, 3.0)]]);
        let medians = cell.medians(&[Telpher, ShmCma]);
        let seen: Vec<_> = medians.iter().map(|m| (m.peer, m.distance, m.value, m.range, m.points)).collect();
        assert_eq!(seen, [(Telpher, Near, 2.0, [1.0, 3.0], 2), (ShmCma, Far, 4.0, [4.0; 2], 1)]);
    }

    #[test]
    fn lengths_are_named_in_the_largest_unit_that_divides_them() {
        assert_eq!([8, 1536, 4096, 1 << 20].map(bytes), ["8 B", "1536 B", "4 KiB", "1 MiB"]);
    }
}
