//! Rows with goals, in the form shared by all tables.

use crate::goal::{Goal, Row, Verdict};
use telpher_report::table::{Align, Table, wrapped};
use telpher_report::units;

/// The columns.
pub(super) const HEADER: [&str; 5] = ["what", "measured", "goal", "", "how"];

/// Their CSV names.
pub(super) const CSV: &str = "what,measured,unit,at_most,at_least,reached";

/// Width of the text columns in a terminal. Source: chosen; with the numbers before them a line has some hundred
/// characters.
pub(super) const WORDS: usize = 72;

/// Adds a row whose last cell has several lines; the cells above the lines after the first are empty.
pub(super) fn add<const N: usize>(table: &mut Table, numbers: [String; N], words: impl IntoIterator<Item = String>) {
    let mut words = words.into_iter();
    table.row(numbers.into_iter().chain(words.next()));
    words.for_each(|line| table.row([const { String::new() }; N].into_iter().chain([line])));
}

/// Returns the table for a terminal: numbers first; below each description, how it was measured.
pub(super) fn text(rows: &[Row]) -> String {
    let columns =
        [("measured", Align::Right), ("goal", Align::Right), ("", Align::Left), ("what, and how", Align::Left)];
    let mut table = Table::new(&columns);
    for row in rows {
        let [what, measured, goal, mark, how] = cells(row);
        let how = wrapped(&how, WORDS - 2).into_iter().map(|line| format!("  {line}"));
        add(&mut table, [measured, goal, mark], wrapped(&what, WORDS).into_iter().chain(how));
    }
    table.to_string()
}

/// The meaning of the marks.
pub(super) const MARKS: &str =
    "'✓' marks a goal that is reached, '<' one that is missed, '?' one for which too little was measured.";

/// Returns a row's cells, with the mark of its verdict if it has a goal.
pub(super) fn cells(row: &Row) -> [String; 5] {
    [
        row.what.clone().into_owned(),
        if row.measured.is_nan() {
            "not measured".into()
        } else {
            format!("{} {}", units::three(row.measured), row.unit)
        },
        row.goal.map(|goal| goal.to_string()).unwrap_or_default(),
        if row.goal.is_some() { row.verdict().mark() } else { "" }.into(),
        row.how.clone(),
    ]
}

/// Returns one line of CSV.
pub(super) fn csv(row: &Row) -> String {
    let (most, least) = match row.goal {
        None => (String::new(), String::new()),
        Some(Goal::AtMost(most)) => (most.to_string(), String::new()),
        Some(Goal::AtLeast(least)) => (String::new(), least.to_string()),
    };
    let reached = match row.verdict() {
        Verdict::Reached => "yes",
        Verdict::Short => "no",
        Verdict::Open => "unknown",
    };
    format!("\"{}\",{},{},{most},{least},{reached}", row.what, number(row), row.unit)
}

/// Formats its number; empty if it was not measured.
pub(super) fn number(row: &Row) -> String {
    if row.measured.is_nan() { String::new() } else { format!("{:.4}", row.measured) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_a_terminal_and_how_is_below_what() {
        let how =
            "one thread, a dedicated queue of no device, ordinary stores in the instruction's place; bursts of 32";
        let long =
            "messages, one in twenty large; each waited for, inline: learned, against the best of 7 fixed thresholds";
        let goal = Some(Goal::AtLeast(0.95));
        let text = text(&[Row::new(long, 0.5, "of its speed", goal, how), Row::new("b", 12.0, "ns", None, "")]);
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for told in ["0.500 of its speed ≥ 0.95 < messages, one in", "of 7 fixed thresholds one thread, a", "12.0 ns b"]
        {
            assert!(words.contains(told), "{told} is missing in\n{text}");
        }
    }

    #[test]
    fn unmeasured_values_are_words_and_not_numbers() {
        let row = Row::new("a", f64::NAN, "ns", Some(Goal::AtMost(5.0)), "none");
        assert_eq!(cells(&row), ["a", "not measured", "≤ 5", "?", "none"]);
        assert_eq!(csv(&row), "\"a\",,ns,5,,unknown");
        let verdict = |goal| cells(&Row::new("a", 4.0, "ns", goal, ""))[3].clone();
        assert_eq!([Some(Goal::AtMost(5.0)), Some(Goal::AtMost(3.0)), None].map(verdict), ["✓", "<", ""]);
    }
}
