//! Filters in terms of a column's codes: which ranges of its integers pass.
//!
//! ```text
//! day < '1998-09-02'      ─► ..=10470            price < 0.055 (hundredths)  ─► ..=5
//! flag like 'A%' (text)   ─► 3..=7               x <> 4                      ─► ..=3, 5..=
//! ```
//!
//! A null has the code after the greatest value, so no range of values contains it.

use super::calendar::{days, nanoseconds};
use super::column::Column;
use super::error::PlanError;
use super::plan::{Comparison, Condition, Filter, Literal};
use super::value::{self, Dictionary, Double, LogicalType, power_of_ten};
use std::cmp::Ordering;

/// A range of codes, both ends included.
pub(super) type Codes = (i64, i64);

/// The place of a literal among a column's codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    /// The greatest code whose value is at most the literal. Beyond 64 bits if all of them are greater or less.
    floor: i128,
    /// The value of that code equals the literal.
    is_exact: bool,
}

/// Returns the ranges of codes that pass a filter: sorted, disjoint, not adjacent, within the codes of the column.
pub(super) fn passing(column: &Column, filter: &Filter) -> Result<Vec<Codes>, PlanError> {
    let null = column.null().map(|null| (i128::from(null), i128::from(null)));
    let values = column.bounds().map(|(least, greatest)| (i128::from(least), i128::from(greatest)));
    let met = match &filter.condition {
        Condition::Null => {
            let passing = if filter.negated { values } else { null };
            return Ok(united(passing.into_iter().collect(), (i64::MIN.into(), i64::MAX.into())));
        }
        Condition::Compare(comparison, literal) => compared(place(column, *comparison, literal)?, *comparison),
        Condition::Between(from, to) => {
            let from = compared(place(column, Comparison::AtLeast, from)?, Comparison::AtLeast);
            let to = compared(place(column, Comparison::AtMost, to)?, Comparison::AtMost);
            vec![(from[0].0, to[0].1)]
        }
        Condition::In(literals) => {
            let mut met = Vec::with_capacity(literals.len());
            for literal in literals {
                met.extend(compared(place(column, Comparison::Equal, literal)?, Comparison::Equal));
            }
            met
        }
        Condition::Like(pattern) => {
            let LogicalType::Text(words) = column.logical_type() else {
                let (column, holds) = (column.name().into(), column.logical_type().holds());
                return Err(PlanError::NotText { column, holds });
            };
            like(words, pattern)
        }
    };
    let Some(values) = values else { return Ok(Vec::new()) };
    let met = united(met, values);
    Ok(if filter.negated { complement(&met, values) } else { met })
}

/// Returns the codes that compare so with a literal.
fn compared(Place { floor, is_exact }: Place, comparison: Comparison) -> Vec<(i128, i128)> {
    let (least, greatest) = (i128::MIN, i128::MAX);
    // Cannot overflow: a place is at most one beyond 64 bits, or cut to 2^100.
    let below = if is_exact { floor - 1 } else { floor };
    let from = if is_exact { floor } else { floor + 1 };
    match comparison {
        Comparison::Equal if is_exact => vec![(floor, floor)],
        Comparison::Equal => Vec::new(),
        Comparison::Unequal => vec![(least, below), (floor + 1, greatest)],
        Comparison::Less => vec![(least, below)],
        Comparison::AtMost => vec![(least, floor)],
        Comparison::Greater => vec![(floor + 1, greatest)],
        Comparison::AtLeast => vec![(from, greatest)],
    }
}

/// Sorts ranges, limits them to `within`, and unites those that overlap or touch.
#[allow(clippy::cast_possible_truncation, reason = "they are limited to 64 bits")]
fn united(mut ranges: Vec<(i128, i128)>, within: (i128, i128)) -> Vec<Codes> {
    ranges.sort_unstable();
    let mut all: Vec<Codes> = Vec::new();
    for (from, to) in ranges {
        let (from, to) = (from.max(within.0), to.min(within.1));
        if from > to {
            continue;
        }
        let (from, to) = (from as i64, to as i64);
        match all.last_mut() {
            Some((_, last)) if last.checked_add(1).is_none_or(|next| from <= next) => *last = to.max(*last),
            _ => all.push((from, to)),
        }
    }
    all
}

/// Returns the codes of `within` that are in none of these ranges.
fn complement(ranges: &[Codes], within: (i128, i128)) -> Vec<Codes> {
    let mut from = within.0;
    let mut gaps = Vec::new();
    for &(least, greatest) in ranges {
        gaps.push((from, i128::from(least) - 1));
        from = i128::from(greatest) + 1;
    }
    gaps.push((from, within.1));
    united(gaps, within)
}

