//! Columns for a terminal.

use std::fmt;

/// Which side of its column a cell leans on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table that is laid out when it is displayed.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        Table { columns: columns.iter().map(|(n, a)| ((*n).to_owned(), *a)).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Adds an empty line between groups of rows.
    pub(crate) fn gap(&mut self) {
        if self.rows.last().is_some_and(|r| !r.is_empty()) {
            self.rows.push(Vec::new());
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |i: usize, name: &str| {
            let cells = self.rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count());
            cells.chain([name.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(|(i, (name, _))| width(i, name)).collect();
        let header: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let rule: Vec<String> = widths.iter().map(|&w| "─".repeat(w)).collect();
        for row in [&header, &rule].into_iter().chain(&self.rows) {
            let mut line = String::from(" ");
            for ((cell, &width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                let padding = " ".repeat(width - cell.chars().count());
                match align {
                    Align::Left => line.extend([" ", cell, &padding, " "]),
                    Align::Right => line.extend([" ", &padding, cell, " "]),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lean_left_and_numbers_right() {
        let mut table = Table::new(&[("what", Align::Left), ("GB/s", Align::Right)]);
        table.row(["move".into(), "9.50".into()]);
        table.gap();
        table.row(["µ".into(), "12345.0".into()]);
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, ["  what     GB/s", "  ────  ───────", "  move     9.50", "", "  µ     12345.0"]);
    }
}
