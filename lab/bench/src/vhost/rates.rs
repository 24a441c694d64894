//! Rates by ring, traffic, length and distance: observed values, medians, ratios and verdicts.

use super::super::goal::{Goal, Row};
use super::super::measure::median;
use super::COPIES;
use crate::point::{Kept, serialize_distance};
use serde::Serialize;
use telpher_os::Distance;

/// The conditions of a rate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct RateConditions {
    /// The compared group: [`super::COPIES`], or the place of an engine's thread.
    pub part: &'static str,
    /// The ring, as `--ring` names it.
    pub ring: &'static str,
    /// The traffic, as `--traffic` names it.
    pub traffic: &'static str,
    /// Bytes of a packet.
    pub size: u32,
    /// The distance between the cores.
    #[serde(serialize_with = "serialize_distance")]
    pub distance: Distance,
}

/// The rate of one competitor under these conditions.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rate {
    /// The conditions.
    #[serde(flatten)]
    pub place: RateConditions,
    /// The competitor's name.
    pub backend: &'static str,
    /// Million packets per second, the median.
    pub mpps: f64,
    /// The lowest and the highest observed rate.
    pub range: [f64; 2],
    /// The part of the bytes that its device copied, the median; `None` without a device that reports it.
    pub share: Option<f64>,
    /// Number of points.
    pub points: usize,
}

/// The comparison of two competitors under the same conditions.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// The conditions.
    #[serde(flatten)]
    pub place: RateConditions,
    /// The competitor whose rate is the numerator.
    pub of: &'static str,
    /// The competitor whose rate is the denominator.
    pub by: &'static str,
    /// Median over rounds in which both points count, at one distance.
    pub ratio: f64,
    /// Number of these rounds.
    pub rounds: usize,
}

/// Rates of the competitors, round by round, in one cell of the grid.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) part: &'static str,
    pub(super) ring: &'static str,
    pub(super) traffic: &'static str,
    pub(super) size: u32,
    /// Each round's points, indexed by competitor.
    pub(super) rounds: Vec<Vec<Option<Kept>>>,
}

const DISTANCES: [Distance; 3] = [Distance::Near, Distance::Far, Distance::Same];

impl Cell {
    fn place(&self, distance: Distance) -> RateConditions {
        RateConditions { part: self.part, ring: self.ring, traffic: self.traffic, size: self.size, distance }
    }

