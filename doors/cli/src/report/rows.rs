//! Rows with goals, as they stand in any table.

use super::table::{Align, Table};
use super::units;
use crate::bench::row::{Goal, Row};

/// The columns.
pub(super) const HEADER: [&str; 5] = ["what", "measured", "goal", "", "how"];

/// What CSV calls them.
pub(super) const CSV: &str = "what,measured,unit,at_most,at_least,reached";

/// The table for a terminal.
pub(super) fn text(rows: &[Row]) -> String {
    let align = [Align::Left, Align::Right, Align::Right, Align::Left, Align::Left];
    let columns: Vec<_> = HEADER.into_iter().zip(align).collect();
    let mut table = Table::new(&columns);
    for row in rows {
        table.row(cells(row));
    }
    table.to_string()
}

/// A row's cells; '<' marks one that is short of its goal.
pub(super) fn cells(row: &Row) -> [String; 5] {
    let goal = match row.goal {
        None => String::new(),
        Some(Goal::AtMost(most)) => format!("≤ {}", units::trimmed(most)),
        Some(Goal::AtLeast(least)) => format!("≥ {}", units::trimmed(least)),
    };
    [
        row.what.clone().into_owned(),
        format!("{} {}", units::three(row.measured), row.unit),
        goal,
        if row.reached() { String::new() } else { "<".into() },
        row.how.clone(),
    ]
}

/// One line of CSV.
pub(super) fn csv(row: &Row) -> String {
    let (most, least) = match row.goal {
        None => (String::new(), String::new()),
        Some(Goal::AtMost(most)) => (most.to_string(), String::new()),
        Some(Goal::AtLeast(least)) => (String::new(), least.to_string()),
    };
    let reached = if row.reached() { "yes" } else { "no" };
    format!("\"{}\",{:.4},{},{most},{least},{reached}", row.what, row.measured, row.unit)
}
