//! Rates by ring, way, length and distance: what was seen, medians, ratios and verdicts.

use super::super::measure::median;
use super::super::row::{Goal, Row};
use super::COPIES;
use super::point::{Distance, Kept};
use serde::Serialize;

/// Where and how a rate was seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Place {
    /// Who is compared there: [`super::COPIES`], or where an engine's thread is.
    pub part: &'static str,
    /// The ring, as `--ring` names it.
    pub ring: &'static str,
    /// The way, as `--traffic` names it.
    pub traffic: &'static str,
    /// Bytes of a packet.
    pub size: u32,
    /// How far the cores were from each other.
    pub distance: Distance,
}

/// What one contestant reached there.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rate {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// Who.
    pub who: &'static str,
    /// Million packets a second, the median.
    pub mpps: f64,
    /// The least and the most that was seen.
    pub range: [f64; 2],
    /// Part of the bytes that its device copied, the median; nothing without a device that tells.
    pub share: Option<f64>,
    /// Points.
    pub points: usize,
}

/// Two contestants, compared there.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ratio {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// Whose rate.
    pub of: &'static str,
    /// By whose.
    pub by: &'static str,
    /// Median over rounds in which both points count, at one distance.
    pub ratio: f64,
    /// Such rounds.
    pub rounds: usize,
}

/// Rates of contestants, round by round, in one cell of the grid.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) part: &'static str,
    pub(super) ring: &'static str,
    pub(super) traffic: &'static str,
    pub(super) size: u32,
    /// A round's points, by contestant.
    pub(super) rounds: Vec<Vec<Option<Kept>>>,
}

const DISTANCES: [Distance; 3] = [Distance::Near, Distance::Far, Distance::Same];

impl Cell {
    fn place(&self, distance: Distance) -> Place {
        Place { part: self.part, ring: self.ring, traffic: self.traffic, size: self.size, distance }
    }

    /// Medians of those who have points.
    pub(super) fn rates(&self, names: &[&'static str]) -> Vec<Rate> {
        let one = |distance, who: usize| {
            let kept = || self.rounds.iter().filter_map(|round| round[who].filter(|kept| kept.distance == distance));
            let mut values: Vec<f64> = kept().map(|kept| kept.value).collect();
            let mut shares: Vec<f64> = kept().filter_map(|kept| kept.share).collect();
            let share = (!shares.is_empty()).then(|| median(&mut shares));
            let mpps = (!values.is_empty()).then(|| median(&mut values))?;
            let range = values.iter().fold([f64::INFINITY, 0.0_f64], |[low, high], v| [low.min(*v), high.max(*v)]);
            let (place, points) = (self.place(distance), values.len());
            Some(Rate { place, who: names[who], mpps, range, share, points })
        };
        DISTANCES.iter().flat_map(|&distance| (0..names.len()).filter_map(move |who| one(distance, who))).collect()
    }

    /// The median ratio of two.
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

/// What the ratios of a contest must be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// The median over lengths.
    pub(super) median: Option<f64>,
    /// The least at any length.
    pub(super) least: f64,
}

/// The cells that were to be measured.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Rings' names.
    pub(super) rings: Vec<&'static str>,
    /// Ways' names.
    pub(super) traffic: Vec<&'static str>,
    /// Bytes of packets.
    pub(super) sizes: Vec<u32>,
    /// Times that each was to be measured.
    pub(super) rounds: u32,
}

/// Pairs of points of which fewer are few: their median is one of them. Source: chosen.
const FEW: usize = 3;

/// So many pairs, and whether that is few.
pub(super) fn pairs(count: usize) -> String {
    let few = if count < FEW { ", which is few" } else { "" };
    format!("{count} {}{few}", if count == 1 { "pair" } else { "pairs" })
}

/// Why nothing was measured.
pub(super) fn none_of(rounds: u32) -> String {
    format!("no pair of points counts, of {rounds} {}", if rounds == 1 { "round" } else { "rounds" })
}

