//! Rates by ring, way, length and distance: what was seen, medians, ratios and verdicts.

use super::super::measure::median;
use super::super::row::{Goal, Row};
use super::COPIES;
use super::point::Distance;
use serde::Serialize;

/// Where and how a rate was seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(crate) struct Place {
    /// Who is compared there: [`super::COPIES`], or where an engine's thread is.
    pub(crate) part: &'static str,
    /// The ring, as `--ring` names it.
    pub(crate) ring: &'static str,
    /// The way, as `--traffic` names it.
    pub(crate) traffic: &'static str,
    /// Bytes of a packet.
    pub(crate) size: u32,
    /// How far the cores were from each other.
    pub(crate) distance: Distance,
}

/// What one contestant reached there.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Rate {
    /// Where.
    #[serde(flatten)]
    pub(crate) place: Place,
    /// Who.
    pub(crate) who: &'static str,
    /// Million packets a second, the median.
    pub(crate) mpps: f64,
    /// The least and the most that was seen.
    pub(crate) range: [f64; 2],
    /// Points.
    pub(crate) points: usize,
}

/// Two contestants, compared there.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Ratio {
    /// Where.
    #[serde(flatten)]
    pub(crate) place: Place,
    /// Whose rate.
    pub(crate) of: &'static str,
    /// By whose.
    pub(crate) by: &'static str,
    /// Median over rounds in which both points count, at one distance.
    pub(crate) ratio: f64,
    /// Such rounds.
    pub(crate) rounds: usize,
}

/// Rates of contestants, round by round, in one cell of the grid.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) part: &'static str,
    pub(super) ring: &'static str,
    pub(super) traffic: &'static str,
    pub(super) size: u32,
    /// A round's values, by contestant.
    pub(super) rounds: Vec<Vec<Option<(Distance, f64)>>>,
}

const DISTANCES: [Distance; 3] = [Distance::Near, Distance::Far, Distance::Same];

impl Cell {
    fn place(&self, distance: Distance) -> Place {
        Place { part: self.part, ring: self.ring, traffic: self.traffic, size: self.size, distance }
    }