/// Far beyond 64 bits, and far from overflow.
const BEYOND: i128 = 1 << 100;

/// Finds the place of a literal among a column's codes.
fn place(column: &Column, comparison: Comparison, literal: &Literal) -> Result<Place, PlanError> {
    let exactly = |floor: i128| Some(Place { floor, is_exact: true });
    let found = match (column.logical_type(), literal) {
        (LogicalType::Integer, literal) => of_decimal(0, literal),
        (LogicalType::Decimal { scale }, literal) => of_decimal(*scale, literal),
        (LogicalType::Boolean, Literal::Boolean(value)) => exactly(i128::from(*value)),
        (LogicalType::Float { single }, literal) => float(literal).and_then(|number| {
            #[allow(clippy::cast_possible_truncation, reason = "SQL rounds it too")]
            let number = if *single { f64::from(number as f32) } else { number };
            exactly(Double::new(number).code().into())
        }),
        (LogicalType::Date, Literal::Date(days)) => exactly((*days).into()),
        (LogicalType::Date, Literal::Text(text)) => days(text).and_then(|days| exactly(days.into())),
        (LogicalType::Timestamp { per_second }, literal) => {
            let nanos = match literal {
                Literal::Timestamp(nanos) => Some(*nanos),
                Literal::Date(days) => Some(i128::from(*days) * 86_400_000_000_000),
                Literal::Text(text) => nanoseconds(text),
                _ => None,
            };
            let unit = 1_000_000_000 / i128::from((*per_second).max(1));
            nanos.map(|nanos| Place { floor: nanos.div_euclid(unit), is_exact: nanos.rem_euclid(unit) == 0 })
        }
        (LogicalType::Text(words), Literal::Text(text)) => Some(match words.find(text) {
            Ok(at) => Place { floor: at as i128, is_exact: true },
            Err(at) => Place { floor: at as i128 - 1, is_exact: false },
        }),
        _ => None,
    };
    found.ok_or_else(|| PlanError::Compare {
        column: column.name().into(),
        holds: column.logical_type().holds(),
        literal: literal.to_string(),
        write: format!("{} {} {}", column.name(), comparison.sign(), example(column.logical_type(), literal)),
    })
}

/// Returns a literal that a column of this type can be compared with: the one that was probably meant, or an example.
fn example(of: &LogicalType, literal: &Literal) -> String {
    let bare = |text: &str| text.trim().parse::<f64>().is_ok_and(f64::is_finite).then(|| text.trim().to_owned());
    let meant = match (of, literal) {
        (LogicalType::Integer | LogicalType::Decimal { .. } | LogicalType::Float { .. }, Literal::Text(text)) => {
            bare(text)
        }
        (LogicalType::Text(_), literal) => Some(Literal::Text(literal.to_string()).to_string()),
        _ => None,
    };
    meant.unwrap_or_else(|| {
        String::from(match of {
            LogicalType::Integer => "12",
            LogicalType::Decimal { .. } | LogicalType::Float { .. } => "0.05",
            LogicalType::Boolean => "true",
            LogicalType::Date => "date '1998-09-02'",
            LogicalType::Timestamp { .. } => "timestamp '1998-09-02 12:30:00'",
            LogicalType::Text(_) => "'text'",
        })
    })
}

/// Finds the place of a number among decimals with this many digits after the point.
fn of_decimal(scale: u8, literal: &Literal) -> Option<Place> {
    match literal {
        Literal::Number { units, scale: digits } => {
            let units = i128::from(*units);
            Some(match power_of_ten(scale.abs_diff(*digits)) {
                // Only a column can have so many more digits: its values are closer to zero than any literal but 0.
                None => Place { floor: units.signum() * BEYOND, is_exact: true },
                Some(power) if scale >= *digits => match units.checked_mul(power) {
                    Some(floor) => Place { floor: floor.clamp(-BEYOND, BEYOND), is_exact: true },
                    None => Place { floor: units.signum() * BEYOND, is_exact: true },
                },
                Some(power) => Place { floor: units.div_euclid(power), is_exact: units.rem_euclid(power) == 0 },
            })
        }
        Literal::Float(number) => {
            let number = number.get();
            if number.is_nan() {
                return Some(Place { floor: BEYOND, is_exact: false });
            }
            // The least code at or above the number, by bisection: rounding makes any formula inexact.
            let (mut from, mut to) = (i128::from(i64::MIN), i128::from(i64::MAX) + 1);
            while from < to {
                // Rounded down, so that the range shrinks.
                let middle = from + (to - from) / 2;
                match value::compare(middle, scale, number) {
                    Ordering::Less => from = middle + 1,
                    Ordering::Equal | Ordering::Greater => to = middle,
                }
            }
            let is_exact = from <= i64::MAX.into() && value::compare(from, scale, number) == Ordering::Equal;
            Some(Place { floor: if is_exact { from } else { from - 1 }, is_exact })
        }
        _ => None,
    }
}

