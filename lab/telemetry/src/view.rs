//! The live view: which rows and columns of the latest snapshots stand where on the screen, and what keys change.
//! Knows no terminal; [`live`](crate::live) has it.

use crate::sections::{Align, Section, Since, sections};
use crate::snapshot::Snapshot;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use std::cell::Cell;

/// Spaces between two columns.
const GAP: usize = 2;
/// Lines of a screen on which the energy is shown. Source: chosen.
const ENERGY_FROM: usize = 16;
/// What the keys do, on the last line. Longer ones first: the first that fits is shown.
const HELP: [&str; 3] = [
    "q quit  Tab table  ←→ sort by  r reverse  ↑↓ scroll  t totals or rates",
    "q quit  Tab table  ←→ sort  r reverse  t totals",
    "q quit",
];

/// What a key asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// Draw again.
    Draw,
    /// Nothing.
    Ignore,
    /// End.
    Quit,
}

/// The state of the live view.
#[derive(Debug)]
pub struct View {
    before: Option<Snapshot>,
    now: Snapshot,
    /// Seconds between the two.
    seconds: f64,
    /// Totals instead of rates.
    is_total: bool,
    sort: Option<String>,
    is_reversed: bool,
    /// The section to which the keys apply, as its position among those that have rows.
    focus: usize,
    /// Rows above the first one that is shown, of the section in focus.
    scroll: usize,
    /// The rows that can be above, as of the latest drawing.
    most_scroll: Cell<usize>,
    /// The width of the screen, as of the latest drawing.
    width: Cell<usize>,
    has_color: bool,
}

impl View {
    /// Creates a view that is sorted by a column, or in the order of names.
    #[must_use]
    pub fn new(now: Snapshot, sort: Option<String>, has_color: bool) -> View {
        View {
            before: None,
            now,
            seconds: 0.0,
            is_total: false,
            sort,
            is_reversed: false,
            focus: 0,
            scroll: 0,
            most_scroll: Cell::new(0),
            width: Cell::new(usize::MAX),
            has_color,
        }
    }

    /// Takes the next snapshot, taken `seconds` after the one before.
    pub fn update(&mut self, next: Snapshot, seconds: f64) {
        self.before = Some(std::mem::replace(&mut self.now, next));
        self.seconds = seconds;
    }

