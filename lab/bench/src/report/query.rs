//! The query engine against DuckDB, as a terminal table, CSV and an HTML page.

use super::rows;
use crate::query::QueryResult;
use telpher_report::html::Page;

/// Returns the table for a terminal.
pub fn text(result: &QueryResult) -> String {
    let mut out = telpher_report::heading(&result.machine, &result.remarks);
    out.push_str("\nQueries; '<' is short of its goal\n");
    out.push_str(&rows::text(&result.rows));
    out
}

/// Returns the CSV: one line for each row.
pub fn csv(result: &QueryResult) -> String {
    let lines = result.rows.iter().map(|row| format!("{}\n", rows::csv(row)));
    format!("{}\n{}", rows::CSV, lines.collect::<String>())
}

/// Returns the HTML report.
pub fn html(result: &QueryResult) -> String {
    let mut page = Page::new(
        "telpher bench query",
        "The column engine of telpher qdp, without prefetching, and DuckDB on the same columns.",
        &result.machine,
        &result.remarks,
    );
    page.section(
        "Queries",
        "Both sides answer in turns, and every answer is compared; ratios are medians over the rounds, so that what \
         changes slowly meets both. '✓' marks a goal that is reached, '<' one that is missed.",
    );
    page.table(&rows::HEADER.map(String::from), result.rows.iter().map(|row| rows::cells(row).to_vec()));
    page.finish()
}