    /// Returns the medians of the competitors that have points.
    pub(super) fn rates(&self, names: &[&'static str]) -> Vec<Rate> {
        let one = |distance, backend: usize| {
            let kept =
                || self.rounds.iter().filter_map(|round| round[backend].filter(|kept| kept.distance == distance));
            let mut values: Vec<f64> = kept().map(|kept| kept.value).collect();
            let mut shares: Vec<f64> = kept().filter_map(|kept| kept.share).collect();
            let share = (!shares.is_empty()).then(|| median(&mut shares));
            let mpps = (!values.is_empty()).then(|| median(&mut values))?;
            let range = values.iter().fold([f64::INFINITY, 0.0_f64], |[low, high], v| [low.min(*v), high.max(*v)]);
            let (place, points) = (self.place(distance), values.len());
            Some(Rate { place, backend: names[backend], mpps, range, share, points })
        };
        DISTANCES
            .iter()
            .flat_map(|&distance| (0..names.len()).filter_map(move |backend| one(distance, backend)))
            .collect()
    }

    /// Returns the median ratios of two competitors.
    pub(super) fn ratios(&self, names: &[&'static str], of: usize, by: usize) -> Vec<Ratio> {
        let one = |&distance: &Distance| {
            let both = self.rounds.iter().filter_map(|round| Some((round[of]?, round[by]?)));
            let like = both.filter(|(of, by)| of.distance == distance && by.distance == distance);
            let mut ratios: Vec<f64> = like.map(|(of, by)| of.value / by.value).collect();
            let rounds = ratios.len();
            let ratio = (rounds > 0).then(|| median(&mut ratios))?;
            Some(Ratio { place: self.place(distance), of: names[of], by: names[by], ratio, rounds })
        };
        DISTANCES.iter().filter_map(one).collect()
    }
}

/// The ratios that a comparison must reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequiredRatio {
    /// Minimum of the median over lengths.
    pub(super) median: Option<f64>,
    /// Minimum at each length.
    pub(super) least: f64,
}

/// The requested cells.
#[derive(Clone, Debug)]
pub(super) struct RequestedCells {
    /// Names of the rings.
    pub(super) rings: Vec<&'static str>,
    /// Names of the traffic kinds.
    pub(super) traffic: Vec<&'static str>,
    /// Lengths of packets in bytes.
    pub(super) sizes: Vec<u32>,
    /// Requested number of rounds.
    pub(super) rounds: u32,
}

/// Fewer pairs of points than this are called few: their median is one of them. Source: chosen.
const FEW: usize = 3;

/// Returns the number of pairs in words, and says if it is few.
pub(super) fn pairs(count: usize) -> String {
    let few = if count < FEW { ", which is few" } else { "" };
    format!("{count} {}{few}", if count == 1 { "pair" } else { "pairs" })
}

/// Returns the reason why nothing was measured.
pub(super) fn none_of(rounds: u32) -> String {
    format!("no pair of points counts, of {rounds} {}", if rounds == 1 { "round" } else { "rounds" })
}

/// Returns the verdicts of one comparison, by ring, traffic and distance. A ring and traffic without a pair of points
/// that counts gets a row that says so.
pub(super) fn verdicts(
    ratios: &[Ratio],
    part: &'static str,
    pair: [&'static str; 2],
    demand: RequiredRatio,
    asked: &RequestedCells,
) -> Vec<Row> {
    let is_mine = |ratio: &&Ratio| (ratio.place.part, [ratio.of, ratio.by]) == (part, pair);
    let mine: Vec<&Ratio> = ratios.iter().filter(is_mine).collect();
    let mut rows = Vec::new();
    for (ring, traffic) in
        asked.rings.iter().flat_map(|ring| asked.traffic.iter().map(move |traffic| (*ring, *traffic)))
    {
        let place = if part == COPIES { format!("{ring} {traffic}") } else { format!("{part}, {ring} {traffic}") };
        let before = rows.len();
        for distance in DISTANCES {
            let is_here = |ratio: &&&Ratio| {
                (ratio.place.ring, ratio.place.traffic, ratio.place.distance) == (ring, traffic, distance)
            };
            let here: Vec<&Ratio> = mine.iter().filter(is_here).copied().collect();
            if !here.is_empty() {
                let name = format!("{place}, {}: {} by {}", distance.name(), pair[0], pair[1]);
                rows.extend(verdict(&name, &here, demand, asked));
            }
        }
        if rows.len() == before {
            let (name, how) = (format!("{place}: {} by {}, lowest", pair[0], pair[1]), none_of(asked.rounds));
            rows.push(Row::new(name, f64::NAN, TIMES, Some(Goal::AtLeast(demand.least)), how));
        }
    }
    rows
}

/// The unit of a ratio.
const TIMES: &str = "times the rate";

/// Returns the verdicts of one ring, traffic and distance with at least one ratio. A verdict is open if a length
/// without a ratio could change it.
fn verdict(name: &str, here: &[&Ratio], demand: RequiredRatio, asked: &RequestedCells) -> Vec<Row> {
    let mut values: Vec<f64> = here.iter().map(|ratio| ratio.ratio).collect();
    let least = here.iter().min_by(|a, b| a.ratio.total_cmp(&b.ratio)).expect("callers have one");
    let without = asked.sizes.iter().filter(|size| here.iter().all(|ratio| ratio.place.size != **size));
    let without: Vec<String> = without.map(|size| format!("{size} B")).collect();
    let incomplete = !without.is_empty();
    let lengths = match incomplete {
        false => format!("{} lengths", here.len()),
        true => format!("{} of {} lengths, none of {}", here.len(), asked.sizes.len(), without.join(", ")),
    };
    let fewest = here.iter().map(|ratio| ratio.rounds).min().unwrap_or(0);
    let mut rows = Vec::new();
    if let Some(goal) = demand.median {
        let over = format!("{lengths}; at the length with the fewest {}", pairs(fewest));
        let row = Row::new(
            format!("{name}, median over lengths"),
            median(&mut values),
            TIMES,
            Some(Goal::AtLeast(goal)),
            over,
        );
        // The missing lengths could move the median to either side of the goal.
        rows.push(Row { open: row.open || incomplete, ..row });
    }
    let how = format!("at {} B, {}; of {lengths}", least.place.size, pairs(least.rounds));
    let row = Row::new(format!("{name}, lowest"), least.ratio, TIMES, Some(Goal::AtLeast(demand.least)), how);
    rows.push(row.open_if(incomplete));
    rows
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::super::goal::Verdict;
    use super::*;
    use Distance::{Far, Near};

    fn cell() -> Cell {
        let kept = |distance, value| Some(Kept { distance, value, share: (distance == Far).then_some(value / 10.0) });
        let rounds = vec![
            vec![kept(Far, 4.0), kept(Far, 2.0)],
            vec![kept(Far, 3.0), kept(Far, 3.0)],
            // One competitor lost its core, and in the next round the distance changed between the two.
            vec![kept(Far, 9.0), None],
            vec![kept(Near, 8.0), kept(Far, 1.0)],
            vec![kept(Far, 6.0), kept(Far, 4.0)],
        ];
        Cell { part: COPIES, ring: "split", traffic: "loop", size: 64, rounds }
    }

    #[test]
    fn medians_are_per_distance_and_ratios_per_round() {
        let rates = cell().rates(&["a", "b"]);
        let seen: Vec<_> =
            rates.iter().map(|rate| (rate.place.distance, rate.backend, rate.mpps, rate.points)).collect();
        assert_eq!(seen, [(Near, "a", 8.0, 1), (Far, "a", 5.0, 4), (Far, "b", 2.5, 4)]);
        assert_eq!(rates[1].range, [3.0, 9.0]);
        assert_eq!((rates[0].share, rates[1].share), (None, Some(0.5)));
        let ratios = cell().ratios(&["a", "b"], 0, 1);
        assert_eq!(ratios.len(), 1);
        assert_eq!((ratios[0].place.distance, ratios[0].ratio, ratios[0].rounds), (Far, 1.5, 3));
    }

    /// A ratio of "a" by "b" in a split ring's loop.
    pub(crate) fn ratio(size: u32, distance: Distance, ratio: f64) -> Ratio {
        let place = RateConditions { part: COPIES, ring: "split", traffic: "loop", size, distance };
        Ratio { place, of: "a", by: "b", ratio, rounds: 5 }
    }

    /// A request for these lengths in a split ring's loop.
    pub(crate) fn asked(sizes: &[u32]) -> RequestedCells {
        RequestedCells { rings: vec!["split"], traffic: vec!["loop"], sizes: sizes.to_vec(), rounds: 5 }
    }

    const DEMAND: RequiredRatio = RequiredRatio { median: Some(1.0), least: 0.9 };

    #[test]
    fn each_distance_has_its_own_verdict_and_the_limit_is_inclusive() {
        let ratios = [ratio(64, Far, 0.9), ratio(512, Far, 1.0), ratio(1518, Far, 1.3), ratio(64, Near, 0.89)];
        let rows = verdicts(&ratios, COPIES, ["a", "b"], DEMAND, &asked(&[64, 512, 1518]));
        let seen: Vec<_> = rows.iter().map(|row| (row.measured, row.verdict())).collect();
        // Near: the missing lengths could have any ratio, so the median is open; the lowest is already short.
        let near = [(0.89, Verdict::Open), (0.89, Verdict::Short)];
        assert_eq!(seen, [&near[..], &[(1.0, Verdict::Reached), (0.9, Verdict::Reached)]].concat());
        assert!(rows[3].what.starts_with("split loop, far: a by b, lowest"));
        assert_eq!(rows[3].how, "at 64 B, 5 pairs; of 3 lengths");
        assert_eq!(rows[1].how, "at 64 B, 5 pairs; of 1 of 3 lengths, none of 512 B, 1518 B");
    }

    #[test]
    fn without_a_pair_the_row_is_open_and_few_pairs_are_reported() {
        let one = Ratio { rounds: 1, ..ratio(64, Far, 1.2) };
        let rows = verdicts(&[one, ratio(512, Far, 1.4)], COPIES, ["a", "b"], DEMAND, &asked(&[64, 512]));
        let ways: Vec<&str> = rows.iter().map(|row| row.how.as_str()).collect();
        let few = "1 pair, which is few";
        assert_eq!(
            ways,
            [format!("2 lengths; at the length with the fewest {few}"), format!("at 64 B, {few}; of 2 lengths")]
        );
        for (part, pair) in [(COPIES, ["b", "a"]), ("engine alone", ["a", "b"])] {
            let rows = verdicts(&[ratio(64, Far, 1.0)], part, pair, DEMAND, &asked(&[64]));
            let seen: Vec<_> =
                rows.iter().map(|row| (row.measured.is_nan(), row.verdict(), row.how.as_str())).collect();
            assert_eq!(seen, [(true, Verdict::Open, "no pair of points counts, of 5 rounds")]);
        }
    }
}
