//! What running under `telpher run` costs, as a terminal table, CSV and an HTML page.

use super::rows;
use crate::run::RunResult;
use telpher_report::html::Page;

/// Returns the table for a terminal.
pub fn text(result: &RunResult) -> String {
    let mut out = telpher_report::heading(&result.machine, &result.remarks);
    out.push_str("\nUnder telpher run; '<' is short of its goal\n");
    out.push_str(&rows::text(&result.rows));
    out
}

/// Returns the CSV: one line for each row.
pub fn csv(result: &RunResult) -> String {
    let lines = result.rows.iter().map(|row| format!("{}\n", rows::csv(row)));
    format!("{}\n{}", rows::CSV, lines.collect::<String>())
}

/// Returns the HTML report.
pub fn html(result: &RunResult) -> String {
    let mut page = Page::new(
        "telpher bench run",
        "What it costs an unmodified program to run on the virtual device of telpher run.",
        &result.machine,
        &result.remarks,
    );
    page.section(
        "Under telpher run",
        "The contestants run in turns of some milliseconds; ratios and differences are medians over the turns, so that \
         what changes slowly meets both sides. '✓' marks a goal that is reached, '<' one that is missed.",
    );
    page.table(&rows::HEADER.map(String::from), result.rows.iter().map(|row| rows::cells(row).to_vec()));
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::sample;

    #[test]
    fn missed_goals_are_marked() {
        let text = text(&sample());
        let marked: Vec<&str> = text.lines().filter(|line| line.contains(" <")).collect();
        assert_eq!(marked.len(), 1, "{text}");
        assert!(marked[0].contains("files") && marked[0].contains("0.500"), "{text}");
        assert!(text.contains("≤ 300") && text.contains("≥ 15"), "{text}");
    }

    #[test]
    fn csv_lines_have_equal_fields_and_there_is_one_per_row() {
        let csv = csv(&sample());
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + sample().rows.len());
        // Names with commas are quoted.
        assert!(lines.iter().all(|line| line.rsplit('"').next().expect("a part").split(',').count() == 6), "{csv}");
    }

    #[test]
    fn the_page_has_every_row() {
        let html = html(&sample());
        assert!(sample().rows.iter().all(|row| html.contains(&*row.what)));
    }
}