    /// Medians of those who have points.
    pub(super) fn rates(&self, names: &[&'static str]) -> Vec<Rate> {
        let one = |distance, who: usize| {
            let values = self.rounds.iter().filter_map(|round| round[who].filter(|value| value.0 == distance));
            let mut values: Vec<f64> = values.map(|value| value.1).collect();
            let mpps = (!values.is_empty()).then(|| median(&mut values))?;
            let range = values.iter().fold([f64::INFINITY, 0.0_f64], |[low, high], v| [low.min(*v), high.max(*v)]);
            let (place, points) = (self.place(distance), values.len());
            Some(Rate { place, who: names[who], mpps, range, points })
        };
        DISTANCES.iter().flat_map(|&distance| (0..names.len()).filter_map(move |who| one(distance, who))).collect()
    }

    /// The median ratio of two.
    pub(super) fn ratios(&self, names: &[&'static str], of: usize, by: usize) -> Vec<Ratio> {
        let one = |&distance: &Distance| {
            let both = self.rounds.iter().filter_map(|round| Some((round[of]?, round[by]?)));
            let like = both.filter(|(of, by)| of.0 == distance && by.0 == distance);
            let mut ratios: Vec<f64> = like.map(|(of, by)| of.1 / by.1).collect();
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

/// Verdicts of one contest, by ring, way and distance.
pub(super) fn verdicts(ratios: &[Ratio], part: &'static str, [of, by]: [&'static str; 2], demand: Demand) -> Vec<Row> {
    let is_mine = |ratio: &&Ratio| (ratio.place.part, ratio.of, ratio.by) == (part, of, by);
    let mine: Vec<&Ratio> = ratios.iter().filter(is_mine).collect();
    let group = |ratio: &Ratio| (ratio.place.ring, ratio.place.traffic, ratio.place.distance);
    let mut groups: Vec<_> = Vec::new();
    for ratio in &mine {
        if !groups.contains(&group(ratio)) {
            groups.push(group(ratio));
        }
    }
    let mut rows = Vec::new();
    for (ring, traffic, distance) in groups {
        let here: Vec<&&Ratio> = mine.iter().filter(|ratio| group(ratio) == (ring, traffic, distance)).collect();
        let mut values: Vec<f64> = here.iter().map(|ratio| ratio.ratio).collect();
        let least = here.iter().min_by(|a, b| a.ratio.total_cmp(&b.ratio)).expect("a group has a ratio");
        let rounds: usize = here.iter().map(|ratio| ratio.rounds).sum();
        let name = match part {
            COPIES => format!("{ring} {traffic}, {}: {of} by {by}", distance.name()),
            _ => format!("{part}, {ring} {traffic}, {}: {of} by {by}", distance.name()),
        };
        let over = format!("{} lengths, {rounds} rounds of all", here.len());
        if let Some(goal) = demand.median {
            let what = format!("{name}, median over lengths");
            rows.push(Row::new(what, median(&mut values), "times the rate", Some(Goal::AtLeast(goal)), over));
        }
        let how = format!("at {} B, of {} lengths", least.place.size, here.len());
        let what = format!("{name}, lowest");
        rows.push(Row::new(what, least.ratio, "times the rate", Some(Goal::AtLeast(demand.least)), how));
    }
    rows
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use Distance::{Far, Near};

    fn cell() -> Cell {
        let rounds = vec![
            vec![Some((Far, 4.0)), Some((Far, 2.0))],
            vec![Some((Far, 3.0)), Some((Far, 3.0))],
            // One lost its core, and in the last the distance changed between the two.
            vec![Some((Far, 9.0)), None],
            vec![Some((Near, 8.0)), Some((Far, 1.0))],
            vec![Some((Far, 6.0)), Some((Far, 4.0))],
        ];
        Cell { part: COPIES, ring: "split", traffic: "loop", size: 64, rounds }
    }

    #[test]
    fn medians_are_of_one_distance_and_ratios_of_one_round() {
        let rates = cell().rates(&["a", "b"]);
        let seen: Vec<_> = rates.iter().map(|rate| (rate.place.distance, rate.who, rate.mpps, rate.points)).collect();
        assert_eq!(seen, [(Near, "a", 8.0, 1), (Far, "a", 5.0, 4), (Far, "b", 2.5, 4)]);
        assert_eq!(rates[1].range, [3.0, 9.0]);
        let ratios = cell().ratios(&["a", "b"], 0, 1);
        assert_eq!(ratios.len(), 1);
        assert_eq!((ratios[0].place.distance, ratios[0].ratio, ratios[0].rounds), (Far, 1.5, 3));
    }

    /// A ratio of "a" by "b" there.
    pub(crate) fn ratio(size: u32, distance: Distance, ratio: f64) -> Ratio {
        let place = Place { part: COPIES, ring: "split", traffic: "loop", size, distance };
        Ratio { place, of: "a", by: "b", ratio, rounds: 5 }
    }

    #[test]
    fn a_verdict_holds_at_its_edge_and_each_distance_has_its_own() {
        let demand = Demand { median: Some(1.0), least: 0.9 };
        let ratios = [ratio(64, Far, 0.9), ratio(512, Far, 1.0), ratio(1518, Far, 1.3), ratio(64, Near, 0.89)];
        let rows = verdicts(&ratios, COPIES, ["a", "b"], demand);
        let seen: Vec<_> = rows.iter().map(|row| (row.measured, row.reached())).collect();
        assert_eq!(seen, [(1.0, true), (0.9, true), (0.89, false), (0.89, false)]);
        assert!(rows[1].what.starts_with("split loop, far: a by b, lowest") && rows[1].how.starts_with("at 64 B"));
        assert!(verdicts(&ratios, COPIES, ["b", "a"], demand).is_empty());
        assert!(verdicts(&ratios, "engine alone", ["a", "b"], demand).is_empty());
    }
}
