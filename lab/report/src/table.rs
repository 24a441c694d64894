//! Columns for a terminal. A table that is wider than the terminal wraps its texts, and continues below itself with the
//! columns that are left, each part with the first columns.

use crate::terminal::{self, Style};
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

/// Blanks before the first column.
const MARGIN: usize = 1;
/// Blanks around a cell.
const AROUND: usize = 2;
/// The least width of a column whose texts are wrapped, in characters. Source: chosen.
const NARROWEST: usize = 12;

/// Some of a table's columns, with their widths.
type Part = Vec<(usize, usize)>;

fn total(part: &[(usize, usize)]) -> usize {
    // The blank behind the last cell is not printed.
    MARGIN + part.iter().map(|(_, width)| width + AROUND).sum::<usize>() - usize::from(!part.is_empty())
}

impl Table {
    /// Returns the width of a column, and the width of its longest word.
    fn widths(&self, column: usize) -> (usize, usize) {
        let cells = || {
            let name = self.columns.get(column).map(|(name, _)| name);
            self.rows.iter().filter_map(|row| row.cells.get(column)).chain(name)
        };
        let longest = cells().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let word = cells().flat_map(|cell| cell.split_whitespace()).map(|word| word.chars().count()).max();
        (longest, word.unwrap_or(0))
    }

    /// Returns the parts in which the table fits into a line of `columns` characters.
    fn parts(&self, columns: usize) -> Vec<Part> {
        let widths: Vec<(usize, usize)> = (0..self.columns.len()).map(|column| self.widths(column)).collect();
        let mut all: Part = widths.iter().map(|(longest, _)| *longest).enumerate().collect();
        if total(&all) <= columns {
            return vec![all];
        }
        // Texts are wrapped, the longest first, if that suffices.
        while let Some((at, least)) = self.longest_text(&all, &widths) {
            let missing = total(&all) - columns;
            all[at].1 = least.max(all[at].1.saturating_sub(missing));
            if total(&all) <= columns {
                return vec![all];
            }
        }
        // `all` now has every column at its narrowest. The first columns say what a row is about.
        let is_text = |at: usize| self.columns.get(at).is_some_and(|(_, align)| *align == Align::Left);
        let keys = if is_text(1) && total(&all[..2]) <= columns / 2 { 2 } else { 1 };
        let (keys, rest) = all.split_at(keys.min(all.len()));
        let mut parts: Vec<Part> = vec![keys.to_vec()];
        for &(column, width) in rest {
            let part = parts.last_mut().expect("there is one from the beginning");
            if part.len() > keys.len() && total(part) + width + AROUND > columns {
                parts.push(keys.to_vec());
            }
            parts.last_mut().expect("there is one from the beginning").push((column, width));
        }
        // Room that is left in a part goes to its texts.
        for part in &mut parts {
            while let Some(at) = part.iter().position(|&(column, width)| width < widths[column].0) {
                let room = columns.saturating_sub(total(part));
                let wanted = widths[part[at].0].0 - part[at].1;
                if room == 0 {
                    break;
                }
                part[at].1 += wanted.min(room);
            }
        }
        parts
    }

    /// Returns the position of the widest text that can be wrapped further, and its least width.
    fn longest_text(&self, part: &[(usize, usize)], widths: &[(usize, usize)]) -> Option<(usize, usize)> {
        let least = |column: usize| widths[column].1.max(NARROWEST);
        let texts = part
            .iter()
            .enumerate()
            .filter(|(_, (column, width))| self.columns[*column].1 == Align::Left && *width > least(*column));
        texts.max_by_key(|(_, (_, width))| *width).map(|(at, (column, _))| (at, least(*column)))
    }

    /// Writes a row of cells; texts that are wider than their column take several lines.
    fn line(
        &self,
        f: &mut fmt::Formatter<'_>,
        part: &[(usize, usize)],
        cells: &[String],
        style: Option<Style>,
    ) -> fmt::Result {
        let lines: Vec<Vec<String>> = part
            .iter()
            .map(|&(column, width)| {
                let cell = cells.get(column).map_or("", String::as_str);
                if cell.chars().count() <= width { vec![cell.to_owned()] } else { wrapped(cell, width) }
            })
            .collect();
        for number in 0..lines.iter().map(Vec::len).max().unwrap_or(0).max(1) {
            let mut line = " ".repeat(MARGIN);
            for (&(column, width), texts) in part.iter().zip(&lines) {
                let cell = texts.get(number).map_or("", String::as_str);
                let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
                let cell = style.map_or_else(|| cell.to_owned(), |style| style.paint(cell));
                match self.columns[column].1 {
                    Align::Left => line.extend([" ", &cell, &padding, " "]),
                    Align::Right => line.extend([" ", &padding, &cell, " "]),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// Writes the table for lines of at most `columns` characters.
    fn write(&self, f: &mut fmt::Formatter<'_>, columns: usize) -> fmt::Result {
        let parts = self.parts(columns);
        let header: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        for (number, part) in parts.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            self.line(f, part, &header, Some(Style::Bold))?;
            let mut rule = vec![String::new(); self.columns.len()];
            part.iter().for_each(|&(column, width)| rule[column] = "─".repeat(width));
            self.line(f, part, &rule, None)?;
            for row in &self.rows {
                self.line(f, part, &row.cells, None)?;
                // Texts under the rows stand once.
                if number + 1 == parts.len() {
                    f.write_str(&hanging("", BELOW, &row.below))?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, terminal::columns())
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

    /// A table for a terminal of a given width.
    struct Within<'a>(&'a Table, usize);

    impl fmt::Display for Within<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(f, self.1)
        }
    }

    #[test]
    fn texts_are_wrapped_before_columns_continue_below() {
        let mut table = Table::new(&[("cause", Align::Left), ("what is wrong", Align::Left), ("n", Align::Right)]);
        table.row([
            "no-driver".into(),
            "The queue names no driver, which Linux requires since 6.7.".into(),
            "7".into(),
        ]);
        let text = Within(&table, 40).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  cause      what is wrong            n");
        assert_eq!(lines[2], "  no-driver  The queue names no       7");
        assert_eq!((lines[3].trim(), lines.len()), ("driver, which Linux", 5), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 40), "{text}");
        assert_eq!(Within(&table, usize::MAX).to_string().lines().count(), 3);
    }

    #[test]
    fn columns_that_do_not_fit_stand_below_with_the_first_ones() {
        let names = ["size", "how", "GB/s", "p50", "p99", "p99.9"];
        let aligned = names.map(|name| (name, if name == "how" { Align::Left } else { Align::Right }));
        let mut table = Table::new(&aligned);
        table.row(["4 KiB", "CPU", "3.63", "1.13 µs", "1.14 µs", "1.15 µs"].map(String::from));
        table.below("a note");
        for columns in 24..60 {
            let text = Within(&table, columns).to_string();
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
            for cell in ["3.63", "1.13 µs", "1.14 µs", "1.15 µs", "a note"] {
                assert_eq!(text.matches(cell).count(), 1, "{columns}: {text}");
            }
            let parts = text.matches("size").count();
            assert_eq!(parts, text.matches("4 KiB").count(), "{columns}: {text}");
            assert_eq!(parts == 1, columns >= 47, "{columns}: {text}");
        }
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
