//! The size from which another route is faster.

use serde::Serialize;

/// The sizes at which a competitor beats the baseline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "wins", content = "size")]
pub enum Crossover {
    /// At this size and at every larger one measured.
    From(u64),
    /// At some sizes, but not at the largest: the smallest and the largest of these sizes.
    Between(u64, u64),
    /// At no size.
    Never,
}

/// Returns the crossover of `(size, competitor's cost, baseline's cost)`, sizes ascending; lower cost wins.
pub fn crossover(points: &[(u64, f64, f64)]) -> Crossover {
    let wins = |&(_, contestant, baseline): &(u64, f64, f64)| contestant < baseline;
    let lasting = points.iter().rev().take_while(|p| wins(p)).last();
    if let Some(&(size, ..)) = lasting {
        return Crossover::From(size);
    }
    let mut winning = points.iter().filter(|p| wins(p)).map(|p| p.0);
    match (winning.next(), winning.next_back()) {
        (None, _) => Crossover::Never,
        (Some(first), last) => Crossover::Between(first, last.unwrap_or(first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_size_from_which_it_keeps_winning() {
        let points = [(64, 9.0, 1.0), (256, 5.0, 6.0), (1024, 9.0, 8.0), (4096, 3.0, 4.0), (16384, 2.0, 9.0)];
        assert_eq!(crossover(&points), Crossover::From(4096));
    }

    #[test]
    fn winning_everywhere_is_from_the_smallest() {
        assert_eq!(crossover(&[(64, 1.0, 2.0), (256, 1.0, 2.0)]), Crossover::From(64));
    }

    #[test]
    fn winning_in_the_middle_is_no_crossover() {
        let points = [(64, 2.0, 1.0), (256, 1.0, 2.0), (1024, 1.0, 2.0), (4096, 2.0, 1.0)];
        assert_eq!(crossover(&points), Crossover::Between(256, 1024));
        assert_eq!(crossover(&[(64, 1.0, 2.0), (256, 2.0, 1.0)]), Crossover::Between(64, 64));
    }

    #[test]
    fn equal_costs_do_not_win() {
        assert_eq!(crossover(&[(64, 1.0, 1.0)]), Crossover::Never);
        assert_eq!(crossover(&[]), Crossover::Never);
    }

    #[test]
    fn crossovers_serialise_to_json() {
        let json = serde_json::to_value(Crossover::From(4096)).unwrap();
        assert_eq!(json, serde_json::json!({"wins": "from", "size": 4096}));
    }
}