    /// True if the present snapshot has a device of a run or of hardware.
    pub(crate) fn has_lasting_devices(&self) -> bool {
        self.now.has_lasting_devices()
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Reaction {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => Reaction::Quit,
            KeyCode::Char('l') if control => Reaction::Draw,
            KeyCode::Char('q') | KeyCode::Esc => Reaction::Quit,
            KeyCode::Char('t') => {
                self.is_total = !self.is_total;
                Reaction::Draw
            }
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                Reaction::Draw
            }
            KeyCode::Tab => self.focus_on(1),
            KeyCode::BackTab => self.focus_on(-1),
            KeyCode::Right => self.sort_by(1),
            KeyCode::Left => self.sort_by(-1),
            KeyCode::Down => self.scroll_by(1),
            KeyCode::Up => self.scroll_by(-1),
            KeyCode::PageDown => self.scroll_by(10),
            KeyCode::PageUp => self.scroll_by(-10),
            _ => Reaction::Ignore,
        }
    }

    fn focus_on(&mut self, by: isize) -> Reaction {
        let count = self.sections(usize::MAX).len().max(1);
        self.focus = (self.focus % count + count).wrapping_add_signed(by) % count;
        self.scroll = 0;
        Reaction::Draw
    }

    /// Sorts by the next or the previous column of the section in focus, of those that are shown.
    fn sort_by(&mut self, by: isize) -> Reaction {
        let sections = self.sections(self.width.get());
        let Some(section) = sections.get(self.focus.min(sections.len().saturating_sub(1))) else {
            return Reaction::Ignore;
        };
        let names: Vec<&str> = section.columns.iter().map(|column| column.name).collect();
        let at = self.sort.as_ref().and_then(|sort| names.iter().position(|name| name == sort));
        let next = match at {
            Some(at) => (at + names.len()).wrapping_add_signed(by) % names.len(),
            None if by > 0 => 0,
            None => names.len() - 1,
        };
        self.sort = Some(names[next].into());
        self.is_reversed = false;
        Reaction::Draw
    }

    fn scroll_by(&mut self, by: isize) -> Reaction {
        self.scroll = self.scroll.min(self.most_scroll.get()).saturating_add_signed(by).min(self.most_scroll.get());
        Reaction::Draw
    }

    /// The sections of the present snapshot, sorted, with the columns that fit.
    fn sections(&self, width: usize) -> Vec<Section> {
        let empty = Snapshot::default();
        let before = self.before.as_ref().unwrap_or(&empty);
        let since = (!self.is_total).then_some(Since { before, seconds: self.seconds });
        let mut sections = sections(&self.now, since);
        let has_one_source = self.now.sources().len() == 1;
        for section in &mut sections {
            if has_one_source {
                section.remove("source");
            }
            if let Some(sort) = &self.sort {
                section.sort(sort, self.is_reversed);
            }
            section.fit(width, GAP);
        }
        sections
    }

    fn style(&self, color: Color, modifier: Modifier) -> Style {
        let style = Style::new().add_modifier(modifier);
        if self.has_color { style.fg(color) } else { style }
    }

    /// Draws everything.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let (width, height) = (usize::from(area.width), usize::from(area.height));
        if width == 0 || height == 0 {
            return;
        }
        self.width.set(width);
        let sections = self.sections(width);
        let focus = self.focus.min(sections.len().saturating_sub(1));
        let mut lines = vec![self.heading(width)];
        // The energy needs a screen that has lines left beside the tables.
        if height >= ENERGY_FROM {
            lines.push(Line::from(self.energy(width).chars().take(width).collect::<String>()));
        }
        // The heading, the help, and the problems have their lines first.
        let problems = self.now.problems.len().min(2);
        let space = height.saturating_sub(1 + lines.len() + problems);
        let rows = distribute(space, focus, &sections.iter().map(|section| section.rows.len()).collect::<Vec<_>>());
        for (at, (section, rows)) in sections.iter().zip(rows).enumerate() {
            if let Some(rows) = rows {
                let scroll = if at == focus { self.scroll } else { 0 };
                self.section(section, rows, scroll, at == focus, &mut lines);
            }
        }
        let problem = |text: &String| Line::styled(text.clone(), self.style(Color::Red, Modifier::empty()));
        lines.extend(self.now.problems.iter().take(problems).map(problem));
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), Line::default());
        let help = HELP.iter().find(|help| help.chars().count() <= width).copied().unwrap_or_default();
        lines.push(Line::styled(help, self.style(Color::DarkGray, Modifier::empty())));
        for (y, line) in (area.y..).zip(lines) {
            if y < area.bottom() {
                frame.render_widget(line, Rect { y, height: 1, ..area });
            }
        }
    }

    /// The power of the packages, and their energy by what devices have written. Of a reason that is longer than a
    /// line, its first part.
    fn energy(&self, width: usize) -> String {
        let Some(before) = &self.before else { return "packages: –".into() };
        match self.now.energy_since(before) {
            Ok((energy, written)) => {
                let joules = energy as f64 / 1e6;
                let watts = joules / self.seconds.max(1e-9);
                let by_data = match written {
                    0 => String::new(),
                    written => format!(" · {:.2} J/GB written by devices", joules / (written as f64 / 1e9)),
                };
                format!("packages: {watts:.1} W{by_data}")
            }
            Err(reason) => {
                let shown = |reason: &str| format!("packages: – ({reason})");
                let whole = shown(&reason);
                let first = reason.split("; ").flat_map(|part| part.split(": ")).next().unwrap_or_default();
                if whole.chars().count() <= width { whole } else { shown(first) }
            }
        }
    }

    fn heading(&self, width: usize) -> Line<'static> {
        let sources = self.now.sources();
        let name = match sources.iter().next() {
            Some(source) if sources.len() == 1 => (*source).to_owned(),
            None => "programs".to_owned(),
            _ => format!("{} sources", sources.len()),
        };
        let shown = match (&self.before, self.is_total) {
            (_, true) => "totals".to_owned(),
            (None, false) => "rates come with the second reading".to_owned(),
            (Some(_), false) => format!("per second, over {:.1} s", self.seconds),
        };
        let sorted = self.sort.as_ref().map_or_else(String::new, |sort| {
            format!(" · by {sort}{}", if self.is_reversed { ", reversed" } else { "" })
        });
        let text: String = format!("telpher top · {name} · {shown}{sorted}").chars().take(width).collect();
        Line::styled(text, self.style(Color::Cyan, Modifier::BOLD))
    }

    fn section(&self, section: &Section, rows: usize, scroll: usize, has_focus: bool, lines: &mut Vec<Line<'static>>) {
        let widths = section.widths();
        let cell = |at: usize, text: &str| {
            let padding = " ".repeat(widths[at].saturating_sub(text.chars().count()));
            match section.columns[at].align {
                Align::Left => format!("{text}{padding}{}", " ".repeat(GAP)),
                Align::Right => format!("{padding}{text}{}", " ".repeat(GAP)),
            }
        };
        let heading = section.columns.iter().enumerate().map(|(at, column)| {
            let is_sorted = self.sort.as_deref() == Some(column.name);
            let mut modifier = if has_focus { Modifier::REVERSED } else { Modifier::BOLD };
            if is_sorted {
                modifier |= Modifier::UNDERLINED | Modifier::BOLD;
            }
            Span::styled(cell(at, &column.heading(section.is_rate)), self.style(Color::Reset, modifier))
        });
        lines.push(Line::from(heading.collect::<Vec<_>>()));
        // The last line of a section that is cut says how many rows are not shown.
        let is_cut = section.rows.len() > rows;
        let shown = if is_cut { rows.saturating_sub(1) } else { rows };
        let most = section.rows.len().saturating_sub(shown.max(1));
        let scroll = scroll.min(most);
        if has_focus {
            self.most_scroll.set(most);
        }
        for row in section.rows.iter().skip(scroll).take(shown) {
            let cells: String = row.iter().enumerate().map(|(at, of)| cell(at, &of.text)).collect();
            lines.push(Line::from(cells.trim_end().to_owned()));
        }
        if is_cut && rows > 0 {
            let hidden = section.rows.len() - shown;
            let style = self.style(Color::DarkGray, Modifier::empty());
            lines.push(Line::styled(format!("{hidden} more rows: Tab, then ↑↓"), style));
        }
        lines.push(Line::default());
    }
}

/// Distributes lines to sections: a heading, rows, and an empty line each. Returns the lines for rows; `None` for a
/// section that has no space. The one in focus is served first, and no section gets a second row before each has one.
fn distribute(lines: usize, focus: usize, rows: &[usize]) -> Vec<Option<usize>> {
    let mut given = vec![None; rows.len()];
    let mut left = lines;
    let order = || [focus].into_iter().chain(0..rows.len()).filter(|at| *at < rows.len());
    for at in order() {
        // A heading, a row, and the empty line.
        if given[at].is_none() && left >= 2 {
            left = left.saturating_sub(3);
            given[at] = Some(1);
        }
    }
    let mut has_given = true;
    while left > 0 && has_given {
        has_given = false;
        for at in 0..rows.len() {
            if let Some(now) = given[at].as_mut().filter(|now| left > 0 && **now < rows[at]) {
                *now += 1;
                left -= 1;
                has_given = true;
            }
        }
    }
    given
}
