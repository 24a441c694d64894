//! Columns for a terminal.

use std::fmt;

/// Alignment of a column's cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Indent of text under a row. Source: chosen.
const BELOW: usize = 9;

/// Characters of a line of running text. Source: a terminal's 80 columns.
pub const WIDTH: usize = 79;

/// Wraps a text into lines of at most `width` characters, if its words allow.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => line.extend([" ", word]),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns a text without control characters, with which another program could move the terminal's cursor.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Returns a text without control characters, of which at most the last `most` characters are kept, behind an ellipsis.
pub(crate) fn last_characters(text: &str, most: usize) -> String {
    let text = printable(text);
    let len = text.chars().count();
    if len <= most { text } else { std::iter::once('…').chain(text.chars().skip(len - most + 1)).collect() }
}

/// Formats a paragraph with a hanging indent: its first line begins with a name.
pub fn hanging(name: &str, column: usize, text: &str) -> String {
    let lines = wrapped(text, WIDTH.saturating_sub(column)).into_iter().enumerate();
    lines.map(|(number, line)| format!("{:column$}{line}\n", if number == 0 { name } else { "" })).collect()
}

/// A table; its layout is computed when it is displayed.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Row>,
}

/// A line of cells (an empty line if there are none), and the text under it.
#[derive(Debug, Default)]
struct Row {
    cells: Vec<String>,
    below: String,
}

impl Table {
    /// Creates an empty table with these columns.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Table { columns: columns.iter().map(|(n, a)| ((*n).to_owned(), *a)).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(Row { cells, ..Row::default() });
    }

    /// Adds text under the last row, across all columns.
    pub fn below(&mut self, words: &str) {
        if let Some(row) = self.rows.last_mut() {
            words.clone_into(&mut row.below);
        }
    }

    /// Adds an empty line between groups of rows.
    pub fn gap(&mut self) {
        if self.rows.last().is_some_and(|row| !row.cells.is_empty()) {
            self.rows.push(Row::default());
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |i: usize, name: &str| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(i)).map(|c| c.chars().count());
            cells.chain([name.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(|(i, (name, _))| width(i, name)).collect();
        let header: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let rule: Vec<String> = widths.iter().map(|&w| "─".repeat(w)).collect();
        let head = [&header, &rule].map(|cells| (cells, ""));
        for (cells, below) in head.into_iter().chain(self.rows.iter().map(|row| (&row.cells, row.below.as_str()))) {
            let mut line = String::from(" ");
            for ((cell, &width), (_, align)) in cells.iter().zip(&widths).zip(&self.columns) {
                let padding = " ".repeat(width - cell.chars().count());
                match align {
                    Align::Left => line.extend([" ", cell, &padding, " "]),
                    Align::Right => line.extend([" ", &padding, cell, " "]),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
            f.write_str(&hanging("", BELOW, below))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_left_aligned_and_numbers_right_aligned() {
        let mut table = Table::new(&[("what", Align::Left), ("GB/s", Align::Right)]);
        table.row(["move".into(), "9.50".into()]);
        table.gap();
        table.row(["µ".into(), "12345.0".into()]);
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, ["  what     GB/s", "  ────  ───────", "  move     9.50", "", "  µ     12345.0"]);
    }

    #[test]
    fn text_below_a_row_is_wrapped_at_the_terminal_s_width() {
        let mut table = Table::new(&[("what", Align::Left)]);
        table.row(["a".into()]);
        table.below(&"queues and engines ".repeat(6));
        table.row(["b".into()]);
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[2], lines[5]), (6, "  a", "  b"));
        assert!(lines[3..5].iter().all(|line| line.starts_with("         ") && line.chars().count() <= WIDTH));
        assert_eq!(wrapped("queues and engines of a device", 12), ["queues and", "engines of a", "device"]);
        assert_eq!(hanging("why", 5, "so"), "why  so\n");
    }
}