/// Returns the number that a literal is for floating-point numbers.
#[allow(clippy::cast_precision_loss, reason = "SQL rounds it too")]
fn float(literal: &Literal) -> Option<f64> {
    match literal {
        // Parsing rounds once; a division of rounded numbers would round twice.
        Literal::Number { units, scale } => value::decimal((*units).into(), *scale).parse().ok(),
        Literal::Float(number) => Some(number.get()),
        _ => None,
    }
}

/// Returns the numbers of the texts with a pattern.
fn like(words: &Dictionary, pattern: &str) -> Vec<(i128, i128)> {
    let pattern: Vec<char> = pattern.chars().collect();
    let mut met = Vec::new();
    for (at, word) in words.words().iter().enumerate() {
        let at = at as i128;
        if matches(word, &pattern) {
            met.push((at, at));
        }
    }
    met
}

/// Returns whether a text has a pattern, by trying the last `%` with one more character after each mismatch.
fn matches(text: &str, pattern: &[char]) -> bool {
    let (mut rest, mut at) = (text.chars(), 0);
    // The last `%`, and the text after what it stands for.
    let mut last: Option<(usize, std::str::Chars<'_>)> = None;
    loop {
        if pattern.get(at) == Some(&'%') {
            at += 1;
            last = Some((at, rest.clone()));
            continue;
        }
        let mut ahead = rest.clone();
        match (ahead.next(), pattern.get(at)) {
            (None, None) => return true,
            (Some(character), Some(&expected)) if expected == '_' || expected == character => {
                rest = ahead;
                at += 1;
            }
            _ => {
                let Some((after, tried)) = &mut last else { return false };
                if tried.next().is_none() {
                    return false;
                }
                (at, rest) = (*after, tried.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn literal(text: &str) -> Literal {
        let plan: crate::Plan = format!("select count(*) from t where a = {text}").parse().unwrap();
        let Condition::Compare(_, literal) = &plan.filters[0].condition else { panic!("{text}") };
        literal.clone()
    }

    fn column(values: &[i64], of: LogicalType) -> Column {
        Column::of("a", values).unwrap().with_type(of).unwrap()
    }

    fn codes(column: &Column, test: &str) -> Vec<Codes> {
        let plan: crate::Plan = format!("select count(*) from t where a {test}").parse().unwrap();
        passing(column, &plan.filters[0]).unwrap_or_else(|error| panic!("{test}: {error}"))
    }

    #[test]
    fn decimals_between_two_codes_are_rounded_to_the_right_side() {
        let hundredths = column(&[-1000, 1000], LogicalType::Decimal { scale: 2 });
        for (test, expected) in [
            ("< 0.055", vec![(-1000, 5)]),
            ("<= 0.055", vec![(-1000, 5)]),
            ("> 0.055", vec![(6, 1000)]),
            (">= -0.055", vec![(-5, 1000)]),
            ("= 0.055", vec![]),
            ("<> 0.055", vec![(-1000, 1000)]),
            ("= 0.050", vec![(5, 5)]),
            ("<> 5", vec![(-1000, 499), (501, 1000)]),
            ("= 7e-2", vec![(7, 7)]),
            ("> 1e300", vec![]),
            ("> -1e300", vec![(-1000, 1000)]),
            ("in (0.01, 0.02, 0.03, 9.9, 0.001)", vec![(1, 3), (990, 990)]),
            ("not in (0.01, 100)", vec![(-1000, 0), (2, 1000)]),
            ("not between -10 and 9", vec![(901, 1000)]),
            ("is null", vec![]),
            ("is not null", vec![(-1000, 1000)]),
        ] {
            assert_eq!(codes(&hundredths, test), expected, "{test}");
        }
        let tiny = column(&[-5, 5], LogicalType::Decimal { scale: 38 });
        assert_eq!(codes(&tiny, "< 1"), [(-5, 5)]);
        assert_eq!(codes(&tiny, "<= 0"), [(-5, 0)]);
        assert_eq!(codes(&column(&[i64::MIN, i64::MAX], LogicalType::Integer), "> 9223372036854775807"), []);
        assert_eq!(codes(&column(&[i64::MIN, 0], LogicalType::Integer), "< -9223372036854775808"), []);
        assert_eq!(codes(&column(&[i64::MIN, i64::MAX], LogicalType::Integer), "< 2.5"), [(i64::MIN, 2)]);
    }

    #[test]
    fn dates_texts_and_times_are_compared_with_their_like() {
        let day = column(&[0, 20_000], LogicalType::Date);
        assert_eq!(codes(&day, "< '1998-09-02'"), codes(&day, "< date '1998-09-02'"));
        assert_eq!(codes(&day, "<= date '1998-09-02'"), [(0, 10_471)]);
        let at = column(&[0, 20_000], LogicalType::Timestamp { per_second: 1_000 });
        assert_eq!(codes(&at, "> timestamp '1970-01-01 00:00:01.0005'"), [(1_001, 20_000)]);
        assert_eq!(codes(&at, "= '1970-01-01'"), [(0, 0)]);
        let words = Arc::new(Dictionary::new(["AIR", "FOB", "MAIL", "RAIL", "REG AIR"]));
        let mode = column(&[0, 4], LogicalType::Text(words));
        for (test, expected) in [
            ("= 'FOB'", vec![(1, 1)]),
            ("= 'F'", vec![]),
            ("< 'F'", vec![(0, 0)]),
            (">= 'F'", vec![(1, 4)]),
            ("<> 'MAIL'", vec![(0, 1), (3, 4)]),
            ("like 'R%'", vec![(3, 4)]),
            ("like '%AI%'", vec![(0, 0), (2, 4)]),
            ("like '_AIL'", vec![(2, 3)]),
            ("like ''", vec![]),
            ("not like '%R'", vec![(1, 3)]),
        ] {
            assert_eq!(codes(&mode, test), expected, "{test}");
        }
    }

    #[test]
    fn a_literal_of_another_type_is_refused_with_what_to_write() {
        let refused = |of, literal: Literal| {
            let filter = Filter::new("a", Condition::Compare(Comparison::Less, literal));
            passing(&column(&[0, 1], of), &filter).unwrap_err().to_string()
        };
        let words = LogicalType::Text(Arc::new(Dictionary::new(["x", "y"])));
        for (of, literal, expected) in [
            (LogicalType::Date, 100.into(), "column a holds dates, and 100 is none; write a < date '1998-09-02'"),
            (LogicalType::Date, "soon".into(), "column a holds dates, and 'soon' is none; write a < date '1998-09-02'"),
            (LogicalType::Integer, "5".into(), "column a holds whole numbers, and '5' is none; write a < 5"),
            (words, 7.into(), "column a holds text, and 7 is none; write a < '7'"),
        ] {
            assert_eq!(refused(of, literal), expected);
        }
        let filter = Filter::new("a", Condition::Like("x%".into()));
        let message = passing(&column(&[0, 1], LogicalType::Date), &filter).unwrap_err().to_string();
        assert!(message.contains("column a holds dates, and only text has patterns"), "{message}");
    }

    proptest! {
        #[test]
        fn floats_and_decimals_are_compared_as_floating_point_numbers(
            values in prop::collection::vec(-1_000_i64..1_000, 1..20), scale in 0_u8..4, at in -1_000_i64..1_000,
        ) {
            let column = column(&values, LogicalType::Decimal { scale });
            let number = at as f64 / 10_f64.powi(scale.into());
            let filter = Filter::new("a", Condition::Compare(Comparison::Equal, Literal::Float(Double::new(number))));
            let is_within = column.bounds().is_some_and(|(from, to)| (from..=to).contains(&at));
            let expected = if is_within { vec![(at, at)] } else { vec![] };
            prop_assert_eq!(passing(&column, &filter).unwrap(), expected);
        }

        #[test]
        fn patterns_match_as_a_slow_search_does(text in "[ab]{0,8}", pattern in "[ab_%]{0,6}") {
            fn slow(text: &[char], pattern: &[char]) -> bool {
                match pattern.split_first() {
                    None => text.is_empty(),
                    Some(('%', rest)) => (0..=text.len()).any(|from| slow(&text[from..], rest)),
                    Some((only, rest)) => text
                        .split_first()
                        .is_some_and(|(first, text)| (*only == '_' || first == only) && slow(text, rest)),
                }
            }
            let characters: Vec<char> = text.chars().collect();
            let pattern: Vec<char> = pattern.chars().collect();
            prop_assert_eq!(matches(&text, &pattern), slow(&characters, &pattern));
        }
    }

    #[test]
    fn a_number_for_floating_point_is_rounded_once() {
        assert_eq!(float(&literal("0.1")), Some(0.1));
        assert_eq!(float(&literal("123456789.123456789")), "123456789.123456789".parse().ok());
    }
}
