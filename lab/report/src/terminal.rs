//! The terminal that shows the results: its width, and whether it shows colours.
//!
//! The binary sets both once, before its first result. Without that, lines are as long as they are and texts are plain,
//! as for a pipe or a file.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The characters of a line; `usize::MAX` without a terminal.
static COLUMNS: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether texts have colours.
static COLOURS: AtomicBool = AtomicBool::new(false);

/// A terminal shows the results.
pub fn set(columns: Option<usize>, colours: bool) {
    // Relaxed: the only thread of the process sets these before it prints.
    COLUMNS.store(columns.unwrap_or(usize::MAX), Ordering::Relaxed);
    COLOURS.store(colours, Ordering::Relaxed);
}

/// The results go to a file.
pub fn unset() {
    set(None, false);
}

/// Returns the characters of a line; `usize::MAX` if they do not matter.
#[must_use]
pub fn columns() -> usize {
    COLUMNS.load(Ordering::Relaxed)
}

/// How a text is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Names of columns, headings.
    Bold,
    /// What is as it should be.
    Good,
    /// What may be wrong.
    Warning,
    /// What is wrong.
    Bad,
    /// What is good to know.
    Note,
}

impl Style {
    /// The parameter of SGR. Source: ECMA-48.
    fn parameter(self) -> &'static str {
        match self {
            Style::Bold => "1",
            Style::Good => "32",
            Style::Warning => "33",
            Style::Bad => "1;31",
            Style::Note => "36",
        }
    }

    /// Returns the text in this style if there are colours.
    #[must_use]
    pub fn paint(self, text: &str) -> String {
        if COLOURS.load(Ordering::Relaxed) { self.painted(text) } else { text.to_owned() }
    }

    fn painted(self, text: &str) -> String {
        // Blanks around the text stay plain: they align it.
        let inner = text.trim();
        if inner.is_empty() {
            return text.to_owned();
        }
        text.replacen(inner, &format!("\x1b[{}m{inner}\x1b[0m", self.parameter()), 1)
    }
}

/// Returns the text with lines of at most `columns` characters, broken at blanks. Further lines of a paragraph begin
/// below its first word. Escape sequences of [`Style`] have no width.
#[must_use]
pub fn folded(text: &str, columns: usize) -> String {
    if columns == usize::MAX {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if width(line.trim_end_matches('\n')) <= columns {
            out.push_str(line);
        } else {
            fold(&mut out, line.trim_end_matches('\n'), columns);
        }
    }
    out
}

fn fold(out: &mut String, line: &str, columns: usize) {
    let indent = line.chars().take_while(|c| *c == ' ').count().min(columns / 2);
    let margin = " ".repeat(indent);
    let mut used = 0;
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        let len = width(word);
        if used > indent && used + 1 + len > columns {
            out.push('\n');
            used = 0;
        }
        if used == 0 {
            out.push_str(&margin);
            used = indent;
        } else if used > indent {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += len;
    }
    out.push('\n');
}

/// Returns the characters of a text on the terminal.
#[must_use]
pub fn width(text: &str) -> usize {
    let mut count = 0;
    let mut in_sequence = false;
    for c in text.chars() {
        match c {
            '\x1b' => in_sequence = true,
            'm' if in_sequence => in_sequence = false,
            _ if in_sequence => {}
            _ => count += 1,
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_at_blanks_below_their_first_word() {
        assert_eq!(folded("  one two three\nfour\n", 9), "  one two\n  three\nfour\n");
        assert_eq!(folded("averyverylongword and more", 10), "averyverylongword\nand more\n");
        assert_eq!(folded("one two", 7), "one two");
        assert_eq!(folded("one two", usize::MAX), "one two");
    }

    #[test]
    fn styles_have_no_width_and_leave_blanks_alone() {
        let text = Style::Bad.painted("  ERROR ");
        assert_eq!((text.as_str(), width(&text)), ("  \x1b[1;31mERROR\x1b[0m ", 8));
        assert_eq!(Style::Good.painted("   "), "   ");
        // Without a terminal.
        assert_eq!(Style::Good.paint("ok"), "ok");
    }
}
