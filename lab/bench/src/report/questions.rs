//! Questions and their answers, as terminal tables, CSV and an HTML page.

use super::rows;
use crate::questions::Answers;
use std::fmt::Write as _;
use telpher_report::html::Page;

/// Returns the tables for a terminal.
pub fn text(result: &Answers) -> String {
    let mut out = telpher_report::heading(&result.machine, &result.remarks);
    out.push_str(rows::MARKS);
    out.push('\n');
    for contest in &result.contests {
        let _ = writeln!(out, "\n{}: {}", contest.name, contest.question);
        if !contest.rows.is_empty() {
            out.push_str(&rows::text(&contest.rows));
        }
    }
    out
}

/// Returns the CSV: one line for each row.
pub fn csv(result: &Answers) -> String {
    let mut out = format!("contest,{}\n", rows::CSV);
    for contest in &result.contests {
        for row in &contest.rows {
            let _ = writeln!(out, "{},{}", contest.name, rows::csv(row));
        }
    }
    out
}

/// Returns the HTML report, which starts with `lead`.
pub fn html(result: &Answers, lead: &str) -> String {
    let lead = format!(
        "{lead} What is compared runs in turns of some milliseconds; numbers are medians over the turns, so that what \
         changes slowly affects all sides alike. {}",
        rows::MARKS
    );
    let mut page = Page::new(&format!("telpher bench {}", result.kind), &lead, &result.machine, &result.remarks);
    for contest in &result.contests {
        page.section(contest.name, contest.question);
        page.table(&rows::HEADER.map(String::from), contest.rows.iter().map(|row| rows::cells(row).to_vec()));
    }
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::questions::tests::sample;

    #[test]
    fn questions_precede_their_rows_and_missed_goals_are_marked() {
        let text = text(&sample());
        assert!(text.contains("sample: What is it?"), "{text}");
        let marked: Vec<&str> = text.lines().filter(|line| line.contains(" < ")).collect();
        assert!(marked.len() == 1 && marked[0].ends_with("a, by b"), "{text}");
    }

    #[test]
    fn csv_lines_have_equal_fields_and_there_is_one_per_row() {
        let csv = csv(&sample());
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(
            lines,
            [
                "contest,what,measured,unit,at_most,at_least,reached",
                "sample,\"a, by b\",0.5000,of its speed,,0.9,no",
                "sample,\"c\",40.0000,ns,,,yes",
            ]
        );
    }

    #[test]
    fn the_page_has_every_question_and_row() {
        let html = html(&sample(), "What a sample is.");
        assert!(
            ["What a sample is. ", "What is it?", "a, by b", "0.500 of its speed", "≥ 0.9"]
                .iter()
                .all(|words| html.contains(words))
        );
    }
}