/// Verdicts of one contest, by ring, way and distance. A ring and way of which no pair of points counts has a row that
/// says so.
pub(super) fn verdicts(
    ratios: &[Ratio],
    part: &'static str,
    pair: [&'static str; 2],
    demand: Demand,
    asked: &Asked,
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

/// The unit of ratios.
const TIMES: &str = "times the rate";

/// The verdicts of one ring, way and distance, of which there is a ratio: open where lengths have none that could be
/// lower.
fn verdict(name: &str, here: &[&Ratio], demand: Demand, asked: &Asked) -> Vec<Row> {
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
        // Of other lengths it is another median, whichever side this one is on.
        rows.push(Row { open: row.open || incomplete, ..row });
    }
    let how = format!("at {} B, {}; of {lengths}", least.place.size, pairs(least.rounds));
    let row = Row::new(format!("{name}, lowest"), least.ratio, TIMES, Some(Goal::AtLeast(demand.least)), how);
    rows.push(row.open_if(incomplete));
    rows
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::super::row::Verdict;
    use super::*;
    use Distance::{Far, Near};

    fn cell() -> Cell {
        let kept = |distance, value| Some(Kept { distance, value, share: (distance == Far).then_some(value / 10.0) });
        let rounds = vec![
            vec![kept(Far, 4.0), kept(Far, 2.0)],
            vec![kept(Far, 3.0), kept(Far, 3.0)],
            // One lost its core, and in the last the distance changed between the two.
            vec![kept(Far, 9.0), None],
            vec![kept(Near, 8.0), kept(Far, 1.0)],
            vec![kept(Far, 6.0), kept(Far, 4.0)],
        ];
        Cell { part: COPIES, ring: "split", traffic: "loop", size: 64, rounds }
    }

    #[test]
    fn medians_are_of_one_distance_and_ratios_of_one_round() {
        let rates = cell().rates(&["a", "b"]);
        let seen: Vec<_> = rates.iter().map(|rate| (rate.place.distance, rate.who, rate.mpps, rate.points)).collect();
        assert_eq!(seen, [(Near, "a", 8.0, 1), (Far, "a", 5.0, 4), (Far, "b", 2.5, 4)]);
        assert_eq!(rates[1].range, [3.0, 9.0]);
        assert_eq!((rates[0].share, rates[1].share), (None, Some(0.5)));
        let ratios = cell().ratios(&["a", "b"], 0, 1);
        assert_eq!(ratios.len(), 1);
        assert_eq!((ratios[0].place.distance, ratios[0].ratio, ratios[0].rounds), (Far, 1.5, 3));
    }

    /// A ratio of "a" by "b" there.
    pub(crate) fn ratio(size: u32, distance: Distance, ratio: f64) -> Ratio {
        let place = Place { part: COPIES, ring: "split", traffic: "loop", size, distance };
        Ratio { place, of: "a", by: "b", ratio, rounds: 5 }
    }

    /// These lengths of a split ring's loop.
    pub(crate) fn asked(sizes: &[u32]) -> Asked {
        Asked { rings: vec!["split"], traffic: vec!["loop"], sizes: sizes.to_vec(), rounds: 5 }
    }

    const DEMAND: Demand = Demand { median: Some(1.0), least: 0.9 };

    #[test]
    fn a_verdict_holds_at_its_edge_and_each_distance_has_its_own() {
        let ratios = [ratio(64, Far, 0.9), ratio(512, Far, 1.0), ratio(1518, Far, 1.3), ratio(64, Near, 0.89)];
        let rows = verdicts(&ratios, COPIES, ["a", "b"], DEMAND, &asked(&[64, 512, 1518]));
        let seen: Vec<_> = rows.iter().map(|row| (row.measured, row.verdict())).collect();
        // Near, the other lengths may be anything: the median is open, and the lowest is short already.
        let near = [(0.89, Verdict::Open), (0.89, Verdict::Short)];
        assert_eq!(seen, [&near[..], &[(1.0, Verdict::Reached), (0.9, Verdict::Reached)]].concat());
        assert!(rows[3].what.starts_with("split loop, far: a by b, lowest"));
        assert_eq!(rows[3].how, "at 64 B, 5 pairs; of 3 lengths");
        assert_eq!(rows[1].how, "at 64 B, 5 pairs; of 1 of 3 lengths, none of 512 B, 1518 B");
    }

    #[test]
    fn what_has_no_pair_is_not_measured_and_few_pairs_are_told() {
        let one = Ratio { rounds: 1, ..ratio(64, Far, 1.2) };
        let rows = verdicts(&[one, ratio(512, Far, 1.4)], COPIES, ["a", "b"], DEMAND, &asked(&[64, 512]));
        let told: Vec<&str> = rows.iter().map(|row| row.how.as_str()).collect();
        let few = "1 pair, which is few";
        assert_eq!(
            told,
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
